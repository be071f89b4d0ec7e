"""What a model would hold on devices, from its header alone; no weight is read, nothing made.

The devices may be elsewhere: a plan depends on their kind, and on the memory they have only where
it is asked to fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

from corral.devices import registry
from corral.devices.cuda.traits import cuda_traits
from corral.devices.listing import machine_listing
from corral.devices.reading import DeviceReading
from corral.devices.visible import is_named
from corral.engine import checks
from corral.engine.targets import Targets
from corral.errors import DeviceUnavailable, InvalidArgument
from corral.gguf import ModelFile, open_model
from corral.hub.resolve import resolve
from corral.memory.lifetime import Lifetime, is_elsewhere
from corral.memory.traits import HOST, DeviceTraits
from corral.models.fit import DEFAULT_MARGIN, Room, Wish, fit_model
from corral.models.footprint import Limits, choose_limits, write_graph
from corral.models.split import Footprint, SplitDesign, design_split


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Bytes of one lifetime."""

    lifetime: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What a model would hold on one device."""

    device: str
    rows: tuple[PlanRow, ...]
    layers: tuple[int, int] | None = None
    """The first and the last of its layers, counted from 0; None for the host."""
    context_is_measured: bool = True
    """Whether the cost of its driver's context was measured there, or is a careful guess."""
    usable_bytes: int | None = None
    """What there was to fit it in, less the margin; None if nothing was fitted."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all lifetimes."""
        return sum(row.bytes for row in self.rows)


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The footprint of a model with certain limits, by device and in all."""

    model: str
    limits: Limits
    devices: tuple[DevicePlan, ...]
    num_layers: int

    @property
    def device(self) -> str:
        """The devices that compute, in order, with commas between them."""
        return ",".join(plan.device for plan in self.devices if plan.layers is not None)

    @property
    def rows(self) -> tuple[PlanRow, ...]:
        """Bytes of each lifetime on all devices together."""
        sizes: dict[str, int] = {}
        for row in chain.from_iterable(plan.rows for plan in self.devices):
            sizes[row.lifetime] = sizes.get(row.lifetime, 0) + row.bytes
        return tuple(PlanRow(life, size) for life, size in sizes.items())

    @property
    def total_bytes(self) -> int:
        """Bytes of all lifetimes on all devices."""
        return sum(plan.total_bytes for plan in self.devices)

    @property
    def context(self) -> int:
        """Tokens of one sequence."""
        return self.limits.context

    @property
    def parallel(self) -> int:
        """Sequences at once."""
        return self.limits.parallel

    @property
    def kv_type(self) -> str:
        """Data type of the KV cache."""
        return self.limits.kv_type


@dataclass(frozen=True, slots=True)
class _Target:
    """A device to plan for."""

    name: str
    traits: DeviceTraits
    context_is_measured: bool


def plan(
    name: str | Path,
    *,
    context: int | None = None,
    parallel: int = 1,
    kv_type: str = "f16",
    device: str | Sequence[str] = "auto",
    split: Sequence[float] | None = None,
    gpu_layers: int | None = None,
    fit: bool = False,
    memory: int | Sequence[int] | None = None,
    margin: int = DEFAULT_MARGIN,
) -> PlanReport:
    """Plan a model named as for `Model.load`, for one device or for several.

    Args:
        name: of the model.
        context: tokens of one sequence; by default the model's own, at most 4096, or with `fit`
            the largest that fits.
        parallel: sequences at once.
        kv_type: data type of the KV cache: f16, bf16, f32 or q8_0.
        device: one name, or several of which each gets a run of layers; none need be here.
        split: for each device the weights it gets, in proportion; by default equal parts, or with
            `fit` what the free memory allows.
        gpu_layers: how many of the last layers are on the devices, which are cards then; the
            others, and their keys and values, are on the CPU.
        fit: whether to look for what fits the devices' memory; then only as many of them are used
            as the context needs.
        memory: bytes free on each device, or one number for all; by default what is free now.
        margin: bytes to leave free on each device.

    Raises:
        OutOfMemory: if nothing fits; it says what is missing and what would help.
        DeviceUnavailable: if a device's free memory is needed and nobody can tell it.
        UsageError: if the name or a setting is wrong.
        ModelError: if the file is at fault or needs what corral does not run.
    """
    name = checks.model_name(name)
    context = checks.integer_or_none("context", context, low=1)
    parallel = checks.integer("parallel", parallel, low=1)
    kv_type = checks.text("kv_type", kv_type)
    wanted = Targets.of(device, split, gpu_layers)
    is_fitting = checks.flag("fit", fit)
    sizes = _sizes(memory, len(wanted.names))
    margin = checks.integer("margin", margin, low=0)
    if sizes and not is_fitting:
        raise InvalidArgument("memory is given, which counts only with fit: add --fit (fit=True)")
    if is_fitting and gpu_layers is not None:
        raise InvalidArgument(
            "gpu_layers is given with fit, which counts them itself: leave it out"
        )
    path = resolve(name)
    targets = list(map(_target, wanted.names))
    chunk = max(target.traits.chunk_tokens for target in targets)
    wish = Wish(parallel, kv_type, context, None if wanted.is_default else wanted.shares, chunk)
    with open_model(path, skip_arrays=True) as file:
        if is_fitting:
            usable = [size - margin for size in sizes or _free(wanted.names)]
            return _fitted(file, wish, targets, usable)
        return _plain(file, wish, targets, wanted)


def _fitted(
    file: ModelFile, wish: Wish, targets: Sequence[_Target], usable: Sequence[int]
) -> PlanReport:
    pairs = zip(targets, usable, strict=True)
    rooms = tuple(Room(target.name, target.traits, size) for target, size in pairs)
    proposal = fit_model(file.metadata, file.tensors, rooms, wish)
    known = {target.name: target for target in targets}
    used = [known[room.device] for room in proposal.rooms]
    sizes = [room.usable_bytes for room in proposal.rooms]
    return _report(file.path.name, proposal.design, used, sizes)


def _plain(file: ModelFile, wish: Wish, targets: Sequence[_Target], wanted: Targets) -> PlanReport:
    """Plan for the devices as they were named, whatever memory they have."""
    limits = choose_limits(
        file.metadata,
        context=wish.context,
        parallel=wish.parallel,
        kv_type=wish.kv_type,
        chunk=wish.chunk,
    )
    model = write_graph(file.metadata, file.tensors, limits)
    runs = wanted.layers(model, [target.traits for target in targets])
    used = [(target, run) for target, run in zip(targets, runs, strict=True) if run]
    found = [target for target, _run in used]
    design = design_split(model, [t.traits for t in found], [run for _target, run in used])
    return _report(file.path.name, design, found, [None] * len(found))


def _report(
    name: str, design: SplitDesign, targets: Sequence[_Target], usable: Sequence[int | None]
) -> PlanReport:
    found, on_host = [], dict[Lifetime, int]()
    parts = zip(targets, usable, design.layers, design.footprints(), strict=True)
    for target, size, layers, footprint in parts:
        elsewhere = [life for life in footprint if is_elsewhere(life, target.traits)]
        for life in elsewhere:
            on_host[life] = on_host.get(life, 0) + footprint[life]
        own = {life: size for life, size in footprint.items() if life not in elsewhere}
        ends = layers.start, layers.stop - 1
        part = DevicePlan(target.name, _rows(own), ends, target.context_is_measured, size)
        found.append(part)
    if on_host:
        found.append(DevicePlan(HOST, _rows(on_host)))
    return PlanReport(name, design.model.limits, tuple(found), design.model.hyper.layers)


def _rows(footprint: Footprint) -> tuple[PlanRow, ...]:
    return tuple(PlanRow(life.value, size) for life, size in footprint.items())


def _target(name: str) -> _Target:
    if name in registry.NAMES:
        return _Target(name, registry.traits(name), context_is_measured=True)
    cost = registry.context_cost(name)
    return _Target(name, cuda_traits(cost.size_bytes), cost.is_measured)


def _sizes(memory: object, count: int) -> list[int]:
    """Return bytes for each device; none if none were given."""
    if memory is None:
        return []
    listed = list(memory) if isinstance(memory, list | tuple) else [memory] * count
    sizes = [checks.integer("memory", size, low=0) for size in listed]
    if len(sizes) != count:
        raise InvalidArgument(
            f"memory has {len(sizes)} sizes, there are {count} devices: give one for each, or one "
            "for all"
        )
    return sizes


def _free(names: Sequence[str]) -> list[int]:
    """Return what may be planned with on each device, by one reading of them all.

    Raises:
        DeviceUnavailable: if a device is not here, or nobody can tell.
        InvalidArgument: if two names stand for one device, whose memory would count twice.
    """
    readings = machine_listing().devices
    found = {name: _reading(name, readings) for name in names}
    for one, other in combinations(names, 2):
        if found[one] is found[other]:
            raise InvalidArgument(f"devices {one} and {other} are one: a plan needs it once")
        if found[one].is_on_host and found[other].is_on_host:
            raise InvalidArgument(
                f"devices {one} and {other} have one memory, the host's, which counts once: name "
                "one of them, or say with --memory what each may take"
            )
    return [reading.usable_bytes for reading in found.values()]


def _reading(name: str, readings: Sequence[DeviceReading]) -> DeviceReading:
    wanted = "cpu" if name in registry.NAMES else name
    found = [r for r in readings if r.name == wanted or (r.uuid and is_named(r.uuid, wanted))]
    if len(found) != 1:
        raise DeviceUnavailable(
            f"there is no {name} here whose memory could be read: to plan for a machine that is "
            "elsewhere, say what is free there, as in --memory 24GiB"
        )
    (reading,) = found
    if reading.free_bytes is None:
        why = f": {reading.note}" if reading.note else ""
        raise DeviceUnavailable(
            f"{name} does not tell how much memory is free{why}; say it, as in --memory 24GiB"
        )
    return reading
