"""What fits: the largest context, and the devices it takes, for so many free bytes on each.

Pure and quick: how footprints grow with the context is known from one plan, so contexts are tried
without planning each. Only short ones, below a whole chunk, have other graphs and are planned.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from corral.errors import InvalidArgument, OutOfMemory
from corral.gguf import Metadata, TensorInfo
from corral.kv.spec import BLOCK_TOKENS, blocks_for
from corral.memory.ledger import format_bytes
from corral.memory.lifetime import Lifetime, is_elsewhere
from corral.memory.planner import align
from corral.memory.traits import DeviceTraits
from corral.models.architecture import family_of
from corral.models.assign import Cost, assign
from corral.models.footprint import Limits, ModelGraph, choose_limits, write_graph
from corral.models.split import (
    Footprint,
    RunBytes,
    SplitDesign,
    design_split,
    resized_cache,
    split_by_weights,
    state_bytes,
    weight_bytes,
)

DEFAULT_MARGIN = 256 << 20
"""Bytes of each device that a proposal leaves free."""


@dataclass(frozen=True, slots=True)
class Room:
    """A device that may take part of a model."""

    device: str
    traits: DeviceTraits
    usable_bytes: int
    """What the model may take there: what is free, less the margin."""


Rooms = tuple[Room, ...]
Layers = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a proposal must keep to."""

    parallel: int = 1
    kv_type: str = "f16"
    context: int | None = None
    """None asks for the largest."""
    shares: tuple[float, ...] | None = None
    """Weights of the devices to each other; None lets what is free decide."""
    chunk: int = 512
    """Tokens of a prompt that are computed together."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A plan that fits, and the devices it uses of those that were offered."""

    design: SplitDesign
    rooms: Rooms


def fit_model(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], rooms: Rooms, wish: Wish
) -> Proposal:
    """Return the plan with the largest context that fits, on as few devices as give that context.

    Of several devices, the freest are tried first; with shares, all of them are used.

    Raises:
        OutOfMemory: if nothing fits; it says what is missing and which settings would fit.
        ModelError: if the file is at fault.
        InvalidArgument: if the wish is not for this model.
    """
    search = _Search(metadata, tensors, wish)
    proposal = search.propose(rooms)
    if proposal is None:
        raise _refusal(search, rooms)
    return proposal


def needs(footprints: Sequence[Footprint], rooms: Rooms) -> tuple[int, ...]:
    """Return the bytes a model takes of each room; what lies on the host counts to it, if there."""
    taken = [sum(footprint.values()) for footprint in footprints]
    hosts = [n for n, room in enumerate(rooms) if not room.traits.has_own_memory]
    for number, (footprint, room) in enumerate(zip(footprints, rooms, strict=True)):
        outside = (size for life, size in footprint.items() if is_elsewhere(life, room.traits))
        on_host = sum(outside)
        taken[number] -= on_host
        if hosts:
            taken[hosts[0]] += on_host
    return tuple(taken)


def _fits(footprints: Sequence[Footprint], rooms: Rooms) -> bool:
    pairs = zip(needs(footprints, rooms), rooms, strict=True)
    return all(need <= room.usable_bytes for need, room in pairs)


@dataclass(frozen=True, slots=True)
class _Found:
    """What to plan."""

    limits: Limits
    rooms: Rooms
    layers: Layers


