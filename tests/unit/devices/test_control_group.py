"""Limits of control groups, from files as kernels write them."""

import psutil
import pytest

from corral.devices import host
from corral.devices.control_group import GroupMemory, group_limits

MIB = 1 << 20


@pytest.fixture
def group(tmp_path):
    """Return a function that writes a group's files, and one that reads the limits."""
    root, membership = tmp_path / "cgroup", tmp_path / "membership"

    def write(folder, **files):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (root / folder / name.replace("__", ".", 1)).write_text(text)

    def read(*lines):
        membership.write_text("\n".join(lines) + "\n")
        return group_limits(membership, root)

    return write, read


def v2(limit, usage, inactive=0):
    return {
        "memory__max": f"{limit}\n",
        "memory__current": f"{usage}\n",
        "memory__stat": f"anon 5\nfile 7\ninactive_file {inactive}\n",
    }


def v1(limit, usage, inactive=0):
    return {
        "memory__limit_in_bytes": f"{limit}\n",
        "memory__usage_in_bytes": f"{usage}\n",
        "memory__stat": f"cache 5\ninactive_file 3\ntotal_inactive_file {inactive}\n",
    }


def test_version_2(group):
    """What is left is the limit less what is used and cannot be dropped."""
    write, read = group
    write("user/app", **v2(100 * MIB, 60 * MIB, 10 * MIB))
    assert read("0::/user/app") == (GroupMemory(100 * MIB, 50 * MIB),)


def test_version_1(group):
    """The memory controller has a tree of its own, beside those of the others."""
    write, read = group
    write("memory/box", **v1(100 * MIB, 60 * MIB, 10 * MIB))
    write("memory", **v1(9223372036854771712, 70 * MIB))
    lines = ("5:cpu,cpuacct:/box", "4:memory:/box", "0::/")
    assert read(*lines) == (GroupMemory(100 * MIB, 50 * MIB),)


def test_ancestors_bind(group):
    """Each group above has a limit of its own; one that says max has none."""
    write, read = group
    write("a/b", **v2("max", 0))
    write("a", **v2(50 * MIB, 20 * MIB))
    write("", **v2(80 * MIB, 70 * MIB))
    assert read("0::/a/b") == (GroupMemory(50 * MIB, 30 * MIB), GroupMemory(80 * MIB, 10 * MIB))


def test_a_container_sees_its_own_group_at_the_root(group):
    """The path of the host is not visible inside; the root is the container's group."""
    write, read = group
    write("", **v2(80 * MIB, 90 * MIB))
    assert read("0::/system.slice/docker-1234.scope") == (GroupMemory(80 * MIB, 0),)


@pytest.mark.parametrize("line", ["", "nonsense", "0:", "0::", "4:memory:", "4:memory:/../../etc"])
def test_nonsense_is_no_limit(group, line):
    """What cannot be read binds nobody."""
    _, read = group
    assert read(line) == ()


def test_a_host_without_groups(tmp_path):
    """No membership file, no limits."""
    assert group_limits(tmp_path / "none", tmp_path) == ()


def test_the_host_has_no_more_than_its_groups_allow(monkeypatch):
    """The smallest limit is the total, the smallest rest is what is available."""
    groups = (GroupMemory(60 * MIB, 30 * MIB), GroupMemory(50 * MIB, 40 * MIB))
    monkeypatch.setattr(host, "group_limits", lambda: groups)
    assert host.host_memory() == (50 * MIB, 30 * MIB)
    monkeypatch.setattr(host, "group_limits", lambda: ())
    assert host.host_memory()[0] == psutil.virtual_memory().total
