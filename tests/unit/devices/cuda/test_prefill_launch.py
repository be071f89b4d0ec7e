"""Geometry of prefill: what a plan counts covers what kernels touch."""

import pytest

from corral.devices.cuda import prefill_launch as launch
from corral.devices.cuda.prefill_launch import Chip, Finish, Heads, Mixed
from corral.memory.factors import Form
from corral.quant.types import DType

H200 = Chip(132, True)
SHARED_PER_BLOCK = 227 << 10
SHARED_PER_BLOCK_SM86 = 99 << 10


@pytest.mark.parametrize("rows, columns, width", [(2048, 28672, 256), (512, 4096, 128)])
def test_wide_tiles_unless_multiprocessors_would_idle(rows, columns, width):
    assert launch.width_for(rows, columns, H200) == width


def test_every_tile_of_a_product_has_a_block_or_a_turn():
    kernel = launch.product(Form.BF16, Finish.PLAIN, 2048, 4096, H200)
    assert kernel.grid == (132, 1, 1)
    kernel = launch.product(Form.BF16, Finish.PLAIN, 130, 130, Chip(132, False))
    assert kernel.grid == (4, 1, 1)


def test_shared_memory_fits_each_architecture():
    for form in Form:
        for width in (256, 128):
            kernel = launch.wgmma_product(form, Finish.PLAIN, 512, 512, width, H200)
            assert kernel.shared_bytes <= SHARED_PER_BLOCK
        kernel = launch.mma_product(form, Finish.PLAIN, 512, 512)
        assert kernel.shared_bytes <= SHARED_PER_BLOCK_SM86
    for stored in (DType.F16, DType.BF16, DType.F32, DType.Q8_0):
        for dim in (64, 80, 96, 128, 256):
            heads = Heads(8, 2, dim, stored)
            kernel = launch.mma_attention(heads, 512, to=Mixed.FLOATS)
            assert kernel.shared_bytes <= SHARED_PER_BLOCK_SM86
            kernel = launch.attention(heads, 512, H200, to=Mixed.FLOATS)
            assert kernel.shared_bytes + 1024 <= SHARED_PER_BLOCK


def test_attention_has_a_block_for_each_run_of_rows():
    """128 rows of a tile are 32 rows of the batch × 4 heads; 42 × 3 leave two idle."""
    grids = [
        launch.attention(Heads(8 * group, 8, 128, DType.F16), 2048, H200, to=Mixed.TILES).grid
        for group in (1, 3, 4)
    ]
    assert grids == [(8, 16, 1), (8, 49, 1), (8, 64, 1)]
