"""The graph: tensors in an order in which they can be computed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """Capacities that a graph is built for; graphs of one class share a plan."""

    rows: int
    """Tokens of a batch."""
    outputs: int
    """Rows whose logits are wanted."""
    sequences: int
    """Sequences of a batch."""
    blocks: int
    """KV blocks of one sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in topological order, leaves left out, and the tensors the caller reads."""

    nodes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shape_class: ShapeClass

    def leaves(self, op: Op) -> tuple[Tensor, ...]:
        """Return the leaves of one kind in order of first use."""
        found: dict[Tensor, None] = {}
        for node in self.nodes:
            for source in node.sources:
                if source.op is op:
                    found.setdefault(source)
        return tuple(found)

    def consumers(self) -> dict[Tensor, tuple[Tensor, ...]]:
        """Return for each tensor the nodes that read it, in order, each once."""
        readers: dict[Tensor, dict[Tensor, None]] = {}
        for node in self.nodes:
            for source in node.sources:
                readers.setdefault(source, {}).setdefault(node)
        return {tensor: tuple(nodes) for tensor, nodes in readers.items()}

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def order(outputs: Iterable[Tensor], wanted: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors of `wanted` that the outputs depend on, in the order of `wanted`.

    `wanted` must already be a legal order; this drops dead nodes only. Appends to the KV state are
    kept alive by the attention nodes that read their result.
    """
    alive: set[Tensor] = set()
    stack = list(outputs)
    while stack:
        tensor = stack.pop()
        if tensor not in alive:
            alive.add(tensor)
            stack.extend(tensor.sources)
    return tuple(tensor for tensor in wanted if tensor in alive and not tensor.op.traits.is_leaf)
