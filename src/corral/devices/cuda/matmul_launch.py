"""Which instance of the tuned matrix kernels multiplies a batch, and how it is launched.

Pure arithmetic: from shapes, architecture and processor count to names and sizes. It knows what
`kernels/matmul_stream.cu` keeps in shared memory, and nothing of plans or addresses.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.cuda.instance import Instance, Kernel
from corral.quant.packed import BY_NAME, GROUP, PackedLayout

WEIGHTS = {
    "int4_half": "Int4Half",
    "int4_half_offset": "Int4HalfOffset",
    "int5_half": "Int5Half",
    "int5_half_offset": "Int5HalfOffset",
    "int8_half": "Int8Half",
    "int4_signed16": "Int4Signed16",
    "int4_unsigned_offset": "Int4UnsignedOffset",
    "int5_unsigned_offset": "Int5UnsignedOffset",
    "int6_signed16": "Int6Signed16",
    "f16": "Float16",
    "bf16": "BFloat16",
    "f32": "Float32",
}
"""The C++ type of each layout that has a tuned path."""

MAX_PARTS = 3
"""Matrices of one launch."""
ROWS = 16
"""Rows of a row block."""
_PART = ("weights", "out", "residual", "bias", "rows", "out_stride", "residual_stride")
FIELDS = (
    "count",
    "x",
    "x_stride",
    "capacity",
    *(f"{name}{part}" for part in range(MAX_PARTS) for name in _PART),
)
"""The words of `MatmulFields`, in order; those of absent parts are 0."""
HALF_ROWS_FIELDS = ("count", "x", "x_stride", "out", "out_stride", "columns")


class Result(enum.Enum):
    """What becomes of the products."""

    PLAIN = "plain"
    """F32, plus bias and residual where a part has them."""
    GATED = "gated"
    """activation(part 0) · part 1 as F32, at `out0`."""
    GATED_CODES = "gated_codes"
    """The same as A8."""


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices that share rows of activations."""

    layout: str
    """Of all parts, by its name in `quant/packed.py`."""
    rows: tuple[int, ...]
    """Rows of each part."""
    columns: int
    batch: int
    """Rows of activations there is room for: the bucket."""
    planes: int = 1
    """1 for A8 and F32 activations, 2 for A16, 0 for rows of F16 as `half_rows` makes them."""
    result: Result = Result.PLAIN
    gating: str = "none"
    """"silu" or "gelu" where the result is gated."""

    @property
    def packed(self) -> PackedLayout:
        """The layout of the weights."""
        return BY_NAME[self.layout]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What can be chosen for `matmul_stream` without changing what it computes."""

    row_blocks: int
    """Row blocks that a block of threads works on at a time."""
    warps: int
    stages: int
    """Chunks of weights that each warp has on their way."""
    slots: int
    """Chunks of activations that each warp keeps."""
    blocks: int = 1
    """Blocks of threads a processor."""
    ahead: int = 0
    """Units whose weights are asked to come to L2 before they are needed."""
    resident: int = 0
    """Blocks whose registers must fit a processor, those of other kernels included; 0: 16 warps."""


@dataclass(frozen=True, slots=True)
class TileTuning:
    """The same for `matmul_tile`."""

    batch: int
    """Rows of activations a block of threads: 8, 16, 32 or 64."""
    row_blocks: int
    """Row blocks a warp."""
    warp_rows: int
    """Warps that have row blocks of their own."""
    warp_columns: int
    """Warps that share out the columns of a stage."""
    chunks: int
    """Chunks of columns a stage."""
    stages: int
    blocks: int = 1
    """Blocks of threads a processor."""


def supports(product: Product) -> bool:
    """Whether the tuned kernels can multiply this; the plain kernel can do everything else."""
    if product.layout not in WEIGHTS or len(product.rows) > MAX_PARTS:
        return False
    if product.result is not Result.PLAIN and (len(product.rows) != 2 or product.rows[0] % GROUP):
        return False
    return product.columns % (8 if product.packed.is_float else 64) == 0


def stream(product: Product, processors: int, tuning: Tuning) -> Kernel:
    """Return the kernel of `matmul_stream`, for batches of up to 8 rows."""
    units = _units(product, tuning.row_blocks)
    batch = next(size for size in (1, 2, 4, 8, 16) if size >= product.batch)
    arguments = (
        f"corral::{WEIGHTS[product.layout]}",
        product.planes,
        batch,
        tuning.row_blocks,
        tuning.warps,
        tuning.stages,
        tuning.slots,
        tuning.ahead,
        product.columns,
        f"corral::Result::{product.result.value}",
        f"corral::Gating::{product.gating}",
        max(tuning.blocks, tuning.resident or 16 // tuning.warps),
    )
    return Kernel(
        Instance("matmul_stream", f"corral::matmul_stream<{', '.join(map(str, arguments))}>"),
        grid=(min(units, processors * tuning.blocks), 1, 1),
        threads=32 * tuning.warps,
        shared_bytes=_stream_shared(product, batch, tuning),
    )


def tile(product: Product, tuning: TileTuning) -> Kernel:
    """Return the kernel of `matmul_tile`, for larger batches."""
    row_blocks = tuning.row_blocks * tuning.warp_rows
    arguments = (
        f"corral::{WEIGHTS[product.layout]}",
        product.planes,
        tuning.batch,
        tuning.row_blocks,
        tuning.warp_rows,
        tuning.warp_columns,
        tuning.chunks,
        tuning.stages,
        product.columns,
        f"corral::Result::{product.result.value}",
        f"corral::Gating::{product.gating}",
        tuning.blocks,
    )
    return Kernel(
        Instance("matmul_tile", f"corral::matmul_tile<{', '.join(map(str, arguments))}>"),
        grid=(_units(product, row_blocks), -(-product.batch // tuning.batch), 1),
        threads=32 * tuning.warp_rows * tuning.warp_columns,
        shared_bytes=_tile_shared(product, tuning),
    )


def _tile_shared(product: Product, tuning: TileTuning) -> int:
    layout, batch = product.packed, tuning.batch
    row_blocks = tuning.row_blocks * tuning.warp_rows
    columns = tuning.chunks * chunk_columns(layout)
    if layout.is_float or product.planes == 0:
        rows = batch * (columns * (4 if layout.is_float else 2) + 16)
    else:
        scales = (columns // GROUP * 4 + 16) * batch * (2 if layout.has_offset else 1)
        rows = batch * product.planes * (columns + 16) + scales
    stage = row_blocks * layout.row_block_bytes(columns, ROWS) + rows
    partials = tuning.warp_columns * batch * (row_blocks * ROWS + 4) * 4
    return max(tuning.stages * (-(-stage // 16) * 16), partials) + 8 * tuning.stages


def _units(product: Product, row_blocks: int) -> int:
    blocks = [-(-rows // ROWS) for rows in product.rows]
    if product.result is Result.PLAIN:
        return sum(-(-count // row_blocks) for count in blocks)
    return -(-blocks[0] // (row_blocks // 2))


def chunk_columns(layout: PackedLayout) -> int:
    """Columns of weights that are multiplied in one go."""
    return 2048 // layout.code_bits if layout.is_float else 256


def _stream_shared(product: Product, batch: int, tuning: Tuning) -> int:
    layout = product.packed
    columns = chunk_columns(layout)
    if layout.is_float:
        row_bytes = batch * (columns * 4 + 16)
    else:
        scales = 32 * (2 if layout.has_offset else 1)
        row_bytes = batch * (product.planes * (columns + 16) + scales)
    ring = tuning.stages * layout.row_block_bytes(columns, ROWS)
    barriers = 8 * max(tuning.stages, 1)
    partials = 2 * tuning.row_blocks * ROWS * batch * 4
    slots = tuning.slots * (-(-row_bytes // 16) * 16)
    return tuning.warps * (ring + slots + partials + barriers)


def half_row_bytes(columns: int) -> int:
    """Return the bytes of a row of F16 activations: values, their factor, padding."""
    return 2 * columns + ROWS


def half_rows(product: Product) -> Kernel:
    """Return the kernel that makes rows of F16 of A8 or A16, for a product of `planes` 0."""
    instance = Instance.of("half_rows", "half_rows", product.planes)
    return Kernel(instance, (product.batch, 1, 1), threads=256)


def words(values: dict[str, int], fields: Sequence[str] = FIELDS) -> list[int]:
    """Return the words of a launch's fields in order; what is not given is 0."""
    return [values.get(name, 0) for name in fields]
