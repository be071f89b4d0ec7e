"""What contexts cost is remembered in one file, whatever happens to it."""

import json
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from corral.devices import context_cost
from corral.devices.context_cost import DEFAULT_CONTEXT_BYTES, ContextCost, ContextCosts

MIB = 1 << 20
ENTRY = {"name": "Card", "driver": "580.1", "bytes": 500 * MIB}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "contexts.json"


@pytest.fixture
def costs(path):
    return ContextCosts(path)


def test_nothing_is_known_at_first(costs):
    """A file that does not exist knows no card."""
    assert costs.lookup("Card", "580.1") is None


def test_a_cost_belongs_to_a_card_and_a_driver(costs, path):
    """Another card or driver has not been measured by it; another process sees it."""
    costs.store("Card", "580.1", 500 * MIB)
    costs.store("Other", "580.1", 300 * MIB)
    assert ContextCosts(path).lookup("Card", "580.1") == 500 * MIB
    assert costs.lookup("Other", "580.1") == 300 * MIB
    assert costs.lookup("Card", "590.1") is None


def test_a_new_measurement_takes_the_place_of_the_old(costs):
    """The last one counts."""
    costs.store("Card", "580.1", 500 * MIB)
    costs.store("Card", "580.1", 510 * MIB)
    assert costs.lookup("Card", "580.1") == 510 * MIB


def test_what_is_known_is_not_written_again(costs, path):
    """Storing the same cost leaves the file as it is."""
    costs.store("Card", "580.1", 500 * MIB)
    before = path.stat().st_ino
    costs.store("Card", "580.1", 500 * MIB)
    assert path.stat().st_ino == before


def test_a_plan_says_whether_it_guesses(costs):
    """A card that was never measured gets a careful guess, marked as one."""
    assert costs.planned("Card", "580.1") == ContextCost(DEFAULT_CONTEXT_BYTES, is_measured=False)
    assert costs.planned("Card", None) == ContextCost(DEFAULT_CONTEXT_BYTES, is_measured=False)
    costs.store("Card", "580.1", 500 * MIB)
    assert costs.planned("Card", "580.1") == ContextCost(500 * MIB, is_measured=True)


def test_the_guess_is_careful():
    """It is more than any card seen takes, with an H200's 523.6 MiB and an RTX 6000's 555."""
    assert 555 * MIB < DEFAULT_CONTEXT_BYTES <= 1024 * MIB


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"{",
        b"[]",
        b"null",
        b"3",
        b'{"version": 1}',
        b'{"version": 2, "contexts": []}',
        b'{"version": 1, "contexts": 5}',
        b'{"version": 1, "contexts": [5]}',
        b"[" * 100_000,
        b" " * (2 << 20),
        *(
            json.dumps({"version": version, "contexts": [entry]}).encode()
            for version, entry in (
                (2, ENTRY),
                ("1", ENTRY),
                (1, {**ENTRY, "bytes": 0}),
                (1, {**ENTRY, "bytes": -5}),
                (1, {**ENTRY, "bytes": 1e6}),
                (1, {**ENTRY, "bytes": True}),
                (1, {**ENTRY, "bytes": 10**15}),
                (1, {**ENTRY, "name": None}),
                (1, {**ENTRY, "driver": 580}),
                (1, {"name": "Card", "driver": "580.1"}),
            )
        ),
    ],
    ids=lambda content: repr(content[:70]),
)
def test_a_damaged_file_counts_as_absent(costs, path, content):
    """Nothing of it is believed, and the next measurement makes a good one."""
    path.write_bytes(content)
    assert costs.lookup("Card", "580.1") is None
    costs.store("Card", "580.1", 500 * MIB)
    assert costs.lookup("Card", "580.1") == 500 * MIB


