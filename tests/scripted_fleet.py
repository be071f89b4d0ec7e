"""Models, memory and processes by script, in virtual time: what a router decides, played out.

Orders wait in a queue until `settle` or `carry_out` plays them, so that a test may choose their
order. Processes load at once unless `holds_loads` is set; then `finish_load` lets one be ready.
"""

from collections import deque
from dataclasses import dataclass, replace

from corral.contract.fleet import ModelState
from corral.errors import WorkerLost
from corral.router.effects import Confirm, Deny, Find, Grant, Look, Save, Start, Stop, Tell
from corral.router.entry import HOST, ModelEntry, Planned, Preset
from corral.router.placement import place
from corral.router.residence import Progress, Ticket
from corral.router.residents import Residents
from machines import FREE_HANDS, footprint, machine


def entry(name, size, *, is_cold=False, **preset):
    """Return a model of so many bytes, on a card or on the CPU."""
    planned = Planned(
        fingerprint=name,
        architecture="tiny",
        context=128,
        trained_context=128,
        num_layers=4,
        footprints=(footprint(size, kind="cpu"), footprint(size, kind="cuda")),
    )
    given = Preset(name=name, **preset)
    return ModelEntry(preset=given, paths=(f"/{name}",), header=None if is_cold else planned)


@dataclass
class Process:
    """A worker that was started."""

    model: str
    generation: int
    need: object
    held: dict
    is_ready: bool = False
    is_dead: bool = False
    is_saving: bool = False
    is_ending: bool = False
    """It was told to end, or its end was seen."""


