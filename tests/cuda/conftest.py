"""A card, or a reason to skip."""

import pytest

from corral.devices import registry
from corral.devices.nvml import NvmlFailure, process_nvml


def pytest_collection_modifyitems(items):
    """Let what reads an idle card come before this process has a context, which it then keeps."""
    items.sort(key=lambda item: item.path.name != "test_reading.py")


@pytest.fixture(scope="session", autouse=True)
def card():
    """Return the first card that NVML lists; skip where there is none."""
    try:
        gpus = process_nvml().gpus()
    except NvmlFailure as failure:
        pytest.skip(f"no NVIDIA device: {failure}")
    if not gpus:
        pytest.skip("no NVIDIA device is visible")
    pytest.importorskip("cuda.bindings", reason="the CUDA bindings are not installed")
    return gpus[0]


@pytest.fixture(scope="module")
def device(card):
    """The card as a device; all its bytes are back at the end."""
    with registry.open("cuda:0") as opened:
        yield opened
        assert opened.allocated_bytes == 0
