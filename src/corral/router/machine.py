"""Readings of devices → what there is to place on, with the margins and budgets of people.

Reads without a context: NVML, the kernel's files, a short process where neither tells. What a
context takes is measured once for each card, in another process, and remembered.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

from corral.devices import registry
from corral.devices.cuda.traits import LEAST_CAPABILITY
from corral.devices.listing import has_bindings, machine_listing, machine_visible
from corral.devices.nvml import Gpu
from corral.devices.reading import DeviceReading
from corral.router.config import RouterConfig
from corral.router.entry import HOST
from corral.router.placing import Machine, Room, Site

_CPU = "cpu"
ContextBytes = Callable[[str], int]
"""What a context takes on the card of that UUID."""


def machine_of(
    readings: Iterable[DeviceReading], config: RouterConfig, context_bytes: ContextBytes
) -> Machine:
    """Return the memories and the devices of one reading.

    A card whose memory is the host's is a device without a memory of its own.
    """
    rooms: dict[str, Room] = {}
    sites = []
    for reading in readings:
        is_own = not reading.is_on_host and reading.uuid is not None
        memory = reading.uuid if is_own and reading.uuid is not None else HOST
        rooms.setdefault(memory, _room(memory, reading, config))
        if reading.name == _CPU:
            sites.append(Site(_CPU, _CPU))
        elif reading.uuid is not None:
            cost = context_bytes(reading.uuid)
            sites.append(Site(reading.name, "cuda", memory, reading.uuid, cost))
    return Machine(tuple(sites), tuple(rooms.values()))


def used_by_processes(readings: Iterable[DeviceReading]) -> dict[str, dict[int, int | None]]:
    """Return by memory what each process holds there that the driver names.

    A memory whose processes nobody lists is left out.
    """
    return {
        reading.uuid: {process.pid: process.used_bytes for process in reading.processes}
        for reading in readings
        if reading.uuid is not None and reading.processes
    }


def machine_readings() -> Sequence[DeviceReading]:
    """Read the devices of this machine that a worker could compute on."""
    readings = machine_listing().devices
    return [one for one in readings if one.uuid is None or (has_bindings() and _runs(one.uuid))]


@functools.cache
def _runs(uuid: str) -> bool:
    """Say whether corral's kernels run on a card, as far as anybody tells."""
    card = machine_visible().named(uuid)
    told = card.capability if isinstance(card, Gpu) else None
    return told is None or told >= LEAST_CAPABILITY


@functools.cache
def card_context_bytes(uuid: str) -> int:
    """Return what a context takes on a card of this machine: measured, else a careful guess."""
    return registry.context_cost(uuid).size_bytes


def _room(memory: str, reading: DeviceReading, config: RouterConfig) -> Room:
    names = (reading.name, memory) if memory != HOST else (HOST, _CPU)
    return Room(
        memory=memory,
        name=reading.name,
        total_bytes=reading.total_bytes,
        free_bytes=reading.free_bytes,
        margin_bytes=config.margin(*names) + reading.margin_bytes,
        budget_bytes=config.budget(*names),
        source=reading.source,
        note=reading.note,
    )
