"""A router with its threads, over scripted processes and scripted memory."""

import threading

from corral.contract.sessions import SessionCounts, SessionsSaved
from corral.router.children import Ended, Loaded, Loading
from corral.router.entry import HOST
from corral.router.placing import Machine, Room
from corral.router.residence import Progress
from corral.router.router import Router
from corral.router.sight import Sight
from machines import FREE_HANDS, machine
from served import ScriptedService


class ListedCatalog:
    """A catalog that is a list."""

    def __init__(self, *entries):
        self.listed = list(entries)

    def entries(self):
        """Return every model."""
        return tuple(self.listed)

    def planned(self, name):
        """Return a model with its header."""
        return next(one for one in self.listed if one.name == name)

    def reload(self):
        """Look again."""
        return (f"{len(self.listed)} models",)


class ScriptedChild:
    """A process that is none; it loads when it is let."""

    def __init__(self, order, watch, machine_now):
        self.order = order
        self.watch = watch
        self.service = ScriptedService()
        self.pid = None
        self.is_saved = self.is_stopped = False
        self._memory = machine_now
        self._lost = []

    def load(self):
        """Be ready."""
        self._memory.held[self] = dict(self.order.need.bytes)
        sizes = self.order.need.bytes.items()
        halves = {
            memory: {"weights": size // 2, "state": size - size // 2} for memory, size in sizes
        }
        self.watch(Loaded(halves))

    def end(self, error, *, is_refused=False):
        """End by itself."""
        self._memory.held.pop(self, None)
        self.watch(Ended(error, is_refused))

    def save(self):
        """Keep sessions."""
        self.is_saved = True
        return SessionsSaved(sessions=1, tokens=5, counts=SessionCounts(errors=2))

    def stop(self):
        """End."""
        self._memory.held.pop(self, None)
        self.is_stopped = True


class Played:
    """A router over scripted processes and memory."""

    def __init__(self, *entries, host=100, loads_at_once=True, **options):
        self.held = {}
        self.children = []
        self.loads_at_once = loads_at_once
        self.host = host
        self.catalog = ListedCatalog(*entries)
        self.events = []
        self.router = Router(self.catalog, self.launch, self.read, policy=FREE_HANDS, **options)
        self.router.subscribe(self.events.append)

    def launch(self, order, watch):
        """Start a process."""
        child = ScriptedChild(order, watch, self)
        self.children.append(child)
        watch(Loading(Progress("read", 1, 2), None))
        if self.loads_at_once:
            threading.Thread(target=child.load).start()
        return child

    def read(self):
        """Read the memory."""
        held = sum(sizes.get(HOST, 0) for sizes in list(self.held.values()))
        sites = machine(host=self.host).sites
        return Sight(Machine(sites, (Room(HOST, "cpu", self.host, self.host - held),)))

    def state(self, model):
        """Return the state of a model."""
        return self.router.model_status(model).state

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.router.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("corral-router")]
        assert not self.held
