"""A router with its threads: over scripted processes, and over real ones."""

import os
import signal
import threading

import psutil
import pytest

import tiny
from corral.contract.events import FinishReason
from corral.contract.fleet import ExitKind, ModelState, Verdict
from corral.contract.questions import DescribeQuestion
from corral.errors import Closed, InvalidArgument, InvalidModelFile, ModelNotFound, WorkerLost
from corral.router.children import Order, WorkerChild, spec_of
from corral.router.entry import HOST
from corral.router.placing import Machine, Need, Room, Site
from corral.router.router import Router
from corral.router.sight import Sight, Sights, has_left
from machines import FREE_HANDS, machine
from played_router import ListedCatalog, Played
from scripted_fleet import entry
from served import until
from serving import LIMIT_S, Taker, request

S = ModelState


def submit(router, model, name="r", prompt="echo one two"):
    """Submit a request; return what takes its events."""
    taker = Taker()
    router.submit(model, request(name, prompt, 100), taker)
    return taker


def test_a_request_loads_its_model_and_is_answered():
    """It waits without a thread, then its events come as from the process."""
    with Played(entry("a", 40, aliases=("first",)), loads_at_once=False) as played:
        router = played.router
        assert router.find("first") == "a"
        taker = submit(router, "a")
        until(lambda: played.children)
        assert played.state("a") is S.LOADING
        played.children[0].load()
        assert taker.finish().reason is FinishReason.STOP
        assert taker.text == "one two"
        until(lambda: router.model_status("a").running == 0)
    states = [event.state for event in played.events]
    assert states[:4] == [S.PLANNING, S.LOADING, S.LOADING, S.READY]
    numbers = [event.number for event in played.events]
    assert numbers == sorted(numbers)


def test_models_take_turns_in_a_place_for_one():
    """Each request evicts an idle model, saved and ended before the next starts."""
    with Played(entry("a", 60), entry("b", 60)) as played:
        for number, model in enumerate("abab"):
            assert submit(played.router, model, str(number)).finish().reason is FinishReason.STOP
        assert [child.order.entry.name for child in played.children] == list("abab")
        assert all(child.is_saved and child.is_stopped for child in played.children[:3])
        assert played.router.model_status("a").evictions == 2


