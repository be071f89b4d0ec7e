"""The adapters of one loaded model: loaded and unloaded while others generate.

              prepare                 add                  remove, and its last sequence ended
    a file ───────────▶ packed bytes ─────▶ loaded ─────────────────────────────────▶ gone
           any thread                engine's thread: reserved, allocated, pointed at

An adapter that is removed takes no new sequence and lives until its last one ends. What it holds is
one buffer a device, of a lifetime of its own. Programs with adapters are made when the first comes,
made anew when one does not fit them, and go with the last.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from corral.engine.adapter_use import AdapterUse, Uses
from corral.engine.attaching import Attached, adaptable, attach_to
from corral.engine.holding import allocate_bytes, reserve_bytes
from corral.engine.load import LoadedModel
from corral.engine.runner import Runner
from corral.errors import InvalidArgument, UnsupportedModel
from corral.gguf import TensorInfo, fingerprint
from corral.interrupts import deferred
from corral.lora.adapter import Adapter, open_adapter, require_fitting
from corral.lora.packing import PackedPair, pack
from corral.lora.placing import AdapterLayout, attachment, place_adapter, units_of
from corral.lora.values import read_pair
from corral.memory.buffer import Buffer
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.memory.planner import align
from corral.tensor.attach import Attachment

MOST_ADAPTERS = 64
"""Loaded at once."""
_LARGEST_SCALE = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class PreparedAdapter:
    """An adapter that fits the model, read and packed, on no device yet."""

    header: Adapter
    fingerprint: str
    packed: Mapping[str, PackedPair]


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter on the model's devices."""

    id: int
    name: str
    header: Adapter
    fingerprint: str
    slot: int
    scale: float
    """For sequences that say nothing of adapters; 0 is not at all."""
    layouts: tuple[AdapterLayout, ...]
    """One a part of the model."""
    buffers: tuple[Buffer, ...]
    factors: dict[str, int]
    """Of the product of each weight's halves, as the bits of an F32."""
    closing: ExitStack
    num_sequences: int = 0
    is_leaving: bool = False

    @property
    def size_bytes(self) -> int:
        """What it holds on the devices."""
        return sum(buffer.size_bytes for buffer in self.buffers)

    @property
    def units(self) -> int:
        """Units of ranks that it needs of a row."""
        return units_of(self.header)


