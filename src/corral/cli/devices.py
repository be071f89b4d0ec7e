"""`corral devices`: what this machine has, how much of it is free, and who says so."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import Parser
from corral.cli.output import note, print_columns, print_json, say
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral import DeviceReading

_HEAD = ("device", "total", "free", "reserved", "foreign", "source", "name", "uuid")


def execute(given: Sequence[str]) -> int:
    """Print the devices and return the exit code."""
    parser = Parser(
        "devices",
        "[OPTIONS]",
        "Show devices and their memory. No context is left on any of them. Foreign is what other "
        "processes hold; reserved is what the driver keeps, outside of the total.",
    )
    options.add_json(parser)
    parsed = parser.parse_args(given)
    from corral.devices.listing import machine_listing

    listing = machine_listing()
    if parsed.json:
        print_json(
            {
                "devices": [_as_json(device) for device in listing.devices],
                "notes": list(listing.notes),
            }
        )
        return 0
    print_columns([_HEAD, *(_row(device) for device in listing.devices)], "<>>>><<<")
    if processes := [row for device in listing.devices for row in _process_rows(device)]:
        say()
        print_columns(processes, "<<>>")
    for device in listing.devices:
        if device.note:
            note(f"{device.name}: {device.note}")
    for text in listing.notes:
        note(text)
    return 0


def _row(device: "DeviceReading") -> tuple[str, ...]:
    sizes = (
        device.total_bytes,
        device.free_bytes,
        device.reserved_bytes,
        device.foreign_bytes,
    )
    shown = (_size(size) for size in sizes)
    return (device.name, *shown, device.source, device.title, device.uuid or "")


def _process_rows(device: "DeviceReading") -> Iterator[tuple[str, ...]]:
    for process in device.processes:
        yield device.name, "process", str(process.pid), _size(process.used_bytes)


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def _as_json(device: "DeviceReading") -> dict[str, object]:
    """Return all of a reading, with the source of each number by the number's name."""
    value = asdict(device)
    source, foreign = value.pop("source"), value.pop("foreign_source")
    sizes = ("total_bytes", "free_bytes", "reserved_bytes")
    sources = {name: source for name in sizes if value[name] is not None}
    if value["foreign_bytes"] is not None:
        sources["foreign_bytes"] = foreign
    return {**value, "sources": sources, "source": source}
