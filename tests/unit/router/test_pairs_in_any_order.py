"""Any two things that happen to a model, in every state of it, at every hold of the lock.

In each state every pair of things happens in both orders, and between them and after them none, one
or two of the orders that they led to are carried out, which is where other threads may come. Then
all is carried out: everybody is served or told, what is booked is what processes hold, and in the
end nothing is left.
"""

import itertools

import pytest

from corral.contract.fleet import ModelState
from corral.errors import InvalidModelFile, OutOfMemory
from corral.router.entry import HOST
from scripted_fleet import World, entry

S = ModelState
ROOM = 100
MODELS = (entry("a", 60, ttl_s=10.0), entry("b", 60))
"""Of which one has room."""


class Life(World):
    """A world in which processes do what they are told one order at a time."""

    def __init__(self):
        super().__init__(MODELS, host=ROOM)
        self.tickets = []
        self.is_listed = True

    def there(self, model):
        """Return a model's process, if it lives."""
        found = [p for p in self.processes.values() if p.model == model and not p.is_dead]
        return found[0] if found else None

    def step(self):
        """Carry one order out, or let a process go on; return whether there was anything to do."""
        if self.orders:
            self.carry_out(self.orders.popleft())
            return True
        for process in list(self.processes.values()):
            if process.is_saving:
                self.finish_save(process.model)
                return True
            if process.is_ending:
                self.exit(process.model)
                return True
        return False

    def finish(self):
        """Carry everything out, loads and ends of requests too."""
        for _ in range(400):
            if self.step():
                continue
            loading = [p for p in self.processes.values() if not (p.is_ready or p.is_dead)]
            if loading:
                self.finish_load(loading[0].model)
            elif self.granted:
                self.end(next(iter(self.granted)))
            elif self.residents.next_s() is not None and self.waiting():
                self.now = max(self.now, self.residents.next_s())
                self.take(self.residents.tick(self.now))
            else:
                return
        raise AssertionError("it never comes to rest")

    def waiting(self):
        """Return how many requests wait."""
        return sum(len(one.waiting) for one in self.residents.all())


def unloaded(life):
    """Nothing happened yet."""


def planning(life):
    life.tickets.append(life.ask("a"))


def loading(life):
    planning(life)
    while life.state("a") is not S.LOADING or life.there("a") is None:
        assert life.step()


def ready(life):
    busy(life)
    life.end(life.tickets.pop())


def busy(life):
    loading(life)
    life.finish_load("a")
    while life.tickets[0] not in life.granted:
        assert life.step()


def draining(life):
    busy(life)
    life.unload("a")
    assert life.state("a") is S.DRAINING


def stopping(life):
    ready(life)
    life.unload("a")
    while life.state("a") is not S.STOPPING:
        assert life.step()


def failed(life):
    loading(life)
    life.die("a", InvalidModelFile("broken"), is_refused=True)
    while life.state("a") is not S.FAILED:
        assert life.step()


STATES = (unloaded, planning, loading, ready, busy, draining, stopping, failed)


def ask(life):
    life.tickets.append(life.ask("a"))


def ask_for_the_other(life):
    life.tickets.append(life.ask("b"))


def leave(life):
    if life.tickets:
        life.end(life.tickets.pop())


def load(life):
    life.load("a")


def unload(life):
    life.unload("a")


def pin(life):
    life.pin("a")


def unpin(life):
    life.pin("a", False)


def be_loaded(life):
    process = life.there("a")
    if process is not None and not process.is_ready:
        life.finish_load("a")


def crash(life):
    if life.there("a") is not None:
        life.die("a")


def lack_memory(life):
    process = life.there("a")
    if process is not None and not process.is_ready:
        life.die("a", OutOfMemory("no memory"))


def become_idle(life):
    life.now += 10.0
    life.take(life.residents.tick(life.now))


def reload(life):
    life.take(life.residents.relist(MODELS, life.now))


def jump(life):
    """Others take all memory that is free for a while."""
    life.foreign = {} if life.foreign else {HOST: 30}


EVENTS = (
    *(ask, ask_for_the_other, leave, load, unload, pin, unpin, be_loaded, crash, lack_memory),
    *(become_idle, reload, jump),
)


def check(life):
    """What holds at every moment."""
    assert life.residents.booked().get(HOST, 0) <= ROOM
    models = [process.model for process in life.processes.values()]
    assert len(models) == len(set(models))
    for process in life.processes.values():
        residence = life.residents.residence(process.model)
        assert residence.state.holds_bytes
        assert residence.need.bytes == process.need.bytes


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_two_things_in_every_state_at_every_hold_of_the_lock(state):
    """No byte twice, nobody forgotten, nothing left."""
    for first, second in itertools.product(EVENTS, repeat=2):
        for between, after in itertools.product(range(3), repeat=2):
            life = Life()
            life.holds_loads = life.holds_exits = life.holds_saves = True
            state(life)
            for event, steps in ((first, between), (second, after)):
                event(life)
                check(life)
                for _ in range(steps):
                    life.step()
                    check(life)
            told = f"{first.__name__}, {between} steps, {second.__name__}, {after} steps"
            come_to_rest(life, told)


def come_to_rest(life, told):
    """Everything ends, and nothing is left of it."""
    life.foreign = {}
    for model in "ab":
        life.pin(model, False)
    life.finish()
    check(life)
    assert life.waiting() == 0, told
    assert all(not one.running for one in life.residents.all()), told
    for model in "ab":
        life.unload(model)
    life.finish()
    assert (life.residents.booked(), life.processes) == ({}, {}), told
    resting = {one.state for one in life.residents.all()}
    assert resting <= {S.UNLOADED, S.FAILED}, told
