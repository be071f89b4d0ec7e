"""Whatever happens in whatever order: no byte is promised twice, and nobody is forgotten."""

import itertools

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.contract.fleet import ModelState
from corral.errors import CorralError, InvalidModelFile, OutOfMemory
from corral.router.entry import HOST
from corral.router.placing import Policy
from machines import uuid
from scripted_fleet import World, entry

MODELS = (
    entry("a", 40),
    entry("b", 40, ttl_s=20.0),
    entry("c", 60, priority=1),
    entry("d", 90, devices=("cpu",)),
    entry("e", 25, is_cold=True, drain_s=5.0),
    entry("huge", 900),
)
NAMES = st.sampled_from([model.name for model in MODELS])
MEMORIES = st.sampled_from([HOST, uuid(0), uuid(1)])
CARD = 100


class AnyOrder(RuleBasedStateMachine):
    """Requests, crashes, slow exits, jumps of foreign memory; orders carried out in any order."""

    def __init__(self):
        super().__init__()
        policy = Policy(min_residency_s=2.0, idle_s=1.0, max_wait_s=10.0, process_bytes=1)
        self.world = World(MODELS, host=200, cards=(CARD, CARD), policy=policy)
        self.world.holds_loads = self.world.holds_exits = self.world.holds_saves = True
        self.asked = {}
        self.saves = []

    def alive(self, *, is_ready=None):
        """Return the processes that are there, or those that are ready or not."""
        processes = [p for p in self.world.processes.values() if not p.is_dead]
        return [p for p in processes if is_ready is None or p.is_ready == is_ready]

    @rule(model=NAMES)
    def ask(self, model):
        """A request comes."""
        self.asked[self.world.ask(model)] = model

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def end(self, data):
        """A request ends, or its client leaves."""
        ticket = data.draw(st.sampled_from(sorted(self.asked)))
        del self.asked[ticket]
        self.world.end(ticket)

    @precondition(lambda self: self.world.orders)
    @rule(data=st.data(), count=st.integers(1, 8))
    def carry_out(self, data, count):
        """Some orders are carried out, any of them first."""
        for _ in range(count):
            if not self.world.orders:
                return
            order = data.draw(st.sampled_from(self.world.choices()))
            self.world.orders.remove(order)
            self.world.carry_out(order)

    @precondition(lambda self: self.alive(is_ready=False))
    @rule(data=st.data(), ending=st.sampled_from(["ready", "ready", "memory", "broken", "killed"]))
    def finish_load(self, data, ending):
        """A load ends, well or not."""
        model = data.draw(st.sampled_from([p.model for p in self.alive(is_ready=False)]))
        match ending:
            case "ready":
                self.world.finish_load(model)
            case "memory":
                self.world.die(model, OutOfMemory("no memory"))
            case "broken":
                self.world.die(model, InvalidModelFile("broken"), is_refused=True)
            case "killed":
                self.world.die(model)

    @precondition(lambda self: self.alive(is_ready=True))
    @rule(data=st.data())
    def die(self, data):
        """A process is killed while it serves."""
        self.world.die(data.draw(st.sampled_from([p.model for p in self.alive(is_ready=True)])))

    @rule(data=st.data())
    def saved_or_gone(self, data):
        """A draining process has kept its sessions, or one that was told to end is gone."""
        processes = list(self.world.processes.values())
        if saving := [p.model for p in processes if p.is_saving]:
            self.world.finish_save(data.draw(st.sampled_from(saving)))
        if ending := [p.model for p in processes if p.is_ending]:
            self.world.exit(data.draw(st.sampled_from(ending)))

    @rule(memory=MEMORIES, size=st.sampled_from([None, 0, 0, 20, 70, 100]))
    def jump(self, memory, size):
        """Others take memory, give it back, or nobody knows."""
        self.world.foreign[memory] = size

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 30.0]))
    def wait(self, seconds):
        """Time passes, and only time."""
        self.world.now += seconds
        self.world.take(self.world.residents.tick(self.world.now))

    @rule(model=NAMES, what=st.sampled_from(["load", "unload", "pin", "unpin"]))
    def command(self, model, what):
        """Somebody gives a command."""
        world = self.world
        match what:
            case "load":
                world.load(model)
            case "unload":
                world.unload(model)
            case "pin":
                world.pin(model)
            case "unpin":
                world.pin(model, False)

    @invariant()
    def no_byte_is_promised_twice(self):
        """What is booked is never more than there is."""
        booked = self.world.residents.booked()
        for room in self.world.totals.rooms:
            assert booked.get(room.memory, 0) <= room.total_bytes

    @invariant()
    def the_ledger_is_what_live_processes_were_given(self):
        """Each booking has one process, or one that is about to start; each process a booking."""
        for process in self.world.processes.values():
            residence = self.world.residents.residence(process.model)
            if residence.generation == process.generation:
                assert residence.state.holds_bytes
                assert residence.need.bytes == process.need.bytes
        models = [p.model for p in self.world.processes.values()]
        assert len(models) == len(set(models))

    @invariant()
    def nobody_is_forgotten(self):
        """Every request waits, runs, or was told what went wrong."""
        world = self.world
        for ticket, model in self.asked.items():
            residence = world.residents.residence(model)
            is_known = ticket in residence.waiting or ticket in residence.running
            denied = {getattr(order, "ticket", None) for order in world.orders} | set(world.denied)
            assert is_known or ticket in denied
            if residence.state in (ModelState.UNLOADED, ModelState.FAILED):
                assert not residence.waiting

    def teardown(self):
        """In the end all are served or told; then nothing is left."""
        world = self.world
        world.holds_loads = world.holds_exits = world.holds_saves = False
        world.foreign = {}
        world.settle()
        for process in list(world.processes.values()):
            if not (process.is_ready or process.is_dead or process.is_ending):
                world.finish_load(process.model)
            if process.is_saving:
                world.finish_save(process.model)
            if process.is_ending:
                world.exit(process.model)
            world.settle()
        for model in MODELS:
            world.pin(model.name, False)
        for _ in range(50):
            world.settle()
            self._end_granted()
            world.wait(10.0)
        assert not self.asked, "somebody waits for ever"
        for model in MODELS:
            world.unload(model.name)
        world.wait(100.0)
        assert (world.residents.booked(), world.processes) == ({}, {})

    def _end_granted(self):
        for ticket in list(self.asked):
            if ticket in self.world.granted or ticket in self.world.denied:
                error = self.world.denied.get(ticket)
                assert error is None or isinstance(error, CorralError)
                del self.asked[ticket]
                self.world.end(ticket)


