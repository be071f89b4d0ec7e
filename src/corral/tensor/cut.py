"""Cuts a graph into one a device, so that each layer is computed where its weights lie.

    whole     embed ─▶ layer 0 ─▶ layer 1 ─▶ layer 2 ─▶ layer 3 ─▶ logits
    part 0    embed ─▶ layer 0 ─▶ layer 1 ═▶ output
    part 1                        RECEIVED ═▶ layer 2 ─▶ layer 3 ─▶ logits

The output of one part and the RECEIVED of another are the same rows under the same name; who copies
them is not known here. A graph is cut before it is fused, since devices differ in what they fuse.
"""

from collections.abc import Sequence
from dataclasses import replace

from corral.tensor.graph import Graph
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor


def cut(graph: Graph, parts: Sequence[range]) -> tuple[Graph, ...]:
    """Return a graph for each run of layers, in the order in which they are to be evaluated.

    A node without a layer belongs to the last part that it reads from. One that reads no other
    node, as embeddings and rotations do, is computed in every part that reads it: nothing of it
    crosses, and what it needs is in each of those parts.
    """
    if len(parts) == 1:
        return (graph,)
    cutter = _Cutter(graph, {layer: n for n, part in enumerate(parts) for layer in part})
    return tuple(cutter.part(number) for number in range(len(parts)))


class _Cutter:
    """Which part each node of a graph belongs to, and what goes from part to part."""

    def __init__(self, graph: Graph, parts: dict[int, int]) -> None:
        self.graph = graph
        self._of: dict[Tensor, int | None] = {}
        """None: in every part that reads it."""
        for node in graph:
            known = [self._of[s] for s in node.sources if s in self._of]
            inherited = max((part for part in known if part is not None), default=None)
            self._of[node] = inherited if node.layer is None else parts[node.layer]
        self._sent = self._find_sent()

    def _find_sent(self) -> dict[Tensor, None]:
        """Return the values that a later part reads, in order."""
        sent: dict[Tensor, None] = {}
        for node in self.graph:
            for source in node.sources:
                part = self._of.get(source)
                if part is not None and part != self._of[node]:
                    sent.setdefault(source)
        return sent

    def part(self, number: int) -> Graph:
        """Return the graph of one part."""
        renewed: dict[Tensor, Tensor] = {}
        nodes: list[Tensor] = []

        def here(tensor: Tensor) -> Tensor:
            if tensor.op.traits.is_leaf:
                return tensor
            if tensor not in renewed:
                if self._of[tensor] in (number, None):
                    sources = tuple(map(here, tensor.sources))
                    changed = sources != tensor.sources
                    renewed[tensor] = replace(tensor, sources=sources) if changed else tensor
                    nodes.append(renewed[tensor])
                else:
                    renewed[tensor] = _received(tensor)
            return renewed[tensor]

        for node in self.graph:
            if self._of[node] == number:
                here(node)
        wanted = (*self._sent, *self.graph.outputs)
        outputs = dict.fromkeys(renewed[t] for t in wanted if self._of[t] == number)
        return Graph(tuple(nodes), tuple(outputs), self.graph.shape_class)


def _received(tensor: Tensor) -> Tensor:
    return Tensor(
        tensor.name,
        Op.RECEIVED,
        tensor.dtype,
        tensor.shape,
        extent=tensor.extent,
        layer=tensor.layer,
    )
