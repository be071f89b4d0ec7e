"""Encoding: F32 values to blocks of Q4_K, Q5_K and Q6_K, with the searches of `quant/search.py`.

The bytes are those that `quant/quantize.py` makes. There a search treats many parts of blocks at
once; here a part is a lane, so sums run in the order of the columns as they must. Sixteen parts are
two blocks of Q4_K or Q5_K, or one of Q6_K. They are turned before, so that a column of all parts is
a vector, and their codes are turned back.

Values must be finite and, so that no sum overflows, at most 2³⁰ in magnitude. A scale that F16
cannot hold becomes infinite; whoever calls looks at the results.
"""

from collections.abc import Callable

from corral.devices.cpu.kernels.encode_parts import LANES, TILE_BYTES, Parts
from corral.devices.cpu.kernels.encode_ranges import Q4_RANGES, Q5_RANGES, encode_ranges
from corral.devices.cpu.kernels.encode_scales import encode_scales
from corral.devices.cpu.simd import Kernel, Value, minimum
from corral.quant.types import DType

FIELDS = ("values", "out", "blocks")
"""Addresses of F32 values and of the blocks, without gaps; how many blocks there are."""

GREATEST = 2.0**30
"""Magnitude that no value may exceed."""

_BLOCK_VALUES = 256


def encode(k: Kernel, record: Value, thread: Value, threads: Value, dtype: str) -> None:
    """Encode blocks of the data type of that name."""
    a, of = k.fields(record, FIELDS), DType[dtype]
    blocks_a_turn, store = _STORES[of]
    part_columns = of.block_elements * blocks_a_turn // LANES
    tiles = [k.stack(TILE_BYTES) for _ in range(3)]
    turns = (a.blocks + (blocks_a_turn - 1)) // blocks_a_turn
    first, last = k.split(turns, thread, threads)
    with k.range(first, last) as turn:
        numbers = [minimum(turn * blocks_a_turn + n, a.blocks - 1) for n in range(blocks_a_turn)]
        parts = Parts(k, part_columns, *tiles)
        parts.load([a.values + number * (4 * _BLOCK_VALUES) for number in numbers])
        store(parts, [a.out + number * of.block_bytes for number in numbers])


def encode_record(values: int, out: int, *, blocks: int) -> tuple[int, ...]:
    """Return the fields of the kernel."""
    return (values, out, blocks)


Store = Callable[[Parts, list[Value]], None]
_STORES: dict[DType, tuple[int, Store]] = {
    DType.Q4_K: (2, lambda parts, out: encode_ranges(parts, out, Q4_RANGES)),
    DType.Q5_K: (2, lambda parts, out: encode_ranges(parts, out, Q5_RANGES)),
    DType.Q6_K: (1, encode_scales),
}
"""How many blocks are encoded at once, and how."""

ENCODED = tuple(_STORES)
"""The types that there are kernels for."""
