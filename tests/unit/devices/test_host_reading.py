"""The host's memory as the kernel tells it."""

import sys

import pytest

from corral.devices.control_group import GroupMemory
from corral.devices.driver_files import driver_version_in_files, gpus_in_files
from corral.devices.host_reading import HostReading, read_host

MEMINFO = """\
MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    600 kB
SwapTotal:      9000 kB
SwapFree:       9000 kB
HugePages_Total:       {pages}
Hugepagesize:          2 kB
{hugetlb}"""
STATUS = "Name:\tpython\nRssAnon:\t  40 kB\nRssFile:\t 500 kB\nRssShmem:\t   10 kB\n"


@pytest.fixture
def proc(tmp_path):
    """Return a function that writes the kernel's files and returns their folder."""

    def write(*, pages=0, hugetlb="", status=STATUS, meminfo=MEMINFO):
        (tmp_path / "self").mkdir(exist_ok=True)
        (tmp_path / "meminfo").write_text(meminfo.format(pages=pages, hugetlb=hugetlb))
        (tmp_path / "self" / "status").write_text(status)
        return tmp_path

    return write


def kib(*sizes):
    return tuple(size * 1024 for size in sizes)


def test_free_is_what_can_be_had_without_swapping(proc):
    """Page cache counts, swap does not; others hold the rest."""
    told = read_host(proc(), tuple)
    assert (told.total_bytes, told.free_bytes, told.reserved_bytes, told.own_bytes) == kib(
        1000, 600, 0, 50
    )
    assert told.foreign_bytes == 350 * 1024


@pytest.mark.parametrize("told", [{"pages": 100}, {"hugetlb": "Hugetlb:  200 kB\n"}])
def test_huge_pages_are_no_part_of_it(proc, told):
    """Set aside, they can be had by nobody who does not ask for them."""
    reading = read_host(proc(**told), tuple)
    assert (reading.total_bytes, reading.free_bytes, reading.reserved_bytes) == kib(800, 600, 200)


def test_control_groups_cap_it(proc):
    """The tightest of all groups decides, for the total and for what is free."""
    groups = (GroupMemory(700 * 1024, 300 * 1024), GroupMemory(500 * 1024, 400 * 1024))
    told = read_host(proc(), lambda: groups)
    assert (told.total_bytes, told.free_bytes) == kib(500, 300)


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 1000 kB\n", "MemTotal: many kB\n"])
def test_a_kernel_that_does_not_tell(proc, meminfo):
    """An old kernel, or no such file: unknown, and not 0."""
    assert read_host(proc(meminfo=meminfo), tuple) is None


def test_no_such_files(tmp_path):
    """Another system."""
    assert read_host(tmp_path / "none", tuple) is None


def test_a_process_that_may_not_see_itself(proc):
    """What it holds is unknown, and then what others hold is, too."""
    told = read_host(proc(status=""), tuple)
    assert (told.own_bytes, told.foreign_bytes) == (None, None)
    assert HostReading(10, 5, own_bytes=9).foreign_bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_machine():
    """The numbers of this machine can be."""
    told = read_host()
    assert 0 < told.free_bytes <= told.total_bytes
    assert told.own_bytes > 0


INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 41
GPU UUID: \t {uuid}
Bus Location: \t 0000:00:06.0
"""


def test_the_drivers_files_list_its_cards(tmp_path):
    """In the order of their bus addresses; what has no UUID yet is left out."""
    for bus, uuid in (
        ("0000:41:00.0", "GPU-b"),
        ("0000:01:00.0", "GPU-a"),
        ("0000:61:00.0", "GPU-????????-????-????-????-????????????"),
    ):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(INFORMATION.format(uuid=uuid))
    (tmp_path / "0000:81:00.0").mkdir()
    assert [(g.uuid, g.name) for g in gpus_in_files(tmp_path)] == [
        ("GPU-a", "NVIDIA H200"),
        ("GPU-b", "NVIDIA H200"),
    ]
    assert gpus_in_files(tmp_path / "none") == ()


def test_the_drivers_file_tells_its_version(tmp_path):
    """As NVML would, so that what was measured under it is found again."""
    path = tmp_path / "version"
    assert driver_version_in_files(path) is None
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )
    assert driver_version_in_files(path) == "580.159.04"
    path.write_text("nothing of use")
    assert driver_version_in_files(path) is None