class _Search:
    """Tries contexts by their number: number n has n blocks, and at most the model's tokens."""

    def __init__(self, metadata: Metadata, tensors: Mapping[str, TensorInfo], wish: Wish) -> None:
        self.metadata, self.tensors, self.wish = metadata, tensors, wish
        hyper = family_of(metadata).read(metadata)
        self.layers, self._trained = hyper.layers, hyper.context
        self._graphs: dict[Limits, ModelGraph] = {}
        self._designs: dict[tuple[Limits, tuple[DeviceTraits, ...], Layers], SplitDesign] = {}
        self._weights: dict[DeviceTraits, RunBytes] = {}
        self.largest = blocks_for(self._trained)
        chunk = self.limits(self.largest).chunk
        chunks = range(1, self.largest + 1)
        self.whole_chunk = chunks[bisect_left(chunks, chunk, key=lambda n: self.limits(n).chunk)]
        """From this number on, graphs differ in their blocks only."""

    def limits(self, number: int) -> Limits:
        """Return the limits with so many blocks of context."""
        return self.limits_at(min(number * BLOCK_TOKENS, self._trained))

    def limits_at(self, context: int | None) -> Limits:
        """Return the limits with a context, checked."""
        wish = self.wish
        return choose_limits(
            self.metadata,
            context=context,
            parallel=wish.parallel,
            kv_type=wish.kv_type,
            chunk=wish.chunk,
        )

    def propose(self, rooms: Rooms) -> Proposal | None:
        """Return the best plan that fits, or None."""
        if self.wish.context is not None:
            best = self._fewest(self.limits_at(self.wish.context), rooms)
        else:
            best = self._longest(rooms) or self._longest_of_short(rooms)
        if best is None:
            return None
        proposal = Proposal(self.design(best.limits, best.rooms, best.layers), best.rooms)
        assert _fits(proposal.design.footprints(), best.rooms), "planned anew it takes more"
        return proposal

    def choices(self, rooms: Rooms) -> Iterator[Rooms]:
        """Yield the freest room, the two freest, and so on, each in the order they were named."""
        if self.wish.shares:
            yield rooms
            return
        freest = sorted(range(len(rooms)), key=lambda n: -rooms[n].usable_bytes)
        for count in range(1, min(len(rooms), self.layers) + 1):
            yield tuple(rooms[n] for n in sorted(freest[:count]))

    def can_fit(self, rooms: Rooms) -> bool:
        """Whether the wish, or the shortest context if it names none, fits on some of the rooms."""
        context = self.wish.context
        limits = self.limits(1) if context is None else self.limits_at(context)
        return self._fewest(limits, rooms) is not None

    def weights_fit(self, rooms: Rooms) -> bool:
        """Whether the weights alone would fit if they could be cut anywhere."""
        usable = sum(max(0, room.usable_bytes) for room in rooms)
        return min(map(self.all_weights, rooms)) <= usable

    def all_weights(self, room: Room) -> int:
        """Return the bytes of all weights on a device."""
        return self._weights_of(room.traits).of(0, self.layers)

    def design(self, limits: Limits, rooms: Rooms, layers: Layers) -> SplitDesign:
        """Return the plan with these limits and runs of layers; the same one for the same."""
        key = limits, tuple(room.traits for room in rooms), layers
        if key not in self._designs:
            self._designs[key] = design_split(self._graph(limits), key[1], layers)
        return self._designs[key]

    def runs(self, limits: Limits, rooms: Rooms) -> Layers | None:
        """Return which layers each room is to have; None if some room has no space for any."""
        if len(rooms) > 1 and not self.wish.shares:
            return self._best_runs(limits, limits, rooms)
        shares = self.wish.shares or (1.0,) * len(rooms)
        return split_by_weights(self._graph(limits), [room.traits for room in rooms], shares)

    def _fewest(self, limits: Limits, rooms: Rooms) -> _Found | None:
        """Return the first choice of rooms on which these limits fit."""
        for chosen in self.choices(rooms):
            if self.weights_fit(chosen) and (layers := self.runs(limits, chosen)):
                footprints = self.design(limits, chosen, layers).footprints()
                if _fits(footprints, chosen):
                    return _Found(limits, chosen, layers)
        return None

    def _longest_of_short(self, rooms: Rooms) -> _Found | None:
        """Search contexts below a whole chunk, each of which has to be planned."""
        numbers = range(1, self.whole_chunk)
        number = _last(numbers, lambda n: self._fewest(self.limits(n), rooms) is not None)
        return self._fewest(self.limits(number), rooms) if number else None

    def _longest(self, rooms: Rooms) -> _Found | None:
        """Search contexts of at least a whole chunk, whose footprints follow from one plan."""
        guesses: list[tuple[int, Rooms, Layers]] = []
        for chosen in filter(self.weights_fit, reversed(list(self.choices(rooms)))):
            least = max((guess[0] for guess in guesses), default=self.whole_chunk)
            if guess := self._guess(chosen, least):
                guesses.insert(0, guess)
        best, longest = None, 0
        for guessed, chosen, layers in sorted(guesses, key=lambda guess: -guess[0]):
            if guessed <= longest:
                break
            number = self._longest_with(chosen, layers)
            if number and number > longest:
                best, longest = _Found(self.limits(number), chosen, layers), number
        return best

    def _longest_with(self, rooms: Rooms, layers: Layers) -> int | None:
        design = self.design(self.limits(self.whole_chunk), rooms, layers)
        numbers = range(self.whole_chunk, self.largest + 1)
        return _last(numbers, lambda n: _fits(design.footprints(self.limits(n)), rooms))

    def _guess(self, rooms: Rooms, least: int) -> tuple[int, Rooms, Layers] | None:
        """Return about how many blocks fit on the rooms, and with which runs of layers.

        None if even `least` seem too many, which a larger choice of rooms has.
        """
        base = self.limits(self.whole_chunk)
        if len(rooms) > 1 and not self.wish.shares:
            numbers = range(least, self.largest + 1)
            most = _last(numbers, lambda n: self._seems_to_fit(base, self.limits(n), rooms))
            if most is None and least > self.whole_chunk:
                return None
            most = most or self.whole_chunk
            runs = self._best_runs(base, self.limits(most), rooms)
            return (most, rooms, runs) if runs else None
        layers = self.runs(base, rooms)
        number = self._longest_with(rooms, layers) if layers else None
        return (number, rooms, layers) if layers and number else None

    def _seems_to_fit(self, base: Limits, limits: Limits, rooms: Rooms) -> bool:
        costs, spaces = self._weigh(base, limits, rooms)
        least = min(cost(0, self.layers) for cost in costs)
        if min(spaces) <= 0 or least > sum(spaces):
            return False
        triples = zip(costs, assign(self.layers, costs, spaces), spaces, strict=True)
        return all(cost(run.start, run.stop) <= space for cost, run, space in triples)

    def _best_runs(self, base: Limits, limits: Limits, rooms: Rooms) -> Layers | None:
        """Return the runs of layers that leave the fullest room as empty as can be."""
        costs, spaces = self._weigh(base, limits, rooms)
        return assign(self.layers, costs, spaces) if min(spaces) > 0 else None

    def _weigh(self, base: Limits, limits: Limits, rooms: Rooms) -> tuple[list[Cost], list[int]]:
        """Return what runs of layers take in each room, and the bytes there are for layers.

        Scratch and records of each part are taken to be those of the whole model: a little more
        than they are. `base` names a graph that differs from that of `limits` in blocks only.
        """
        costs, spaces = [], []
        for room in rooms:
            whole = self.design(base, (room,), (range(self.layers),)).footprints(limits)
            (need,) = needs(whole, (room,))
            fixed = need - whole[0][Lifetime.WEIGHTS] - whole[0][Lifetime.STATE]
            costs.append(self._run_cost(base, limits, room.traits))
            spaces.append(room.usable_bytes - fixed)
        return costs, spaces

    def _run_cost(self, base: Limits, limits: Limits, traits: DeviceTraits) -> Cost:
        graph = self._graph(base)
        weights, granularity = self._weights_of(traits), traits.granularity
        state = state_bytes(graph, resized_cache(graph, limits), traits)

        def cost(first: int, end: int) -> int:
            sizes = weights.of(first, end), state.of(first, end)
            return align(sizes[0], granularity) + align(sizes[1], granularity)

        return cost

    def _graph(self, limits: Limits) -> ModelGraph:
        if limits not in self._graphs:
            self._graphs[limits] = write_graph(self.metadata, self.tensors, limits)
        return self._graphs[limits]

    def _weights_of(self, traits: DeviceTraits) -> RunBytes:
        if traits not in self._weights:
            graph = self._graph(self.limits(self.whole_chunk))
            self._weights[traits] = weight_bytes(graph, traits)
        return self._weights[traits]


