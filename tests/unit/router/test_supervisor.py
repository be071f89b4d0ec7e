"""A worker in a process of its own: served, killed, started again, ended; nothing is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import psutil
import pytest

import tiny
from corral.contract.events import FinishReason
from corral.contract.questions import DescribeQuestion, StatisticsQuestion, TokenizeQuestion
from corral.contract.worker import WorkerSpec, WorkerState
from corral.engine.model import Model
from corral.errors import (
    Closed,
    InvalidArgument,
    InvalidModelFile,
    OutOfMemory,
    ResourceError,
    WorkerLost,
)
from corral.router import supervisor
from corral.router.supervisor import supervise
from serving import LIMIT_S, Taker, answer, eventually, request, submit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are tested on Linux")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return the file of a tiny model."""
    return tiny.write(tmp_path_factory.mktemp("worker") / "tiny.gguf")


@contextmanager
def nothing_left():
    """Check that no process, thread or open file of a worker stays behind."""
    descriptors = psutil.Process().num_fds()
    yield
    assert not psutil.Process().children(recursive=True)
    assert not [t for t in threading.enumerate() if t.name.startswith("corral-")]
    assert psutil.Process().num_fds() == descriptors


@contextmanager
def supervised(path, **changes):
    """Give a worker that is ready; nothing of it is left afterwards."""
    spec = {"devices": ("reference",), "parallel": 2, "context": 128, "drain_s": 5.0} | changes
    with nothing_left(), supervise(WorkerSpec(model=str(path), **spec)) as worker:
        worker.wait_until_ready(LIMIT_S)
        yield worker


def kill(worker):
    """End the worker's process as the system does when memory runs out."""
    pid = worker.status.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_worker_answers_as_the_library_does(path):
    """The same tokens through a process border, and answers to questions."""
    with Model.load(path, device="reference", context=128) as model:
        expected = "".join(model.generate("Hello", max_tokens=20, sampling=request().sampling))
    with supervised(path, name="tiny") as worker:
        taker = answer(worker, "a", "Hello", 20)
        assert taker.text == expected
        assert taker.events[-1].usage.generated_tokens == 20
        assert worker.ask(DescribeQuestion(), timeout_s=LIMIT_S) == worker.description
        assert worker.description.model == "tiny"
        assert worker.ask(TokenizeQuestion("hi"), timeout_s=LIMIT_S).pieces == (b"h", b"i")
        assert worker.resident_bytes > 1 << 20
        wrong = answer(worker, "b", [1] * 128)
        assert wrong.error == "context_exceeded"


