"""What one model holds on one device: reserved in the ledger first, then made."""

from collections.abc import Mapping
from contextlib import ExitStack

from corral.devices.base import Device, ModelBuffers
from corral.errors import OutOfMemory
from corral.memory.buffer import Buffer
from corral.memory.ledger import Ledger, LedgerEntry, Reservation
from corral.memory.lifetime import Lifetime, is_elsewhere
from corral.memory.plan import ModelPlan
from corral.memory.records import RecordPool
from corral.memory.traits import HOST

Reserved = dict[Lifetime, Reservation]
"""Which entry of the ledger speaks of which bytes."""


def allocate(
    plan: ModelPlan, reserved: Reserved, device: Device, ledger: Ledger, closing: ExitStack
) -> ModelBuffers:
    """Make what was reserved; `closing` gives it back.

    Raises:
        OutOfMemory: if the driver has no room for it after all.
    """
    closing.enter_context(device.hold())
    ledger.hand_over(reserved[Lifetime.CONTEXT], Lifetime.CONTEXT)
    sizes: dict[Lifetime, int] = dict(plan.footprint())
    del sizes[Lifetime.CONTEXT]
    made = allocate_bytes(sizes, reserved, device, ledger, closing)
    capacity = sum(plan.num_records for plan in plan.plans)
    return ModelBuffers(
        weights=made[Lifetime.WEIGHTS],
        state=made[Lifetime.STATE],
        scratch=made[Lifetime.SCRATCH],
        staging=made[Lifetime.STAGING],
        records=RecordPool(
            made[Lifetime.RECORDS],
            record_bytes=device.traits.record_bytes,
            capacity=capacity,
        ),
        weights_layout=plan.weights,
        state_layout=plan.state,
    )


def reserve(
    plan: ModelPlan, owner: str, device: Device, ledger: Ledger, closing: ExitStack
) -> Reserved:
    """Write down what a model will hold, the context it begins included; `closing` strikes it.

    Raises:
        OutOfMemory: if it does not fit.
    """
    return reserve_bytes(plan.footprint(), owner, device, ledger, closing)


def reserve_bytes(
    footprint: Mapping[Lifetime, int],
    owner: str,
    device: Device,
    ledger: Ledger,
    closing: ExitStack,
) -> Reserved:
    """Write down bytes on a device, and on the host beside it; raises as `reserve` does."""
    reading = device.memory()
    if reading.free_bytes is None:
        raise OutOfMemory(
            f"{device.name} does not tell how much memory is free ({reading.source}), so nothing "
            "is loaded on it: use another device"
        )
    reserved: Reserved = {}
    for place, part in _by_place(footprint, device).items():
        free = reading.free_bytes if place == device.name else None
        reservation = ledger.reserve(owner, place, part, free_bytes=free)
        closing.callback(ledger.release, reservation)
        reserved |= dict.fromkeys(part, reservation)
    return reserved


def allocate_bytes(
    footprint: Mapping[Lifetime, int],
    reserved: Reserved,
    device: Device,
    ledger: Ledger,
    closing: ExitStack,
) -> dict[Lifetime, Buffer]:
    """Make a buffer of each lifetime that was reserved; raises as `allocate` does."""
    made: dict[Lifetime, Buffer] = {}
    for lifetime, size in footprint.items():
        made[lifetime] = device.allocate(size, lifetime)
        closing.callback(made[lifetime].close)
        ledger.commit(reserved[lifetime], lifetime, made[lifetime].size_bytes)
    return made


def _by_place(footprint: Mapping[Lifetime, int], device: Device) -> dict[str, dict[Lifetime, int]]:
    """Return what is still to be paid for: on the device, and on the host beside it."""
    places: dict[str, dict[Lifetime, int]] = {device.name: {}}
    for lifetime, size in footprint.items():
        place = HOST if is_elsewhere(lifetime, device.traits) else device.name
        is_paid = lifetime is Lifetime.CONTEXT and device.context_bytes
        places.setdefault(place, {})[lifetime] = 0 if is_paid else size
    return places


def held_by_driver(device: Device) -> tuple[LedgerEntry, ...]:
    """Return the entry of a device's context, which belongs to no model; none without a context."""
    size = device.context_bytes
    return (LedgerEntry(device.name, device.name, Lifetime.CONTEXT, size, size),) if size else ()
