"""What is chosen for a product fits the device, and fills it."""

from dataclasses import replace

import pytest

from corral.devices.cuda.matmul_launch import MAX_PARTS, WEIGHTS, Product, Result, supports
from corral.devices.cuda.matmul_tuning import LARGEST_BATCH, choose, wants_half_rows

PROCESSORS = 132
LIMITS = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_90": 227 << 10}
SHAPES = [(4096, 4096), (4096, 14336), (28672, 4096), (128256, 2048), (576, 512), (49152, 768)]


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128])
def test_it_fits_every_device(layout: str, batch: int, limit: int):
    """Shared memory of a block stays below what the architecture has."""
    assert batch <= LARGEST_BATCH
    for rows, columns in SHAPES:
        for planes in (1,) if layout in ("f16", "bf16", "f32") else (1, 2):
            product = Product(layout, (rows,), columns, batch, planes)
            assert supports(product)
            if wants_half_rows(product):
                product = replace(product, planes=0)
            launch = choose(product, PROCESSORS, limit)
            assert launch.shared_bytes <= limit
            assert launch.threads <= 512


@pytest.mark.parametrize("batch", [1, 8, 16, 64, 128])
def test_gated_products_round_whole_groups(batch: int):
    """A block of threads has two row blocks of the gate and two of the other half, or more."""
    product = Product(
        "int4_unsigned_offset", (8192, 8192), 2048, batch, 1, Result.GATED_CODES, "silu"
    )
    if wants_half_rows(product):
        product = replace(product, planes=0)
    assert choose(product, PROCESSORS, LIMITS["sm_90"]).grid[0] <= 8192 // 32


def test_what_the_plain_kernel_must_do():
    """Other layouts, too many parts, and columns that are no whole pieces are left to it."""
    assert not supports(Product("iq4_half", (64,), 512, 1))
    assert not supports(Product("int4_half", (64,), 96, 1))
    assert not supports(Product("int4_half", (64,) * (MAX_PARTS + 1), 512, 1))
    assert not supports(Product("int4_half", (40, 40), 512, 1, 1, Result.GATED_CODES, "silu"))


def test_a_limit_that_nothing_fits_is_refused():
    """It says what was needed."""
    for batch in (1, 16, 64):
        product = Product("int8_half", (4096,), 4096, batch)
        if wants_half_rows(product):
            product = replace(product, planes=0)
        with pytest.raises(ValueError, match="bytes"):
            choose(product, PROCESSORS, 8 << 10)
