"""What is told of all models and devices at one moment."""

from corral.contract.fleet import DeviceStatus, FleetStatus, ModelState
from corral.router.placing import Machine, Room
from corral.router.residents import Residents

_UNDER_WAY = (ModelState.LOADING, ModelState.DRAINING, ModelState.STOPPING)


def fleet_status(residents: Residents, machine: Machine, now_s: float) -> FleetStatus:
    """Return what is known of everything; to be called under the router's lock."""
    booked = residents.booked()
    models = list(residents.all())
    arrivals = [t.arrived_s for r in models for t in r.waiting.values()]
    is_under_way = any(residence.state in _UNDER_WAY for residence in models)
    return FleetStatus(
        models=tuple(residence.status() for residence in models),
        devices=tuple(_device(room, booked.get(room.memory, 0)) for room in machine.rooms),
        waiting=len(arrivals),
        longest_wait_s=max(0.0, now_s - min(arrivals)) if arrivals and not is_under_way else 0.0,
        is_closing=residents.is_closing,
    )


def _device(room: Room, booked: int) -> DeviceStatus:
    is_known = room.total_bytes is not None and room.free_bytes is not None
    used = (room.total_bytes or 0) - (room.free_bytes or 0)
    return DeviceStatus(
        memory=room.memory,
        name=room.name,
        total_bytes=room.total_bytes,
        free_bytes=room.free_bytes,
        booked_bytes=booked,
        margin_bytes=room.margin_bytes,
        budget_bytes=room.budget_bytes,
        foreign_bytes=max(0, used - booked) if is_known else None,
        source=room.source,
    )
