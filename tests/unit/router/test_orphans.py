"""Workers that a dead router left are found and ended; nobody else is."""

import os
import subprocess
import sys

import pytest

from corral.router.orphans import Identity, Records

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")


@pytest.fixture
def sleeper():
    """Return a process that does nothing, in a group of its own."""
    command = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.communicate()


def written(folder, worker, router):
    """Write down a worker of a router."""
    numbers = worker.pid, worker.started, router.pid, router.started
    (folder / str(worker.pid)).write_text(" ".join(map(str, numbers)))


def test_a_worker_whose_router_is_gone_is_ended_and_waited_for(tmp_path, sleeper):
    """Case 62: before anything is measured, its memory is free."""
    written(tmp_path, Identity.of(sleeper.pid), Identity(os.getpid(), 1))
    assert Records(tmp_path).sweep() == [sleeper.pid]
    assert Identity.of(sleeper.pid) is None
    assert not list(tmp_path.iterdir())


def test_a_worker_whose_router_lives_stays(tmp_path, sleeper):
    """Two routers on one machine do not end each other's workers."""
    Records(tmp_path).note(sleeper.pid)
    assert Records(tmp_path).sweep() == []
    assert Identity.of(sleeper.pid) is not None
    Records(tmp_path).forget(sleeper.pid)
    assert not list(tmp_path.iterdir())


def test_another_process_of_that_number_is_nobodys_orphan(tmp_path, sleeper):
    """Numbers are used again: the start must be the one that was written down."""
    known = Identity.of(sleeper.pid)
    written(tmp_path, Identity(known.pid, known.started - 1), Identity(os.getpid(), 1))
    assert Records(tmp_path).sweep() == []
    assert Identity.of(sleeper.pid) == known
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"1 2 3", b"a b c d", b"\xff" * 1000, b"1 2 3 4 5"])
def test_a_record_that_cannot_be_read_is_removed(tmp_path, content):
    """It says nothing about any process."""
    (tmp_path / "123").write_bytes(content)
    (tmp_path / "other").write_bytes(content)
    assert Records(tmp_path).sweep() == []
    assert [file.name for file in tmp_path.iterdir()] == ["other"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path, sleeper):
    """What cannot be written down is no error."""
    records = Records(tmp_path / "none")
    assert records.sweep() == []
    records.note(sleeper.pid)
    records.forget(sleeper.pid)
