"""What a probe makes of its children: good ones, bad ones, and many callers at once."""

import itertools
import json
import os
import re
import threading
import time
from pathlib import Path

import pytest

from corral.devices import probe as module
from corral.devices.bounded_process import Finished, HelperFailed, HelperStuck
from corral.devices.context_cost import ContextCosts
from corral.devices.probe import Probe, ProbeFailure, ProbeReading, parse
from corral.devices.probe_child import TAG
from fake_probe import MIB, TOLD, UUID, played_probe

OTHER = "GPU-ffffffff-1111-2222-3333-444444444444"


def finished(status=0, **changes):
    """Return how a child ended that told what is given."""
    return Finished(status, f"{TAG} {json.dumps({**TOLD, **changes})}\n".encode())


def is_gone(pid):
    """Say whether a process has ended and been waited for, or soon will be by its new parent."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX" and not is_child(pid):
            return True
        time.sleep(0.01)
    return False


def is_child(pid):
    """Say whether this process is the one that would have to wait for it."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


# --- One child


def test_a_reading(tmp_path):
    """The child's own context is added back: what is free is told as if nobody had asked."""
    probe, _ = played_probe(tmp_path, "tell()")
    expected = ProbeReading(
        UUID, "Played card", "580.1", 8192 * MIB, 5500 * MIB, 500 * MIB, context_is_measured=True
    )
    assert probe.read(UUID) == expected
    assert not expected.is_lower_bound


def test_a_child_sees_one_device_and_little_else(tmp_path, monkeypatch):
    """It is a new interpreter with one visible device, no input, and none of our settings."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/drivers")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    code = "assert sys.stdin.read() == ''; assert sys.flags.isolated and sys.flags.no_site\n"
    probe, children = played_probe(tmp_path, code + "tell(name=os.environ['CUDA_VISIBLE_DEVICES'])")
    reading = probe.read(UUID)
    assert reading is not None
    assert reading.name == UUID
    environment = children.started[0][1]
    assert environment.keys() <= {*module.INHERITED, "CUDA_VISIBLE_DEVICES"}
    assert environment["LD_LIBRARY_PATH"] == "/drivers"


def test_case_does_not_matter_in_a_uuid(tmp_path):
    """The driver writes small letters, users may not."""
    probe, _ = played_probe(tmp_path, f"tell(uuid={OTHER!r})")
    assert probe.read(OTHER.upper()) is not None


def test_a_slice_of_a_device(tmp_path):
    """A MIG slice is asked for by its own UUID, and NVML need not tell what a context took."""
    mig = UUID.replace("GPU", "MIG")
    code = "tell(uuid=os.environ['CUDA_VISIBLE_DEVICES'], context_bytes=None)"
    probe, _ = played_probe(tmp_path, code)
    reading = probe.read(mig)
    assert reading is not None
    assert reading.uuid == mig
    assert reading.is_lower_bound
    assert reading.free_bytes == 5000 * MIB


def test_a_stored_cost_is_added_where_none_was_measured(tmp_path):
    """What an earlier probe measured for this card and driver serves the later ones."""
    costs = ContextCosts(tmp_path / "contexts.json")
    probe, children = played_probe(tmp_path, "tell()", costs=costs)
    assert probe.read(UUID) is not None
    children.become("tell(context_bytes=None)")
    reading = probe.read(UUID)
    assert reading is not None
    assert (reading.free_bytes, reading.context_bytes) == (5500 * MIB, 500 * MIB)
    assert not reading.context_is_measured
    assert not reading.is_lower_bound


def test_costs_are_stored_once(tmp_path):
    """A cost that is known stays; another driver's is another one."""
    costs = ContextCosts(tmp_path / "contexts.json")
    costs.store("Played card", "580.1", 400 * MIB)
    probe, children = played_probe(tmp_path, "tell()", costs=costs)
    assert probe.read(UUID) is not None
    assert costs.lookup("Played card", "580.1") == 400 * MIB
    children.become("tell(driver_version='590.0')")
    assert probe.read(UUID) is not None
    assert costs.lookup("Played card", "590.0") == 500 * MIB


