"""What prefill launches: shapes → kernel instances, grids, shared memory, and scratch bytes.

Pure functions, importable where CUDA is not. A product of prefill is three launches: the weights
become the right factor, the rows become the left one, and the product itself:

    packed weights ──dequantize──▶ tiles ─┐
                                          ├─▶ matmul_wgmma / matmul_tiles ─┬─▶ F32 rows
    F32 rows ───────prepare──────▶ tiles ─┘                                └─▶ gated tiles

What factors are, and what they take, is in `memory/factors.py`.
"""

import enum
from dataclasses import dataclass

from corral.devices.cuda.instance import Instance, Kernel
from corral.kv.spec import BLOCK_TOKENS
from corral.memory.factors import (
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    Form,
)
from corral.quant.packed import CPU_INTERLEAVE, IQ4_VALUES, LAYOUTS, MXFP4_VALUES, Scales
from corral.quant.types import DType
from corral.tensor.ops import Activation

_ELEMENTS = {
    Form.BF16: "__nv_bfloat16",
    Form.F16: "__half",
    Form.SPLIT: "__nv_bfloat16",
}
"""The type of an element in kernels."""


class Source(enum.Enum):
    """What `prepare` makes the left factor of; the values are those of prepare_rows.cu."""

    ROWS = 0
    NORM = 1
    SILU = 2
    GELU = 3
    A8 = 4
    A16 = 5


class Finish(enum.Enum):
    """What becomes of a product's sums; the values are those of product.cuh."""

    PLAIN = 0
    SILU = 1
    GELU = 2
    SILU_ROWS = 3
    GELU_ROWS = 4


class Mixed(enum.Enum):
    """What attention gives; the values are those of attention.cuh."""

    FLOATS = 0
    TILES = 1
    ROWS = 2


FINISHES = {
    (Activation.SILU, True): Finish.SILU,
    (Activation.GELU, True): Finish.GELU,
    (Activation.SILU, False): Finish.SILU_ROWS,
    (Activation.GELU, False): Finish.GELU_ROWS,
}
"""By activation, and whether the next product reads tiles."""
GATED_SOURCES = {Activation.SILU: Source.SILU, Activation.GELU: Source.GELU}

# --- weights ---

DEQUANTIZE_FIELDS = ("weights", "out", "rows", "columns", "stride", "first_row", "spread")
"""`spread` is 1, or 2 for gate and up in turns of 8 rows: then `first_row` is 0 and 8."""
_DEQUANTIZE_THREADS = 256
_SCALES = {Scales.HALF: 0, Scales.SIGNED: 1, Scales.UNSIGNED: 2, Scales.EXPONENT: 3}
_VALUES: dict[tuple[int, ...] | None, int] = {None: 0, IQ4_VALUES: 1, MXFP4_VALUES: 2}


