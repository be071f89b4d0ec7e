"""Embedding decodes rows of every packed layout exactly."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.embed import FIELDS, embed
from corral.quant.dequantize import dequantize
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count, poisoned
from unit.devices.cpu.packing import pack, random_bytes

VOCABULARY = 37


def embedded(target, dtype, tokens, columns, scale, *, threads=1):
    """Return the kernel's rows, and those the decoder gives."""
    random = np.random.default_rng(columns)
    data = random_bytes(random, dtype, VOCABULARY, columns)
    table = pack(data, dtype, VOCABULARY, columns)
    assert table.size == LAYOUTS[dtype].size_bytes(VOCABULARY, columns)
    out = poisoned(len(tokens) + 1, columns + 3)
    words = {
        "tokens": np.array(tokens, np.int32),
        "count": count(len(tokens)),
        "table": table,
        "out": out,
        "out_stride": out.strides[0],
        "columns": columns,
        "vocabulary": VOCABULARY,
        "scale": np.float32(scale),
    }
    call(target, KernelSpec.of(embed, dtype=dtype.name), FIELDS, words, threads=threads)
    assert np.isnan(out[-1]).all() and np.isnan(out[:, columns:]).all()
    expected = dequantize(data, dtype, (VOCABULARY, columns)) * np.float32(scale)
    return out[:-1, :columns], expected


@TARGETS
@pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda t: t.name)
def test_every_layout_is_decoded_exactly(target, dtype):
    """Rows at both ends of a row block and of the table come out bit for bit."""
    columns = 512 if LAYOUTS[dtype].has_spans else 96
    tokens = [0, 15, 16, 31, 32, 36, 5]
    got, expected = embedded(target, dtype, tokens, columns, 1.0)
    assert np.array_equal(got, expected[tokens])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_rows(threads):
    """Every row is written, by any number of threads, and scaled."""
    tokens = [3, 3, 20]
    got, expected = embedded(HOST, DType.Q8_0, tokens, 576, 5.5, threads=threads)
    assert np.array_equal(got, expected[tokens])


@pytest.mark.parametrize("columns", [1, 33])
def test_float_tables_have_any_width(columns):
    """Columns of a float table need not be a multiple of anything."""
    got, expected = embedded(HOST, DType.F16, [36], columns, 1.0)
    assert np.array_equal(got, expected[[36]])


@pytest.mark.parametrize("token", [-1, VOCABULARY, 1 << 30])
def test_tokens_outside_the_table_read_its_last_row(token):
    """A wrong token never reads outside the table."""
    got, expected = embedded(HOST, DType.Q4_0, [token], 64, 1.0)
    assert np.array_equal(got, expected[[-1]])