def _last(numbers: range, holds: Callable[[int], bool]) -> int | None:
    """Return the last number for which something holds that holds up to some number."""
    place = bisect_left(numbers, True, key=lambda number: not holds(number))
    return numbers[place - 1] if place else None


def _refusal(search: _Search, rooms: Rooms) -> OutOfMemory:
    """Return the error: what each device would have to hold, what it can, and what would help."""
    *_, rooms = search.choices(rooms)
    wish = search.wish
    limits = search.limits(1) if wish.context is None else search.limits_at(wish.context)
    layers = search.runs(limits, rooms)
    if layers is None:
        spaces = [max(1.0, room.usable_bytes) for room in rooms]
        graph = write_graph(search.metadata, search.tensors, limits)
        layers = split_by_weights(graph, [room.traits for room in rooms], spaces)
    footprints = search.design(limits, rooms, layers).footprints()
    taken = needs(footprints, rooms)
    missing = sum(max(0, need - room.usable_bytes) for need, room in zip(taken, rooms, strict=True))
    parts = "; ".join(map(_shortage, rooms, taken, footprints))
    return OutOfMemory(
        f"with a context of {limits.context} × {limits.parallel} {format_bytes(missing)} are "
        f"missing: {parts}: {_advice(search, rooms)}",
        needed_bytes=sum(taken),
        available_bytes=sum(max(0, room.usable_bytes) for room in rooms),
    )


def _shortage(room: Room, need: int, footprint: Footprint) -> str:
    held = (life for life in footprint if footprint[life] and not is_elsewhere(life, room.traits))
    sizes = ", ".join(f"{life.value} {format_bytes(footprint[life])}" for life in held)
    usable = format_bytes(max(0, room.usable_bytes))
    return f"{room.device} needs {format_bytes(need)} ({sizes}) and has {usable} beside the margin"


def _advice(search: _Search, rooms: Rooms) -> str:
    if not search.weights_fit(rooms):
        least = format_bytes(min(map(search.all_weights, rooms)))
        return (
            f"the weights alone take {least}: use a file with fewer bits a weight, or more devices"
        )
    ways = " or ".join(_ways(search, rooms))
    return (
        f"it fits with {ways}" if ways else "use a file with fewer bits a weight, or more devices"
    )


def _ways(search: _Search, rooms: Rooms) -> Iterator[str]:
    """Yield the settings that would fit."""
    wish = search.wish
    if wish.context is not None:
        shorter = _Search(search.metadata, search.tensors, replace(wish, context=None))
        if proposal := shorter.propose(rooms):
            yield f"--context {proposal.design.model.limits.context}"
    fewer, smaller = replace(wish, parallel=1), replace(wish, kv_type="q8_0")
    ways = {"--parallel 1": fewer, "--kv-type q8_0": smaller}
    for name, other in ways.items():
        if other != wish and _can_fit(search, rooms, other):
            yield name


def _can_fit(search: _Search, rooms: Rooms, wish: Wish) -> bool:
    try:
        return _Search(search.metadata, search.tensors, wish).can_fit(rooms)
    except InvalidArgument:  # its heads are not for that type
        return False
