"""The tuned matrix kernels multiply as the reference does, whatever the layout and shape."""

from dataclasses import replace

import numpy as np
import pytest

from corral.devices.cuda.matmul_launch import (
    WEIGHTS,
    Product,
    Result,
    TileTuning,
    Tuning,
    stream,
    tile,
)
from corral.quant.packed import BY_NAME
from emulation import needs_emulator
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

LAYOUTS = pytest.mark.parametrize("layout", WEIGHTS)
QUANTIZED = pytest.mark.parametrize(
    "layout", [layout for layout in WEIGHTS if not BY_NAME[layout].is_float]
)


def columns_of(layout: str) -> int:
    """Columns that are no multiple of what a warp multiplies at a time, where that is allowed."""
    return 1280 if BY_NAME[layout].has_spans else 576


def limit(layout: str) -> float:
    """The NMSE that integer products, or products in TF32, may have."""
    return FLOAT if BY_NAME[layout].is_float else EXACT


@LAYOUTS
@pytest.mark.parametrize("arch", [900, 800])
def test_small_batches(layout: str, arch: int):
    """Every layout, several parts with bias and residual, rows that fill no row block."""
    case = Case(Product(layout, ROWS, columns_of(layout), batch=4), count=3, has_extras=True)
    case.run(stream(case.product, PROCESSORS, STREAM), arch)
    assert case.error() < limit(layout)


@LAYOUTS
@pytest.mark.parametrize("arch", [900, 800])
def test_large_batches(layout: str, arch: int):
    """The same in tiles."""
    case = Case(Product(layout, ROWS, columns_of(layout), batch=24), count=21, has_extras=True)
    case.run(tile(case.product, TILE), arch)
    assert case.error() < (OFFSETS if BY_NAME[layout].has_offset else limit(layout))


@QUANTIZED
@pytest.mark.parametrize("planes", [1, 2])
def test_half_precision(layout: str, planes: int):
    """F16 keeps the activations of both types, and the weights, to a part in two thousand."""
    product = Product(layout, ROWS, columns_of(layout), 24, planes)
    case = Case(product, count=21, has_extras=True)
    case.make_half()
    case.run(tile(replace(product, planes=0), HALF))
    assert case.error() < FLOAT


@pytest.mark.parametrize("layout", ["int4_unsigned_offset", "int6_signed16", "int8_half"])
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("planes", [1, 2])
def test_how_columns_are_filled(layout: str, batch: int, planes: int):
    """Groups, halves, planes and rows share the columns of a product in all combinations."""
    case = Case(Product(layout, (100,), columns_of(layout), batch, planes), count=batch)
    case.run(stream(case.product, PROCESSORS, Tuning(1, 4, 3, 1)))
    assert case.error() < EXACT


@pytest.mark.parametrize("arch", [900, 800])
def test_weights_read_without_a_ring(arch: int):
    """Stages of 0 read weights where they lie."""
    case = Case(Product("int4_unsigned_offset", ROWS, 1280, batch=2), count=2, has_extras=True)
    case.run(stream(case.product, PROCESSORS, DIRECT), arch)
    assert case.error() < EXACT


@pytest.mark.parametrize("layout", ["int4_unsigned_offset", "int6_signed16"])
def test_precise_activations_in_tiles(layout: str):
    """A tile of two planes has half as many rows, and its offsets are exact to 21 bits."""
    case = Case(Product(layout, (100,), 1280, batch=16, planes=2), count=13)
    case.run(tile(case.product, TileTuning(8, 1, 2, 2, 1, 3)))
    assert case.error() < EXACT


@pytest.mark.parametrize("gating", ["silu", "gelu"])
@pytest.mark.parametrize("result", [Result.GATED, Result.GATED_CODES])
@pytest.mark.parametrize("batch", [1, 8, 16])
def test_gated_results(batch: int, result: Result, gating: str):
    """Gate and up meet in one block of threads, which rounds 32 columns at a time."""
    product = Product("int4_unsigned_offset", (96, 96), 512, batch, 1, result, gating)
    case = Case(product, count=batch - batch // 4)
    if batch <= 8:
        case.run(stream(product, PROCESSORS, Tuning(4, 4, 3, 2)))
    else:
        case.run(tile(product, TileTuning(16, 1, 4, 2, 1, 3)))
    assert case.error() < (CODES if result is Result.GATED_CODES else OFFSETS)


@pytest.mark.parametrize("batch", [8, 16])
def test_a_row_does_not_depend_on_its_neighbours(batch: int):
    """The same bits come out when all other rows of the batch are different."""
    product = Product("int4_unsigned_offset", (100,), 512, batch)
    results = []
    for seed in (1, 2):
        case = Case(product, count=batch)
        codes = case.rows[1:, : product.columns]
        codes[:] = np.random.default_rng(seed).integers(0, 256, codes.shape, np.uint8)
        case.run(stream(product, PROCESSORS, STREAM) if batch == 8 else tile(product, TILE))
        results.append(case.outs[0])
    assert np.array_equal(results[0][0], results[1][0])
    assert not np.array_equal(results[0][1], results[1][1])
