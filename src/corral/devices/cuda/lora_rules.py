"""The launches of adapters: A · x of up to three products of one x at once, then B of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch, ceil_divide
from corral.errors import InternalError
from corral.tensor.attach import UNIT_RANKS
from corral.tensor.steps import MOST_PRODUCTS
from corral.tensor.tensor import Tensor

_THREADS = 256
_UP_COLUMNS = 8 * _THREADS
_TILE = 4
"""Rows of a block where there are more than sequences that go on by one each."""
_MANY_ROWS = 32


def lora_down(at: Binding, nodes: Sequence[Tensor]) -> tuple[Launch, ...]:
    """Return the launch of LORA_DOWN nodes of one x."""
    x, spans, _ = nodes[0].sources
    parts = [_Part(node.sources[2], x, node, x.columns) for node in nodes]
    units = max(node.columns for node in nodes) // UNIT_RANKS
    return (_launch(at, "lora_down", spans, parts, units),)


def lora_up(at: Binding, nodes: Sequence[Tensor]) -> tuple[Launch, ...]:
    """Return the launch of LORA_UP nodes of the same rows.

    Raises:
        InternalError: if a result does not lie where it is added to.
    """
    for node in nodes:
        if at.address(node) != at.address(node.sources[0]):
            raise InternalError(f"{node!r} does not lie in the bytes that it adds to")
    parts = [_Part(node.sources[3], node.sources[1], node, node.columns) for node in nodes]
    runs = ceil_divide(max(node.columns for node in nodes), _UP_COLUMNS)
    return (_launch(at, "lora_up", nodes[0].sources[2], parts, runs),)


@dataclass(frozen=True, slots=True)
class _Part:
    """One product's half: its table, what it reads, what it gives or adds to, its columns."""

    adapters: Tensor
    x: Tensor
    out: Tensor
    columns: int


def _launch(
    at: Binding, function: str, spans: Tensor, parts: Sequence[_Part], blocks: int
) -> Launch:
    """Return the launch of parts, each with so many blocks for a tile of rows."""
    fields = {"spans": at.address(spans)}
    for number in range(MOST_PRODUCTS):
        part = parts[number] if number < len(parts) else None
        fields |= {
            f"adapters{number}": 0 if part is None else at.address(part.adapters),
            f"x{number}": 0 if part is None else at.address(part.x),
            f"out{number}": 0 if part is None else at.address(part.out),
            f"x_stride{number}": 0 if part is None else part.x.row_bytes,
            f"out_stride{number}": 0 if part is None else part.out.row_bytes,
            f"columns{number}": 0 if part is None else part.columns,
        }
    rows = at.rows(parts[0].out)
    tile = _TILE if rows > _MANY_ROWS else 1
    grid = (ceil_divide(rows, tile), blocks, len(parts))
    return Launch(Instance.of("lora", function, tile), grid, (_THREADS, 1, 1), fields)
