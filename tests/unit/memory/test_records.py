"""The record pool: one allocation, never grown, never wrapped."""

import pytest

from corral.devices.null.device import NullDevice
from corral.devices.reference.device import reference_traits
from corral.errors import CapacityExceeded, Closed
from corral.memory.lifetime import Lifetime
from corral.memory.records import RecordPool, RecordStatistics


@pytest.fixture
def buffer():
    with NullDevice(reference_traits()) as device:
        buffer = device.allocate(4096, Lifetime.RECORDS)
        yield buffer
        buffer.close()


def test_records_follow_each_other(buffer):
    """Each address is behind the one before; several come as a run."""
    pool = RecordPool(buffer, record_bytes=64, capacity=10)
    assert [pool.take(), pool.take(3), pool.take()] == [
        buffer.address,
        buffer.address + 64,
        buffer.address + 4 * 64,
    ]
    assert pool.statistics() == RecordStatistics(capacity=10, used=5)


def test_a_full_pool_refuses(buffer):
    """It never hands out a record twice, and a refusal takes nothing."""
    pool = RecordPool(buffer, record_bytes=64, capacity=2)
    pool.take()
    with pytest.raises(CapacityExceeded, match="the record pool holds 2 records"):
        pool.take(2)
    assert pool.statistics().used == 1
    pool.take()
    with pytest.raises(CapacityExceeded):
        pool.take()


def test_a_pool_larger_than_its_buffer_is_refused(buffer):
    """The capacity must have bytes behind it."""
    RecordPool(buffer, record_bytes=64, capacity=64)
    with pytest.raises(CapacityExceeded, match="65 records of 64 bytes do not fit 4096 bytes"):
        RecordPool(buffer, record_bytes=64, capacity=65)


def test_a_pool_ends_with_its_buffer(buffer):
    """No record has an address once the buffer is closed."""
    pool = RecordPool(buffer, record_bytes=64, capacity=2)
    buffer.close()
    with pytest.raises(Closed, match="records"):
        pool.take()
