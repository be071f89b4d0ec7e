"""Which cards CUDA_VISIBLE_DEVICES lets a process see, and in what order. Pure.

As the driver understands it; what is not about slices was tried with driver 580 on an H200:

    unset                  every card
    1,0                    these ordinals in this order; a number is read as C's strtol reads it,
                           base 10, and cut to 32 bits
    GPU-6f85,MIG-…         beginnings of UUIDs, each of one card only: "GPU-" in capitals, digits in
                           either case, dashes anywhere, and past 32 digits anything
    anything else          hides itself and whatever follows: -1, an empty entry, a wrong name, and
                           an entry of another kind than the first
    the same card twice    no card at all

    CUDA_DEVICE_ORDER      other than FASTEST_FIRST and PCI_BUS_ID, empty included: no card at all

Of a card in MIG mode only its slices are devices: it stands for its first, MIG-UUID or
MIG-GPU-UUID/instance/compute name any. A process sees one slice, and then no whole card.

Source: CUDA programming guide, environment variables; MIG user guide, CUDA device enumeration.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corral.devices.nvml import Gpu, MigSlice
from corral.errors import DeviceUnavailable

ORDERS = ("FASTEST_FIRST", "PCI_BUS_ID")
"""What CUDA_DEVICE_ORDER may be; the first where it is unset."""
_DIGITS = 32
"""Of a UUID; the driver compares no more."""
_HEXADECIMAL = frozenset("0123456789abcdef")
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_SLICE = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/([0-9]{1,9})/([0-9]{1,9})")
_NAME = re.compile(r"cuda:([0-9]{1,4})")
_SHOWN = 60

Find = Callable[[Sequence[Gpu], str], Gpu | MigSlice | None]


@dataclass(frozen=True, slots=True)
class Visible:
    """What a process sees, in its own order."""

    devices: tuple[Gpu | MigSlice, ...]
    note: str = ""
    """What the user should know: an entry that hides others, an order that is not certain."""

    def named(self, name: str) -> Gpu | MigSlice:
        """Return the device that `cuda:0` or a UUID, or the beginning of one, stands for.

        Raises:
            DeviceUnavailable: if there is none, or more than one; it lists those there are.
        """
        if match := _NAME.fullmatch(name):
            found = self.devices[int(match[1]) :][:1]
        else:
            found = tuple(d for d in self.devices if is_named(d.uuid, name))
        if len(found) == 1:
            return found[0]
        there = ", ".join(f"cuda:{n} ({d.uuid})" for n, d in enumerate(self.devices)) or "none"
        why = f" ({self.note})" if self.note else ""
        raise DeviceUnavailable(
            f"{name[:_SHOWN]!r} is no CUDA device of this process; there are: {there}{why}"
        )


def visible_devices(gpus: Sequence[Gpu], variable: str | None, order: str | None) -> Visible:
    """Return the devices that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave of all cards.

    `gpus` come in the order of their bus addresses, as NVML lists them.
    """
    if order is not None and order not in ORDERS:
        return Visible(
            (),
            f"CUDA_DEVICE_ORDER={order[:_SHOWN]!r} keeps CUDA from starting: set it to "
            "PCI_BUS_ID, or unset it",
        )
    cards = [gpu for gpu in gpus if not gpu.failure]
    if variable is None:
        stand_ins = (_stand_in(card) for card in cards)
        return _seen([d for d in stand_ins if d is not None], _order_note(cards, order))
    is_by_name = variable.startswith(("GPU-", "MIG-"))
    seen = _listed(cards, variable, _by_name if is_by_name else _by_ordinal)
    uncertain = "" if is_by_name or not seen.devices else _order_note(cards, order)
    return _seen(seen.devices, "; ".join(filter(None, (seen.note, uncertain))))


def _listed(cards: Sequence[Gpu], variable: str, find: Find) -> Visible:
    found: list[Gpu | MigSlice] = []
    shown = f"CUDA_VISIBLE_DEVICES={variable[:_SHOWN]!r}"
    note = ""
    for entry in variable.split(","):
        device = find(cards, entry)
        if device is None:
            note = _hiding_note(shown, entry)
            break
        if device in found:
            return Visible((), f"{shown} names a card twice, which hides all")
        found.append(device)
    hidden = len(cards) - len(found)
    if not note and hidden > 0:
        note = f"{shown} hides {hidden} of {len(cards)} cards"
    return Visible(tuple(found), note)


def _seen(devices: Sequence[Gpu | MigSlice], note: str) -> Visible:
    """Leave one slice where there are slices."""
    slices = [device for device in devices if isinstance(device, MigSlice)]
    if not slices or len(devices) == 1:
        return Visible(tuple(devices), note)
    alone = (
        f"CUDA shows one MIG slice to a process and no card beside it: {slices[0].uuid}, unless "
        "CUDA_VISIBLE_DEVICES names another"
    )
    return Visible((slices[0],), "; ".join(filter(None, (note, alone))))


def _stand_in(card: Gpu) -> Gpu | MigSlice | None:
    """Return what CUDA shows of a card: itself, its first slice, or nothing if it has none."""
    if not card.is_cut:
        return card
    return card.slices[0] if card.slices else None


def _by_ordinal(cards: Sequence[Gpu], entry: str) -> Gpu | MigSlice | None:
    number = ordinal(entry)
    return _stand_in(cards[number]) if 0 <= number < len(cards) else None


def ordinal(entry: str) -> int:
    """Return the number an entry begins with, as the driver takes it; negative is none."""
    match = _NUMBER.match(entry)
    if match is None:
        return -1
    digits = match[2].lstrip("0") or "0"
    size = int(digits[:20])  # of what is longer, that is too much as well
    number = -size if match[1] == "-" else size
    number = max(-(1 << 63), min((1 << 63) - 1, number))
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _by_name(cards: Sequence[Gpu], entry: str) -> Gpu | MigSlice | None:
    if match := _SLICE.fullmatch(entry):
        places = (int(match[2]), int(match[3]))
        parents = [card for card in cards if _hex(card.uuid) == _hex(match[1])]
        return _only([s for card in parents for s in card.slices if s.instances == places])
    beginning = _hex(entry)
    if not beginning:
        return None
    if entry.startswith("MIG-"):
        slices = [part for card in cards for part in card.slices]
        named = [part for part in slices if _hex(part.uuid).startswith(beginning)]
        if named:
            return _only(named)
    card = _only([card for card in cards if _hex(card.uuid).startswith(beginning)])
    return _stand_in(card) if isinstance(card, Gpu) else None


def _hex(name: str) -> str:
    """Return the digits of a UUID after its kind, at most 32; empty if there is anything else."""
    if not name.startswith(("GPU-", "MIG-")):
        return ""
    digits = name[4:].replace("-", "")[:_DIGITS].lower()
    return digits if _HEXADECIMAL.issuperset(digits) else ""


def _only(found: Sequence[Gpu | MigSlice]) -> Gpu | MigSlice | None:
    return found[0] if len(found) == 1 else None


def is_named(uuid: str, name: str) -> bool:
    """Say whether a name is a device's UUID, or a beginning of it, in either case."""
    beginning = _hex(name)
    is_begun = bool(beginning) and _hex(uuid).startswith(beginning)
    return uuid == name or (is_begun and uuid[:4] == name[:4])


def _order_note(cards: Sequence[Gpu], order: str | None) -> str:
    if order == "PCI_BUS_ID" or len({card.name for card in cards}) < 2:
        return ""
    return (
        "cards differ and CUDA counts the fastest first, which only its driver can tell: set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name cards by UUID"
    )


def _hiding_note(shown: str, entry: str) -> str:
    if shown == "CUDA_VISIBLE_DEVICES=''":
        return f"{shown} hides every card: unset it to see them"
    return f"{shown}: {entry[:_SHOWN]!r} is no card here and hides whatever follows"
