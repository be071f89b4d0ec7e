"""How the tuned matrix kernels are best cut up: rules of thumb from measurements on an H200.

What is chosen here changes speed, and the order in which sums are added up, but nothing else. Cuts
for integers were measured; those for F16 follow an estimate of what bounds them.
"""

from dataclasses import replace
from functools import lru_cache

from corral.devices.cuda.instance import Kernel
from corral.devices.cuda.matmul_launch import (
    ROWS,
    Product,
    Result,
    TileTuning,
    Tuning,
    chunk_columns,
    half_row_bytes,
    stream,
    tile,
)

LARGEST_BATCH = 128
"""Rows that the tuned kernels are made for; more are a prefill."""
HALF_BATCH = {1: 32, 2: 16}
"""For each number of planes, from how many rows on activations are multiplied as F16."""
_STREAM_BATCH = 8
_L2_BYTES_PER_CLOCK = 24
"""What a processor gets from L2 when all of them read."""
_ISSUED_PER_CLOCK = 2.4
"""Instructions of warps that a processor issues, of four possible."""


def wants_half_rows(product: Product) -> bool:
    """Whether the activations should be made F16 first, by `half_rows`; planes are 0 then."""
    if product.packed.is_float or product.planes == 0:
        return False
    return product.batch >= HALF_BATCH[product.planes]


@lru_cache(maxsize=1024)  # every layer asks for the same few
def choose(product: Product, processors: int, shared_limit: int) -> Kernel:
    """Return the kernel for a product; `shared_limit` is the most that a block may have.

    Raises:
        ValueError: if nothing fits the limit.
    """
    if product.planes and product.batch <= _STREAM_BATCH:
        return _fitting_stream(
            product, processors, _stream_tuning(product, processors), shared_limit
        )
    if product.planes == 0:
        cuts = _half_tiles(product, shared_limit)
        return min(cuts, key=lambda cut: _cost(product, processors, cut))[1]
    return _fitting_tile(product, _tile_tuning(product, processors), shared_limit)


