"""What factors of products are, and the scratch that is planned for them."""

import pytest

from corral.memory.factors import (
    ALIGNMENT,
    LEFT_FACTORS,
    FactorSpace,
    Form,
    factor_space,
    factor_tiles,
    form_of,
    left_bytes,
    right_bytes,
)
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from transformers import transformer


@pytest.mark.parametrize("form", Form)
def test_factors_are_whole_tiles(form):
    """A block reads whole tiles, the last columns and rows included."""
    assert right_bytes(130, 576, form) == 256 * 576 * 2 * form.matrices
    assert left_bytes(130, 96, form) == 256 * 128 * 2 * form.matrices
    assert factor_tiles(96, form) == 2 * form.matrices


def test_each_type_has_a_form():
    """Floats of 16 bits and more are exact in their form, or nearly; codes become BF16."""
    forms = {dtype: form_of(dtype) for dtype in LAYOUTS}
    assert forms[DType.F32] is Form.SPLIT
    assert forms[DType.F16] is Form.F16
    assert all(form is Form.BF16 for dtype, form in forms.items() if dtype.is_quantized)


def test_parts_of_the_space_lie_apart():
    """The right factor, then each left one with its scales; all of it is counted."""
    space = FactorSpace(left_bytes=4096, scales_bytes=1024, right_bytes=8192)
    assert [space.left(0), space.scales(0), space.left(1), space.scales(1)] == [
        8192,
        12288,
        13312,
        17408,
    ]
    assert space.size_bytes == 8192 + LEFT_FACTORS * (4096 + 1024)
    assert FactorSpace().size_bytes == 0


def test_the_space_serves_the_largest_step():
    """q, k and v stand side by side, gate and up too; the gated result is a left factor."""
    graph = transformer(width=256, heads=8, kv_heads=2, ffn=512, dtype=DType.Q8_0)
    space = factor_space(graph, 200)
    assert space.left_bytes == left_bytes(200, 512, Form.BF16)
    assert space.right_bytes == right_bytes(1024, 256, Form.BF16)
    assert space.scales_bytes >= 4 * 200
    assert space.scales_bytes % ALIGNMENT == 0
