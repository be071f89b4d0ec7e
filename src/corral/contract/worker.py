"""How a worker process is told what to hold, and what is told of it: plain frozen data.

LOADING ──▶ READY ──▶ RESTARTING ──▶ LOADING …
   │          │            │
   ▼          ▼            ▼
FAILED     CLOSED       FAILED        (FAILED and CLOSED are for good)
"""

import enum

import msgspec

from corral.contract.checks import check_integer, check_number, check_text, check_tuple, refuse
from corral.contract.limits import (
    MAX_ADAPTER_SCALE,
    MAX_ADAPTERS,
    MAX_NAME_CHARACTERS,
    MAX_TOKEN,
)

MAX_QUEUE = 65_536
MAX_DRAIN_S = 86_400.0
_MAX_PATH_CHARACTERS = 4096
_MAX_DEVICES = 64
_MAX_TEMPLATE_CHARACTERS = 1 << 20
_MAX_SESSIONS_BYTES = 1 << 60


class WorkerState(enum.Enum):
    """Where a worker is in its life, as seen by whoever keeps it."""

    LOADING = "loading"
    """The process is there, or about to be, and its model is not yet."""
    READY = "ready"
    RESTARTING = "restarting"
    """The process died; another one is started after a pause."""
    FAILED = "failed"
    """No further start is tried; `WorkerStatus.error_code` says why."""
    CLOSED = "closed"


class WorkerExit(enum.IntEnum):
    """What a worker's exit status says; a signal that killed it is no status of its own."""

    STOPPED = 0
    """It was told to."""
    INTERNAL = 1
    """Its own code failed."""
    USAGE = 2
    """It was started with wrong arguments."""
    LOAD_FAILED = 3
    """The model could not be loaded, and it said why."""
    DEVICE_FAULT = 4
    """The device computes nothing more in this process."""
    PARENT_GONE = 5
    PROTOCOL = 6
    """It was told something it does not understand."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a worker at one moment."""

    state: WorkerState
    stage: str = ""
    """While it loads: what it does, such as "kernels" or "read"."""
    done: int = 0
    total: int = 0
    """Of `done`; 0 if that is not known."""
    restarts: int = 0
    """How often a process was started again."""
    pid: int | None = None
    error_code: str = ""
    """Of the last failure: the `code` of a class in `corral.errors`."""
    error: str = ""
    exit_status: int | None = None
    """Of the process that failed for good: one of WorkerExit, or minus the signal that ended it."""


class AdapterSpec(msgspec.Struct, frozen=True):
    """An adapter that a worker is to load beside its model."""

    path: str
    scale: float = 1.0
    """What it counts for requests that say nothing of adapters."""

    @classmethod
    def parse(cls, given: str) -> "AdapterSpec":
        """Take FILE or FILE:SCALE.

        Raises:
            InvalidArgument: if what stands behind the colon is no scale.
        """
        path, colon, scale = given.rpartition(":")
        if not colon or not path or "/" in scale or scale.endswith(".gguf"):
            return cls(given)
        try:
            spec = cls(path, float(scale))
        except ValueError:
            refuse("scale", scale, f"a number behind {path[-60:]}:")
        spec.validate("adapter")
        return spec

    def validate(self, field: str) -> None:
        """Check its fields; `field` is what messages call it.

        Raises:
            InvalidArgument: naming what is wrong.
        """
        limit = MAX_ADAPTER_SCALE
        check_text(f"{field} path", self.path, shortest=1, longest=_MAX_PATH_CHARACTERS)
        check_number(f"{field} scale", self.scale, low=-limit, high=limit)


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model for a worker to hold, and how."""

    model: str
    """Path of the file."""
    name: str = ""
    """What the model is called; by default its file's name."""
    devices: tuple[str, ...] = ("auto",)
    """Each gets a run of layers."""
    split: tuple[float, ...] | None = None
    """For each device the weights it gets, in proportion; None is equal parts."""
    gpu_layers: int | None = None
    """How many of the last layers are on the devices, the others on the CPU; None is all."""
    visible_devices: tuple[str, ...] | None = None
    """UUIDs of the cards that the process may see; None leaves what its parent sees."""
    context: int | None = None
    parallel: int = 1
    kv_type: str = "f16"
    kv_blocks: int | None = None
    """Blocks of the KV cache; None is enough for `parallel` full sequences."""
    context_shift: bool = False
    """Whether an answer goes on when the context is full, without its older tokens."""
    keep: int = 0
    """Tokens of a prompt that are never dropped."""
    threads: int | None = None
    chunk_beside: int | None = None
    """Prompt tokens of one step while others decode; None is what suits the device."""
    embeddings: bool = False
    """Whether vectors can be asked for, beside texts; takes a little memory."""
    template: str | None = None
    """A chat template in place of the file's own."""
    adapters: tuple[AdapterSpec, ...] = ()
    queue_capacity: int = 128
    """Requests that may wait."""
    drain_s: float = 30.0
    """Seconds that running requests get to end when the worker is to stop."""
    sessions: str | None = None
    """Directory where conversations outlive the process; None keeps none."""
    sessions_bytes: int = 8 << 30
    """What the directory may hold, of all models together."""
    sessions_s: float = 20.0
    """Seconds that saving them may take after the last request, and restoring before the first."""

    def validate(self) -> None:
        """Check every field that is not checked when the model is loaded.

        Raises:
            InvalidArgument: naming the field, what it holds and what it may hold.
        """
        check_text("model", self.model, shortest=1, longest=_MAX_PATH_CHARACTERS)
        check_text("name", self.name, longest=MAX_NAME_CHARACTERS)
        _check_names("devices", self.devices)
        if self.visible_devices is not None:
            _check_names("visible_devices", self.visible_devices)
        if not isinstance(self.embeddings, bool):
            refuse("embeddings", self.embeddings, "true or false")
        if not isinstance(self.context_shift, bool):
            refuse("context_shift", self.context_shift, "true or false")
        check_integer("keep", self.keep, low=0, high=MAX_TOKEN)
        if self.template is not None:
            check_text("template", self.template, longest=_MAX_TEMPLATE_CHARACTERS)
        for index, one in enumerate(
            check_tuple("adapters", self.adapters, longest=MAX_ADAPTERS, of="adapters")
        ):
            if not isinstance(one, AdapterSpec):
                refuse(f"adapters[{index}]", one, "an adapter with path and scale")
            one.validate(f"adapters[{index}]")
        check_integer("queue_capacity", self.queue_capacity, low=0, high=MAX_QUEUE)
        check_number("drain_s", self.drain_s, low=0.0, high=MAX_DRAIN_S)
        if self.sessions is not None:
            check_text("sessions", self.sessions, shortest=1, longest=_MAX_PATH_CHARACTERS)
        check_integer("sessions_bytes", self.sessions_bytes, low=0, high=_MAX_SESSIONS_BYTES)
        check_number("sessions_s", self.sessions_s, low=0.0, high=MAX_DRAIN_S)


def _check_names(field: str, names: object) -> None:
    for index, name in enumerate(check_tuple(field, names, longest=_MAX_DEVICES, of="devices")):
        check_text(f"{field}[{index}]", name, shortest=1, longest=MAX_NAME_CHARACTERS)
