"""The tuned matrix kernels multiply as the reference does, whatever the layout and shape."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from corral.devices.cuda.matmul_launch import (
    WEIGHTS,
    Product,
    Result,
    TileTuning,
    Tuning,
    half_rows,
    stream,
    tile,
)
from corral.quant.packed import BY_NAME
from emulation import needs_emulator, prepare_missing
from matmul_cases import Case

pytestmark = needs_emulator
PROCESSORS = 3
"""So few that blocks of threads take several units each."""
ROWS = (100, 33, 16)
STREAM = Tuning(row_blocks=2, warps=4, stages=3, slots=2, ahead=1)
DIRECT = Tuning(row_blocks=1, warps=4, stages=0, slots=2)
TILE = TileTuning(batch=16, row_blocks=1, warp_rows=2, warp_columns=2, chunks=1, stages=3)
HALF = TileTuning(batch=16, row_blocks=2, warp_rows=1, warp_columns=4, chunks=2, stages=2)
EXACT, FLOAT, CODES = 1e-11, 1e-6, 5e-4
OFFSETS = 1e-6
"""Tiles of one plane round offsets to TF32."""


def columns_of(layout):
    """Columns that are no multiple of what a warp multiplies at a time, where that is allowed."""
    return 1280 if BY_NAME[layout].has_spans else 576


def limit(layout):
    """The NMSE that integer products, or products in TF32, may have."""
    return FLOAT if BY_NAME[layout].is_float else EXACT


@dataclass(frozen=True)
class Trial:
    """A product, how it is cut up, and the rows of a batch."""

    product: Product
    tuning: Tuning | TileTuning
    count: int
    has_extras: bool = False
    is_half: bool = False

    @property
    def kernel(self):
        product = replace(self.product, planes=0) if self.is_half else self.product
        if isinstance(self.tuning, TileTuning):
            return tile(product, self.tuning)
        return stream(product, PROCESSORS, self.tuning)

    def case(self):
        """Return the buffers of this product."""
        return Case(self.product, self.count, self.has_extras)

    def run(self, arch=900):
        """Return the buffers with the results."""
        case = self.case()
        if self.is_half:
            case.make_half()
        case.run(self.kernel, arch)
        return case


ARCHITECTURES = (900, 800)
QUANTIZED = [layout for layout in WEIGHTS if not BY_NAME[layout].is_float]
SMALL = {
    layout: Trial(Product(layout, ROWS, columns_of(layout), 4), STREAM, 3, has_extras=True)
    for layout in WEIGHTS
}
LARGE = {
    layout: Trial(Product(layout, ROWS, columns_of(layout), 24), TILE, 21, has_extras=True)
    for layout in WEIGHTS
}
HALVES = {
    (layout, planes): Trial(
        Product(layout, ROWS, columns_of(layout), 24, planes),
        HALF,
        21,
        has_extras=True,
        is_half=True,
    )
    for layout, planes in product(QUANTIZED, (1, 2))
}
FILLED = {
    (layout, batch, planes): Trial(
        Product(layout, (100,), columns_of(layout), batch, planes), Tuning(1, 4, 3, 1), batch
    )
    for layout, batch, planes in product(
        ("int4_unsigned_offset", "int6_signed16", "int8_half"), (1, 2, 8), (1, 2)
    )
}
UNSTAGED = Trial(Product("int4_unsigned_offset", ROWS, 1280, 2), DIRECT, 2, has_extras=True)
PRECISE = {
    layout: Trial(Product(layout, (100,), 1280, 16, planes=2), TileTuning(8, 1, 2, 2, 1, 3), 13)
    for layout in ("int4_unsigned_offset", "int6_signed16")
}
GATED = {
    (batch, result, gating): Trial(
        Product("int4_unsigned_offset", (96, 96), 512, batch, 1, result, gating),
        Tuning(4, 4, 3, 2) if batch <= 8 else TileTuning(16, 1, 4, 2, 1, 3),
        batch - batch // 4,
    )
    for batch, result, gating in product(
        (1, 8, 16), (Result.GATED, Result.GATED_CODES), ("silu", "gelu")
    )
}
ALONE = {
    batch: Trial(Product("int4_unsigned_offset", (100,), 512, batch), tuning, batch)
    for batch, tuning in ((8, STREAM), (16, TILE))
}


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    both = (*SMALL.values(), *LARGE.values(), UNSTAGED)
    tables = (HALVES, FILLED, PRECISE, GATED, ALONE)
    trials = (*both, *(trial for table in tables for trial in table.values()))
    kernels = [trial.kernel for trial in trials]
    kernels += [half_rows(HALVES[QUANTIZED[0], planes].product) for planes in (1, 2)]
    prepare_missing([kernel.instance for kernel in kernels])
    prepare_missing([trial.kernel.instance for trial in both], arch=800)


@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_small_batches(layout, arch):
    """Every layout, several parts with bias and residual, rows that fill no row block."""
    assert SMALL[layout].run(arch).error() < limit(layout)


@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_large_batches(layout, arch):
    """The same in tiles."""
    error = LARGE[layout].run(arch).error()
    assert error < (OFFSETS if BY_NAME[layout].has_offset else limit(layout))


@pytest.mark.parametrize("layout", QUANTIZED)
@pytest.mark.parametrize("planes", [1, 2])
def test_half_precision(layout, planes):
    """F16 keeps the activations of both types, and the weights, to a part in two thousand."""
    assert HALVES[layout, planes].run().error() < FLOAT


@pytest.mark.parametrize(("layout", "batch", "planes"), FILLED)
def test_how_columns_are_filled(layout, batch, planes):
    """Groups, halves, planes and rows share the columns of a product in all combinations."""
    assert FILLED[layout, batch, planes].run().error() < EXACT


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_weights_read_without_a_ring(arch):
    """Stages of 0 read weights where they lie."""
    assert UNSTAGED.run(arch).error() < EXACT


@pytest.mark.parametrize("layout", PRECISE)
def test_precise_activations_in_tiles(layout):
    """A tile of two planes has half as many rows, and its offsets are exact to 21 bits."""
    assert PRECISE[layout].run().error() < EXACT


@pytest.mark.parametrize(("batch", "result", "gating"), GATED)
def test_gated_results(batch, result, gating):
    """Gate and up meet in one block of threads, which rounds 32 columns at a time."""
    error = GATED[batch, result, gating].run().error()
    assert error < (CODES if result is Result.GATED_CODES else OFFSETS)


@pytest.mark.parametrize("batch", ALONE)
def test_a_row_does_not_depend_on_its_neighbours(batch):
    """The same bits come out when all other rows of the batch are different."""
    trial, results = ALONE[batch], []
    for seed in (1, 2):
        case = trial.case()
        codes = case.rows[1:, : trial.product.columns]
        codes[:] = np.random.default_rng(seed).integers(0, 256, codes.shape, np.uint8)
        case.run(trial.kernel)
        results.append(case.outs[0])
    assert np.array_equal(results[0][0], results[1][0])
    assert not np.array_equal(results[0][1], results[1][1])
