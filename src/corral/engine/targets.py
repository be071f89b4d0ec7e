"""Which devices a model is for, and which of its layers each gets, from what a user said."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corral.contract.checks import refuse
from corral.devices import registry
from corral.devices.listing import machine_visible
from corral.engine import checks
from corral.errors import DeviceUnavailable, InvalidArgument
from corral.memory.traits import DeviceTraits
from corral.models.footprint import ModelGraph
from corral.models.split import split_by_weights

_MOST_LAYERS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Targets:
    """Devices in the order of their layers; the CPU comes first where only some are on cards."""

    names: tuple[str, ...]
    shares: tuple[float, ...]
    """How the weights of the devices are to each other; without the CPU, if `gpu_layers` count."""
    gpu_layers: int | None = None
    """How many of the last layers are on cards, the others on the CPU; None: no such wish."""
    is_default: bool = True
    """Whether the shares are not the user's."""

    @classmethod
    def of(cls, device: object, split: object = None, gpu_layers: object = None) -> "Targets":
        """Take one name or several, with a share for each, and a number of layers.

        Raises:
            InvalidArgument: if one device is named twice, or a number is not what it may be.
            DeviceUnavailable: if a name stands for no device.
        """
        names = _names(device)
        shares = (1.0,) * len(names) if split is None else _shares(split, len(names))
        count = checks.integer_or_none("gpu_layers", gpu_layers, low=0, high=_MOST_LAYERS)
        if count is None:
            return cls(tuple(names), shares, None, split is None)
        on_host = [name for name in names if name in registry.NAMES]
        if on_host:
            raise InvalidArgument(
                f"gpu_layers is {count}, which counts layers on cards, and the device is "
                f"{on_host[0]}: name a card, such as cuda:0"
            )
        return cls(("cpu", *names), shares, count, split is None)

    def layers(self, model: ModelGraph, traits: Sequence[DeviceTraits]) -> tuple[range, ...]:
        """Return the run of layers of each device; one without layers is not needed.

        Raises:
            InvalidArgument: if there are more devices than layers.
        """
        if self.gpu_layers is None:
            return split_by_weights(model, traits, self.shares)
        total = model.hyper.layers
        if self.gpu_layers == 0:
            return (range(total), *(range(0) for _ in traits[1:]))
        on_host = max(0, total - self.gpu_layers)
        on_cards = split_by_weights(model, traits[1:], self.shares, first=on_host)
        return (range(on_host), *on_cards)


def _names(device: object) -> list[str]:
    """Return the names of devices, each once."""
    listed: list[Any] = list(device) if isinstance(device, list | tuple) else [device]
    if not listed:
        refuse("device", device, "a name, or several")
    names = [registry.resolve(name) for name in listed]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"device {name} is named twice: a plan needs it once")
    _require_distinct([name for name in names if name not in registry.NAMES])
    return names


def _require_distinct(names: Sequence[str]) -> None:
    """Refuse two names of one card; those of cards that are elsewhere may stand for any."""
    if len(names) < 2:
        return
    visible, found = machine_visible(), dict[object, str]()
    for name in names:
        try:
            card = visible.named(name)
        except DeviceUnavailable:
            continue
        if card in found:
            raise InvalidArgument(f"devices {found[card]} and {name} are one: a plan needs it once")
        found[card] = name


def _shares(split: object, count: int) -> tuple[float, ...]:
    listed: list[Any] = list(split) if isinstance(split, list | tuple) else [split]
    for place, share in enumerate(listed):
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 < share < math.inf:
            refuse(f"split[{place}]", share, "a number above 0")
    if len(listed) != count:
        raise InvalidArgument(f"split has {len(listed)} numbers, there are {count} devices")
    return tuple(map(float, listed))
