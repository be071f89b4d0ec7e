"""`corral plan`: the bytes a model would hold, before anything is loaded."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import Parser, listed, size_bytes, whole
from corral.cli.loading import blamed
from corral.cli.output import note, print_columns, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral import PlanReport
    from corral.engine.planning import DevicePlan

_MAX_PARALLEL = 256
_WHAT = {
    "weights": "the model's tensors, as the device keeps them",
    "adapter": "LoRA adapters",
    "state": "KV cache of all sequences",
    "scratch": "intermediate values of one evaluation",
    "records": "what the device keeps for each node of the graph",
    "staging": "host memory that inputs and weights pass through",
    "context": "the driver's context",
    "driver": "code and workspaces of the driver",
}
_ASSUMED = " (assumed: it was not measured)"


def execute(given: Sequence[str]) -> int:
    """Print a model's plan and return the exit code."""
    parsed = _parser().parse_args(given)
    if parsed.server is not None:
        from corral.cli.plan_there import plan_there

        return plan_there(parsed.server, parsed.model, is_json=parsed.json)
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        path = resolve(parsed.model, progress=display)
    import corral
    from corral.models.fit import DEFAULT_MARGIN

    with blamed(path):
        plan = corral.plan(
            path,
            context=parsed.context,
            parallel=parsed.parallel,
            kv_type=parsed.kv_type,
            device=parsed.device,
            split=parsed.split,
            gpu_layers=parsed.gpu_layers,
            fit=parsed.fit,
            memory=_one_or_many(parsed.memory),
            margin=DEFAULT_MARGIN if parsed.margin is None else parsed.margin,
        )
    if parsed.json:
        print_json(_as_json(path.name, plan))
    else:
        _print_text(path.name, plan)
    _note_what_is_missing(plan)
    return 0


def _note_what_is_missing(plan: "PlanReport") -> None:
    """Say what has to be installed before the model runs where it was planned."""
    from corral.devices.listing import NO_BINDINGS, has_bindings

    is_cuda = any("cuda:" in name or "-" in name for name in plan.device.split(","))
    if is_cuda and not has_bindings():
        note(NO_BINDINGS)


def _parser() -> Parser:
    parser = Parser(
        "plan", "MODEL [OPTIONS]", "Show the memory a model would need. No weight is read."
    )
    options.add_model(parser)
    options.add_devices(parser)
    options.add_context(parser, default=None)
    options.add_kv_type(parser)
    parser.add_argument(
        "--parallel",
        metavar="N",
        type=whole(1, _MAX_PARALLEL),
        default=1,
        help="sequences at once (default: 1)",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="find the largest context, and of several devices the fewest, that fit",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE[,SIZE…]",
        type=listed(size_bytes),
        help="with --fit: what is free on each device, such as 24GiB (default: as read now)",
    )
    parser.add_argument(
        "--margin",
        metavar="SIZE",
        type=size_bytes,
        help="with --fit: what to leave free on each device (default: 256MiB)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help="ask a running server of many models whether one of them would fit, and what would go",
    )
    options.add_json(parser)
    return parser


def _one_or_many(sizes: list[int] | None) -> int | list[int] | None:
    return sizes[0] if sizes and len(sizes) == 1 else sizes


def _print_text(name: str, plan: "PlanReport") -> None:
    devices = plan.device.replace(",", ", ")
    say(f"{name} on {devices}: context {plan.context} × {plan.parallel}, KV cache {plan.kv_type}\n")
    if len(plan.devices) == 1:
        print_columns([row[1:] for row in _device_rows(plan.devices[0])], "<>><")
        return
    rows = [row for device in plan.devices for row in _device_rows(device, _layers(device))]
    total = ("all", "total", *_size(plan.total_bytes), f"{plan.num_layers} layers")
    print_columns([*rows, total], "<<>><")


def _device_rows(device: "DevicePlan", layers: str = "") -> Iterator[tuple[str, ...]]:
    """Yield the lines of one device; its name stands in the first, its layers in the last."""
    label = device.device
    for row in device.rows:
        if row.bytes:
            is_assumed = row.lifetime == "context" and not device.context_is_measured
            what = _WHAT.get(row.lifetime, "") + (_ASSUMED if is_assumed else "")
            yield label, row.lifetime, *_size(row.bytes), what
            label = ""
    yield label, "total", *_size(device.total_bytes), layers
    if device.usable_bytes is not None:
        left = device.usable_bytes - device.total_bytes
        yield "", "left", *_size(left), "beside the margin"


def _layers(device: "DevicePlan") -> str:
    if device.layers is None:
        return ""
    first, last = device.layers
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def _size(size: int) -> tuple[str, str]:
    return format_bytes(size), f"{size:,}"


def _as_json(name: str, plan: "PlanReport") -> dict[str, object]:
    return {
        "model": name,
        "device": plan.device,
        "context": plan.context,
        "parallel": plan.parallel,
        "kv_type": plan.kv_type,
        "bytes": {row.lifetime: row.bytes for row in plan.rows},
        "total_bytes": plan.total_bytes,
        "devices": [_device_json(device) for device in plan.devices],
    }


def _device_json(device: "DevicePlan") -> dict[str, object]:
    value = asdict(device)
    del value["rows"]
    bytes_by_lifetime = {row.lifetime: row.bytes for row in device.rows}
    return {**value, "bytes": bytes_by_lifetime, "total_bytes": device.total_bytes}
