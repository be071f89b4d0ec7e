"""Which cards CUDA_VISIBLE_DEVICES lets a process see, and in what order. Pure.

As the driver understands it (tried with driver 580 on an H200):

    unset                  every card
    1,0                    these ordinals in this order; a number is read as C's strtol reads it
    GPU-6f85,MIG-…         beginnings of UUIDs, each of one card only; "GPU-" in capitals
    anything else          hides itself and whatever follows: -1, an empty list, a wrong name, an
                           entry of another kind than the first
    the same card twice    no card at all

Ordinals count cards in the order of CUDA_DEVICE_ORDER, and a MIG slice is named by its UUID or as
MIG-GPU-UUID/instance/compute.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.nvml import Gpu, MigSlice

_UUID_CHARACTERS = 40
"""Of GPU- and 36 of the UUID; the driver compares no more."""
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)")
_SLICE = re.compile(r"(MIG-GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Visible:
    """What a process sees, in its own order."""

    devices: tuple[Gpu | MigSlice, ...]
    note: str = ""
    """What the user should know: an entry that hides others, an order that is not certain."""


def visible_devices(gpus: Sequence[Gpu], variable: str | None, order: str | None) -> Visible:
    """Return the devices that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave of all cards.

    `gpus` come in the order of their bus addresses, as NVML lists them.
    """
    note = _order_note(gpus, order)
    if variable is None:
        return Visible(_usable(gpus), note)
    entries = variable.split(",")
    find = _by_name if entries[0].strip().startswith(("GPU-", "MIG-")) else _by_ordinal
    found: list[Gpu | MigSlice] = []
    for entry in entries:
        device = find(gpus, entry)
        if device is None:
            note = _hiding_note(variable, entry, note)
            break
        found.append(device)
    if len({device.uuid for device in found}) < len(found):
        return Visible((), f"CUDA_VISIBLE_DEVICES={variable} names a card twice, which hides all")
    return Visible(tuple(found), note)


def _usable(gpus: Sequence[Gpu]) -> tuple[Gpu | MigSlice, ...]:
    """Return each card, or of one that is cut in slices the first slice."""
    return tuple(gpu.slices[0] if gpu.slices else gpu for gpu in gpus)


def _by_ordinal(gpus: Sequence[Gpu], entry: str) -> Gpu | MigSlice | None:
    match = _NUMBER.match(entry)
    if match is None:
        return None
    digits = match[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        number = int(digits, base)
    except ValueError:  # an 8 or 9 ends an octal number
        number = int(re.match(r"[0-7]+", digits)[0], 8)  # type: ignore[index]
    number = -number if match[1] == "-" else number
    devices = _usable(gpus)
    return devices[number] if 0 <= number < len(devices) else None


def _by_name(gpus: Sequence[Gpu], entry: str) -> Gpu | MigSlice | None:
    name = entry.strip()
    found: list[Gpu | MigSlice]
    if match := _SLICE.fullmatch(name):
        found = [s for gpu in gpus for s in gpu.slices if _is_slice(gpu, s, match)]
    else:
        kind, beginning = name[:4], name[:_UUID_CHARACTERS].lower()
        devices: list[Gpu | MigSlice] = [*gpus, *(part for gpu in gpus for part in gpu.slices)]
        found = [
            device
            for device in devices
            if len(name) > len(kind)
            and device.uuid.startswith(kind)
            and device.uuid.lower().startswith(beginning)
        ]
    return found[0] if len(found) == 1 else None


def _is_slice(gpu: Gpu, part: MigSlice, match: re.Match[str]) -> bool:
    instances = (int(match[2]), int(match[3]))
    return gpu.uuid.lower() == match[1][4:].lower() and part.instances == instances


def _order_note(gpus: Sequence[Gpu], order: str | None) -> str:
    if order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2:
        return ""
    return (
        "cards differ and CUDA counts the fastest first, which only its driver can tell: set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name cards by UUID"
    )


def _hiding_note(variable: str, entry: str, note: str) -> str:
    if entry.strip() in ("", "-1"):  # said on purpose
        return note
    return f"CUDA_VISIBLE_DEVICES={variable}: {entry.strip()!r} is no card here and hides the rest"
