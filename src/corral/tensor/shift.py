"""From a model's graph to the one that shifts its context: keys of some blocks, turned further.

    positions (how far) ─▶ rotations ─┬─▶ KV_SHIFT of the first layer's state
                                      └─▶ KV_SHIFT of the next …

Turning a key that was turned for position p once more, by the angles of −d, gives the key of
position p − d: rotations of one plane add up. Values know no position. A row is a block, the same
for all layers; it says how far, where from and where to.
"""

from collections.abc import Iterator

from corral.errors import InvalidArgument
from corral.quant.types import DType
from corral.tensor.graph import Graph, ShapeClass
from corral.tensor.ops import Attend, Op, Rotation
from corral.tensor.tensor import Extent, Tensor

POSITIONS = "positions"
FROM_BLOCKS = "from_blocks"
TO_BLOCKS = "to_blocks"
SHIFT_ROWS = 128
"""Blocks that one evaluation turns at most; more are turned by several."""


def shift_graph(graph: Graph) -> Graph:
    """Return the graph that turns the cached keys of every layer of a model's graph.

    Raises:
        InvalidArgument: as `require_shift`.
    """
    require_shift(graph)
    positions, from_blocks, to_blocks = (_input(n) for n in (POSITIONS, FROM_BLOCKS, TO_BLOCKS))
    turns: dict[Tensor, Tensor] = {}
    shifts = []
    for append in _appends(graph):
        rope, state = append.sources[0], append.sources[2]
        rotations = rope.sources[1]
        if rotations not in turns:
            turns[rotations] = _turning(rotations, positions, number=len(turns))
        sources = (state, turns[rotations], from_blocks, to_blocks)
        shifts.append(
            Tensor(
                f"kv_shift.{append.layer}",
                Op.KV_SHIFT,
                state.dtype,
                state.shape,
                sources,
                rope.attributes,
                layer=append.layer,
            )
        )
    first = next(iter(turns.values()))
    # An evaluation has something to read, and these are small.
    return Graph((*turns.values(), *shifts), (first,), ShapeClass(SHIFT_ROWS, 0, 0, 0))


def require_shift(graph: Graph) -> None:
    """Refuse a model whose context cannot be shifted.

    Raises:
        InvalidArgument: if a layer looks back over a window, or keeps keys that were not turned.
    """
    for node in graph:
        if isinstance(node.attributes, Attend) and node.attributes.window is not None:
            raise InvalidArgument(
                f"layer {node.layer} looks back over a window of {node.attributes.window} tokens, "
                "and what lies behind it is gone: the context of this model cannot be shifted; "
                "load it without context shift"
            )
    for append in _appends(graph):
        if append.sources[0].op is not Op.ROPE:
            raise InvalidArgument(
                f"the keys of layer {append.layer} do not say their position by being turned: the "
                "context of this model cannot be shifted; load it without context shift"
            )


def _appends(graph: Graph) -> Iterator[Tensor]:
    return (node for node in graph if node.op is Op.KV_APPEND)


def _input(name: str) -> Tensor:
    return Tensor(name, Op.INPUT, DType.I32, (SHIFT_ROWS,), extent=Extent.ROWS)


def _turning(rotations: Tensor, positions: Tensor, *, number: int) -> Tensor:
    """Return rotations of the same frequencies; keys have their magnitude already."""
    _, *frequencies = rotations.sources
    return Tensor(
        f"shift_rotations.{number}",
        Op.ROTATIONS,
        DType.F32,
        (SHIFT_ROWS, rotations.columns),
        (positions, *frequencies),
        Rotation(),
        Extent.ROWS,
    )
