"""`corral lora`: what is in a LoRA adapter, and whether it fits a model."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from corral.cli.arguments import MODEL_HELP, Parser, add_json
from corral.cli.loading import blamed
from corral.cli.output import print_columns, print_json, say
from corral.errors import UsageError
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral.gguf import ModelFile
    from corral.lora.adapter import Adapter

_USAGE = """\
usage: corral lora inspect FILE [--base MODEL] [--json]

Work with LoRA adapters (GGUF files of llama.cpp's format).

  inspect  show what is in an adapter, and check its values

corral lora inspect --help tells more."""


def execute(given: Sequence[str]) -> int:
    """Do what the first word says and return the exit code."""
    commands: dict[str, Callable[[Sequence[str]], int]] = {"inspect": _inspect}
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
    from pathlib import Path

    from corral.lora.adapter import open_adapter
    from corral.lora.values import require_finite

    path = Path(parsed.file)
    with blamed(path), open_adapter(path) as (adapter, file):
        require_finite(file, adapter)
        if parsed.base is not None:
            _require_base(adapter, parsed.base)
        shown = _described(adapter, file)
    if parsed.json:
        print_json(shown)
    else:
        print_columns(_rows(shown), "<<")
    return 0


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