class World:
    """A machine, a router's decisions, and everything they lead to."""

    def __init__(self, entries, *, host=100, cards=(), policy=FREE_HANDS, **options):
        self.now = 0.0
        self.entries = {entry.name: entry for entry in entries}
        self.totals = machine(*cards, host=host)
        self.foreign = {}
        self.residents = Residents(entries, place, policy=policy, **options)
        self.orders = deque()
        self.processes = {}
        self.holds_loads = False
        self.holds_exits = False
        self.holds_saves = False
        self.granted, self.denied, self.events = {}, {}, []
        self.started = []
        self._num_tickets = 0

    # What happens.

    def ask(self, model):
        """Send a request for a model; return its ticket."""
        self._num_tickets += 1
        name = f"t{self._num_tickets}"
        self.take(self.residents.claim(Ticket(name, self.residents.find(model), self.now)))
        return name

    def end(self, ticket):
        """Let a request end, or its client leave."""
        self.granted.pop(ticket, None)
        self.take(self.residents.release(ticket, self.now))

    def answer(self, model):
        """Send a request, let it be granted and end."""
        ticket = self.ask(model)
        self.settle()
        assert ticket in self.granted, (self.state(model), self.denied)
        self.end(ticket)
        self.settle()

    def load(self, model):
        """Have a model loaded."""
        self.take(self.residents.load(model, self.now))

    def unload(self, model):
        """Have a model unloaded."""
        self.take(self.residents.unload(model, self.now))

    def pin(self, model, is_pinned=True):
        """Pin a model, or no longer."""
        self.take(self.residents.pin(model, is_pinned, self.now))

    def wait(self, seconds):
        """Let time pass, and do what it is time for on the way."""
        end = self.now + seconds
        while (next_s := self.residents.next_s()) is not None and next_s <= end:
            self.now = max(self.now, next_s)
            self.take(self.residents.tick(self.now))
            self.settle()
        self.now = end
        self.take(self.residents.tick(self.now))
        self.settle()

    def die(self, model, error=None, *, is_refused=False):
        """Let a model's process end by itself."""
        process = self.process(model)
        process.held, process.is_dead = {}, True
        error = error or WorkerLost("killed")
        self.take(
            self.residents.ended(model, process.generation, error, self.now, is_refused=is_refused)
        )

    def finish_load(self, model):
        """Let a model's process be ready."""
        process = self.process(model)
        process.is_ready, process.held = True, dict(process.need.bytes)
        measured = {memory: {"weights": size} for memory, size in process.held.items()}
        self.take(self.residents.loaded(model, process.generation, measured, self.now))

    def finish_save(self, model):
        """Let a process that was told to save have saved."""
        process = self.process(model)
        process.is_saving = False
        self.take(self.residents.saved(model, process.generation, self.now))

    def exit(self, model):
        """Let a process that was told to end be gone."""
        process = self.process(model)
        del self.processes[model, process.generation]
        self.take(self.residents.gone(model, process.generation, self.now))

    # What is done about it.

    def take(self, orders):
        """Keep orders until they are carried out."""
        self.orders.extend(orders)

    def settle(self):
        """Carry out orders until there are none."""
        for _ in range(10_000):
            if not self.orders:
                return
            self.carry_out(self.orders.popleft())
        raise AssertionError("orders lead to orders without end")

    def choices(self):
        """Return the orders that may be carried out next: those of one process keep their order."""
        first = {}
        for order in self.orders:
            key = getattr(order, "model", None) or type(order).__name__
            first.setdefault(key, order)
        return list(first.values())

    def carry_out(self, order):
        """Do what one order says."""
        match order:
            case Find(model=model):
                cold = self.entries[model]
                warm = entry(model, 10) if cold.header is None else cold
                found = replace(cold, header=warm.header)
                self.take(self.residents.found(found, self.now))
            case Look(number=number):
                self.take(self.residents.looked(number, self.reading(), self.seen(), self.now))
            case Start(model=model, generation=generation, need=need):
                self._start(model, generation, need)
            case Save(model=model, generation=generation):
                self.processes[model, generation].is_saving = True
                if not self.holds_saves:
                    self.finish_save(model)
            case Stop(model=model) | Confirm(model=model):
                self.process(model).is_ending = True
                if not self.holds_exits:
                    self.exit(model)
            case Grant(ticket=ticket, model=model, generation=generation):
                process = self.processes.get((model, generation))
                if process is None or process.is_dead:
                    self.take(self.residents.put_back(ticket, generation, self.now))
                    return
                assert process.is_ready, "granted to a process that is not ready"
                self.granted[ticket] = model, generation
            case Deny(ticket=ticket, error=error):
                self.denied[ticket] = error
            case Tell(event=event):
                self.events.append(event)

    def _start(self, model, generation, need):
        assert not [p for p in self.processes.values() if p.model == model], "loaded twice"
        self.processes[model, generation] = Process(model, generation, need, {})
        self.started.append(model)
        self.take(self.residents.progressed(model, generation, Progress("read", 1, 2), 1, self.now))
        if not self.holds_loads:
            self.finish_load(model)

    # What is there.

    def process(self, model):
        """Return the one process of a model."""
        (found,) = [p for p in self.processes.values() if p.model == model]
        return found

    def reading(self):
        """Return all memories as they are now."""
        rooms = []
        for room in self.totals.rooms:
            held = sum(p.held.get(room.memory, 0) for p in self.processes.values())
            foreign = self.foreign.get(room.memory, 0)
            free = None if foreign is None else max(0, room.total_bytes - held - foreign)
            rooms.append(replace(room, free_bytes=free))
        return replace(self.totals, rooms=tuple(rooms))

    def seen(self):
        """Return what each process holds, as a reading shows it."""
        return {p.model: dict(p.held) for p in self.processes.values()}

    def held(self, memory=HOST):
        """Return the bytes that all processes hold."""
        return sum(p.held.get(memory, 0) for p in self.processes.values())

    def state(self, model):
        """Return the state of a model."""
        return self.residents.residence(model).state

    def status(self, model):
        """Return what is told of a model."""
        return self.residents.residence(model).status()

    def ready(self):
        """Return the models that are ready."""
        return {r.name for r in self.residents.all() if r.state is ModelState.READY}

    def reasons(self, model):
        """Return what was told of a model, in order."""
        return [(event.state, event.reason) for event in self.events if event.model == model]
