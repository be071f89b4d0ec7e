"""`corral lora`: what is in a LoRA adapter, whether it fits a model, and both made one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.cli.arguments import MAX_THREADS, MODEL_HELP, Parser, adapter, add_json, whole
from corral.cli.limits import require_room
from corral.cli.loading import blamed
from corral.cli.output import print_columns, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.devices.cpu.traits import usable_processors
from corral.errors import UsageError
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral.engine.quantizing import Encode
    from corral.gguf import ModelFile
    from corral.lora.adapter import Adapter
    from corral.quant.types import DType

_USAGE = """\
usage: corral lora inspect FILE [--base MODEL] [--json]
       corral lora merge MODEL FILE[:SCALE]… -o OUT [OPTIONS]

Work with LoRA adapters (GGUF files of llama.cpp's format).

  inspect  show what is in an adapter, and check its values
  merge    write a model with adapters in its weights

corral lora inspect --help and corral lora merge --help tell more."""


def execute(given: Sequence[str]) -> int:
    """Do what the first word says and return the exit code."""
    commands: dict[str, Callable[[Sequence[str]], int]] = {"inspect": _inspect, "merge": _merge}
    if not given or given[0] in ("-h", "--help"):
        say(_USAGE)
        return 0 if given else UsageError.exit_code
    if given[0] not in commands:
        raise UsageError(f"corral lora has no {given[0][:40]!r}: it has {', '.join(commands)}")
    return commands[given[0]](given[1:])


def _inspect(given: Sequence[str]) -> int:
    parser = Parser(
        "lora inspect",
        "FILE [--base MODEL] [--json]",
        "Show what is in a LoRA adapter; every value is read and checked.",
    )
    parser.add_argument("file", metavar="FILE", help="the adapter's file")
    parser.add_argument("--base", metavar="MODEL", help=f"check that it fits ({MODEL_HELP})")
    add_json(parser)
    parsed = parser.parse_args(given)
    from corral.lora.adapter import open_adapter
    from corral.lora.values import require_finite

    path = Path(parsed.file)
    with blamed(path), open_adapter(path) as (header, file):
        require_finite(file, header)
        if parsed.base is not None:
            _require_base(header, parsed.base)
        shown = _described(header, file)
    if parsed.json:
        print_json(shown)
    else:
        print_columns(_rows(shown), "<<")
    return 0


def _merge(given: Sequence[str]) -> int:
    parsed = _merge_parser().parse_args(given)
    from corral.engine.merging import merge, plan_merge
    from corral.gguf import open_model
    from corral.hub.resolve import resolve
    from corral.quant.types import DType

    dtype = None if parsed.merge_type is None else DType[parsed.merge_type.upper()]
    with ProgressDisplay() as display:
        path = resolve(parsed.model, progress=display)
        require_room()
        adapters = [(Path(p), s) for p, s in parsed.adapters]
        with blamed(path, *(file for file, _scale in adapters)), open_model(path) as file:
            what = plan_merge(file, adapters, dtype)
            changed = {c.dtype for c in what.conversion.changes if not c.is_copy}
            with _encoder(changed, display) as encode:
                threads = parsed.threads or usable_processors()
                merge(file, parsed.out, what, threads=threads, encode=encode, progress=display)
    size = parsed.out.stat().st_size
    if parsed.json:
        print_json({"path": str(parsed.out), "changed": len(what.deltas), "size_bytes": size})
    else:
        say(f"{parsed.out}: {len(what.deltas)} tensors changed, {format_bytes(size)}")
    return 0


def _merge_parser() -> Parser:
    parser = Parser(
        "lora merge",
        "MODEL FILE[:SCALE]… -o OUT [OPTIONS]",
        "Write a model with LoRA adapters in its weights. Each weight that changes is unpacked, "
        "added to and packed again in its own type; all other bytes are copied.",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "adapters", metavar="FILE[:SCALE]", nargs="+", type=adapter, help="an adapter (scale: 1)"
    )
    parser.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="to write")
    parser.add_argument(
        "--merge-type",
        choices=("f16", "bf16", "f32", "q8_0"),
        help="type of the weights that change (default: what each has)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=whole(1, MAX_THREADS),
        help="threads of the CPU (default: all it may use)",
    )
    add_json(parser)
    return parser


@contextmanager
def _encoder(types: "set[DType]", display: ProgressDisplay) -> "Iterator[Encode]":
    from corral.devices.cpu.device import CpuDevice
    from corral.devices.cpu.encoder import Encoder

    with CpuDevice() as device:
        yield Encoder(device.compiler, types, display)


def _require_base(adapter: "Adapter", name: str) -> None:
    from corral.gguf import open_model
    from corral.hub.resolve import resolve
    from corral.lora.adapter import require_fitting

    with open_model(resolve(name), skip_arrays=True) as base:
        metadata, tensors = base.metadata, base.tensors
        require_fitting(adapter, metadata.architecture, tensors, base=base.path.name)


def _described(adapter: "Adapter", file: "ModelFile") -> dict[str, Any]:
    pairs = adapter.pairs.values()
    return {
        "file": adapter.name,
        "name": file.metadata.str("general.name", ""),
        "architecture": adapter.architecture,
        "alpha": adapter.alpha,
        "ranks": sorted({pair.rank for pair in pairs}),
        "scales": sorted({adapter.scale(pair) for pair in pairs}),
        "matrices": len(pairs),
        "kinds": sorted({_kind(pair.weight) for pair in pairs}),
        "types": sorted({half.dtype.name for pair in pairs for half in (pair.a, pair.b)}),
        "parameters": adapter.num_parameters,
        "file_bytes": file.size_bytes,
    }


def _kind(weight: str) -> str:
    """Return the name of a matrix without its layer."""
    parts = weight.removesuffix(".weight").split(".")
    return parts[-1]


def _rows(shown: dict[str, Any]) -> list[tuple[str, str]]:
    def numbers(values: Sequence[float]) -> str:
        return ", ".join(f"{value:g}" for value in values)

    return [
        ("file", shown["file"]),
        ("name", shown["name"]),
        ("for", shown["architecture"]),
        ("alpha", f"{shown['alpha']:g}"),
        ("rank", numbers(shown["ranks"])),
        ("scale", numbers(shown["scales"])),
        ("changes", f"{shown['matrices']} matrices: {', '.join(shown['kinds'])}"),
        ("types", ", ".join(shown["types"])),
        ("parameters", f"{shown['parameters']:,}"),
        ("size", format_bytes(shown["file_bytes"])),
    ]
