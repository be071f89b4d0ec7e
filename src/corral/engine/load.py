"""From a file to a model on devices: plan, reserve, allocate, lower, read; undone whole on failure.

file ─▶ graph ─▶ cut by layers ─▶ a plan a device ─▶ a Part each ─▶ weights read into it
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from corral.devices.base import Backend, Device, ModelBuffers, Program, Progress
from corral.engine.holding import allocate, reserve
from corral.engine.reading import as_device_does, file_bytes, loading, read_weights
from corral.gguf import ModelFile
from corral.interrupts import deferred
from corral.memory.ledger import Ledger
from corral.memory.plan import ModelPlan
from corral.models.footprint import Limits, ModelDesign, ModelGraph, design_model, write_graph
from corral.models.split import design_split


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A run of a model's layers, ready to be computed by one backend."""

    plan: ModelPlan
    device: Device
    backend: Backend
    buffers: ModelBuffers
    program: Program
    shift: Program | None = None
    """Turns keys in its cache, if the model is loaded for context shift."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model whose weights are on one or several devices and whose programs are ready."""

    design: ModelGraph
    layers: tuple[range, ...]
    parts: tuple[Part, ...]
    """In the order in which they are evaluated; `layers` says which each has."""
    closing: ExitStack

    def close(self) -> None:
        """Give everything back, in reverse; a second call does nothing."""
        with deferred:
            self.closing.close()


def load_file(
    file: ModelFile,
    limits: Limits,
    device: Device,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model from an open file, which may be closed afterwards; all of it or nothing.

    Raises:
        ModelError: if the file is at fault.
        OutOfMemory: if it does not fit; nothing was allocated.
    """
    design = write_graph(file.metadata, file.tensors, limits)
    layers = (range(design.hyper.layers),)
    return load_split(file, design, (device,), layers, ledger, progress=progress)


def load_split(
    file: ModelFile,
    design: ModelGraph,
    devices: Sequence[Device],
    layers: Sequence[range],
    ledger: Ledger,
    *,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model whose layers lie on several devices, a run on each; raises as `load_file`."""
    owner = file.path.name
    with _undone_on_failure() as closing:
        traits = [device.traits for device in devices]
        plans = design_split(design, traits, layers).plans
        backends = _backends(devices, closing)
        pairs = zip(plans, devices, strict=True)
        with deferred:
            reserved = [reserve(plan, owner, device, ledger, closing) for plan, device in pairs]
        parts = []
        for plan, device, backend, held in zip(plans, devices, backends, reserved, strict=True):
            with deferred:  # nothing is made that nobody owns
                buffers = allocate(plan, held, device, ledger, closing)
                closing.callback(backend.close)  # before its buffers; the second call does nothing
            # Before reading: lowering compiles the kernels that pack weights, too.
            programs = [backend.lower(one, buffers, progress=progress) for one in plan.plans]
            parts.append(Part(plan, device, backend, buffers, *programs))
        advance = _advancing(plans, progress)
        for part in parts:
            _read_part(file, part, ledger, advance)
        return LoadedModel(design, tuple(layers), tuple(parts), closing)


def _backends(devices: Sequence[Device], closing: ExitStack) -> list[Backend]:
    """Make the executors, before anything is allocated: a device may have none."""
    backends = []
    for device in devices:
        with deferred:
            backends.append(device.backend())
            closing.callback(backends[-1].close)
    return backends


def _read_part(file: ModelFile, part: Part, ledger: Ledger, advance: Callable[[int], None]) -> None:
    # Nothing is evaluated yet: what is read may land in the arena.
    landing = part.buffers.scratch if part.plan.traits.has_own_memory else None
    with loading(part.plan, file.path.name, part.device, ledger, landing) as shares:
        storing = part.backend.storing
        read_weights(file, part.plan, part.buffers.weights, shares, storing, advance=advance)


def _advancing(plans: Sequence[ModelPlan], progress: Progress | None) -> Callable[[int], None]:
    """Return what tells how much of all the plans' weights was read."""
    done, total = 0, sum(map(file_bytes, plans))

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress("read", done, total)

    return advance


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """A model whose weights are on a device, with room for its state and nothing to run it."""

    design: ModelDesign
    buffers: ModelBuffers
    closing: ExitStack

    def close(self) -> None:
        """Give everything back, in reverse; a second call does nothing."""
        with deferred:
            self.closing.close()


def hold_file(
    file: ModelFile,
    limits: Limits,
    device: Device,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
) -> HeldModel:
    """Put a model on a device without an executor; raises as `load_file` does."""
    owner = file.path.name
    with _undone_on_failure() as closing:
        design = design_model(file.metadata, file.tensors, limits, device.traits)
        plan = design.plan
        with deferred:
            reserved = reserve(plan, owner, device, ledger, closing)
            buffers = allocate(plan, reserved, device, ledger, closing)
        storing, advance = as_device_does(device), _advancing((plan,), progress)
        with loading(plan, owner, device, ledger, None) as shares:
            read_weights(file, plan, buffers.weights, shares, storing, advance=advance)
        return HeldModel(design, buffers, closing)


@contextmanager
def _undone_on_failure() -> Iterator[ExitStack]:
    """Give a stack of what is to be closed, and close it at once if anything fails."""
    closing = ExitStack()
    try:
        yield closing
    except BaseException:
        with deferred:
            closing.close()
        raise
