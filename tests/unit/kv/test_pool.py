"""Block ids and their reference counts."""

import pytest

from corral.errors import CapacityExceeded, InternalError
from corral.kv.pool import BlockPool


def test_blocks_are_distinct_until_the_pool_is_empty():
    """Every id comes once, then the pool refuses."""
    pool = BlockPool(3)
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]
    assert not pool.can_take(1)
    with pytest.raises(CapacityExceeded, match="all 3 KV blocks are in use"):
        pool.take()


def test_can_take_counts():
    """Asking changes nothing."""
    pool = BlockPool(2)
    assert pool.can_take(2)
    assert not pool.can_take(3)
    assert pool.can_take(0)
    assert pool.statistics().num_free == 2


def test_a_block_returns_with_its_last_reference():
    """A shared block stays in use until everybody gave it back."""
    pool = BlockPool(1)
    block = pool.take()
    pool.share(block)
    assert pool.references(block) == 2
    pool.give_back(block)
    assert not pool.can_take(1)
    pool.give_back(block)
    assert pool.references(block) == 0
    assert pool.take() == block


def test_giving_back_twice_is_a_broken_promise():
    """A free block cannot be freed, nor shared."""
    pool = BlockPool(1)
    block = pool.take()
    pool.give_back(block)
    with pytest.raises(InternalError, match="freed twice"):
        pool.give_back(block)
    with pytest.raises(InternalError, match="cannot be shared"):
        pool.share(block)
    assert pool.statistics().num_free == 1


def test_an_empty_pool_has_nothing():
    """Zero blocks are a legal pool."""
    pool = BlockPool(0)
    assert not pool.can_take(1)
    assert pool.statistics().num_blocks == 0
