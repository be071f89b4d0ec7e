"""What a device may compute in one go: nodes that follow each other and belong together.

    q = x · wq ─┐                    gate = x · wg ─┐
    k = x · wk ─┼─ one step          up   = x · wu ─┼─ one step, whose only result is `active`
    v = x · wv ─┘                    active = silu(gate) · up ─┘

    q ─▶ (norm) ─▶ rope ─▶ q ─┐
    k ─▶ (norm) ─▶ rope ─┐    ├─ one step, which gives the turned q and a longer cache
    v ───────────────────┴─▶ kv append

    attention ─▶ quantize    one step, whose only result is the codes

    what adapters make of one x, or add to products of one x    one step

Joining is offered, not done: a step's nodes stand in the order of the graph, and computing them one
after the other gives the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corral.tensor.graph import Graph
from corral.tensor.ops import Norm, Op, Rope
from corral.tensor.tensor import Tensor

MOST_PRODUCTS = 3
"""Products of one step."""
_MOST_NODES = 5
"""Nodes of one step: q and k normed and turned, and the append."""
_GATES = (Op.GATED, Op.GATED_QUANTIZE)
_LORA = (Op.LORA_DOWN, Op.LORA_UP)


@dataclass(frozen=True, slots=True)
class Step:
    """Nodes that follow each other: one of any operation, or several that belong together."""

    nodes: tuple[Tensor, ...]
    gate: Tensor | None = None
    """A GATED or GATED_QUANTIZE of exactly these two products, which nobody else reads."""

    @property
    def all_nodes(self) -> tuple[Tensor, ...]:
        """The nodes, and the gate if there is one."""
        return self.nodes if self.gate is None else (*self.nodes, self.gate)

    @property
    def is_product(self) -> bool:
        """Whether the nodes are products by matrices."""
        return self.nodes[0].op in (Op.MATMUL, Op.MATMUL_ADD)

    @property
    def is_turned_append(self) -> bool:
        """Whether heads of q and k are turned (and normed before), k and v appended."""
        return len(self.nodes) > 1 and self.nodes[-1].op is Op.KV_APPEND

    @property
    def is_coded_attention(self) -> bool:
        """Whether this is attention whose result is wanted as codes only."""
        return len(self.nodes) > 1 and self.nodes[0].op is Op.ATTENTION

    @property
    def is_lora(self) -> bool:
        """Whether these are halves of adapters, of the same kind and the same rows."""
        return self.nodes[0].op in _LORA

    @property
    def x(self) -> Tensor:
        """The rows that all products of the step share."""
        return self.nodes[0].sources[0]


def steps(graph: Graph) -> tuple[Step, ...]:
    """Return the nodes of a graph in steps, each node in one; views, which do nothing, left out."""
    return tuple(_Grouping(graph).steps())


class _Grouping:
    """Goes through a graph once; knows who reads what."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = [node for node in graph if node.op is not Op.VIEW]
        self._readers = graph.consumers()
        self._outputs = graph.outputs

    def steps(self) -> Iterator[Step]:
        """Yield the steps in order."""
        number = 0
        while number < len(self._nodes):
            step = self._first(self._nodes[number : number + _MOST_NODES])
            yield step
            number += len(step.all_nodes)

    def _first(self, nodes: Sequence[Tensor]) -> Step:
        """Return the step that begins with the first of these nodes."""
        products = tuple(_products(nodes))
        if products:
            gate = nodes[len(products)] if len(products) < len(nodes) else None
            return Step(products, gate if self._is_gate(gate, products) else None)
        halves = tuple(_lora_halves(nodes))
        if halves:
            return Step(halves)
        if self._is_coded_attention(nodes[:2]):
            return Step(tuple(nodes[:2]))
        return Step(self._turned_append(nodes) or (nodes[0],))

    def _is_only_for(self, node: Tensor, reader: Tensor) -> bool:
        return self._readers.get(node) == (reader,) and node not in self._outputs

    def _is_gate(self, node: Tensor | None, products: Sequence[Tensor]) -> bool:
        if node is None or node.op not in _GATES or node.sources != tuple(products):
            return False
        return all(self._is_only_for(product, node) for product in products)

    def _is_coded_attention(self, nodes: Sequence[Tensor]) -> bool:
        if [node.op for node in nodes] != [Op.ATTENTION, Op.QUANTIZE]:
            return False
        attention, codes = nodes
        return codes.sources == (attention,) and self._is_only_for(attention, codes)

    def _turned_append(self, nodes: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the first nodes if they turn q and k and append k and v, or nothing."""
        q = self._turned(nodes)
        k = self._turned(nodes[len(q) :])
        rest = nodes[len(q) + len(k) :]
        if not q or not k or not rest or rest[0].op is not Op.KV_APPEND:
            return ()
        append, q_rope, k_rope = rest[0], q[-1], k[-1]
        made = (*q, *k)
        is_k = append.sources[0] is k_rope and self._is_only_for(k_rope, append)
        is_apart = k[0].sources[0] not in made and append.sources[1] not in made
        are_alike = (
            q_rope.sources[1] is k_rope.sources[1]
            and q_rope.attributes == k_rope.attributes
            and q_rope.extent is k_rope.extent
        )
        return (*made, append) if is_k and is_apart and are_alike else ()

    def _turned(self, nodes: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the first node if it turns heads, or two if the first norms them before."""
        if nodes and nodes[0].op is Op.ROPE:
            return (nodes[0],)
        if [node.op for node in nodes[:2]] != [Op.RMS_NORM, Op.ROPE]:
            return ()
        norm, rope = nodes[:2]
        assert isinstance(norm.attributes, Norm) and isinstance(rope.attributes, Rope)
        is_by_head = norm.attributes.group == rope.attributes.head_dim
        is_own = rope.sources[0] is norm and self._is_only_for(norm, rope)
        return (norm, rope) if is_by_head and is_own else ()


def _lora_halves(nodes: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the first nodes as long as they are halves of adapters of one kind, for one x."""
    first = nodes[0]
    if first.op not in _LORA:
        return
    place = 1 if first.op is Op.LORA_UP else None
    x = first.sources[1].sources[0] if place else first.sources[0]
    for node in nodes[:MOST_PRODUCTS]:
        if node.op is not first.op:
            return
        own = node.sources[1].sources[0] if place else node.sources[0]
        if own is not x:
            return
        yield node


def _products(nodes: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the first nodes as long as they are plain products of the same rows."""
    first = nodes[0]
    for node in nodes[:MOST_PRODUCTS]:
        if node.op is not Op.MATMUL or node.sources[0] is not first.sources[0]:
            return
        yield node
