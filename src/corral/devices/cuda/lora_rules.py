"""The launches of adapters: A · x of up to three products of one x at once, then B of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch, ceil_divide
from corral.devices.cuda.traits import ADAPTER_PART_COLUMNS as PART_COLUMNS
from corral.errors import InternalError
from corral.tensor.attach import UNIT_RANKS
from corral.tensor.steps import MOST_PRODUCTS
from corral.tensor.tensor import Tensor

_THREADS = 128
_UP_COLUMNS = 4 * _THREADS
_TILE = 4
"""Rows of a block where there are more than sequences that go on by one each."""
_MANY_ROWS = 32


def lora_down(at: Binding, nodes: Sequence[Tensor]) -> tuple[Launch, ...]:
    """Return the launch of LORA_DOWN nodes of one x."""
    x, spans, _ = nodes[0].sources
    parts = ceil_divide(x.columns, PART_COLUMNS)
    products = [_Product(node.sources[2], x, node, x.columns, parts) for node in nodes]
    units = nodes[0].columns // (UNIT_RANKS * parts)
    return (_launch(at, "lora_down", spans, products, units, units * parts),)


def lora_up(at: Binding, nodes: Sequence[Tensor]) -> tuple[Launch, ...]:
    """Return the launch of LORA_UP nodes of the same rows.

    Raises:
        InternalError: if a result does not lie where it is added to.
    """
    for node in nodes:
        if at.address(node) != at.address(node.sources[0]):
            raise InternalError(f"{node!r} does not lie in the bytes that it adds to")
    down = nodes[0].sources[1]
    parts = ceil_divide(down.sources[0].columns, PART_COLUMNS)
    products = [
        _Product(node.sources[3], node.sources[1], node, node.columns, parts) for node in nodes
    ]
    units = down.columns // (UNIT_RANKS * parts)
    runs = ceil_divide(max(node.columns for node in nodes), _UP_COLUMNS)
    return (_launch(at, "lora_up", nodes[0].sources[2], products, units, runs),)


@dataclass(frozen=True, slots=True)
class _Product:
    """One product's half: its table, what it reads, what it gives or adds to."""

    adapters: Tensor
    x: Tensor
    out: Tensor
    columns: int
    parts: int


def _launch(
    at: Binding,
    function: str,
    spans: Tensor,
    products: Sequence[_Product],
    units: int,
    blocks: int,
) -> Launch:
    """Return the launch of products, each with so many blocks for a tile of rows."""
    fields = {"spans": at.address(spans), "units": units}
    for number in range(MOST_PRODUCTS):
        one = products[number] if number < len(products) else None
        fields |= {
            f"adapters{number}": 0 if one is None else at.address(one.adapters),
            f"x{number}": 0 if one is None else at.address(one.x),
            f"out{number}": 0 if one is None else at.address(one.out),
            f"x_stride{number}": 0 if one is None else one.x.row_bytes,
            f"out_stride{number}": 0 if one is None else one.out.row_bytes,
            f"columns{number}": 0 if one is None else one.columns,
            f"parts{number}": 0 if one is None else one.parts,
        }
    rows = at.rows(products[0].out)
    tile = _TILE if rows > _MANY_ROWS else 1
    grid = (ceil_divide(rows, tile), blocks, len(products))
    return Launch(Instance.of("lora", function, tile), grid, (_THREADS, 1, 1), fields)