def dequantize(dtype: DType, rows: int, columns: int, *, is_tiled: bool) -> Kernel:
    """Return the kernel that makes packed weights a right factor."""
    blocks, tiled = -(-rows // CPU_INTERLEAVE), _word(is_tiled)
    layout = LAYOUTS[dtype]
    if dtype is DType.F32:
        name, columns_at_once = f"split_floats<{tiled}>", 8 * _DEQUANTIZE_THREADS // CPU_INTERLEAVE
    elif layout.is_float:
        name, columns_at_once = f"transpose_halves<{tiled}>", 8 * _DEQUANTIZE_THREADS // 2
    else:
        parameters = (
            layout.code_bits,
            _SCALES[layout.scales],
            layout.scale_columns,
            _word(layout.has_offset),
            layout.zero,
            _VALUES[layout.values],
            tiled,
        )
        name, columns_at_once = f"dequantize<{','.join(map(str, parameters))}>", 256
    padded = _up(columns, TILE_COLUMNS)
    grid = (-(-padded // columns_at_once), blocks, 1)
    return Kernel(Instance("dequantize", f"corral::{name}"), grid, _DEQUANTIZE_THREADS)


# --- rows ---

PREPARE_FIELDS = (
    "x",
    "x_stride",
    "count",
    "other",
    "other_stride",
    "columns",
    "epsilon",
    "out",
    "stride",
    "scales",
    "tile_bytes",
)
"""`other` is the weight of a norm, or up where `x` is gate."""
_PREPARE_THREADS = 256


def prepare(source: Source, form: Form, rows: int, *, is_tiled: bool) -> Kernel:
    """Return the kernel that makes rows a left factor; `rows` is the capacity."""
    number = list(Form).index(form)
    name = f"corral::prepare_rows<{source.value},{number},{_word(is_tiled)}>"
    return Kernel(Instance("prepare_rows", name), (rows, 1, 1), _PREPARE_THREADS)


# --- products ---

PRODUCT_FIELDS = (
    "x",
    "weights",
    "count",
    "tiles",
    "columns",
    "columns_1",
    "columns_2",
    "out",
    "out_1",
    "out_2",
    "out_stride",
    "out_stride_1",
    "out_stride_2",
    "bias",
    "residual",
    "residual_stride",
    "scales",
)
"""A product that has one place for its result has `columns` in columns_1 and columns_2, too."""
_MMA_THREADS, _MMA_STAGES = 256, 3
_WGMMA_THREADS = 384
_WGMMA_STAGES = {256: 4, 128: 6}
_BARRIER_BYTES = 128
_ALIGNMENT = 1024
"""Where wgmma wants its tiles in shared memory; a block aligns them itself."""


@dataclass(frozen=True, slots=True)
class Chip:
    """What the choice of a product's kernel depends on."""

    multiprocessors: int
    has_wgmma: bool
    """Compute capability 9.0, compiled for sm_90a."""
    shared_bytes: int = 99 << 10
    """Shared memory that a block of threads may have; the least of all cards that are supported."""


def product(form: Form, finish: Finish, rows: int, columns: int, chip: Chip) -> Kernel:
    """Return the kernel of a product: `rows` of capacity × `columns` of the result."""
    if not chip.has_wgmma:
        return mma_product(form, finish, rows, columns)
    return wgmma_product(form, finish, rows, columns, width_for(rows, columns, chip), chip)


def mma_product(form: Form, finish: Finish, rows: int, columns: int) -> Kernel:
    """Return the kernel of a product by mma.sync."""
    tiles = -(-rows // TILE_ROWS) * -(-columns // TILE_ROWS)
    name = f"corral::matmul_tiles<{_ELEMENTS[form]},{finish.value}>"
    shared = _MMA_STAGES * 2 * TILE_BYTES
    return Kernel(Instance("matmul_tiles", name), (tiles, 1, 1), _MMA_THREADS, shared)


def wgmma_product(
    form: Form, finish: Finish, rows: int, columns: int, width: int, chip: Chip
) -> Kernel:
    """Return the kernel of a product by wgmma whose blocks compute 128 × `width`."""
    tiles = -(-rows // TILE_ROWS) * -(-columns // width)
    name = f"corral::matmul_wgmma<{_ELEMENTS[form]},{finish.value},{width}>"
    stage = TILE_BYTES * (1 + width // TILE_ROWS)
    shared = _WGMMA_STAGES[width] * stage + _BARRIER_BYTES + _ALIGNMENT
    grid = (min(tiles, chip.multiprocessors), 1, 1)
    return Kernel(Instance("matmul_wgmma", name), grid, _WGMMA_THREADS, shared)


def width_for(rows: int, columns: int, chip: Chip) -> int:
    """Return how wide the tiles of `matmul_wgmma` are best: wide ones are quicker, if all work."""

    def cost(width: int) -> float:
        tiles = -(-rows // TILE_ROWS) * -(-columns // width)
        return -(-tiles // chip.multiprocessors) * (width + _NARROW_LOSS)

    return min(_WGMMA_STAGES, key=cost)


_NARROW_LOSS = 8
"""Columns that a block could compute in the time that a tile costs beside its products."""


# --- attention ---

ATTENTION_FIELDS = (
    "q",
    "state",
    "out",
    "count",
    "positions",
    "sequences",
    "tables",
    "q_stride",
    "out_stride",
    "tables_stride",
    "kv_heads",
    "scale",
    "window",
    "softcap",
)
_ATTENTION_STAGES = 2
_WGMMA_HEAD_DIMS = (64, 128)
_STORED = {DType.F16: 0, DType.BF16: 1, DType.F32: 2, DType.Q8_0: 3}


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of attention."""

    heads: int
    kv_heads: int
    head_dim: int
    stored: DType
    """How the cache keeps keys and values."""
    is_windowed: bool = False
    is_capped: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads


def attention(heads: Heads, rows: int, chip: Chip, *, to: Mixed) -> Kernel:
    """Return the kernel of attention for at most `rows` rows of the batch."""
    if chip.has_wgmma and heads.head_dim in _WGMMA_HEAD_DIMS:
        return wgmma_attention(heads, rows, to=to)
    return mma_attention(heads, rows, to=to)


def mma_attention(heads: Heads, rows: int, *, to: Mixed) -> Kernel:
    """Return the kernel of attention by mma.sync."""
    dim = heads.head_dim
    fragment_rows, keys = (128, 64) if dim <= 128 else (64, 32)
    grid = (heads.kv_heads, -(-rows // (fragment_rows // heads.group)), 1)
    name = f"corral::attention_tiles<{_attention_parameters(heads, to)}>"
    shared = (fragment_rows + 2 * keys) * (2 * dim + 16) + 2 * 4 * fragment_rows
    return Kernel(Instance("attention_tiles", name), grid, 128, shared)


def wgmma_attention(heads: Heads, rows: int, *, to: Mixed) -> Kernel:
    """Return the kernel of attention by wgmma; head_dim is 64 or 128."""
    grid = (heads.kv_heads, -(-rows // (TILE_ROWS // heads.group)), 1)
    name = f"corral::attention_wgmma<{_attention_parameters(heads, to)}>"
    shared = (1 + 2 * _ATTENTION_STAGES) * heads.head_dim // 64 * TILE_BYTES + _ALIGNMENT
    if heads.stored is DType.Q8_0:
        shared += 2 * TILE_ROWS * heads.stored.row_bytes(heads.head_dim)
    return Kernel(Instance("attention_wgmma", name), grid, _WGMMA_THREADS, shared)


def _attention_parameters(heads: Heads, to: Mixed) -> str:
    flags = map(_word, (heads.is_windowed, heads.is_capped))
    parameters = (heads.head_dim, heads.group, _STORED[heads.stored], *flags, to.value)
    return ",".join(map(str, parameters))


assert BLOCK_TOKENS == 32, "attention_tiles.cu knows it"


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _word(flag: bool) -> str:
    return "true" if flag else "false"
