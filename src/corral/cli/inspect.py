"""`corral inspect`: what is in a model file, from its header alone."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from corral.cli.arguments import Parser, add_json, add_model
from corral.cli.describe import Description, describe
from corral.cli.loading import blamed
from corral.cli.output import print_columns, print_json, say, visible
from corral.cli.progress import ProgressDisplay
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral.gguf import Metadata, TensorInfo, Value

_SHOWN_CHARACTERS = 80
_SHOWN_ELEMENTS = 8


def execute(given: Sequence[str]) -> int:
    """Print what a model file holds and return the exit code."""
    parser = Parser(
        "inspect", "MODEL [--tensors] [--json]", "Show what is in a model file. No weight is read."
    )
    add_model(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    add_json(parser)
    parsed = parser.parse_args(given)
    from corral.gguf import open_model
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        path = resolve(parsed.model, progress=display)
    with blamed(path), open_model(path, skip_arrays=True) as model:
        description = describe(model)
        tensors = model.tensors.values() if parsed.tensors else ()
        show = _print_json if parsed.json else _print_text
        show(description, model.metadata, tensors)
    return 0


def _print_text(
    description: Description, metadata: "Metadata", tensors: Iterable["TensorInfo"]
) -> None:
    print_columns(_summary(description), "<<")
    say()
    rows = [(key, *_type_and_text(metadata.value(key))) for key in metadata]
    print_columns(rows, "<<<")
    listed = [
        (t.name, t.dtype.name, " × ".join(map(str, t.shape)), format_bytes(t.size_bytes))
        for t in tensors
    ]
    if listed:
        say()
        print_columns(listed, "<<<>")


def _summary(description: Description) -> list[tuple[str, str]]:
    types = ", ".join(
        f"{t.tensors} {t.dtype} ({format_bytes(t.size_bytes)})" for t in description.types
    )
    return [
        ("file", description.file),
        ("name", description.name),
        ("model", description.summary),
        ("size", format_bytes(description.file_bytes)),
        ("parameters", f"{description.parameters:,}"),
        ("bits per weight", f"{description.bits_per_weight:.2f}"),
        ("tensors", types),
    ]


def _type_and_text(value: "Value") -> tuple[str, str]:
    from corral.gguf import Array

    if not isinstance(value.content, Array):
        return value.type.name, _shortened(value.content)
    array = value.content
    kind = f"{array.element_type.name}[{len(array)}]"
    if array.raw is None or len(array) > _SHOWN_ELEMENTS:
        return kind, "…"
    return kind, ", ".join(map(_shortened, array.values()))


def _shortened(value: object) -> str:
    if not isinstance(value, str):
        return f"{value:.7g}" if isinstance(value, float) else str(value)
    line = visible(value.replace("\n", "\\n").replace("\t", "\\t"))
    more = len(line) - _SHOWN_CHARACTERS
    return f"{line[:_SHOWN_CHARACTERS]}… ({more} more)" if more > 0 else line


def _print_json(
    description: Description, metadata: "Metadata", tensors: Iterable["TensorInfo"]
) -> None:
    value: dict[str, object] = {
        **asdict(description),
        "summary": description.summary,
        "bits_per_weight": description.bits_per_weight,
        "metadata": {key: _json_value(metadata.value(key)) for key in metadata},
    }
    listed = [
        {
            "name": t.name,
            "type": t.dtype.name,
            "shape": t.shape,
            "size_bytes": t.size_bytes,
            "file": t.file,
            "offset": t.offset,
        }
        for t in tensors
    ]
    if listed:
        value["tensors"] = listed
    print_json(value)


def _json_value(value: "Value") -> object:
    from corral.gguf import Array

    if not isinstance(value.content, Array):
        content = value.content
        # JSON has no infinity and no NaN.
        return content if not isinstance(content, float) or abs(content) < 1e39 else str(content)
    array = value.content
    if array.raw is None or len(array) > _SHOWN_ELEMENTS:
        return {"type": array.element_type.name, "length": len(array)}
    return [v if not isinstance(v, float) or abs(v) < 1e39 else str(v) for v in array.values()]
