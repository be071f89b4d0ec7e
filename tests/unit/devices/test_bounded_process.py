"""A helper process ends, within its limits, and is waited for."""

import os
import signal
import sys
import threading

import pytest

from corral.devices import bounded_process
from corral.devices.bounded_process import Finished, HelperFailed, HelperStuck, run_bounded


def run(code, **limits):
    """Run a little Python."""
    return run_bounded((sys.executable, "-I", "-S", "-c", code), {}, **{"seconds": 10.0, **limits})


def test_status_and_output():
    """Both come back, the error output does not."""
    code = "import sys; print('out', end=''); print('err', file=sys.stderr); sys.exit(7)"
    assert run(code) == Finished(7, b"out")


def test_death_by_a_signal():
    """A signal is a negative status."""
    assert run("import os; os.kill(os.getpid(), 11)").status == -signal.SIGSEGV


def test_all_of_a_long_output():
    """As much as the limit is read, though a pipe holds less."""
    code = "import sys; sys.stdout.write('x' * 300000)"
    assert len(run(code, output_bytes=300000).output) == 300000
    with pytest.raises(HelperFailed, match="more than 299999 bytes"):
        run(code, output_bytes=299999)


@pytest.mark.parametrize("command", [("",), ("/nowhere/at/all",), ("a\0b",)])
def test_what_cannot_be_started(command):
    """A command that does not exist is told."""
    with pytest.raises(HelperFailed, match="could not be started"):
        run_bounded(command, {}, seconds=1.0)


def test_no_file_is_inherited(tmp_path):
    """Only the three standard streams are open in it."""
    with (tmp_path / "file").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        code = f"import os\ntry: os.fstat({file.fileno()})\nexcept OSError: print('closed', end='')"
        assert run(code).output == b"closed"


def test_a_killed_process_that_does_not_go(monkeypatch):
    """It is not waited for without end: the caller gets it, to ask later."""
    monkeypatch.setattr(bounded_process, "_GRACE_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(bounded_process.os, "killpg", lambda pid, number: None)
        with pytest.raises(HelperStuck, match="does not end") as caught:
            run("import time; time.sleep(60)", seconds=0.05)
    process = caught.value.process
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL


def test_an_interrupt_ends_the_helper(monkeypatch):
    """An exception on the way kills and waits, too."""
    started = []

    def interrupt(process, deadline, limit):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(bounded_process, "_collect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("import time; time.sleep(60)")
    assert started[0].returncode == -signal.SIGKILL


def test_threads_run_helpers_side_by_side():
    """Helpers do not mix up their ends or outputs."""
    outputs = {}

    def one(number):
        outputs[number] = run(f"print({number}, end='')").output

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert outputs == {number: b"%d" % number for number in range(4)}
