"""Which products go the way of packed weights, and whether there is a cut for each of them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import tiny
from corral.devices.base import ModelBuffers
from corral.devices.cuda.lowering import lower_all
from corral.devices.cuda.matmul_launch import WEIGHTS, Product, Result
from corral.devices.cuda.packed_launch import (
    BATCHES,
    LEAST_ROWS,
    PackedTuning,
    packed,
    paired,
    supports,
    tile_bytes,
)
from corral.devices.cuda.traits import DECODE_BUCKETS, cuda_traits
from corral.gguf import open_model
from corral.models.footprint import Limits, design_model
from corral.quant.packed import BY_NAME
from corral.quant.types import DType
from kernel_table import A100, H200

LAYOUTS = [layout for layout in WEIGHTS if not BY_NAME[layout].is_float]
SHAPES = {
    "down": ((4096,), 14_336, Result.PLAIN, "none"),
    "heads": ((4096, 1024, 1024), 4096, Result.PLAIN, "none"),
    "logits": ((128_256,), 4096, Result.PLAIN, "none"),
    "gated": ((14_336, 14_336), 4096, Result.GATED_CODES, "silu"),
    "small": ((64,), 256, Result.PLAIN, "none"),
}
MOST_SHARED = 227 << 10
"""Of a block on sm_90."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_is_a_cut_for_every_layout(layout, batch, shape):
    """It fits shared memory and threads, and leaves no block without rows."""
    rows, columns, result, gating = SHAPES[shape]
    kernel = packed(Product(layout, rows, columns, batch, 0, result, gating), 132)
    assert kernel.shared_bytes <= MOST_SHARED
    assert kernel.threads in (288, 384, 640)
    assert 1 <= kernel.grid[0] <= 132


def test_a_cut_without_room_is_refused():
    """Sums of 128 rows in four depths leave nothing for stages."""
    product = Product("int8_half", (4096,), 4096, 128, 0)
    with pytest.raises(ValueError, match="no cut leaves room for two stages"):
        packed(product, 132, PackedTuning(1, 4, 2, 4))


def test_a_cluster_has_one_unit():
    """A cut of too many clusters is refused: blocks of a cluster meet once."""
    product = Product("int4_unsigned_offset", (4096,), 4096, 16, 0)
    assert packed(product, 132, PackedTuning(2, 2, 4, 4)).grid == (128, 1, 1)
    for tuning in (PackedTuning(1, 4, 4, 4), PackedTuning(2, 2, 8, 2)):
        with pytest.raises(ValueError, match="no cut"):
            packed(product, 132, tuning)


def test_two_layouts_are_paired_where_they_fit():
    """All units at once, or each product by itself."""
    heads = Product("int4_unsigned_offset", (4096, 1024), 4096, 16, 0)
    values = replace(heads, layout="int6_signed16", rows=(1024,))
    kernel = paired(heads, values, 132)
    assert kernel.grid[0] <= 132
    assert kernel.shared_bytes <= MOST_SHARED
    assert paired(replace(heads, rows=(32_768, 1024)), values, 132) is None


def test_what_it_takes():
    """Whole tiles of whole numbers."""
    assert supports(Product("int4_half", (64,), 576, 32, 0))
    assert not supports(Product("int4_half", (64,), 96, 32, 0))
    assert not supports(Product("f16", (64,), 576, 32, 0))
    assert not supports(Product("iq4_half", (64,), 576, 32, 0))
    assert tile_bytes(24) == 32 * 128


def stems(path, chip):
    """Return the files of kernels that each bucket of a model runs."""
    with open_model(path) as file:
        limits, traits = Limits(1024, 8, "f16", 512, 8), cuda_traits(0)
        plan = design_model(file.metadata, file.tensors, limits, traits).plan
    places = (SimpleNamespace(address=number << 44) for number in range(1, 6))
    buffers = ModelBuffers(*places, plan.weights, plan.state)
    lowered = lower_all(plan.plans[0], buffers, plan.plans[0].buckets, chip)
    return {
        bucket: {launch.instance.stem for launch in launches}
        for bucket, launches in lowered.items()
    }


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q8_0], ids=lambda dtype: dtype.name)
def test_batches_of_some_dozens_on_hopper(tmp_path, dtype):
    """From so many rows on, up to the largest batch; other cards stay with what they have."""
    path = tiny.write(tmp_path / "m.gguf", table=tiny.tensors(dtype=dtype))
    for bucket, found in stems(path, H200).items():
        expected = LEAST_ROWS <= bucket <= DECODE_BUCKETS[-1]
        assert ("matmul_packed_wgmma" in found) == expected, bucket
    assert not any("matmul_packed_wgmma" in found for found in stems(path, A100).values())
