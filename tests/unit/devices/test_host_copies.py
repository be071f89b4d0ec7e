"""Bytes go into buffers and come out as they went; devices without memory take and give none."""

import numpy as np
import pytest

from corral.devices.cpu.device import CpuDevice
from corral.devices.null.device import NullDevice
from corral.devices.reference.device import ReferenceDevice, reference_traits
from corral.errors import Closed
from corral.memory.lifetime import Lifetime

DATA = np.arange(100, dtype=np.uint8)


@pytest.mark.parametrize("make", [CpuDevice, ReferenceDevice])
def test_what_was_put_comes_back(make):
    """Any part of a buffer; what is returned is a copy, and what lies beside it stays."""
    with make() as device:
        buffer = device.allocate(4096, Lifetime.STATE)
        device.put(buffer, 50, DATA)
        found = device.download(buffer, 0, 4096)
        np.testing.assert_array_equal(found[50:150], DATA)
        assert not found[:50].any()
        assert not found[150:].any()
        device.put(buffer, 50, DATA[::-1].copy())
        np.testing.assert_array_equal(found[50:150], DATA)
        buffer.close()
        with pytest.raises(Closed):
            device.put(buffer, 0, DATA)
        with pytest.raises(Closed):
            device.download(buffer, 0, 1)


def test_a_device_without_memory_gives_zeros():
    """Its addresses are made up, and nothing is read or written there."""
    with NullDevice(reference_traits()) as device:
        buffer = device.allocate(4096, Lifetime.STATE)
        device.put(buffer, 0, DATA)
        assert not device.download(buffer, 0, 100).any()
        buffer.close()
        with pytest.raises(Closed):
            device.put(buffer, 0, DATA)
        with pytest.raises(Closed):
            device.download(buffer, 0, 1)
