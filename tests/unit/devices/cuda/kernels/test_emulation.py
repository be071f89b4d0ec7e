"""The emulator runs right kernels as a card does, and says what is wrong with others."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from emulation import EmulationError, Memory, address, library, needs_emulator

pytestmark = needs_emulator

PROBE = Path(__file__).with_name("probe.cu")
WRONG = {
    "leaves_a_barrier_open": "deadlock",
    "shuffles_with_the_gone": "have returned",
    "reads_unaligned": "not aligned at .*probe.cu",
    "writes_past_an_array": "index 4 is past the end",
    "never_waits": "without wait_for_previous",
}
RIGHT = ("sum_rows<256>", "multiply", "copy_in_bulk", "forgets_a_barrier", "forgets_a_copy")


class Probe:
    """Kernels of probe.cu on one input and one output."""

    def __init__(self):
        self.memory = Memory()
        random = np.random.default_rng(0)
        self.x = self.memory.of(random.normal(size=(300, 999)).astype(np.float32))
        self.out = self.memory.empty(300)

    def run(self, name, grid, block, shared_bytes=0):
        names = tuple(f"corral::{each}" for each in (*RIGHT, *WRONG))
        fields = (address(self.x), address(self.out), 999)
        library(PROBE, names).run(f"corral::{name}", grid, block, shared_bytes, fields)
        self.memory.check()


@pytest.fixture
def probe():
    return Probe()


def test_blocks_and_shared_memory(probe):
    """Threads meet in barriers and shuffles, block after block."""
    probe.run("sum_rows<256>", 300, 256, 999 * 4)
    assert np.allclose(probe.out, probe.x.sum(axis=1), atol=1e-4)


def test_tensor_cores(probe):
    """Fragments are those of the instruction set's tables."""
    probe.run("multiply", 1, 32, 1024)
    rounded = ((probe.x.view(np.uint32) + 0x7FFF) >> 16 << 16).view(np.float32).reshape(-1)
    expected = rounded[:256].reshape(16, 16) @ rounded[256:384].reshape(8, 16).T
    assert np.allclose(probe.out[:128].reshape(16, 8), expected, atol=1e-2)


def test_bulk_copies(probe):
    """Barriers count bytes, phase by phase."""
    probe.run("copy_in_bulk", 1, 64, 512)
    assert np.array_equal(probe.out[:192], probe.x.reshape(-1)[:192])


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(probe, name):
    """A kernel that would hang or fault on a card ends with an error."""
    with pytest.raises(EmulationError, match=WRONG[name]):
        probe.run(name, 1, 64)


def test_writes_past_shared_memory(probe):
    """Dynamic shared memory has guards."""
    with pytest.raises(EmulationError, match="outside of its dynamic shared memory"):
        probe.run("sum_rows<256>", 2, 256, 998 * 4)


def test_a_missing_barrier_shows(probe):
    """Blocks run their threads in either order, so that somebody reads too early."""
    probe.run("forgets_a_barrier", 2, 64)
    assert not np.array_equal(probe.out[:128].reshape(2, 64), np.tile(probe.x[0, 63::-1], (2, 1)))


def test_a_copy_that_nobody_waited_for_shows(probe):
    """Copies happen as late as they may."""
    probe.run("forgets_a_copy", 1, 64, 256)
    assert np.isnan(probe.out[:64]).all()


def test_writes_past_a_buffer():
    """Buffers have guards as well."""
    memory = Memory()
    values = memory.empty(3)
    (ctypes.c_char * 16).from_address(address(values))[12] = 0
    with pytest.raises(AssertionError, match="past a buffer"):
        memory.check()
