"""Adapters in a graph: what they add to the product of each weight that one of them changes.

    x ──▶ MATMUL(_ADD) ────────▶ y ──▶ LORA_UP ──▶ y + scale · B · (A · x)
      └─▶ LORA_DOWN ─▶ A · x ───────────┘

Which rows an adapter counts for, and how much, is said by spans, an input of each batch; where its
matrices lie, by a table that the host keeps: neither loading an adapter nor using one changes the
graph. Products of one x stay together, so that nothing separates what may run side by side.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from corral.quant.types import DType
from corral.tensor.graph import Graph
from corral.tensor.ops import Op
from corral.tensor.tensor import Extent, Tensor

UNIT_RANKS = 8
"""Ranks that are kept and computed together; an adapter's rank is padded to whole units."""
LANES = 16
"""Rows of B that lie side by side; the last of them are padded with zeros."""
SPAN_WORDS = 5
"""I32 of a span: its first row, the row behind its last, the adapter's slot, its first unit in what
LORA_DOWN gives, and the bits of its F32 scale. The first row of the input holds the number of
spans."""
ADAPTER_WORDS = 4
"""I64 of a slot for one weight: the addresses of A and B, the units of its rank (0: it leaves the
weight alone), and the bits of an F32 that B · A is to be multiplied with."""
SPANS = {Extent.ROWS: "adapter_rows", Extent.OUTPUTS: "adapter_outputs"}
"""Names of the inputs with spans of rows of each extent."""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """How much of adapters a graph has room for."""

    slots: int
    """Adapters that are loaded at once."""
    spans: int
    """Spans of a batch."""
    units: int
    """Units of ranks of all adapters of one row."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """Which weights some adapter may change, and the room there is."""

    weights: Collection[str]
    room: AdapterRoom
    part_columns: int = 0
    """Columns of x that a device sums apart, so that LORA_DOWN gives (parts, ranks); 0 is all."""


def table_name(weight: str) -> str:
    """Return the name of the table of a weight."""
    return f"{weight}.adapters"


def attach(graph: Graph, attachment: Attachment) -> Graph:
    """Return the graph with what adapters add, for products whose rows are F32 still.

    What adapters made of a product has its name; the product itself is called `NAME.plain`.
    """
    return _Attaching(graph, attachment).graph()


class _Attaching:
    """One pass over a graph."""

    def __init__(self, graph: Graph, attachment: Attachment) -> None:
        self._graph, self._weights, self._room = graph, attachment.weights, attachment.room
        self._part_columns = attachment.part_columns
        self._renewed: dict[Tensor, Tensor] = {}
        self._nodes: list[Tensor] = []
        self._spans = {
            extent: Tensor(name, Op.INPUT, DType.I32, (1 + self._room.spans, SPAN_WORDS))
            for extent, name in SPANS.items()
        }

    def graph(self) -> Graph:
        """Return the new graph."""
        for group in _groups(self._graph.nodes):
            self._add(group)
        outputs = tuple(self._renewed[output] for output in self._graph.outputs)
        return Graph(tuple(self._nodes), outputs, self._graph.shape_class)

    def _add(self, group: Sequence[Tensor]) -> None:
        """Add nodes that may run side by side: first A · x of all, then the products, then B."""
        downs = {node: self._down(node) for node in group if self._is_adapted(node)}
        self._nodes += downs.values()
        plain = {}
        for node in group:
            sources = tuple(self._here(source) for source in node.sources)
            name = f"{node.name}.plain" if node in downs else node.name
            changed = sources != node.sources or name != node.name
            plain[node] = replace(node, sources=sources, name=name) if changed else node
            self._nodes.append(plain[node])
            self._renewed[node] = plain[node]
        for node, down in downs.items():
            sources = (plain[node], down, *down.sources[1:])
            up = replace(node, op=Op.LORA_UP, sources=sources, attributes=None)
            self._nodes.append(up)
            self._renewed[node] = up

    def _is_adapted(self, node: Tensor) -> bool:
        return _is_product(node) and node.sources[1].name in self._weights

    def _down(self, node: Tensor) -> Tensor:
        x, weight = self._here(node.sources[0]), node.sources[1]
        shape = self._room.slots, ADAPTER_WORDS
        name = table_name(weight.name)
        table = Tensor(name, Op.ADAPTERS, DType.I64, shape, layer=weight.layer)
        parts = -(-x.columns // self._part_columns) if self._part_columns else 1
        return replace(
            node,
            name=f"{node.name}.down",
            op=Op.LORA_DOWN,
            shape=(x.shape[0], parts * self._room.units * UNIT_RANKS),
            sources=(x, self._spans[x.extent], table),
            attributes=None,
        )

    def _here(self, tensor: Tensor) -> Tensor:
        return self._renewed.get(tensor, tensor)


def _is_product(node: Tensor) -> bool:
    return node.op in (Op.MATMUL, Op.MATMUL_ADD)


def _groups(nodes: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield the nodes in order: products of one x that follow each other together, others alone."""
    group: list[Tensor] = []
    for node in nodes:
        if group and not _joins(node, group):
            yield group
            group = []
        group.append(node)
    if group:
        yield group


def _joins(node: Tensor, group: Sequence[Tensor]) -> bool:
    first = group[0]
    if not (_is_product(node) and _is_product(first)):
        return False
    is_apart = not any(source in group for source in node.sources)
    return node.sources[0] is first.sources[0] and is_apart
