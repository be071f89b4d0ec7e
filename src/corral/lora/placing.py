"""What adapters will hold on a device, from their headers alone. Free of NumPy."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from corral.lora.adapter import Adapter, Pair
from corral.tensor.attach import LANES, UNIT_RANKS, AdapterRoom, Attachment

_ALIGNMENT = 64
_HALF_BYTES = 2
_LEAST_SLOTS = 4


@dataclass(frozen=True, slots=True)
class PairSlot:
    """Where the halves of a pair lie in the buffer of an adapter."""

    pair: Pair
    a_offset: int
    b_offset: int

    @property
    def units(self) -> int:
        """Units of its rank."""
        return -(-self.pair.rank // UNIT_RANKS)


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """The pairs of an adapter that one device keeps, by the name of their weight."""

    slots: dict[str, PairSlot]
    size_bytes: int


def place_adapter(adapter: Adapter, weights: Iterable[str]) -> AdapterLayout:
    """Give the pairs of some weights their places in one buffer, from the header alone."""
    slots: dict[str, PairSlot] = {}
    offset = 0
    wanted = set(weights)
    for pair in adapter.pairs.values():
        if pair.weight in wanted:
            rows, columns = pair.shape
            ranks = up(pair.rank, UNIT_RANKS)
            a_bytes = up(ranks * columns * _HALF_BYTES, _ALIGNMENT)
            slots[pair.weight] = PairSlot(pair, offset, offset + a_bytes)
            b_bytes = up(rows, LANES) * ranks * _HALF_BYTES
            offset += a_bytes + up(b_bytes, _ALIGNMENT)
    return AdapterLayout(slots, offset)


def units_of(adapter: Adapter) -> int:
    """Return the units of ranks that an adapter needs of a row."""
    return -(-adapter.max_rank // UNIT_RANKS)


def attachment(
    adapters: Sequence[Adapter], *, slots: int, sequences: int, more: Collection[str] = ()
) -> Attachment:
    """Return the attachment that some adapters need, with room for some more.

    Args:
        adapters: all that are loaded at once.
        slots: how many of them there are, or the highest of their slots and one.
        sequences: that a batch has at most.
        more: weights that may be changed beside those of these adapters.
    """
    weights = {*more, *(weight for one in adapters for weight in one.pairs)}
    slots = _power(slots, _LEAST_SLOTS)
    units = _power(sum(map(units_of, adapters)), 1)
    return Attachment(frozenset(weights), AdapterRoom(slots, sequences * slots, units))


def up(count: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-count // unit) * unit


def _power(count: int, least: int) -> int:
    """Return the power of two that holds a count."""
    return max(least, 1 << (count - 1).bit_length())