def test_the_format(costs, path):
    """The file is of version 1, for its owner only, and nothing else is left beside the lock."""
    costs.store("Card", "580.1", 500 * MIB)
    assert json.loads(path.read_text()) == {"version": 1, "contexts": [ENTRY]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {file.name for file in path.parent.iterdir()} == {"contexts.json", "contexts.lock"}


@pytest.mark.parametrize("size", [0, -1, 5 << 30])
def test_an_impossible_cost_is_not_kept(costs, path, size):
    """What cannot be a context's cost would only spoil the file."""
    costs.store("Card", "580.1", size)
    assert not path.exists()


def test_a_place_that_cannot_be_written(tmp_path):
    """A cost that cannot be kept is measured again, that is all."""
    costs = ContextCosts(tmp_path / "missing" / "contexts.json")
    costs.store("Card", "580.1", 500 * MIB)
    assert costs.lookup("Card", "580.1") is None


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(costs, path, monkeypatch, step):
    """The file is whole before it takes the old one's place; its beginnings are cleared away."""
    costs.store("Card", "580.1", 500 * MIB)

    def refuse(*_):
        raise OSError("the disk is full")

    owner = context_cost.os if step == "fsync" else context_cost.Path
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, refuse)
        costs.store("Card", "580.1", 510 * MIB)
    assert costs.lookup("Card", "580.1") == 500 * MIB
    assert not list(path.parent.glob("*.part"))


def test_a_lock_that_is_held_does_not_stop_us(costs, path, monkeypatch):
    """A stopped process may hold the lock for ever; the file is written without it then."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(context_cost, "_LOCK_S", 0.05)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        costs.store("Card", "580.1", 500 * MIB)
    assert costs.lookup("Card", "580.1") == 500 * MIB


def test_a_file_system_without_locks(costs, monkeypatch):
    """The file is written all the same."""

    def refuse(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(context_cost.fcntl, "flock", refuse)
    costs.store("Card", "580.1", 500 * MIB)
    assert costs.lookup("Card", "580.1") == 500 * MIB


WRITER = """
import sys
from pathlib import Path
sys.path[:] = {path!r}
from corral.devices.context_cost import ContextCosts
print("ready", flush=True)
sys.stdin.readline()
for card in range(10):
    ContextCosts(Path({file!r})).store(f"Card {number} {{card}}", "580.1", {size})
"""


def writer(path, number):
    """Start a process that stores the costs of its own cards once it is told to."""
    script = WRITER.format(path=sys.path, file=str(path), number=number, size=(number + 1) * MIB)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_that_write_at_once_lose_nothing(path):
    """Each reads, adds and replaces under the lock."""
    processes = [writer(path, number) for number in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    costs = ContextCosts(path)
    for number in range(3):
        for card in range(10):
            assert costs.lookup(f"Card {number} {card}", "580.1") == (number + 1) * MIB


class Prober:
    """Reads as it is told."""

    def __init__(self, context_bytes, *, is_measured=True):
        self.reading = SimpleNamespace(
            name="Card",
            driver_version="580.1",
            context_bytes=context_bytes,
            context_is_measured=is_measured,
        )

    def read(self, uuid):
        return self.reading


def test_measuring(costs):
    """What a probe measures is remembered."""
    assert costs.measure(Prober(500 * MIB), "GPU-1") == 500 * MIB
    assert costs.lookup("Card", "580.1") == 500 * MIB


def test_what_was_not_measured_is_not_remembered(costs):
    """A device that cannot be read, a busy one, and a cost that was only looked up."""
    unreadable = SimpleNamespace(read=lambda uuid: None)
    assert costs.measure(unreadable, "GPU-1") is None
    assert costs.measure(Prober(None, is_measured=False), "GPU-1") is None
    assert costs.measure(Prober(500 * MIB, is_measured=False), "GPU-1") is None
    assert costs.lookup("Card", "580.1") is None


def test_a_link_in_the_place_of_the_file(costs, path, tmp_path):
    """A link is replaced, and what it led to is left alone."""
    other = tmp_path / "other"
    other.write_text("mine")
    path.symlink_to(other)
    costs.store("Card", "580.1", 500 * MIB)
    assert other.read_text() == "mine"
    assert costs.lookup("Card", "580.1") == 500 * MIB
