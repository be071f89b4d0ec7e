"""Machines, models and holders for placement, in a unit of the reader's choice."""

from corral.router.entry import HOST, Footprint, LayerBytes, Preset
from corral.router.placing import Holder, Machine, Policy, Room, Site, Wanted

FREE_HANDS = Policy(min_residency_s=0.0, idle_s=0.0, process_bytes=0)
"""Nothing is kept for its own sake, and workers cost nothing beside their models."""
PLENTY = 10**6


def uuid(number):
    """Return the UUID of a card."""
    return f"GPU-{number}"


def machine(*cards, host=PLENTY, margin=0, total=None, context=0, **changes):
    """Return a machine with so much free on each of its cards, and in main memory.

    `total` is that of each card; by default everything is free.
    """
    rooms = [Room(HOST, "cpu", host, host)]
    sites = [Site("cpu", "cpu")]
    for number, free in enumerate(cards):
        size = free if total is None else total
        name = f"cuda:{number}"
        rooms.append(Room(uuid(number), name, size, free, margin, **changes))
        sites.append(Site(name, "cuda", uuid(number), uuid(number), context))
    return Machine(tuple(sites), tuple(rooms))


def footprint(size, *, kind="cuda", layers=4, fixed=0, host=0):
    """Return what a model of equal layers takes; `fixed` of its size is scratch."""
    each, rest = divmod(size - fixed, layers)
    weights = (each + rest, *[each] * (layers - 1))
    own = {"weights": size - fixed, "scratch": fixed}
    return Footprint(kind, own, {"staging": host}, LayerBytes(weights, (0,) * layers))


def wanted(size, name="new", *, observed=None, layers=4, fixed=0, host=0, **preset):
    """Return a model of so many bytes on a card and on the CPU."""
    kinds = (
        footprint(size, layers=layers, fixed=fixed, host=host),
        footprint(size, kind="cpu", layers=layers, fixed=fixed),
    )
    return Wanted(preset=Preset(name=name, **preset), footprints=kinds, observed=observed or {})


def holder(name, sizes, **changes):
    """Return a model that holds bytes: on card 0, or by memory or by number of card."""
    named = sizes if isinstance(sizes, dict) else {0: sizes}
    held = {uuid(m) if isinstance(m, int) else m: size for m, size in named.items()}
    return Holder(name=name, bytes=held, **changes)