def test_no_more_is_free_than_there_is(tmp_path):
    """A stored cost that is too large does not make a device larger."""
    costs = ContextCosts(tmp_path / "contexts.json")
    costs.store("Played card", "580.1", 500 * MIB)
    code = f"tell(context_bytes=None, free_bytes={8100 * MIB})"
    probe, _ = played_probe(tmp_path, code, costs=costs)
    reading = probe.read(UUID)
    assert reading is not None
    assert reading.free_bytes == reading.total_bytes


@pytest.mark.parametrize(
    "noise",
    [
        "print('hello from a library')",
        "print('half a line', end='', flush=True); print()",
        f"print('not at the start: {TAG} ' + json.dumps(told))",
        "sys.stdout.buffer.write(bytes(range(256)) + b'\\n'); sys.stdout.flush()",
    ],
)
def test_noise_around_the_report(tmp_path, noise):
    """Libraries print what they like; the one tagged line counts."""
    probe, _ = played_probe(tmp_path, f"{noise}\ntell()\n{noise}")
    assert probe.read(UUID) is not None


BAD_CHILDREN = {
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "status -11: it gave no reason"),
    "crashes after its report": ("tell(); os.abort()", "status -6"),
    "exits with 3 after its report": ("tell(); sys.exit(3)", "status 3"),
    "tells why": ("tell(error='cuInit said no'); sys.exit(1)", "status 1: cuInit said no"),
    "tells why at length": ("tell(error='x' * 9999); sys.exit(1)", "status 1: x{256}$"),
    "raises": ("raise OSError", "status 1"),
    "says nothing": ("", "no usable uuid"),
    "prints garbage": ("os.write(1, os.urandom(4096))", "no usable uuid"),
    "prints no object": (f"print('{TAG} [1, 2]')", "no usable uuid"),
    "prints half an object": (f"print('{TAG} {{')", "no usable uuid"),
    "nests without end": (f"print('{TAG} ' + '[' * 60000)", "no usable uuid"),
    "tells twice": ("tell(); tell()", "no usable uuid"),
    "speaks of another device": (f"tell(uuid={OTHER!r})", f"spoke of {OTHER}"),
    "has no name": ("tell(name='')", "no usable name"),
    "has no driver": ("tell(driver_version=None)", "no usable driver_version"),
    "frees more than all": ("tell(free_bytes=told['total_bytes'] + 1)", "no usable free_bytes"),
    "frees less than nothing": ("tell(free_bytes=-1)", "no usable free_bytes"),
    "counts in floats": ("tell(total_bytes=1e9)", "no usable total_bytes"),
    "counts in truths": ("tell(free_bytes=True)", "no usable free_bytes"),
    "has endless memory": ("tell(total_bytes=10**30)", "no usable total_bytes"),
    "has a huge context": ("tell(context_bytes=10**10)", "no usable context_bytes"),
    "says too much": ("tell()\nwhile True: os.write(1, b'x' * 65536)", "more than 65536 bytes"),
}


@pytest.mark.parametrize(("code", "reason"), BAD_CHILDREN.values(), ids=BAD_CHILDREN.keys())
def test_a_bad_child_is_unknown(tmp_path, code, reason):
    """Whatever goes wrong, nothing is known, and the reason is told."""
    probe, _ = played_probe(tmp_path, code)
    outcome = probe.attempt(UUID)
    assert isinstance(outcome, ProbeFailure)
    assert re.search(reason, outcome.reason)
    assert probe.read(UUID) is None


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_child_that_hangs(tmp_path, is_deaf):
    """At its time it is killed, deaf to signals or not, and waited for: no zombie stays."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if is_deaf else ""
    probe, _ = played_probe(tmp_path, deaf + "tell()\ntime.sleep(60)", seconds=0.3)
    outcome = probe.attempt(UUID)
    assert isinstance(outcome, ProbeFailure)
    assert "took too long" in outcome.reason
    pid = int(re.findall(r"process (\d+)", outcome.reason)[0])
    assert not Path(f"/proc/{pid}").exists()


def test_a_child_that_closes_its_output_and_hangs(tmp_path):
    """The end of the output is not the end of the child."""
    probe, _ = played_probe(tmp_path, "tell(); os.close(1); time.sleep(60)", seconds=0.5)
    outcome = probe.attempt(UUID)
    assert isinstance(outcome, ProbeFailure)
    assert "took too long" in outcome.reason


def test_a_grandchild_that_keeps_the_output_open(tmp_path):
    """Nobody waits for it, and it is ended with its group."""
    code = "pid = os.fork()\nif pid: tell(name=str(pid))\nelse: time.sleep(60)"
    probe, _ = played_probe(tmp_path, code)
    reading = probe.read(UUID)
    assert reading is not None
    assert is_gone(int(reading.name))


def test_no_child_can_be_started(tmp_path, monkeypatch):
    """Without an interpreter nothing is known."""
    monkeypatch.setattr(module.sys, "executable", "")
    assert Probe(child=tmp_path / "child.py").read(UUID) is None


def test_a_uuid_that_is_none(tmp_path):
    """What cannot be said to a process is unknown, not an error."""
    probe, _ = played_probe(tmp_path, "tell()")
    assert probe.read("GPU-\0") is None


def test_the_real_child_without_a_driver():
    """On a machine without a driver the reason says so."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    outcome = Probe().attempt(UUID)
    assert isinstance(outcome, ProbeFailure)
    assert re.search(r"cannot be loaded|cuInit said|devices are visible", outcome.reason)


