"""What a router says of its decisions: why nothing was loaded, or why something had to go."""

from collections.abc import Sequence

from corral.memory.ledger import format_bytes
from corral.router.entry import AUTO, HOST
from corral.router.placing import Cause, Need, Shortage, Wanted

_NAMED_HOLDERS = 4

_ADVICE = {
    Cause.TOO_LARGE: "lower its context or parallel, use kv_type q8_0, or name more devices",
    Cause.PINNED: "unpin one of them, or lower the context of this model",
    Cause.FOREIGN: "close other programs, or lower the context of this model",
    Cause.MEMORY_UNKNOWN: "no model is placed where the free memory is unknown",
}


def refusal_text(
    wanted: Wanted, cause: Cause, need: Need | None, shortages: Sequence[Shortage]
) -> str:
    """Say what a model needs, what there is, who holds the rest and what would help."""
    advice = _ADVICE[cause]
    if need is None:
        return f"{wanted.name} cannot be placed on {_devices(wanted)}: {advice}"
    parts = "; ".join(map(_shortage, shortages))
    return f"{wanted.name} does not fit on {','.join(need.sites)}: {parts}: {advice}"


def eviction_text(
    wanted: Wanted, need: Need, shortages: Sequence[Shortage], victims: Sequence[str]
) -> str:
    """Say for whom and for what models go."""
    lacking = " and ".join(f"{format_bytes(s.needed_bytes)} of {_memory(s)}" for s in shortages)
    is_plain = set(need.sites) <= {s.name for s in shortages}
    on = "" if is_plain else f" on {','.join(need.sites)}"
    return f"{wanted.name} needs {lacking}{on}: {' and '.join(victims)} can go"


def _memory(shortage: Shortage) -> str:
    return "main memory" if shortage.memory == HOST else shortage.name


def _devices(wanted: Wanted) -> str:
    devices = wanted.preset.devices
    return "any device" if devices == (AUTO,) else ",".join(devices)


def _shortage(shortage: Shortage) -> str:
    needs = f"it needs {format_bytes(shortage.needed_bytes)} of {_memory(shortage)}"
    if shortage.available_bytes is None:
        return f"{needs}, of which nobody tells how much is free"
    holders = sorted(shortage.held.items(), key=lambda pair: -pair[1])
    named = [f"{name} {format_bytes(size)}" for name, size in holders[:_NAMED_HOLDERS]]
    if len(holders) > _NAMED_HOLDERS:
        rest = sum(size for _name, size in holders[_NAMED_HOLDERS:])
        named.append(f"{len(holders) - _NAMED_HOLDERS} more models {format_bytes(rest)}")
    if shortage.foreign_bytes:
        named.append(f"others {format_bytes(shortage.foreign_bytes)}")
    held = f", held are: {', '.join(named)}" if named else ""
    return f"{needs}, {format_bytes(shortage.available_bytes)} can be had{held}"
