"""What is to be done after something happened to models: orders from who decides to who acts.

Each is given while the lock is held and carried out when it is not. A generation names one process
of a model: what comes back about an older one is not about the process that is there now.
"""

from dataclasses import dataclass

from corral.contract.fleet import FleetEvent
from corral.errors import CorralError
from corral.router.placing import Need


@dataclass(frozen=True, slots=True)
class Find:
    """Read a model's header; `Residents.found` is to hear of it."""

    model: str


@dataclass(frozen=True, slots=True)
class Look:
    """Read all memories; `Residents.looked` is to hear of it, with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process that loads a model; `loaded` or `ended` is to hear of it."""

    model: str
    generation: int
    need: Need


@dataclass(frozen=True, slots=True)
class Save:
    """Have a process that computes nothing any more keep its sessions; `saved` is to hear of it."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End a process, and tell `gone` when its memory is free."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """A process ended by itself: tell `gone` when its memory is free."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A ticket may use its model now; it is running until `release`."""

    ticket: str
    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Deny:
    """A ticket gets an error; it is forgotten."""

    ticket: str
    error: CorralError


@dataclass(frozen=True, slots=True)
class Tell:
    """Something happened that people may want to see."""

    event: FleetEvent


Effect = Find | Look | Start | Save | Stop | Confirm | Grant | Deny | Tell
