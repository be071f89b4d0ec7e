"""What a device may compute in one go: products of the same rows, and a gate behind two of them.

    q = x · wq ─┐                    gate = x · wg ─┐
    k = x · wk ─┼─ one step          up   = x · wu ─┼─ one step, whose only result is `active`
    v = x · wv ─┘                    active = silu(gate) · up ─┘

Joining is offered, not done: a step's nodes stand in the order of the graph, and computing them one
after the other gives the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corral.tensor.graph import Graph
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor

MOST_PRODUCTS = 3
"""Products of one step."""
_GATES = (Op.GATED, Op.GATED_QUANTIZE)


@dataclass(frozen=True, slots=True)
class Step:
    """Nodes that follow each other; a single one of any operation, or products that share x."""

    nodes: tuple[Tensor, ...]
    gate: Tensor | None = None
    """A GATED or GATED_QUANTIZE of exactly these two products, which nobody else reads."""

    @property
    def is_product(self) -> bool:
        """Whether the nodes are products by matrices."""
        return self.nodes[0].op in (Op.MATMUL, Op.MATMUL_ADD)

    @property
    def x(self) -> Tensor:
        """The rows that all products of the step share."""
        return self.nodes[0].sources[0]


def steps(graph: Graph) -> tuple[Step, ...]:
    """Return the nodes of a graph in steps, each node in one; views, which do nothing, left out."""
    nodes = [node for node in graph if node.op is not Op.VIEW]
    readers = graph.consumers()
    found: list[Step] = []
    number = 0
    while number < len(nodes):
        run = tuple(_products(nodes[number:]))
        after = nodes[number + len(run)] if number + len(run) < len(nodes) else None
        if after is not None and _is_gate(after, run, readers, graph.outputs):
            found.append(Step(run, after))
            number += len(run) + 1
        else:
            found.append(Step(run or (nodes[number],)))
            number += len(run) or 1
    return tuple(found)


def _products(nodes: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the first nodes as long as they are plain products of the same rows."""
    first = nodes[0]
    for node in nodes[:MOST_PRODUCTS]:
        if node.op is not Op.MATMUL or node.sources[0] is not first.sources[0]:
            return
        yield node


def _is_gate(
    node: Tensor,
    products: Sequence[Tensor],
    readers: dict[Tensor, tuple[Tensor, ...]],
    outputs: Sequence[Tensor],
) -> bool:
    if node.op not in _GATES or len(products) != 2 or node.sources != tuple(products):
        return False
    return all(readers.get(p) == (node,) and p not in outputs for p in products)
