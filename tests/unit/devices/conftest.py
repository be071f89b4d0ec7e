"""The devices that tests run on, one after the other."""

import pytest

from corral.devices import registry


@pytest.fixture(scope="module", params=["reference", "cpu"])
def computing(request):
    """A device that computes; all its bytes are back at the end."""
    with registry.open(request.param) as device:
        yield device
        assert device.allocated_bytes == 0