AnyOrder.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=100,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyOrder = AnyOrder.TestCase


def interleavings(counts):
    """Return every order in which threads with so many steps each can take their steps."""
    steps = [name for name, count in counts.items() for _ in range(count)]
    return sorted(set(itertools.permutations(steps)))


@pytest.mark.parametrize("order", interleavings({"request": 2, "idle": 2, "exit": 1}))
def test_a_request_and_the_end_of_idleness_in_every_order(order):
    """Cases 43 to 45: between any two holds of the lock the other may come; it is served."""
    world = World([entry("a", 60, ttl_s=10.0), entry("b", 60)])
    world.answer("a")
    world.holds_exits = world.holds_saves = True
    world.now = 10.0
    tickets = []

    def request():
        tickets.append(world.ask("a"))

    def idle():
        if world.state("a") is ModelState.DRAINING:
            world.settle()
            world.finish_save("a")
        else:
            world.take(world.residents.tick(world.now))

    def leave():
        world.settle()
        if world.state("a") is ModelState.STOPPING:
            world.exit("a")

    for step in order:
        {"request": request, "idle": idle, "exit": leave}[step]()
    for _ in range(2):
        world.settle()
        if world.state("a") is ModelState.DRAINING:
            world.finish_save("a")
        if world.state("a") is ModelState.STOPPING:
            world.settle()
            world.exit("a")
    world.settle()
    assert set(tickets) == set(world.granted)


@pytest.mark.parametrize("order", interleavings({"a": 2, "b": 2, "crash": 1}))
def test_two_newcomers_and_a_crash_in_every_order(order):
    """Cases 42 and 53: a victim that dies by itself frees its place once."""
    world = World([entry("old", 90), entry("a", 60), entry("b", 60)])
    world.answer("old")
    waiting = {"a": None, "b": None}

    def step(model):
        if waiting[model] is None:
            waiting[model] = world.ask(model)
        elif world.orders:
            world.carry_out(world.orders.popleft())

    for name in order:
        if name == "crash":
            if world.processes and world.state("old") is ModelState.READY:
                world.die("old")
        else:
            step(name)
    for _ in range(4):
        world.settle()
        for ticket in list(world.granted):
            world.end(ticket)
    assert not world.denied
    assert world.held() <= 100
    assert {"a", "b"} <= set(world.started)
