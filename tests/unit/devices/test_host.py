"""Host memory that devices allocate."""

import sys
from array import array
from pathlib import Path

import pytest

from corral.devices.host import PAGE_BYTES, HostMemory, array_at
from corral.memory.lifetime import Lifetime

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def mapping_of(address):
    """Return the description of the mapping that an address lies in."""
    found = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            first, end = (int(part, 16) for part in head.split("-"))
            found = {} if first <= address < end else None
        elif found is not None:
            name, _, value = line.partition(":")
            found[name] = value.strip()
            if name == "VmFlags":
                return found
    raise AssertionError("the address is not mapped")


def resident_bytes(buffer):
    """Return how much of a buffer has pages; its mapping may have grown together with others."""
    first, count = buffer.address // PAGE_BYTES, buffer.size_bytes // PAGE_BYTES
    with Path("/proc/self/pagemap").open("rb") as entries:
        entries.seek(first * 8)
        pages = array("Q", entries.read(count * 8))
    return sum(page >> 62 != 0 for page in pages) * PAGE_BYTES  # present, or swapped out


@on_linux
def test_buffers_are_private_memory():
    """Buffers are anonymous memory of this process: counted in RssAnon, open to huge pages."""
    memory = HostMemory("test")
    buffer = memory.allocate(16 << 20, Lifetime.WEIGHTS)
    array_at(buffer.address, (buffer.size_bytes,), "u1")[:] = 1
    mapping = mapping_of(buffer.address)
    buffer.close()
    assert int(mapping["Anonymous"].split()[0]) >= 16 << 10
    assert "sh" not in mapping["VmFlags"].split()


@on_linux
def test_pages_are_there_before_they_are_written():
    """A buffer that evaluations write to has all its pages at once; weights, as they are read."""
    memory = HostMemory("test")
    for lifetime, expected in ((Lifetime.STATE, 4 << 20), (Lifetime.WEIGHTS, 0)):
        buffer = memory.allocate(4 << 20, lifetime)
        resident = resident_bytes(buffer)
        buffer.close()
        assert resident == expected


def test_closing_gives_back():
    """A closed buffer is gone, and so are its bytes."""
    memory = HostMemory("test")
    buffer = memory.allocate(PAGE_BYTES + 1, Lifetime.SCRATCH)
    assert memory.allocated_bytes == buffer.size_bytes == 2 * PAGE_BYTES
    buffer.close()
    assert memory.allocated_bytes == 0