def test_the_report_of_another_version():
    """A child of another version of corral is not understood."""
    with pytest.raises(HelperFailed):
        parse(Finished(0, b"corral-probe-2 {}\n"), UUID)


# --- Many callers


class CountingLock:
    """A lock that knows how often it was given back."""

    def __init__(self):
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self.passes = 0

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        with self._changed:
            self.passes += 1
            self._changed.notify_all()

    def locked(self):
        return self._lock.locked()

    def wait_for_passes(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: self.passes >= count, timeout=10)


class Callers:
    """Threads that read through one probe, begun together by a barrier."""

    def __init__(self, probe, count, uuid=UUID):
        self.outcomes = []
        self._barrier = threading.Barrier(count)
        self._threads = [
            threading.Thread(target=self._call, args=(probe, uuid)) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, probe, uuid):
        self._barrier.wait()
        self.outcomes.append(probe.attempt(uuid))

    def join(self):
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()
        return self.outcomes


def crowd(answer, count=8):
    """Let callers come while one child is under way; return their outcomes and the children."""
    lock, children = CountingLock(), []

    def run(command, environment, *, seconds):
        children.append(environment["CUDA_VISIBLE_DEVICES"])
        lock.wait_for_passes(count)  # everybody has come
        assert not lock.locked()
        return answer()

    probe = Probe(interval_seconds=0.0, run=run)
    probe._lock = lock
    return Callers(probe, count).join(), children


def test_callers_share_one_child():
    """All who come while a child is under way get its value, and nobody holds the lock."""
    outcomes, children = crowd(finished)
    assert children == [UUID]
    assert len(outcomes) == 8
    assert all(outcome is outcomes[0] for outcome in outcomes)
    assert isinstance(outcomes[0], ProbeReading)


def test_a_failure_is_unknown_for_all():
    """One child that fails leaves all its callers without a value."""
    outcomes, children = crowd(lambda: finished(status=1))
    assert children == [UUID]
    assert len(outcomes) == 8
    assert all(isinstance(outcome, ProbeFailure) for outcome in outcomes)


def test_callers_share_one_real_child(tmp_path):
    """The same with processes: whoever comes before the child ends does not start another."""
    go, count = tmp_path / "go", 6
    code = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\ntell()"
    probe, children = played_probe(tmp_path, code)
    lock = probe._lock = CountingLock()
    callers = Callers(probe, count)
    lock.wait_for_passes(count)
    go.touch()
    outcomes = callers.join()
    assert len(children.started) == 1
    assert len(outcomes) == count
    assert all(isinstance(outcome, ProbeReading) for outcome in outcomes)


def test_devices_do_not_wait_for_each_other():
    """Children of two devices run at the same time."""
    both = threading.Barrier(2)

    def run(command, environment, *, seconds):
        both.wait(timeout=10)
        return finished(uuid=environment["CUDA_VISIBLE_DEVICES"])

    probe = Probe(run=run)
    callers = [Callers(probe, 1, uuid) for uuid in (UUID, OTHER)]
    assert [caller.join()[0].uuid for caller in callers] == [UUID, OTHER]


