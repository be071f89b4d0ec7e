"""Writes the keys and values of a batch to the blocks of their sequences."""

from dataclasses import dataclass

from corral.devices.cpu.kernels.columns import LANES, VECTOR, shared_runs
from corral.devices.cpu.kernels.kv_block import GROUP, Part
from corral.devices.cpu.kernels.quantize import int8_codes
from corral.devices.cpu.simd import Kernel, Value, convert, f16, i8, i32, i64
from corral.kv.spec import BLOCK_TOKENS
from corral.quant.types import DType

FIELDS = (
    "k", "v", "state", "count", "positions", "sequences", "tables",
    "k_stride", "v_stride", "tables_stride", "kv_heads",
)  # fmt: skip
"""Addresses of F32 keys and values, of the layer's state, the i64 row count, i32 positions and
sequences (rows of the tables) of each row and i32 tables of block ids; bytes from a row to the
next; heads of a row."""


def kv_append(
    k: Kernel, record: Value, thread: Value, threads: Value, *, head_dim: int, dtype: str
) -> None:
    """Write rows of keys and values; `dtype` is the data type of the state.

    `head_dim` is a multiple of 16, of 32 for Q8_0.
    """
    a = k.fields(record, FIELDS)
    part, count = Part(DType[dtype], head_dim), k.load(i64, a.count)
    with shared_runs(k, count, a.kv_heads, thread, threads) as (row, first, last):
        position = convert(k.load(i32, a.positions + row * 4), i64)
        sequence = convert(k.load(i32, a.sequences + row * 4), i64)
        table = a.tables + sequence * a.tables_stride
        block = convert(k.load(i32, table + position // BLOCK_TOKENS * 4), i64)
        keys = a.state + block * a.kv_heads * (2 * part.size_bytes)
        values = keys + a.kv_heads * part.size_bytes
        token = position % BLOCK_TOKENS
        with k.range(first, last) as head:
            within, columns = head * part.size_bytes, head * (4 * head_dim)
            slot = _Slot(k, part, keys + within, token, 1, BLOCK_TOKENS)
            slot.store(a.k + row * a.k_stride + columns)
            slot = _Slot(k, part, values + within, token, head_dim, 1)
            slot.store(a.v + row * a.v_stride + columns)


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of one token in a part."""

    kernel: Kernel
    part: Part
    address: Value
    token: Value
    token_step: int
    """Elements from a token to the next."""
    step: int
    """Elements from a dimension to the next: 1, or 32 across the tokens."""

    def store(self, x: Value) -> None:
        """Store the F32 values of one head."""
        k, size = self.kernel, self.part.element.bytes
        width = GROUP if self.part.is_scaled else LANES
        with k.range(0, self.part.head_dim, width) as first:
            vectors = [k.load(VECTOR, x + first * 4 + 4 * n) for n in range(0, width, LANES)]
            if self.part.is_scaled:
                codes, scale = int8_codes(vectors[0], vectors[1])
                self._store_scale(first, convert(scale, f16))
                stored = [convert(convert(code, i32), i8) for code in codes]
            else:
                stored = [convert(vector, self.part.element) for vector in vectors]
            start = self.address + (self.token * self.token_step + first * self.step) * size
            for n, vector in enumerate(stored):
                self._store(start + n * (LANES * self.step * size), vector)

    def _store(self, address: Value, vector: Value) -> None:
        if self.step == 1:
            self.kernel.store(address, vector)
            return
        for lane in range(LANES):
            self.kernel.store(
                address + lane * (self.step * vector.type.element.bytes), vector[lane]
            )

    def _store_scale(self, first: Value, scale: Value) -> None:
        token_step = self.part.head_dim // GROUP if self.step == 1 else 1
        element = self.token * token_step + first // GROUP * self.step
        self.kernel.store(self.address + self.part.scales_offset + element * 2, scale)
