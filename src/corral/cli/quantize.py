"""`corral quantize`: a model file with fewer bits, as llama-quantize makes it."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.arguments import MAX_THREADS, MODEL_HELP, Parser, add_json, whole
from corral.cli.limits import require_room
from corral.cli.loading import blamed
from corral.cli.output import note, print_columns, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral.engine.quantizing import Conversion
    from corral.gguf import ModelFile


def execute(given: Sequence[str]) -> int:
    """Write the quantized model, say what became of it, and return the exit code."""
    parsed = _parser().parse_args(given)
    from corral.models.mixture import mixture

    to = mixture(parsed.type)  # before a model is fetched for nothing
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        path = resolve(parsed.model, progress=display)
        require_room()
        from corral.engine.quantizing import plan_conversion
        from corral.gguf import open_model

        began = time.monotonic()
        with blamed(path), open_model(path) as file:
            conversion = plan_conversion(
                file, to, is_pure=parsed.pure, may_requantize=parsed.allow_requantize
            )
            if not parsed.dry_run:
                _convert(file, parsed.out, conversion, parsed.threads, display)
        seconds = time.monotonic() - began
    if parsed.json:
        _print_json(conversion, parsed.out, is_written=not parsed.dry_run)
    else:
        _print_text(conversion)
    if not parsed.dry_run:
        note(f"wrote {parsed.out} in {seconds:.1f} s")
    return 0


def _parser() -> Parser:
    from corral.models.mixture import MIXTURES

    parser = Parser(
        "quantize",
        "MODEL OUT TYPE [OPTIONS]",
        "Write a model with fewer bits a weight. The types of tensors are llama.cpp's for TYPE, "
        f"and so are the bytes. TYPE is one of {', '.join(MIXTURES)}.",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("out", metavar="OUT", type=Path, help="the file to write")
    parser.add_argument("type", metavar="TYPE", help="for example Q4_K_M")
    parser.add_argument(
        "--pure", action="store_true", help="give every matrix the same type, where rows allow it"
    )
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="take a model that is quantized already; it loses more than the type costs",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    parser.add_argument(
        "--threads",
        metavar="N",
        type=whole(1, MAX_THREADS),
        help="threads of the CPU (default: all it may use)",
    )
    add_json(parser)
    return parser


def _convert(
    file: "ModelFile",
    out: Path,
    conversion: "Conversion",
    threads: int | None,
    display: ProgressDisplay,
) -> None:
    from corral.devices.cpu.device import CpuDevice
    from corral.devices.cpu.encoder import Encoder
    from corral.devices.cpu.traits import usable_processors
    from corral.engine.quantizing import convert

    with CpuDevice() as device:
        types = {change.dtype for change in conversion.changes if not change.is_copy}
        encode = Encoder(device.compiler, types, display)
        threads = threads or usable_processors()
        convert(file, out, conversion, threads=threads, encode=encode, progress=display)


def _print_text(conversion: "Conversion") -> None:
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for change in conversion.changes:
        pair = (change.tensor.dtype.name, change.dtype.name)
        counts[pair] += 1
        sizes[pair] += change.size_bytes
    rows = [
        (
            f"{counts[pair]} tensor{'s' * (counts[pair] > 1)}",
            pair[0],
            "→",
            pair[1],
            format_bytes(size),
        )
        for pair, size in sizes.most_common()
    ]
    print_columns(rows, "><<<>")
    before = sum(change.tensor.size_bytes for change in conversion.changes)
    say(
        f"{format_bytes(before)} → {format_bytes(conversion.size_bytes)}, "
        f"{conversion.bits_per_weight:.2f} bits a weight"
    )


def _print_json(conversion: "Conversion", out: Path, *, is_written: bool) -> None:
    print_json(
        {
            "path": str(out),
            "written": is_written,
            "type": None if conversion.to is None else conversion.to.name,
            "size_bytes": conversion.size_bytes,
            "bits_per_weight": conversion.bits_per_weight,
            "tensors": [
                {
                    "name": change.name,
                    "shape": change.tensor.shape,
                    "from": change.tensor.dtype.name,
                    "to": change.dtype.name,
                    "size_bytes": change.size_bytes,
                }
                for change in conversion.changes
            ],
        }
    )
