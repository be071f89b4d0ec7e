"""`corral ps`: which models a running server holds, and of which memory."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import Parser
from corral.cli.client import Client, add_server
from corral.cli.output import print_columns, print_json, say
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral.contract.fleet import DeviceStatus, FleetStatus, ModelStatus


def execute(given: Sequence[str]) -> int:
    """Print models and devices, and return the exit code."""
    parser = Parser("ps", "[OPTIONS]", "Show the models of a running server, and what they hold.")
    parser.add_argument("--all", action="store_true", help="those that nobody wanted yet, too")
    add_server(parser)
    options.add_json(parser)
    parsed = parser.parse_args(given)
    reply = Client(parsed.server, parsed.api_key).get("/corral/fleet")
    if parsed.json:
        print_json(reply)
        return 0
    from corral.contract.fleet import fleet_status_of

    status = fleet_status_of(reply)
    shown = [one for one in status.models if parsed.all or one.generation or one.waiting]
    rows = [_row(model, status) for model in shown]
    head = ("model", "state", "running", "waiting", "memory", "loads", "evicted", "why")
    print_columns([head, *rows], "<<>><>><")
    if len(shown) < len(status.models):
        say(f"{len(status.models) - len(shown)} more models; --all shows them")
    say()
    titles = ("device", "total", "free", "models", "margin", "budget", "source")
    print_columns([titles, *_device_rows(status.devices)], "<>>>>><")
    return 0


def _row(model: "ModelStatus", status: "FleetStatus") -> tuple[str, ...]:
    names = {device.memory: device.name for device in status.devices}
    held = " + ".join(
        f"{format_bytes(one.planned_bytes)} {names.get(one.device, one.device)}"
        for one in model.held
    )
    pinned = " (pinned)" if model.is_pinned else ""
    return (
        model.name,
        model.state.value + pinned,
        str(model.running),
        str(model.waiting),
        held or "-",
        str(model.loads),
        str(model.evictions),
        model.error or model.reason,
    )


def _device_rows(devices: "Sequence[DeviceStatus]") -> Iterator[tuple[str, ...]]:
    for device in devices:
        sizes = (device.total_bytes, device.free_bytes, device.booked_bytes, device.margin_bytes)
        budget = "-" if device.budget_bytes is None else format_bytes(device.budget_bytes)
        yield device.name, *map(_size, sizes), budget, device.source


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)