@dataclass(slots=True, eq=False)
class Adapters:
    """Owns the adapters of a model, and the programs that compute with them."""

    loaded: LoadedModel
    runner: Runner
    ledger: Ledger
    model: str
    """Its name."""
    tensors: Mapping[str, TensorInfo]
    """Of the model's file."""
    _known: dict[int, LoadedAdapter] = field(default_factory=dict)
    _attached: Attached | None = None
    _next_id: int = 0

    def __iter__(self) -> Iterator[LoadedAdapter]:
        """Go through the adapters that sequences may have, in the order in which they came."""
        return (one for one in tuple(self._known.values()) if not one.is_leaving)

    # From any thread

    def prepare(self, path: Path) -> PreparedAdapter:
        """Read an adapter, check that it fits, and pack its values; nothing is changed.

        Raises:
            ModelNotFound: if there is no such file.
            ModelError: if it is no adapter, holds no numbers, or is one of another model.
        """
        graph, architecture = self.loaded.design.graph, self.loaded.design.hyper.architecture
        with open_adapter(path) as (header, file):
            require_fitting(header, architecture, self.tensors, base=self.model)
            strange = sorted(set(header.pairs) - adaptable(graph))
            if strange:
                raise UnsupportedModel(
                    f"{header.name}: it changes {strange[0]}, which is multiplied with no rows of "
                    "this model: corral cannot attach it"
                )
            packed = {
                weight: pack(*read_pair(file, pair), header.scale(pair))
                for weight, pair in header.pairs.items()
            }
            return PreparedAdapter(header, fingerprint(file), packed)

    # By whoever drives the engine, while no evaluation is under way

    def add(
        self, prepared: PreparedAdapter, *, name: str = "", scale: float = 1.0
    ) -> LoadedAdapter:
        """Put an adapter on the model's devices; all of it or nothing.

        Raises:
            InvalidArgument: if the scale is none, the name is taken, or there are too many.
            OutOfMemory: if there is no room for it.
        """
        require_scale(scale)
        if name and any(one.name == name for one in self):
            raise InvalidArgument(f"there is an adapter {name!r} already: give another name")
        name = name or self._own_name(prepared.header.path.stem)
        if len(self._known) >= MOST_ADAPTERS:
            raise InvalidArgument(f"{MOST_ADAPTERS} adapters are loaded, the most there may be")
        try:
            with ExitStack() as closing:
                one = self._allocate(prepared, name, scale, closing)
                self._upload(prepared, one)
                self._attach([*self._known.values(), one])
                self._point(one)
                one.closing.push(closing.pop_all())
                self._known[one.id] = one
                self._next_id += 1
        finally:
            self._detach_unused()
        return one

    def remove(self, adapter_id: int) -> None:
        """Give an adapter to no sequence any more, and let it go when its last one has ended.

        Raises:
            InvalidArgument: if there is no such adapter.
        """
        one = self.find(adapter_id)
        one.is_leaving = True
        self.collect()

    def set_scale(self, adapter_id: int, scale: float) -> None:
        """Say what an adapter counts for sequences that say nothing of adapters; from any thread.

        Raises:
            InvalidArgument: if there is no such adapter, or the scale is none.
        """
        self.find(adapter_id).scale = require_scale(scale)

    def set_scales(self, scales: Mapping[int, float]) -> None:
        """Set the scales of all adapters, 0 for those not named; raises as `set_scale` does."""
        found = {self.find(number): require_scale(scale) for number, scale in scales.items()}
        for one in self:
            one.scale = found.get(one, 0.0)

    def find(self, adapter_id: int) -> LoadedAdapter:
        """Return an adapter that sequences may have.

        Raises:
            InvalidArgument: if there is none of that number.
        """
        one = self._known.get(adapter_id)
        if one is None or one.is_leaving:
            there = ", ".join(str(other.id) for other in self) or "none"
            raise InvalidArgument(f"there is no adapter {adapter_id}; there are: {there}")
        return one

    def uses(self, wanted: Iterable[tuple[int, float]] | None) -> Uses:
        """Return what a sequence has of (adapter, scale) pairs; None is what was set for all.

        Raises:
            InvalidArgument: if there is no such adapter, one is named twice, or a scale is none.
        """
        if wanted is None:
            found = [AdapterUse(one, one.scale) for one in self if one.scale]
        else:
            scales: dict[int, float] = {}
            for number, scale in wanted:
                if number in scales:
                    raise InvalidArgument(f"adapter {number} is named twice, expected once")
                scales[number] = require_scale(scale)
            found = [AdapterUse(self.find(n), scale) for n, scale in scales.items() if scale]
        return tuple(sorted(found, key=lambda use: use.adapter.slot))

    def begin(self, uses: Uses) -> None:
        """Note that a sequence has adapters."""
        for use in uses:
            assert isinstance(use.adapter, LoadedAdapter)
            use.adapter.num_sequences += 1

    def end(self, uses: Uses) -> None:
        """Note that a sequence that had adapters has ended."""
        for use in uses:
            assert isinstance(use.adapter, LoadedAdapter)
            use.adapter.num_sequences -= 1

    @property
    def has_leftovers(self) -> bool:
        """Whether an adapter waits for nothing any more but to go."""
        return any(one.is_leaving and not one.num_sequences for one in self._known.values())

    def collect(self) -> None:
        """Let adapters go that were removed and that no sequence has."""
        with deferred:
            for one in [o for o in self._known.values() if o.is_leaving and not o.num_sequences]:
                del self._known[one.id]
                if self._attached is not None:
                    for part, layout in zip(self._attached.parts, one.layouts, strict=True):
                        part.forget(one.slot, layout)
                one.closing.close()
            self._detach_unused()

    def close(self) -> None:
        """Give everything back, whoever may still have it; a second call does nothing."""
        with deferred:
            for one in self._known.values():
                one.is_leaving, one.num_sequences = True, 0
            self.collect()

    # How it is done

    def _own_name(self, stem: str) -> str:
        """Return the name of a file, with a number if another adapter has it."""
        taken, name, number = {one.name for one in self}, stem, 2
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        return name

    def _detach_unused(self) -> None:
        """Give back programs with adapters if there are no adapters."""
        if not self._known and self._attached is not None:
            self.runner.attach(None)
            self._attached.close()
            self._attached = None

    def _allocate(
        self, prepared: PreparedAdapter, name: str, scale: float, closing: ExitStack
    ) -> LoadedAdapter:
        taken = {one.slot for one in self._known.values()}
        layouts, buffers = [], []
        for part in self.loaded.parts:
            layout = place_adapter(prepared.header, part.plan.weights.slots)
            size = align(layout.size_bytes, part.plan.traits.granularity)
            footprint, owner = {Lifetime.ADAPTER: size}, f"{self.model} (adapter {name})"
            with deferred:
                reserved = reserve_bytes(footprint, owner, part.device, self.ledger, closing)
                made = allocate_bytes(footprint, reserved, part.device, self.ledger, closing)
            layouts.append(layout)
            buffers.append(made[Lifetime.ADAPTER])
        return LoadedAdapter(
            id=self._next_id,
            name=name,
            header=prepared.header,
            fingerprint=prepared.fingerprint,
            slot=next(slot for slot in range(MOST_ADAPTERS) if slot not in taken),
            scale=scale,
            layouts=tuple(layouts),
            buffers=tuple(buffers),
            factors={weight: pair.factor_word for weight, pair in prepared.packed.items()},
            closing=ExitStack(),
        )

    def _upload(self, prepared: PreparedAdapter, one: LoadedAdapter) -> None:
        for part, layout, buffer in zip(self.loaded.parts, one.layouts, one.buffers, strict=True):
            for weight, place in layout.slots.items():
                pair = prepared.packed[weight]
                part.device.put(buffer, place.a_offset, pair.a)
                part.device.put(buffer, place.b_offset, pair.b)

    def _point(self, one: LoadedAdapter) -> None:
        assert self._attached is not None
        parts = zip(self._attached.parts, one.layouts, one.buffers, strict=True)
        for part, layout, buffer in parts:
            part.point(one.slot, layout, buffer.address, one.factors)

    def _attach(self, adapters: Sequence[LoadedAdapter]) -> None:
        """See that there are programs that these adapters fit."""
        wanted = self._wanted(adapters)
        if self._attached is not None and _fits(wanted, self._attached.attachment):
            return
        before = self._attached
        owner = f"{self.model} (adapters)"
        self._attached = attach_to(self.loaded, wanted, self.ledger, owner)
        self.runner.attach(self._attached.parts, wanted.room)
        for one in self._known.values():
            self._point(one)
        if before is not None:
            before.close()

    def _wanted(self, adapters: Sequence[LoadedAdapter]) -> Attachment:
        """Return the attachment for these adapters, with room for some more."""
        return attachment(
            [one.header for one in adapters],
            slots=max(one.slot for one in adapters) + 1,
            sequences=self.loaded.design.limits.parallel,
            more=() if self._attached is None else self._attached.attachment.weights,
        )


def require_scale(scale: float) -> float:
    """Return the scale of an adapter.

    Raises:
        InvalidArgument: if it is no finite number, or beyond all reason.
    """
    if not math.isfinite(scale) or abs(scale) > _LARGEST_SCALE:
        raise InvalidArgument(
            f"the scale of an adapter is {scale}, expected a number of a million at most",
            field="scale",
        )
    return float(scale)


def _fits(wanted: Attachment, there: Attachment) -> bool:
    return (
        set(wanted.weights) <= set(there.weights)
        and wanted.room.slots <= there.room.slots
        and wanted.room.units <= there.room.units
    )