def test_no_old_value_after_a_failure():
    """A device that was read and then cannot be is unknown, however fresh the value is."""
    answers = [finished(), finished(status=1), HelperFailed("it was killed"), finished()]
    expected = [True, False, False, True]

    def run(command, environment, *, seconds):
        answer = answers.pop(0)
        if isinstance(answer, HelperFailed):
            raise answer
        return answer

    probe = Probe(interval_seconds=0.0, run=run)
    assert [probe.read(UUID) is not None for _ in expected] == expected


def test_no_value_is_given_twice():
    """A caller who comes after the child has ended gets a fresh one."""
    free = iter((1, 2, 3))

    def run(command, environment, *, seconds):
        return finished(free_bytes=next(free), context_bytes=None)

    probe = Probe(interval_seconds=0.0, run=run)
    assert [probe.read(UUID).free_bytes for _ in range(3)] == [1, 2, 3]


def test_children_start_an_interval_apart():
    """Who comes too early waits for a fresh child, even after a failure, and shares it."""
    starts, lock = [], CountingLock()

    def run(command, environment, *, seconds):
        starts.append(time.monotonic())
        if len(starts) == 3:
            lock.wait_for_passes(4)
        return finished(status=len(starts) % 2)

    probe = Probe(interval_seconds=0.2, run=run)
    assert probe.read(UUID) is None
    assert isinstance(probe.read(UUID), ProbeReading)
    probe._lock = lock
    callers = Callers(probe, 4)
    assert {type(outcome) for outcome in callers.join()} == {ProbeFailure}
    assert len(starts) == 3
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(starts))


def test_an_interrupted_caller_leaves_no_one_waiting():
    """Who waits for the child of an interrupted caller knows nothing; the next caller reads."""
    lock, is_first = CountingLock(), iter((True, False))

    def run(command, environment, *, seconds):
        if next(is_first):
            lock.wait_for_passes(2)
            raise KeyboardInterrupt
        return finished()

    probe = Probe(interval_seconds=0.0, run=run)
    probe._lock = lock
    waiting = []

    def wait():
        lock.wait_for_passes(1)  # the one that will be interrupted has come
        waiting.append(probe.attempt(UUID))

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        probe.read(UUID)
    thread.join(timeout=10)
    assert isinstance(waiting[0], ProbeFailure)
    assert probe.read(UUID) is not None


def test_waiting_has_an_end(monkeypatch):
    """Nobody waits for ever for another thread's child; the next caller starts one."""
    monkeypatch.setattr(module, "_SLACK_S", 0.05)
    come, end, runs = threading.Event(), threading.Event(), []

    def run(command, environment, *, seconds):
        runs.append(command)
        if len(runs) == 1:
            come.set()
            end.wait(timeout=10)
        return finished()

    probe = Probe(interval_seconds=0.0, seconds=0.05, run=run)
    first = Callers(probe, 1)
    come.wait(timeout=10)
    outcome = probe.attempt(UUID)
    assert isinstance(outcome, ProbeFailure)
    assert "in time" in outcome.reason
    assert isinstance(probe.attempt(UUID), ProbeReading)
    end.set()
    assert isinstance(first.join()[0], ProbeReading)


class Held:
    """A process that a driver holds in the kernel until told otherwise."""

    pid = 4711

    def __init__(self):
        self.status = None

    def poll(self):
        return self.status


def test_a_child_that_cannot_be_ended_stays_the_only_one():
    """Until it is gone no other is started, so that they do not pile up; then one is."""
    held, runs = Held(), []

    def run(command, environment, *, seconds):
        runs.append(command)
        if len(runs) == 1:
            raise HelperStuck("helper process 4711 was killed and does not end", held)
        return finished()

    probe = Probe(interval_seconds=0.0, run=run)
    outcomes = [probe.attempt(UUID) for _ in range(3)]
    assert all(isinstance(o, ProbeFailure) and "4711" in o.reason for o in outcomes)
    assert len(runs) == 1
    held.status = -9
    assert probe.read(UUID) is not None
