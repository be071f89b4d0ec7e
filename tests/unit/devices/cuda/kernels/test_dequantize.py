"""Packed weights become the right factor of a product, whatever their layout."""

import numpy as np
import pytest

from corral.devices.cuda import prefill_launch
from corral.devices.packing import pack_rows
from corral.memory import factors as prefill_factors
from corral.quant.dequantize import dequantize
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from emulation import Memory, address, emulate_kernel, needs_emulator, prepare_missing
from factors import COLUMNS, ROWS, elements, from_tiles, random_blocks, right_factor
from golden import nmse

pytestmark = needs_emulator


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_missing(
        prefill_launch.dequantize(dtype, ROWS, COLUMNS, is_tiled=is_tiled).instance
        for dtype in LAYOUTS
        for is_tiled in (False, True)
    )


def run(dtype, rows, columns, is_tiled, first_row=0, spread=1):
    """Return (what was written, all rows of the target; what the weights are)."""
    form = prefill_factors.form_of(dtype)
    generator = np.random.default_rng(rows + columns)
    raw = random_blocks(generator, dtype, rows, columns).reshape(rows, -1).view(np.uint8)
    memory = Memory()
    packed = memory.of(pack_rows(raw, dtype, rows, columns))
    target_rows = -(-(rows * spread + first_row) // ROWS) * ROWS
    wide = prefill_factors.factor_columns(columns, form) if is_tiled else None
    wide = wide or prefill_factors.row_bytes(columns, form) // 2
    out = memory.empty(target_rows * wide, np.uint16)
    kernel = prefill_launch.dequantize(dtype, rows, columns, is_tiled=is_tiled)
    stride = prefill_factors.stride(columns, form, is_tiled=is_tiled)
    fields = (address(packed), address(out), rows, columns, stride, first_row, spread)
    emulate_kernel(kernel, fields)
    memory.check()
    values = dequantize(raw, dtype, (rows, columns))
    return (from_tiles(out, wide) if is_tiled else out.reshape(-1, wide)), values


@pytest.mark.parametrize("is_tiled", [False, True])
@pytest.mark.parametrize("dtype", LAYOUTS)
def test_values_are_those_of_the_file_rounded_to_the_element(dtype, is_tiled):
    form = prefill_factors.form_of(dtype)
    columns = 256 * 3
    actual, values = run(dtype, 40, columns, is_tiled)
    expected = right_factor(values, form)
    got = actual[:40]
    if LAYOUTS[dtype].is_float:
        np.testing.assert_array_equal(got, expected)
    assert nmse(elements(got, form), elements(expected, form)) <= 1e-7


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0, DType.F16, DType.BF16, DType.F32])
def test_columns_that_fill_no_tile_are_followed_by_zeros(dtype):
    form = prefill_factors.form_of(dtype)
    actual, values = run(dtype, 20, 96, True)
    both = (elements(actual[:20], form), elements(right_factor(values, form), form))
    matrices = (np.split(factor, form.matrices, axis=1) for factor in both)
    for matrix, expected in zip(*matrices, strict=True):
        assert (matrix[:, 96:] == 0).all()
        assert nmse(matrix, expected) <= 1e-6


@pytest.mark.parametrize("is_tiled", [False, True])
def test_rows_beyond_the_last_are_not_written(is_tiled):
    for dtype in (DType.Q4_K, DType.BF16, DType.F32):
        actual, _ = run(dtype, 19, 256, is_tiled)
        assert (actual[19:] == 0xFFFF).all()


def test_gate_and_up_can_take_turns_of_eight_rows():
    plain, _ = run(DType.Q4_0, 32, COLUMNS, True)
    spread, _ = run(DType.Q4_0, 32, COLUMNS, True, first_row=8, spread=2)
    for run_of_rows in range(4):
        first = 8 + 16 * run_of_rows
        np.testing.assert_array_equal(
            spread[first : first + 8], plain[8 * run_of_rows : 8 * run_of_rows + 8]
        )
        assert (spread[first - 8 : first] == 0xFFFF).all()