def test_a_worker_leads_its_own_group_and_sees_its_devices_only(path):
    """A Ctrl-C for the parent is none for the worker, and cards are named by UUID."""
    with supervised(path, visible_devices=("GPU-1", "GPU-2")) as worker:
        process = psutil.Process(worker.status.pid)
        assert os.getsid(process.pid) == process.pid
        assert process.environ()["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
        assert "PYTEST_CURRENT_TEST" not in process.environ()


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_a_killed_worker_is_seen_at_once_and_comes_back(path, tokens):
    """Whatever a request was at, it ends with an error; the next one is answered as ever."""
    with supervised(path, context=256) as worker:
        expected = answer(worker, "before", "Hello", 9).tokens
        takers = [submit(worker, str(n), "x" * 99, None, ignore_eos=True) for n in range(4)]
        for _ in range(tokens):
            takers[0].next()
        pid = kill(worker)
        ends = [taker.finish() for taker in takers]
        assert {end.reason for end in ends} <= {FinishReason.ERROR, FinishReason.CONTEXT}
        assert "worker_lost" in {taker.error for taker in takers}
        assert eventually(lambda: worker.state is WorkerState.READY and worker.status.pid != pid)
        assert worker.status.restarts == 1
        assert answer(worker, "after", "Hello", 9).tokens == expected


def test_a_conversation_outlives_its_process(path, tmp_path):
    """What one process knew the next one finds, to the token, and goes on as the first would."""
    folder = str(tmp_path / "sessions")
    with supervised(path, sessions=folder) as worker:
        assert worker.restored.sessions == 0
        history = [5] * 70 + answer(worker, "a", [5] * 70, 20, ignore_eos=True).tokens
        expected = answer(worker, "b", [*history, 6], 9, reuse=False).tokens
        saved = worker.drain()
        assert (saved.sessions, saved.tokens, saved.reason) == (1, 89, "")
        with pytest.raises(Closed, match="about to end"):
            submit(worker)
    with supervised(path, sessions=folder) as worker:
        assert (worker.restored.sessions, worker.restored.tokens) == (1, 89)
        taker = answer(worker, "c", [*history, 6], 9)
        assert taker.tokens == expected
        assert taker.events[-1].usage.cached_tokens == 89
        counts = worker.ask(StatisticsQuestion(), timeout_s=LIMIT_S).sessions
        assert (counts.returned_sessions, counts.returned_tokens, counts.errors) == (1, 89, 0)


def test_a_killed_worker_comes_back_with_what_was_saved_before(path, tmp_path):
    """Files stay until others need their room: a crash costs what came after the last save."""
    folder = str(tmp_path / "sessions")
    with supervised(path, sessions=folder) as worker:
        history = [5] * 70 + answer(worker, "a", [5] * 70, 20, ignore_eos=True).tokens
    with supervised(path, sessions=folder) as worker:
        pid = kill(worker)
        assert eventually(lambda: worker.state is WorkerState.READY and worker.status.pid != pid)
        assert worker.restored.tokens == 89
        assert answer(worker, "b", [*history, 6], 2).events[-1].usage.cached_tokens == 89


FORGETFUL = """
import sys
from corral.kv.prefix import PrefixPool
from corral.worker.worker import main
PrefixPool.find = lambda self, links: []
sys.exit(main(sys.argv[1:]))
"""


def test_a_restore_in_vain_is_an_error_that_everybody_sees(path, tmp_path, caplog):
    """What was read and is not found is no success: the count says so, and the keeper's log."""
    folder = str(tmp_path / "sessions")
    with supervised(path, sessions=folder) as worker:
        answer(worker, "a", [5] * 70, 4)
    spec = WorkerSpec(model=str(path), devices=("reference",), context=128, sessions=folder)
    command = (sys.executable, "-c", FORGETFUL)
    with (
        caplog.at_level("ERROR", "corral"),
        nothing_left(),
        supervise(spec, command=command) as worker,
    ):
        worker.wait_until_ready(LIMIT_S)
        assert (worker.restored.sessions, worker.restored.lost_sessions) == (0, 1)
        counts = worker.ask(StatisticsQuestion(), timeout_s=LIMIT_S).sessions
        assert (counts.restored_sessions, counts.errors) == (0, 1)
    assert "was restored, but only" in caplog.text


def test_running_requests_are_saved_as_far_as_they_are(path, tmp_path):
    """Those that the drain ends are history too."""
    folder = str(tmp_path / "sessions")
    with supervised(path, sessions=folder, context=256, drain_s=0.0) as worker:
        taker = submit(worker, "a", [5] * 40, None, ignore_eos=True)
        for _ in range(10):
            taker.next()
        saved = worker.drain()
        assert taker.finish().reason in (FinishReason.ERROR, FinishReason.CONTEXT)
        assert (saved.sessions, saved.unsaved_sessions) == (1, 0)
        assert saved.tokens >= 49


def test_a_folder_that_others_could_write_to_is_refused(path, tmp_path):
    """Before anything is served, with what to do about it."""
    tmp_path.chmod(0o777)
    spec = WorkerSpec(model=str(path), devices=("reference",), sessions=str(tmp_path))
    with nothing_left(), supervise(spec) as worker:
        with pytest.raises(ResourceError, match="others cannot write"):
            worker.wait_until_ready(LIMIT_S)
        assert worker.drain() is None
    tmp_path.chmod(0o700)


def test_without_a_folder_nothing_is_kept(path):
    """Conversations are private: they are written down only where that is wanted."""
    with supervised(path) as worker:
        answer(worker, "a", [5] * 70, 4)
        assert worker.restored is None
        assert worker.drain() is None


def test_between_two_processes_requests_are_refused(path):
    """Nobody waits for a process that is not there."""
    with supervised(path) as worker:
        kill(worker)
        assert eventually(lambda: worker.state is WorkerState.RESTARTING)
        assert worker.status.error_code == "worker_lost"
        assert "SIGKILL" in worker.status.error
        for refused in (
            lambda: submit(worker),
            lambda: worker.ask(StatisticsQuestion(), timeout_s=1),
        ):
            with pytest.raises(WorkerLost):
                refused()
        worker.cancel("unknown")


def test_a_model_that_cannot_be_loaded_is_not_tried_again(tmp_path):
    """The worker's own error arrives, with its type and its text."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing")
    with nothing_left(), supervise(WorkerSpec(model=str(broken), devices=("reference",))) as worker:
        with pytest.raises(InvalidModelFile):
            worker.wait_until_ready(LIMIT_S)
        assert worker.state is WorkerState.FAILED
        assert worker.status.error_code == "invalid_model_file"
        with pytest.raises(InvalidModelFile):
            submit(worker)


def test_a_model_that_does_not_fit_is_not_tried_again(tmp_path):
    """Nothing was allocated, and whoever asks is told what is missing."""
    large = tiny.write(tmp_path / "large.gguf", context_length=1 << 24)
    spec = WorkerSpec(model=str(large), devices=("reference",), context=1 << 24, parallel=256)
    with nothing_left(), supervise(spec) as worker:
        with pytest.raises(OutOfMemory, match="GiB"):
            worker.wait_until_ready(LIMIT_S)
        assert (worker.state, worker.status.restarts) == (WorkerState.FAILED, 0)


def test_a_process_that_keeps_dying_is_given_up(path, monkeypatch):
    """After a few starts, each later than the one before, the error says so."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.001)
    command = (sys.executable, "-c", "import sys; print('no luck'); sys.exit(1)")
    spec = WorkerSpec(model=str(path))
    with nothing_left(), supervise(spec, command=command) as worker:
        with pytest.raises(WorkerLost, match="5 times"):
            worker.wait_until_ready(LIMIT_S)
        assert worker.status.restarts == supervisor.MOST_CRASHES
        assert worker.output == ("no luck",)


FAULTY = """
import sys
from corral.engine.runner import Runner
from corral.errors import DeviceFault
from corral.worker.worker import main
started = Runner.start
def start(self, batch, **options):
    if any(7 in rows.sequence.tokens for rows in batch):
        raise DeviceFault("the device fell off the bus")
    started(self, batch, **options)
Runner.start = start
sys.exit(main(sys.argv[1:]))
"""


def test_a_worker_whose_device_fails_ends_and_comes_back(path):
    """Only a new process can help; whoever was in it is told what happened."""
    spec = WorkerSpec(model=str(path), devices=("reference",), context=128)
    with (
        nothing_left(),
        supervise(spec, command=(sys.executable, "-c", FAULTY)) as worker,
    ):
        worker.wait_until_ready(LIMIT_S)
        assert answer(worker, "a", [5], 3).error is None
        assert answer(worker, "b", [7], 3).error == "device_fault"
        assert eventually(lambda: worker.status.restarts == 1)
        assert eventually(lambda: worker.state is WorkerState.READY)
        assert answer(worker, "c", [5], 3).error is None


HANGING = """
import sys, time
from corral.engine.runner import Runner
from corral.worker.worker import main
started = Runner.start
def start(self, batch, **options):
    if any(7 in rows.sequence.tokens for rows in batch):
        time.sleep(1000)
    started(self, batch, **options)
Runner.start = start
sys.exit(main(sys.argv[1:]))
"""


def test_a_worker_whose_step_does_not_end_is_replaced(path):
    """Whoever waits is told what happened; the next worker answers."""
    spec = WorkerSpec(model=str(path), devices=("reference",), context=128)
    command = (sys.executable, "-c", HANGING)
    with nothing_left(), supervise(spec, stuck_s=3.0, command=command) as worker:
        worker.wait_until_ready(LIMIT_S)
        expected = answer(worker, "a", [5], 3).tokens
        takers = [submit(worker, name, [7], 3) for name in ("b", "c")]
        assert eventually(
            lambda: worker.ask(StatisticsQuestion(), timeout_s=LIMIT_S).step_age_s > 0.5
        )
        for taker in takers:
            taker.finish()
            assert "no step of its engine ended" in taker.message
        assert eventually(lambda: worker.status.restarts == 1)
        assert eventually(lambda: worker.state is WorkerState.READY)
        assert answer(worker, "d", [5], 3).tokens == expected


def test_a_worker_that_says_nothing_is_replaced(path):
    """A process that the system does not let run cannot tell of itself."""
    spec = WorkerSpec(model=str(path), devices=("reference",), context=128)
    with nothing_left(), supervise(spec, stuck_s=3.0) as worker:
        worker.wait_until_ready(LIMIT_S)
        pid = worker.status.pid
        os.kill(pid, signal.SIGSTOP)
        taker = submit(worker, "a", [5], 3)
        taker.finish()
        assert taker.error == "worker_lost"
        assert "did not answer" in taker.message
        assert eventually(lambda: worker.state is WorkerState.READY and worker.status.pid != pid)
        assert answer(worker, "b", [5], 3).error is None


def test_another_version_is_no_worker(path):
    """A process that greets in another language is not spoken to."""
    greeting = (
        "import sys, socket, struct;"
        "s = socket.socket(fileno=int(sys.argv[2]));"
        "s.sendall(struct.pack('<I', 3) + b'\\x93\\x01\\x02'); s.recv(1)"
    )
    spec = WorkerSpec(model=str(path))
    with (
        nothing_left(),
        supervise(spec, command=(sys.executable, "-c", greeting)) as worker,
    ):
        assert eventually(lambda: worker.status.error_code == "protocol")


def test_closing_lets_what_runs_end(path):
    """A drain loses no answer, and takes nothing new."""
    with supervised(path) as worker:
        taker = submit(worker, "a", "Hello", 30)
        worker.close()
        assert taker.finish().reason is FinishReason.LENGTH
        assert worker.state is WorkerState.CLOSED
        with pytest.raises(Closed):
            submit(worker)
        worker.close()


def test_a_drain_has_an_end(path):
    """What does not end in time is told so."""
    with supervised(path, drain_s=0.0, context=256) as worker:
        taker = submit(worker, "a", "x" * 99, None, ignore_eos=True)
        taker.next()
        worker.close()
        assert taker.finish().reason is FinishReason.ERROR
        assert taker.error == "closed"


def test_sigterm_drains(path):
    """Whoever stops the worker itself stops it in order; the supervisor starts another."""
    with supervised(path) as worker:
        pid = worker.status.pid
        taker = submit(worker, "a", "Hello", 30)
        taker.next()
        os.kill(pid, signal.SIGTERM)
        assert taker.finish().reason is FinishReason.LENGTH
        assert eventually(lambda: worker.state is WorkerState.READY and worker.status.pid != pid)


def test_a_worker_that_does_not_answer_is_killed(path, monkeypatch):
    """A process that is stuck cannot keep its supervisor."""
    monkeypatch.setattr(supervisor, "_TERM_S", 0.1)
    with supervised(path, drain_s=0.0) as worker:
        os.kill(worker.status.pid, signal.SIGSTOP)
        started = time.monotonic()
        worker.close()
        assert time.monotonic() - started < LIMIT_S


@pytest.mark.parametrize("moment", ["starting", "loading"])
def test_closing_while_it_loads(path, moment):
    """There is nothing to wait for."""
    spec = WorkerSpec(model=str(path), devices=("reference",))
    with nothing_left():
        worker = supervise(spec)
        if moment == "loading":
            assert eventually(lambda: worker.status.pid is not None)
        worker.close()
        assert worker.state is WorkerState.CLOSED


def test_a_wrong_spec_starts_nothing(path):
    """It is refused before there is a process."""
    with nothing_left(), pytest.raises(InvalidArgument, match="queue_capacity"):
        supervise(WorkerSpec(model=str(path), queue_capacity=-1))


PARENT = """
import sys, time
from corral.contract.worker import WorkerSpec
from corral.router.supervisor import supervise
worker = supervise(WorkerSpec(model=sys.argv[1], devices=("reference",)))
worker.wait_until_ready(30)
print(worker.status.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_its_parent(path):
    """Even if the parent has no time for anything."""
    with subprocess.Popen([sys.executable, "-c", PARENT, path], stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
    assert eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_takers_are_called_from_one_thread(path):
    """Events of one request never race."""
    with supervised(path) as worker:
        threads, taker = set(), Taker()

        def take(event):
            threads.add(threading.current_thread().name)
            taker(event)

        worker.submit(request("a"), take)
        taker.finish()
        assert threads == {"corral-supervisor"}
