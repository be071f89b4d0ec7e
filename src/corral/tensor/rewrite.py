"""Fusions: rewrites of a graph into fewer nodes that compute the same.

Each rule looks at one node and may give another in its place; it speaks of the old graph only, and
`rewrite` carries the change through. A rule runs only for devices whose traits name the operation
it makes, and each has a test that both graphs give the same values.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from corral.quant.types import DType
from corral.tensor.attach import Attachment, attach
from corral.tensor.graph import Graph, order
from corral.tensor.ops import Op, Product
from corral.tensor.tensor import Tensor

Readers = Mapping[Tensor, tuple[Tensor, ...]]
"""Who reads each tensor; outputs are left out, because the caller reads them too."""
Rule = Callable[[Tensor, Readers], Tensor | None]


def fuse(graph: Graph, supported: frozenset[Op], *, attachment: Attachment | None = None) -> Graph:
    """Apply every fusion whose result is among the supported operations, and attach adapters.

    Adapters come behind residuals, which they may be added to, and before rows become codes.
    """
    if Op.MATMUL_ADD in supported:
        graph = rewrite(graph, add_residual)
    if attachment is not None:
        graph = attach(graph, attachment)
    if Op.GATED in supported:
        graph = rewrite(graph, gate)
    if Op.QUANTIZE in supported:
        graph = rewrite(graph, Quantizer())
    if Op.NORM_QUANTIZE in supported:
        graph = rewrite(graph, quantize_norm)
    if Op.GATED_QUANTIZE in supported:
        graph = rewrite(graph, quantize_gated)
    return graph


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Return the graph with each node replaced by what the rule gives for it, if anything."""
    readers = {t: nodes for t, nodes in graph.consumers().items() if t not in graph.outputs}
    renewed: dict[Tensor, Tensor] = {}
    nodes: list[Tensor] = []

    def visit(tensor: Tensor) -> Tensor:
        if tensor.op.traits.is_leaf:
            return tensor
        if tensor not in renewed:
            sources = tuple(visit(source) for source in tensor.sources)
            changed = sources != tensor.sources
            renewed[tensor] = replace(tensor, sources=sources) if changed else tensor
            nodes.append(renewed[tensor])
        return renewed[tensor]

    for node in graph:
        renewed[node] = visit(rule(node, readers) or node)
    outputs = tuple(renewed[output] for output in graph.outputs)
    return Graph(order(outputs, nodes), outputs, graph.shape_class)


def _only_reader(tensor: Tensor, node: Tensor, readers: Readers) -> bool:
    return readers.get(tensor) == (node,)


def add_residual(node: Tensor, readers: Readers) -> Tensor | None:
    """ADD of a MATMUL that nobody else reads → MATMUL_ADD."""
    if node.op is not Op.ADD:
        return None
    for product, residual in (node.sources, node.sources[::-1]):
        if product.op is Op.MATMUL and _only_reader(product, node, readers):
            x, weight, *bias = product.sources
            sources = (x, weight, residual, *bias)
            attributes = product.attributes
            return replace(node, op=Op.MATMUL_ADD, sources=sources, attributes=attributes)
    return None


def gate(node: Tensor, readers: Readers) -> Tensor | None:
    """MUL with an ACTIVATE that nobody else reads → GATED."""
    if node.op is not Op.MUL:
        return None
    for active, up in (node.sources, node.sources[::-1]):
        if active.op is Op.ACTIVATE and _only_reader(active, node, readers):
            sources = (active.sources[0], up)
            return replace(node, op=Op.GATED, sources=sources, attributes=active.attributes)
    return None


_CODES = {DType.A8: "codes", DType.A16: "codes16"}


class Quantizer:
    """MATMUL with quantized weights → the same on A8 or, if precise, on A16 activations.

    Products that share a source and a precision share its codes.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Tensor, DType], Tensor] = {}

    def __call__(self, node: Tensor, readers: Readers) -> Tensor | None:
        if node.op not in (Op.MATMUL, Op.MATMUL_ADD):
            return None
        x, weight, *rest = node.sources
        if not weight.dtype.is_quantized or x.dtype.is_activation:
            return None
        product = node.attributes
        is_precise = isinstance(product, Product) and product.is_precise
        dtype = DType.A16 if is_precise else DType.A8
        if (x, dtype) not in self._made:
            self._made[x, dtype] = replace(
                x,
                name=f"{x.name}.{_CODES[dtype]}",
                op=Op.QUANTIZE,
                dtype=dtype,
                sources=(x,),
                attributes=None,
            )
        return replace(node, sources=(self._made[x, dtype], weight, *rest))


def quantize_norm(node: Tensor, readers: Readers) -> Tensor | None:
    """QUANTIZE of an RMS_NORM that nobody else reads → NORM_QUANTIZE."""
    return _quantize_in(node, readers, Op.RMS_NORM, Op.NORM_QUANTIZE)


def quantize_gated(node: Tensor, readers: Readers) -> Tensor | None:
    """QUANTIZE of a GATED that nobody else reads → GATED_QUANTIZE."""
    return _quantize_in(node, readers, Op.GATED, Op.GATED_QUANTIZE)


def _quantize_in(node: Tensor, readers: Readers, inner: Op, fused: Op) -> Tensor | None:
    if node.op is not Op.QUANTIZE:
        return None
    (x,) = node.sources
    if x.op is not inner or not _only_reader(x, node, readers):
        return None
    return replace(node, op=fused, sources=x.sources, attributes=x.attributes)
