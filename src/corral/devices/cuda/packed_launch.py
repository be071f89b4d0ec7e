"""What products of a few dozen rows launch on sm_90a: shapes → instance, grid, shared memory.

Weights stay packed, rows of the batch are the tiles of a left factor (`memory/factors.py`), and so
is a gated result. Pure arithmetic; it knows what `kernels/matmul_packed_wgmma.cu` keeps in shared
memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from corral.devices.cuda.instance import Instance, Kernel
from corral.devices.cuda.matmul_launch import MAX_PARTS, ROWS, WEIGHTS, Product, Result
from corral.memory.factors import TILE_COLUMNS
from corral.quant.packed import SPAN

LEAST_ROWS = 9
"""Of a batch: fewer rows are multiplied sooner as integers."""
BATCHES = (16, 32, 64, 96, 128)
"""Rows that instances are made for."""
_WARPGROUP_ROWS = 64
_WARPGROUP_THREADS = 128
_ALIGNMENT = 1024
_SHARED_BYTES = {1: 226 << 10, 2: 112 << 10}
"""Of a block, by how many there is room for: an H200 gives 227 KiB, or twice 113."""
_COPYING = {1: _WARPGROUP_THREADS, 2: 32}
"""Threads beside those that multiply; a whole warpgroup where registers are given away."""
_LEAST_STAGES, _MOST_STAGES = 2, 12
_BARRIER_BYTES = 16
"""Of a stage: one barrier for its bytes, one for its readers."""


@dataclass(frozen=True, slots=True)
class PackedTuning:
    """What can be chosen without changing what is computed."""

    row_groups: int
    """Warpgroups side by side, each with 64 rows of weights."""
    depth: int
    """Warpgroups that take turns with the chunks of columns."""
    split: int
    """Blocks of a cluster that share out the columns."""
    tiles: int
    """Tiles of 64 columns of a stage: 2 or 4."""
    residents: int = 1
    """Blocks that a multiprocessor has room for, those of the next kernel included: 1 or 2."""


_FEW_COLUMNS = 4096
"""So few that what a block does before and after its products is worth doing beside another's."""
_PAIR_CUTS = (PackedTuning(2, 2, 2, 4), PackedTuning(1, 4, 1, 4), PackedTuning(1, 2, 1, 2))
"""Of two products side by side, the best first."""


def supports(product: Product) -> bool:
    """Whether there is a kernel for a product: whole numbers of weights, whole tiles."""
    if product.layout not in WEIGHTS or len(product.rows) > MAX_PARTS:
        return False
    return not product.packed.is_float and product.columns % TILE_COLUMNS == 0


def tile_bytes(rows: int) -> int:
    """Return the bytes of a tile of so many rows of the batch."""
    return 2 * TILE_COLUMNS * _batch(rows)


def _batch(rows: int) -> int:
    return next(size for size in BATCHES if size >= rows)


