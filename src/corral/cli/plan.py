"""`corral plan`: the bytes a model would hold, before anything is loaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import Parser, whole
from corral.cli.loading import blamed
from corral.cli.output import print_columns, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral import PlanReport

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


def execute(given: Sequence[str]) -> int:
    """Print a model's plan and return the exit code."""
    parser = Parser(
        "plan", "MODEL [OPTIONS]", "Show the memory a model would need. No weight is read."
    )
    options.add_model(parser)
    options.add_device(parser)
    options.add_context(parser, default=None)
    options.add_kv_type(parser)
    parser.add_argument(
        "--parallel",
        metavar="N",
        type=whole(1, _MAX_PARALLEL),
        default=1,
        help="sequences at once (default: 1)",
    )
    options.add_json(parser)
    parsed = parser.parse_args(given)
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        path = resolve(parsed.model, progress=display)
    import corral

    with blamed(path):
        plan = corral.plan(
            path,
            context=parsed.context,
            parallel=parsed.parallel,
            kv_type=parsed.kv_type,
            device=parsed.device,
        )
    show = _print_json if parsed.json else _print_text
    show(path.name, parsed.kv_type, plan)
    return 0


def _print_text(name: str, kv_type: str, plan: "PlanReport") -> None:
    say(f"{name} on {plan.device}: context {plan.context} × {plan.parallel}, KV cache {kv_type}\n")
    rows = [
        (row.lifetime, format_bytes(row.bytes), f"{row.bytes:,}", _WHAT.get(row.lifetime, ""))
        for row in plan.rows
        if row.bytes
    ]
    total = ("total", format_bytes(plan.total_bytes), f"{plan.total_bytes:,}", "")
    print_columns([*rows, total], "<>><")


def _print_json(name: str, kv_type: str, plan: "PlanReport") -> None:
    print_json(
        {
            "model": name,
            "device": plan.device,
            "context": plan.context,
            "parallel": plan.parallel,
            "kv_type": kv_type,
            "bytes": {row.lifetime: row.bytes for row in plan.rows},
            "total_bytes": plan.total_bytes,
        }
    )
