"""`corral devices`: what this machine has, how much of it is free, and who says so."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import Parser
from corral.cli.output import note, print_columns, print_json
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
        print_json({"devices": [asdict(d) for d in listing.devices], "note": listing.note})
        return 0
    print_columns([_HEAD, *(_row(device) for device in listing.devices)], "<>>>><<<")
    for device in listing.devices:
        if device.note:
            note(f"{device.name}: {device.note}")
    if listing.note:
        note(listing.note)
    return 0


def _row(device: "DeviceReading") -> tuple[str, ...]:
    sizes = (
        device.total_bytes,
        device.free_bytes,
        device.reserved_bytes,
        device.foreign_bytes,
    )
    shown = ["-" if size is None else format_bytes(size) for size in sizes]
    if device.free_bytes is None:
        shown[1] = "unknown"
    return (device.name, *shown, device.source, device.title, device.uuid or "")
