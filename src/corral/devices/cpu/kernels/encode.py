"""Encoding: F32 values to the bytes that `quant/quantize.py` makes.

K-quants search for their scales as `quant/search.py` does. There a search treats many parts of
blocks at once; here a part is a lane, so sums run in the order of the columns as they must. Sixteen
parts are two blocks of Q4_K or Q5_K, or one of Q2_K, Q3_K or Q6_K. They are turned before, so that
a column of all parts is a vector, and their codes are turned back.

Values must be finite, and no larger than `GREATEST` says. A scale of a K-quant that F16 cannot hold
becomes infinite; whoever calls looks at the results.
"""

from collections.abc import Callable

from corral.devices.cpu.kernels.encode_parts import LANES, TILE_BYTES, Parts
from corral.devices.cpu.kernels.encode_plain import PLAIN, encode_block, encode_floats
from corral.devices.cpu.kernels.encode_ranges import (
    Q2_RANGES,
    Q4_RANGES,
    Q5_RANGES,
    encode_ranges,
)
from corral.devices.cpu.kernels.encode_refined import encode_refined
from corral.devices.cpu.kernels.encode_scales import encode_scales
from corral.devices.cpu.simd import Fields, Kernel, Value, minimum
from corral.quant.types import DType

FIELDS = ("values", "out", "blocks")
"""Addresses of F32 values and of the blocks, without gaps; how many blocks there are."""

_SPAN = 256


def encode(k: Kernel, record: Value, thread: Value, threads: Value, dtype: str) -> None:
    """Encode blocks of the data type of that name."""
    a, of = k.fields(record, FIELDS), DType[dtype]
    if of in PLAIN:
        _encode_plain(k, a, of, k.split(a.blocks, thread, threads))
        return
    blocks_a_turn, store = _SEARCHES[of]
    turns = (a.blocks + (blocks_a_turn - 1)) // blocks_a_turn
    first, last = k.split(turns, thread, threads)
    tiles = [k.stack(TILE_BYTES) for _ in range(3)]
    parts = Parts(k, _SPAN * blocks_a_turn // LANES, *tiles)
    with k.range(first, last) as turn:
        numbers = [minimum(turn * blocks_a_turn + n, a.blocks - 1) for n in range(blocks_a_turn)]
        parts.load([a.values + number * (4 * _SPAN) for number in numbers])
        store(parts, [a.out + number * of.block_bytes for number in numbers])


def _encode_plain(k: Kernel, a: Fields, of: DType, share: tuple[Value, Value]) -> None:
    if not of.is_quantized:
        encode_floats(k, a.values, a.out, share, of)
        return
    with k.range(*share) as block:
        values = a.values + block * (4 * of.block_elements)
        encode_block(k, values, a.out + block * of.block_bytes, of)


def encode_record(values: int, out: int, *, blocks: int) -> tuple[int, ...]:
    """Return the fields of the kernel."""
    return (values, out, blocks)


Store = Callable[[Parts, list[Value]], None]
_SEARCHES: dict[DType, tuple[int, Store]] = {
    DType.Q2_K: (1, lambda parts, out: encode_ranges(parts, out, Q2_RANGES)),
    DType.Q3_K: (1, encode_refined),
    DType.Q4_K: (2, lambda parts, out: encode_ranges(parts, out, Q4_RANGES)),
    DType.Q5_K: (2, lambda parts, out: encode_ranges(parts, out, Q5_RANGES)),
    DType.Q6_K: (1, encode_scales),
}
"""How many blocks are encoded at once, and how."""

GREATEST = {**PLAIN, **dict.fromkeys(_SEARCHES, 2.0**30)}
"""The types that there are kernels for, and the magnitude that no value may exceed: of a plain type
because of F16, of others so that no sum overflows."""