def test_many_threads_want_many_models_at_once():
    """Nobody is lost, nothing is loaded twice, and memory is never overbooked."""
    played = Played(*(entry(name, 40) for name in "abcde"))
    takers, lock = [], threading.Lock()

    def client(number):
        for turn in range(6):
            taker = submit(played.router, "abcde"[(number + turn) % 5], f"{number}-{turn}")
            with lock:
                takers.append(taker)
            taker.finish()

    with played:
        clients = [threading.Thread(target=client, args=(n,)) for n in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join(LIMIT_S)
            assert not one.is_alive()
    assert len(takers) == 48
    assert {taker.events[-1].reason for taker in takers} == {FinishReason.STOP}


def test_a_request_that_waits_can_be_cancelled_and_its_load_goes_on():
    """The client is gone at once; the next one finds the model loaded."""
    with Played(entry("a", 40), loads_at_once=False) as played:
        taker = submit(played.router, "a")
        until(lambda: played.children)
        played.router.cancel("r")
        assert taker.finish().reason is FinishReason.CANCELLED
        played.children[0].load()
        until(lambda: played.state("a") is S.READY)
        assert submit(played.router, "a", "again").finish().reason is FinishReason.STOP
        assert len(played.children) == 1


def test_a_request_that_runs_can_be_cancelled():
    """The process ends it."""
    with Played(entry("a", 40)) as played:
        taker = submit(played.router, "a", prompt="many 100000")
        taker.next()
        played.router.cancel("r")
        assert taker.finish().reason is FinishReason.CANCELLED
        until(lambda: played.router.model_status("a").running == 0)


def test_a_load_that_fails_is_told_to_whoever_waits():
    """The worker's own error, as an event of the request."""
    with Played(entry("a", 40), loads_at_once=False) as played:
        taker = submit(played.router, "a")
        holding = played.router.hold("a")
        until(lambda: played.children)
        played.children[0].end(InvalidModelFile("no tensors"), is_refused=True)
        assert taker.finish().reason is FinishReason.ERROR
        assert taker.error == "invalid_model_file"
        with pytest.raises(InvalidModelFile, match="no tensors"):
            holding.result(LIMIT_S)


def test_a_request_whose_process_dies_before_a_word_is_answered_by_the_next():
    """Nobody was told anything yet, so nobody needs to know."""
    with Played(entry("a", 40)) as played:
        held = played.router.hold("a").result(LIMIT_S)
        first = played.children[0]

        def lose(given, deliver):
            raise WorkerLost("just now")

        first.service.submit = lose
        taker = submit(played.router, "a")
        first.end(WorkerLost("killed"))
        assert taker.finish().reason is FinishReason.STOP
        held.release()
        assert played.router.model_status("a").crashes == 1


def test_a_request_whose_process_dies_in_its_midst_is_told_so():
    """Half an answer is not begun again behind the client's back."""
    with Played(entry("a", 40)) as played:
        taker = submit(played.router, "a", prompt="lose")
        assert taker.finish().reason is FinishReason.ERROR
        assert taker.error == "worker_lost"


def test_a_model_that_is_held_stays():
    """Questions are answered by a process that nobody evicts meanwhile."""
    with Played(entry("a", 60), entry("b", 60)) as played:
        held = played.router.hold("a").result(LIMIT_S)
        taker = submit(played.router, "b")
        until(lambda: played.state("b") is S.PLANNING)
        answer = held.service.ask(DescribeQuestion(), timeout_s=LIMIT_S)
        assert answer.architecture == "script"
        assert played.state("a") is S.READY
        held.release()
        held.release()
        assert taker.finish().reason is FinishReason.STOP


def test_a_hold_that_is_given_up_is_forgotten():
    """Whoever cancels the future waits no more."""
    with Played(entry("a", 40), loads_at_once=False) as played:
        holding = played.router.hold("a")
        until(lambda: played.children)
        assert holding.cancel()
        until(lambda: played.router.model_status("a").waiting == 0)
        played.children[0].load()


def test_commands_reach_the_models():
    """Load, unload and pin; what would happen is told and does not."""
    with Played(entry("a", 60), entry("b", 60)) as played:
        router = played.router
        router.load("a")
        until(lambda: played.state("a") is S.READY)
        assert router.plan("b").evicts == ("a",)
        router.pin("a", True)
        assert router.plan("b").verdict is Verdict.NEVER
        assert submit(router, "b").finish().reason is FinishReason.ERROR
        router.pin("a", False)
        router.unload("a")
        until(lambda: played.state("a") is S.UNLOADED)
        status = router.status()
        assert [device.booked_bytes for device in status.devices] == [0]
        assert router.model_status("a").exit_kind is ExitKind.UNLOADED


def test_a_second_request_of_one_id_is_refused():
    """The first is not harmed."""
    with Played(entry("a", 40), loads_at_once=False) as played:
        taker = submit(played.router, "a")
        with pytest.raises(InvalidArgument, match="not finished"):
            submit(played.router, "a")
        until(lambda: played.children)
        played.children[0].load()
        assert taker.finish().reason is FinishReason.STOP


def test_a_model_that_is_listed_no_more_cannot_be_asked_for():
    """It goes; the others stay."""
    with Played(entry("a", 40), entry("b", 40)) as played:
        submit(played.router, "a").finish()
        del played.catalog.listed[0]
        assert played.router.reload() == ("1 models",)
        until(lambda: not played.held)
        with pytest.raises(ModelNotFound):
            submit(played.router, "a")


def test_preloaded_models_come_by_themselves_and_idle_ones_go():
    """The clock is the router's own."""
    with Played(entry("a", 40, preload=True, ttl_s=0.05)) as played:
        until(lambda: played.children)
        until(lambda: played.state("a") is S.UNLOADED)
        assert played.router.model_status("a").exit_kind is ExitKind.IDLE


def test_after_the_end_nothing_is_let_in():
    """And who waited was told."""
    played = Played(entry("a", 40), loads_at_once=False)
    with played:
        taker = submit(played.router, "a")
        until(lambda: played.children)
    assert taker.finish().reason is FinishReason.ERROR
    assert taker.error == "closed"
    with pytest.raises(Closed):
        submit(played.router, "a")


def test_memory_that_cannot_be_read_is_unknown():
    """Whatever was known before is not used again."""
    sights = Sights(lambda: Sight(machine(5, host=10)))
    assert sights.newest(0.0).free("GPU-0") == 5

    def fail():
        raise WorkerLost("the driver is gone")

    sights._read = fail
    assert sights.newest(0.0).free("GPU-0") is None


def test_a_card_shows_that_a_process_is_gone():
    """Case 53: by its list of processes, else by what became free; never waited for in vain."""

    def sight(free, *pids):
        used = {"GPU-0": dict.fromkeys(pids, 10)} if pids else {}
        return Sight(machine(free, total=100), used)

    sizes = {"GPU-0": 50, HOST: 7}
    listed, gone = sight(40, 1, 2), sight(40, 2)
    assert not has_left(1, sizes, listed, listed)
    assert has_left(1, sizes, listed, gone)
    assert not has_left(1, sizes, sight(40), sight(60))
    assert has_left(1, sizes, sight(40), sight(90))
    assert has_left(1, sizes, sight(40), sight(65)), "less than was booked came free"
    assert has_left(1, sizes, None, sight(40))
    assert (listed.lists(1), listed.lists(3)) == (True, False)
    assert has_left(1, {HOST: 7}, listed, listed)


def test_what_a_process_held_is_read_while_it_is_there(monkeypatch):
    """Case 53: not from before its load; of one that died by itself, nothing is waited for."""
    seen = []

    def wait(self, pid, sizes, before):
        seen.append(before if before is None else before.free(HOST))

    monkeypatch.setattr(Sights, "wait_until_left", wait)
    with Played(entry("a", 40)) as played:
        for ending in ("unload", "crash"):
            submit(played.router, "a", ending).finish()
            child = played.children[-1]
            child.pid = 7
            if ending == "unload":
                played.router.unload("a")
            else:
                child.end(WorkerLost("killed"))
            until(lambda: not played.state("a").holds_bytes)
    assert seen == [60, None]


def test_a_worker_sees_its_own_cards_and_counts_from_nought():
    """Case 14: by UUID, in the order of its layers; a model on the CPU sees none."""
    two = machine(10, 10, 10)
    need = Need(("cuda:2", "cuda:0"), {"GPU-2": 5, "GPU-0": 5}, (1.0, 2.0))
    spec = spec_of(Order(entry("a", 10), need, two))
    assert spec.visible_devices == ("GPU-2", "GPU-0")
    assert (spec.devices, spec.split) == (("cuda:0", "cuda:1"), (1.0, 2.0))
    spec = spec_of(Order(entry("a", 10), Need(("cpu",), {HOST: 5}), two))
    assert (spec.devices, spec.visible_devices) == (("cpu",), ())


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return the files of two tiny models."""
    folder = tmp_path_factory.mktemp("models")
    return [tiny.write(folder / f"{name}.gguf") for name in "ab"]


def test_real_processes_are_loaded_evicted_killed_and_gone(paths):
    """Two models in a place for one, on the reference device; a kill; nothing is left."""
    sites = (Site("reference", "cpu"),)
    total = 100 << 20

    def read():
        return Sight(Machine(sites, (Room(HOST, "cpu", total, total),)))

    entries = [
        entry(path.stem, 60 << 20, devices=("reference",), parallel=2, context=128, drain_s=5.0)
        for path in paths
    ]
    listed = [
        type(one)(preset=one.preset, paths=(str(path),), header=one.header)
        for one, path in zip(entries, paths, strict=True)
    ]
    router = Router(ListedCatalog(*listed), WorkerChild, read, policy=FREE_HANDS)
    try:
        first = submit(router, "a", "1", "Hello").finish()
        assert first.reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTEXT)
        pid = router.model_status("a").pid
        assert psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] == ""
        (held,) = router.model_status("a").held
        assert held.measured_bytes > 0
        assert submit(router, "b", "2", "Hello").finish().reason is not FinishReason.ERROR
        assert not psutil.pid_exists(pid)
        os.kill(router.model_status("b").pid, signal.SIGKILL)
        until(lambda: router.model_status("b").state is S.FAILED, LIMIT_S)
        assert router.model_status("b").exit_kind is ExitKind.CRASHED
        assert submit(router, "b", "3", "Hello").finish().reason is not FinishReason.ERROR
    finally:
        router.close()
    assert not psutil.Process().children(recursive=True)
