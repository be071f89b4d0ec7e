"""The words of placement: memories, who holds them, what a model needs, and what is decided.

Plain frozen data, in bytes and in seconds of one clock that only goes forward. Bytes lie in
*memories*: `host`, or the UUID of a card. A card whose memory is the host's has none of its own.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from corral.router.entry import HOST, Footprint, Preset


@dataclass(frozen=True, slots=True)
class Room:
    """One memory at one moment."""

    memory: str
    """`host`, or a UUID."""
    name: str
    """What people call it: cpu, cuda:0."""
    total_bytes: int | None
    free_bytes: int | None
    """As read; None is unknown, and admits nothing."""
    margin_bytes: int = 0
    """Kept free."""
    budget_bytes: int | None = None
    """The most that all models together may hold there; None is no limit."""
    source: str = ""
    """Who told."""
    note: str = ""
    """Why something is unknown or uncertain."""


@dataclass(frozen=True, slots=True)
class Site:
    """A device that computes."""

    name: str
    """What a worker's `--device` takes: cpu, or cuda:N in the order of this machine."""
    kind: str
    """`cpu` or `cuda`: which footprint counts."""
    memory: str = HOST
    """Where its bytes lie."""
    uuid: str | None = None
    context_bytes: int = 0
    """What its driver takes for a process."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One snapshot of everything there is to place on."""

    sites: tuple[Site, ...]
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """One way to place a model: on which devices, and what it takes of each memory."""

    sites: tuple[str, ...]
    """Names of devices, in the order of their layers."""
    bytes: Mapping[str, int]
    """By memory."""
    split: tuple[float, ...] | None = None
    """Weights of the devices to each other; None on one device."""
    is_exact: bool = True
    """Whether it was planned so; else it is a little more than it will be."""

    @property
    def total_bytes(self) -> int:
        """Bytes in all memories."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The model to place."""

    preset: Preset
    footprints: tuple[Footprint, ...]
    observed: Mapping[tuple[str, ...], Mapping[str, int]] = field(default_factory=dict)
    """By devices and then memory, what it was seen to take there; at least that is needed."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.preset.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A model that holds bytes now, or has them reserved."""

    name: str
    bytes: Mapping[str, int]
    """By memory, as booked in the ledger: planned, or what was measured if that is more."""
    unseen: Mapping[str, int] = field(default_factory=dict)
    """By memory, how much of that no reading shows yet."""
    is_pinned: bool = False
    is_busy: bool = False
    """It answers requests."""
    is_loading: bool = False
    is_reserved: bool = False
    """Somebody who waited for it was not let through yet."""
    is_leaving: bool = False
    """It drains or stops: its bytes will be free, but are not."""
    ready_s: float = 0.0
    """When it became ready."""
    used_s: float = 0.0
    """When its last request ended or began."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """How eager the router is."""

    min_residency_s: float = 10.0
    """How long a model that became ready stays at least if others want its place …"""
    idle_s: float = 1.0
    """… unless nobody used it for so long."""
    max_wait_s: float = 30.0
    """How long one who waits for a place lets newcomers of the models in its place go first."""
    process_bytes: int = 256 << 20
    """Main memory of a worker beside its model: interpreter, libraries, vocabulary."""


class Cause(enum.Enum):
    """Why a model cannot be loaded, now or ever."""

    TOO_LARGE = "too_large"
    """Not even an empty machine has the bytes."""
    PINNED = "pinned"
    """What it would need is held by pinned models."""
    FOREIGN = "foreign"
    """What it would need is held by others than this router."""
    MEMORY_UNKNOWN = "memory_unknown"
    """Nobody tells what is free on any device it might go to."""
    NO_DEVICE = "no_device"
    """None of the devices it is for is here."""
    BUSY = "busy"
    """Models that would go answer requests, load, or have somebody waiting for them."""
    RESIDENCY = "residency"
    """Models that would go became ready just now."""
    LEAVING = "leaving"
    """Models are going already; their bytes are not free yet."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What one memory lacks."""

    memory: str
    name: str
    needed_bytes: int
    available_bytes: int | None
    """What could be had if all went that may go; None is unknown."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Bytes by model."""
    foreign_bytes: int | None = None
    """Held by others than this router; None is unknown."""


@dataclass(frozen=True, slots=True)
class Load:
    """There is room: load it so."""

    need: Need


@dataclass(frozen=True, slots=True)
class Evict:
    """There is room once these are gone; decide again when they are."""

    need: Need
    victims: tuple[str, ...]
    frees: Mapping[str, int]
    """Bytes by memory that their going frees."""
    reason: str
    """For people: what was missing and why it is these."""


@dataclass(frozen=True, slots=True)
class Wait:
    """There will be room: decide again when something changes, and at `retry_s` at the latest."""

    cause: Cause
    blockers: tuple[str, ...]
    """The models whose going would make room."""
    retry_s: float | None
    """When time alone changes the decision; None is never."""
    shortages: tuple[Shortage, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no room, and nothing that the router does will make any."""

    cause: Cause
    shortages: tuple[Shortage, ...]
    is_permanent: bool
    """Whether it stays so until files, settings or pins change; else others may free memory."""
    message: str


Decision = Load | Evict | Wait | Refuse