@lru_cache(maxsize=1024)  # every layer asks for the same few
def packed(product: Product, multiprocessors: int, tuning: PackedTuning | None = None) -> Kernel:
    """Return the kernel of a product with at most 128 rows of the batch.

    Raises:
        ValueError: if no cut, or that of the tuning, leaves room for two stages and gives each
            cluster a single unit.
    """
    batch = _batch(product.batch)
    cuts = (tuning,) if tuning else _cuts(product, batch, multiprocessors)
    tuning, stages = _first_with_room(product, batch, cuts, multiprocessors)
    arguments = (
        f"corral::{WEIGHTS[product.layout]}",
        batch,
        tuning.row_groups,
        tuning.depth,
        tuning.split,
        tuning.tiles,
        stages,
        tuning.residents,
        product.columns,
        f"corral::Result::{product.result.value}",
        f"corral::Gating::{product.gating}",
    )
    name = f"corral::matmul_packed_wgmma<{', '.join(map(str, arguments))}>"
    units, room = _units(product, tuning.row_groups), multiprocessors * tuning.residents
    return Kernel(
        Instance("matmul_packed_wgmma", name),
        grid=(min(units, room // tuning.split) * tuning.split, 1, 1),
        threads=_threads(tuning),
        shared_bytes=_shared_bytes(product, batch, tuning, stages),
    )


@lru_cache(maxsize=1024)  # as above
def paired(
    same: Product, last: Product, multiprocessors: int, tuning: PackedTuning | None = None
) -> Kernel | None:
    """Return the kernel of plain products of one layout and a last one of another.

    None where they are too large to be computed side by side.
    """
    batch = _batch(same.batch)
    for cut in (tuning,) if tuning else _PAIR_CUTS:
        units = sum(_units(product, cut.row_groups) for product in (same, last))
        stages = [_stages(product, batch, cut) for product in (same, last)]
        if min(stages) < _LEAST_STAGES or units * cut.split > multiprocessors * cut.residents:
            continue
        arguments = (
            *(f"corral::{WEIGHTS[product.layout]}" for product in (same, last)),
            len(same.rows),
            batch,
            cut.row_groups,
            cut.depth,
            cut.split,
            cut.tiles,
            *stages,
            cut.residents,
            same.columns,
        )
        name = f"corral::matmul_packed_pair<{', '.join(map(str, arguments))}>"
        return Kernel(
            Instance("matmul_packed_wgmma", name),
            grid=(units * cut.split, 1, 1),
            threads=_threads(cut),
            shared_bytes=max(
                _shared_bytes(product, batch, cut, count)
                for product, count in zip((same, last), stages, strict=True)
            ),
        )
    return None


def _threads(tuning: PackedTuning) -> int:
    return _WARPGROUP_THREADS * tuning.row_groups * tuning.depth + _COPYING[tuning.residents]


def _shared_bytes(product: Product, batch: int, tuning: PackedTuning, stages: int) -> int:
    stage = _stage_bytes(product, batch, tuning) + _BARRIER_BYTES
    return _fixed_bytes(product, batch, tuning) + stages * stage


def _stages(product: Product, batch: int, tuning: PackedTuning) -> int:
    """Return how many stages there is room for, the same number for each that takes turns.

    A place in shared memory always belongs to the same warpgroup, which therefore cannot take the
    bytes of another's stage for its own.
    """
    room = _SHARED_BYTES[tuning.residents] - _fixed_bytes(product, batch, tuning)
    most = min(room // (_stage_bytes(product, batch, tuning) + _BARRIER_BYTES), _MOST_STAGES)
    turns = 1 if tuning.depth == 1 else tuning.depth * (SPAN // TILE_COLUMNS // tuning.tiles)
    return most // turns * turns


def _operands(product: Product) -> int:
    return 1 if product.result is Result.PLAIN else 2


def _units(product: Product, row_groups: int) -> int:
    """Return how often a block's rows fit into the parts, each begun anew."""
    parts = product.rows if product.result is Result.PLAIN else product.rows[:1]
    return sum(-(-rows // (_WARPGROUP_ROWS * row_groups)) for rows in parts)


def _is_one_wave(product: Product, cut: PackedTuning, multiprocessors: int) -> bool:
    """Return whether every cluster has one unit only, as clusters must."""
    blocks = _units(product, cut.row_groups) * cut.split
    return cut.split == 1 or blocks <= multiprocessors * cut.residents


def _first_with_room(
    product: Product, batch: int, cuts: Iterable[PackedTuning], multiprocessors: int
) -> tuple[PackedTuning, int]:
    """Return the first cut that has room for its stages, and how many these are."""
    for cut in cuts:
        stages = _stages(product, batch, cut)
        if stages >= _LEAST_STAGES and _is_one_wave(product, cut, multiprocessors):
            return cut, stages
    raise ValueError(f"no cut leaves room for two stages of {product}")


def _cuts(product: Product, batch: int, multiprocessors: int) -> Iterator[PackedTuning]:
    """Yield cuts as measured on an H200, the best first; the last ones fit every layout."""
    tiles = 4 if batch <= 64 else 2
    if product.result is not Result.PLAIN:
        if batch == 16:
            yield PackedTuning(2, 2, 1, tiles)
        yield PackedTuning(2, 1, 1, tiles)
        yield PackedTuning(2, 1, 1, 2)
        return
    if _units(product, 4) >= 2 * multiprocessors:
        yield PackedTuning(4, 1, 1, 4 if batch <= 32 else 2)
    split = 2 if 2 * _units(product, 1) <= multiprocessors else 1
    if batch <= 32 and split == 1 and 2 * _units(product, 2) <= multiprocessors:
        yield PackedTuning(2, 2, 2, tiles)
    if batch == 16 and split == 2 and product.columns <= _FEW_COLUMNS:
        yield PackedTuning(1, 2, 2, tiles, residents=2)
    yield PackedTuning(1, 4 if batch <= 32 else 2, split, tiles)
    yield PackedTuning(1, 2, split, 2)
    yield PackedTuning(2, 1, 1, 2)


def _stage_bytes(product: Product, batch: int, tuning: PackedTuning) -> int:
    blocks = 4 * tuning.row_groups * _operands(product)
    rows = tuning.tiles * batch * 2 * TILE_COLUMNS
    span, heads = product.packed.row_block_bytes(SPAN, ROWS), _super_bytes(product)
    piece = heads + (span - heads) * tuning.tiles * TILE_COLUMNS // SPAN
    return -(-(rows + blocks * piece) // _ALIGNMENT) * _ALIGNMENT


def _super_bytes(product: Product) -> int:
    layout = product.packed
    if not layout.has_spans:
        return 0
    return 2 * ROWS * (2 if layout.has_offset else 1)


def _fixed_bytes(product: Product, batch: int, tuning: PackedTuning) -> int:
    """Return the bytes of sums that meet others, and what aligning may cost."""
    spare = tuning.depth - 1 + tuning.split - 1
    sums = batch * _WARPGROUP_ROWS * 4 * _operands(product)
    return tuning.row_groups * spare * sums + _ALIGNMENT
