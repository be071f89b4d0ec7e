"""Rows of F32, norms, gates and codes become the left factor of a product."""

from itertools import product

import numpy as np
import pytest

import formulas
from corral.devices.binding import float_word
from corral.devices.cuda import prefill_launch
from corral.devices.cuda.prefill_launch import Source
from corral.devices.reference.activations import decoded, quantize
from corral.memory import factors as prefill_factors
from corral.memory.factors import Form
from corral.quant.types import DType
from emulation import Memory, address, emulate_kernel, needs_emulator, prepare_missing
from factors import elements, from_tiles, left_factor
from golden import nmse

pytestmark = needs_emulator

CAPACITY, ROWS = 7, 5
EPSILON = 1e-5


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    forms = [(*both, is_tiled) for both in product(Source, Form) for is_tiled in (False, True)]
    prepare_missing(
        prefill_launch.prepare(source, form, CAPACITY, is_tiled=is_tiled).instance
        for source, form, is_tiled in forms
    )


def case(source, columns):
    """Return (x, other, the values that rows stand for)."""
    generator = np.random.default_rng(columns)
    x = generator.normal(size=(CAPACITY, columns)).astype(np.float32)
    x *= np.exp2(generator.integers(-20, 20, (CAPACITY, 1)) if source is Source.ROWS else 0)
    x = x.astype(np.float32)
    other = generator.normal(size=(CAPACITY, columns)).astype(np.float32)
    if source is Source.ROWS:
        return x, other, x
    if source is Source.NORM:
        return x, other[0].copy(), formulas.rms_norm(x, other[0], EPSILON, columns)
    if source in (Source.SILU, Source.GELU):
        formula = formulas.silu if source is Source.SILU else formulas.gelu
        return x, other, formula(x) * other
    dtype = DType.A8 if source is Source.A8 else DType.A16
    codes = np.zeros((CAPACITY, dtype.row_bytes(columns)), np.uint8)
    quantize(x, codes, dtype)
    return codes, other, decoded(codes, dtype)


def run(source, form, columns, is_tiled):
    """Return (bits of the factor, all rows; scales; the values that rows stand for)."""
    x, other, values = case(source, columns)
    memory = Memory()
    x, other = memory.of(x), memory.of(other)
    count = memory.of(np.array([ROWS], np.int64))
    wide = prefill_factors.factor_columns(columns, form) if is_tiled else None
    wide = wide or prefill_factors.row_bytes(columns, form) // 2
    out = memory.empty((128 if is_tiled else CAPACITY) * wide, np.uint16)
    scales = memory.empty(CAPACITY)
    kernel = prefill_launch.prepare(source, form, CAPACITY, is_tiled=is_tiled)
    fields = {
        "x": address(x),
        "x_stride": x.strides[0],
        "count": address(count),
        "other": address(other),
        "other_stride": 4 * columns,
        "columns": columns,
        "epsilon": float_word(EPSILON),
        "out": address(out),
        "stride": prefill_factors.stride(columns, form, is_tiled=is_tiled),
        "scales": address(scales) if form is Form.F16 else 0,
        "tile_bytes": prefill_factors.TILE_BYTES,
    }
    words = [fields[name] for name in prefill_launch.PREPARE_FIELDS]
    emulate_kernel(kernel, words)
    memory.check()
    return (from_tiles(out, wide) if is_tiled else out.reshape(-1, wide)), scales, values


@pytest.mark.parametrize("columns", [96, 576])
@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("source", Source)
def test_rows_are_rounded_to_the_form(source, form, columns):
    for is_tiled in (False, True):
        bits, scales, values = run(source, form, columns, is_tiled)
        expected, factors = left_factor(values.astype(np.float32), form)
        wide = bits.shape[1]
        assert nmse(elements(bits[:ROWS], form), elements(expected[:ROWS, :wide], form)) <= 1e-6
        assert (bits[ROWS:] == 0xFFFF).all()
        if form is Form.F16:
            np.testing.assert_array_equal(scales[:ROWS], factors[:ROWS])
            assert np.isnan(scales[ROWS:]).all()


def test_rows_of_zeros_and_of_the_greatest_numbers_stay_finite():
    memory = Memory()
    x = memory.of(np.zeros((2, 64), np.float32))
    x[1] = np.finfo(np.float32).max
    count, out = memory.of(np.array([2], np.int64)), memory.empty(128 * 64, np.uint16)
    scales = memory.empty(2)
    kernel = prefill_launch.prepare(Source.ROWS, Form.F16, 2, is_tiled=True)
    rows = (address(x), 256, address(count), 0, 0, 64, 0)
    words = (*rows, address(out), 1, address(scales), prefill_factors.TILE_BYTES)
    emulate_kernel(kernel, words)
    values = from_tiles(out, 64)[:2].view(np.float16).astype(np.float64) * scales[:, None]
    assert (values[0] == 0).all()
    np.testing.assert_allclose(values[1], x[1], rtol=1e-3)
