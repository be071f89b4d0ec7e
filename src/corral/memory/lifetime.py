"""Lifetimes of buffers, and the lifetimes of values inside one evaluation.

A buffer's lifetime says what may end it; a value's says between which nodes its bytes are needed.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from corral.memory.traits import DeviceTraits
from corral.tensor.graph import Graph
from corral.tensor.ops import Op
from corral.tensor.steps import steps
from corral.tensor.tensor import Tensor


class Lifetime(enum.Enum):
    """Why bytes are held, and therefore when they go.

    WEIGHTS, ADAPTER   loaded ─────────────────────────────── unloaded
    STATE                  created ──────────────────── closed
    RECORDS                  lowered ───────────── plan freed
    SCRATCH                    │ evaluation │ evaluation │     (overwritten each time)
    STAGING                    │ written by the host before each evaluation, or while loading
    CONTEXT, DRIVER    held by the driver; measured, never allocated by us
    """

    WEIGHTS = "weights"
    ADAPTER = "adapter"
    STATE = "state"
    SCRATCH = "scratch"
    RECORDS = "records"
    STAGING = "staging"
    CONTEXT = "context"
    DRIVER = "driver"


def is_elsewhere(lifetime: Lifetime, traits: DeviceTraits) -> bool:
    """Whether bytes of a device's plan lie in the host's memory and not in its own."""
    return lifetime in (Lifetime.STAGING, Lifetime.RECORDS) and traits.has_own_memory


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes needed from node number `first` to node number `last`, both included."""

    key: Tensor
    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: "Interval") -> bool:
        """Whether both are needed at some moment."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Liveness:
    """The intervals of a graph's scratch values, and which values live in another's bytes."""

    intervals: tuple[Interval, ...]
    owner: dict[Tensor, Tensor]
    """Every scratch value to the one whose bytes it uses; itself where it has its own."""


def liveness(graph: Graph, *, joins_steps: bool = False) -> Liveness:
    """Return when each scratch value of the graph needs its bytes.

    A value takes over the bytes of a source where its operation allows it, the sizes are equal and
    nobody reads the source later. Views and KV appends own nothing. Outputs live to the end, what
    another device computed lives from the beginning. Where a device computes the nodes of a step in
    one go, whatever any of them reads lives until the last of them.
    """
    last_use = _last_uses(graph)
    if joins_steps:
        last_use |= _until_ends_of_steps(graph, last_use)
    received = graph.leaves(Op.RECEIVED)
    owner = {tensor: tensor for tensor in received}
    first = dict.fromkeys(received, 0)
    last = {tensor: last_use[tensor] for tensor in received}
    for number, node in enumerate(graph):
        if node.base.op.traits.is_leaf and node.base not in owner:
            continue  # the state, or a view of an input
        taken = _taken_over(node, number, owner, last)
        root = owner[taken] if taken is not None else node
        owner[node] = root
        first.setdefault(root, number)
        last[root] = max(last.get(root, number), last_use.get(node, number))
    intervals = tuple(Interval(t, t.size_bytes, first[t], last[t]) for t in first)
    return Liveness(intervals, owner)


def _last_uses(graph: Graph) -> dict[Tensor, int]:
    last = {source: number for number, node in enumerate(graph) for source in node.sources}
    return last | {output: len(graph) for output in graph.outputs}


def _until_ends_of_steps(graph: Graph, last_use: dict[Tensor, int]) -> dict[Tensor, int]:
    """Return the last uses of what steps read, as late as the last nodes of those steps."""
    numbers = {node: number for number, node in enumerate(graph)}
    later: dict[Tensor, int] = {}
    for step in steps(graph):
        nodes = step.all_nodes
        end = numbers[nodes[-1]]
        read = {source for node in nodes for source in node.sources if source not in nodes}
        # What adapters add to is read by the one that adds, and by nobody else in the step.
        for source in read - {node.sources[0] for node in nodes if node.op is Op.LORA_UP}:
            later[source] = max(last_use[source], end)
    return later


def _taken_over(
    node: Tensor, number: int, owner: dict[Tensor, Tensor], last: dict[Tensor, int]
) -> Tensor | None:
    index = node.op.traits.in_place
    if index is None:
        return None
    source = node.sources[index]
    if node.op is Op.VIEW:
        return source
    if source not in owner or source.op is Op.VIEW or source.size_bytes != node.size_bytes:
        return None
    if last[owner[source]] > number or _read_twice(source, node, owner):
        return None
    return source


def _read_twice(source: Tensor, node: Tensor, owner: dict[Tensor, Tensor]) -> bool:
    """Whether another source of the node lies in the same bytes."""
    others: Iterable[Tensor] = node.sources
    return sum(owner.get(other) is owner[source] for other in others) > 1
