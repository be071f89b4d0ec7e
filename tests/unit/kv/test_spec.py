"""Sizes of the cache."""

import pytest

from corral.kv.spec import LayerSpec, blocks_for, kv_spec, window_blocks
from corral.quant.types import DType


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (32, 1), (33, 2), (4096, 128)])
def test_blocks_for(tokens, blocks):
    """Whole blocks, the last one begun."""
    assert blocks_for(tokens) == blocks


def test_layers_of_one_window_share_a_group():
    """One pool and one table for each window that occurs."""
    layers = (LayerSpec(2, 64, 100), LayerSpec(2, 64), LayerSpec(2, 64, 100))
    spec = kv_spec(layers, DType.F16, context=1000, parallel=3, chunk_tokens=64)
    assert [group.window for group in spec.groups] == [100, None]
    assert spec.group(0) is spec.group(2)
    assert spec.group(1).num_blocks == 3 * 32
    assert {group.tables_name for group in spec.groups} == {"tables", "tables.window100"}


def test_the_shape_of_a_layer():
    """Blocks, K and V, heads, tokens, dimensions."""
    layers = (LayerSpec(2, 64), LayerSpec(4, 32))
    spec = kv_spec(layers, DType.F16, context=64, parallel=1, chunk_tokens=64)
    assert spec.state_shape(0) == (2, 2, 2, 32, 64)
    assert spec.state_shape(1) == (2, 2, 4, 32, 32)


def test_a_window_never_takes_more_than_the_context():
    """A window wider than the context is the context."""
    spec = kv_spec((LayerSpec(1, 32, 4096),), DType.F16, context=64, parallel=2, chunk_tokens=64)
    assert spec.groups[0].num_blocks == 2 * 2


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_window_blocks_are_enough_and_no_more(window, chunk):
    """The most blocks that a chunk and what it looks back to ever touch, over all positions."""
    most = 0
    for start in range(200):
        first_seen = max(0, start - window + 1)
        most = max(most, (start + chunk - 1) // 32 - first_seen // 32 + 1)
    assert most == window_blocks(window, chunk)