def _chunks(product: Product) -> int:
    return -(-product.columns // chunk_columns(product.packed))


def _row_blocks(product: Product) -> int:
    return sum(-(-rows // ROWS) for rows in product.rows)


def _stream_tuning(product: Product, processors: int) -> Tuning:
    chunks, batch = _chunks(product), product.batch
    is_wide = _row_blocks(product) >= 16 * processors
    if product.result is not Result.PLAIN:
        if batch > 4 and chunks >= 16:
            tuning = Tuning(row_blocks=4, warps=16, stages=3, slots=2)
        else:
            tuning = Tuning(row_blocks=4, warps=8, stages=3, slots=2, blocks=2)
    elif is_wide:
        tuning = Tuning(row_blocks=2, warps=8, stages=3, slots=2, blocks=2 if chunks <= 8 else 1)
    elif batch > 4 or (batch > 1 and product.planes == 2):
        tuning = Tuning(row_blocks=1 if product.planes == 2 else 2, warps=8, stages=4, slots=2)
    elif chunks >= 16:
        tuning = Tuning(row_blocks=2, warps=16, stages=3, slots=2)
    else:
        tuning = Tuning(row_blocks=1, warps=8, stages=8, slots=2)
    warps = next(count for count in (16, 8, 4) if count <= max(4, min(tuning.warps, chunks)))
    stay = -(-chunks // warps)
    is_small = stay * batch * max(product.planes, 1) <= 8
    return replace(tuning, warps=warps, slots=stay if is_small else 2)


def _fitting_stream(product: Product, processors: int, tuning: Tuning, shared_limit: int) -> Kernel:
    while True:
        kernel = stream(product, processors, tuning)
        if kernel.shared_bytes * tuning.blocks <= shared_limit:
            return kernel
        if tuning.blocks > 1:
            tuning = replace(tuning, blocks=1)
        elif tuning.stages > 2:
            tuning = replace(tuning, stages=tuning.stages - 1)
        elif tuning.warps > 4:
            tuning = replace(tuning, warps=tuning.warps // 2, slots=2)
        else:
            raise ValueError(
                f"{kernel.instance.name} needs {kernel.shared_bytes} of {shared_limit} bytes"
            )


def _tile_tuning(product: Product, processors: int) -> TileTuning:
    """Return the cut for batches that are multiplied as integers, or for float weights."""
    batch = 16 if product.planes == 1 else 8
    if product.packed.is_float:
        batch = min(64, -(-product.batch // 8) * 8)
        if product.result is not Result.PLAIN or batch > 16:
            return TileTuning(batch, 2, warp_rows=2, warp_columns=4, chunks=1, stages=3)
        return TileTuning(batch, 1, warp_rows=1, warp_columns=8, chunks=1, stages=3)
    if product.result is not Result.PLAIN:
        return TileTuning(batch, 2, warp_rows=4, warp_columns=2, chunks=1, stages=3)
    if _row_blocks(product) >= 16 * processors:
        return TileTuning(batch, 2, warp_rows=2, warp_columns=4, chunks=2, stages=2)
    if product.planes == 2:
        return TileTuning(batch, 2, warp_rows=1, warp_columns=4, chunks=2, stages=3, blocks=2)
    return TileTuning(batch, 1, warp_rows=1, warp_columns=8, chunks=4, stages=3)


def _fitting_tile(product: Product, tuning: TileTuning, shared_limit: int) -> Kernel:
    while True:
        kernel = tile(product, tuning)
        if kernel.shared_bytes * tuning.blocks <= shared_limit:
            return kernel
        if tuning.blocks > 1:
            tuning = replace(tuning, blocks=1)
        elif tuning.stages > 2:
            tuning = replace(tuning, stages=tuning.stages - 1)
        elif tuning.chunks > 1:
            columns = min(tuning.warp_columns, tuning.chunks)
            tuning = replace(tuning, chunks=tuning.chunks // 2, warp_columns=max(1, columns // 2))
        elif tuning.batch > 8:
            tuning = replace(tuning, batch=tuning.batch // 2)
        else:
            raise ValueError(
                f"{kernel.instance.name} needs {kernel.shared_bytes} of {shared_limit} bytes"
            )


_HALF_CUTS = ((2, 4, 2, 1), (2, 2, 4, 2), (2, 1, 8, 2), (2, 2, 4, 1), (2, 1, 8, 1))
"""Row blocks a warp, warps for rows, warps for columns, chunks a stage."""


def _half_tiles(product: Product, shared_limit: int) -> list[tuple[TileTuning, Kernel]]:
    found = []
    for rows in sorted({min(product.batch, size) for size in (32, 64, 128)}):
        for row_blocks, warp_rows, warp_columns, chunks in _HALF_CUTS:
            if product.result is not Result.PLAIN and row_blocks * warp_rows % 4:
                continue
            for stages in (3, 2):
                tuning = TileTuning(
                    -(-rows // 8) * 8, row_blocks, warp_rows, warp_columns, chunks, stages
                )
                kernel = tile(product, tuning)
                if kernel.shared_bytes <= shared_limit:
                    found.append((tuning, kernel))
                    break
    if not found:
        raise ValueError(f"no tile of {product} fits {shared_limit} bytes of shared memory")
    return found


def _cost(product: Product, processors: int, cut: tuple[TileTuning, Kernel]) -> float:
    """Return an estimate of the clocks that a cut for F16 takes."""
    tuning, kernel = cut
    blocks = tuning.row_blocks * tuning.warp_rows
    columns = chunk_columns(product.packed)
    issued = blocks * columns // 32 * (50 + tuning.batch // 8 * 2.5) + 700 / tuning.chunks
    read = blocks * product.packed.row_block_bytes(columns) + tuning.batch * half_row_bytes(columns)
    clocks = max(issued / _ISSUED_PER_CLOCK, read / _L2_BYTES_PER_CLOCK)
    rounds = -(-kernel.grid[0] * kernel.grid[1] // processors)
    return rounds * clocks
