"""Options that several commands share, and a parser whose complaints are one line.

argparse and not a larger library, because parsing is part of the time to the first token.
"""

import argparse
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from corral.contract.sizes import parse_size
from corral.errors import DeviceUnavailable, InvalidArgument, UsageError

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

DEFAULT_MODEL = "demo"
MODEL_HELP = "path, cached name, hf:owner/repo[/file], or demo"
MAX_TOKENS = 2**31 - 1
MAX_THREADS = 1024
_T = TypeVar("_T")


class Parser(argparse.ArgumentParser):
    """A parser of one command."""

    def __init__(self, command: str, synopsis: str, description: str) -> None:
        """Make a parser for `corral COMMAND`; the synopsis is what follows in its usage line."""
        super().__init__(
            prog=f"corral {command}",
            usage=f"corral {command} {synopsis}",
            description=description,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the complaint.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}; see {self.prog} --help")


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def whole(low: int, high: int = MAX_TOKENS) -> Callable[[str], int]:
    """Return a converter that takes integers of low…high."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ArgumentTypeError(f"{text[:40]!r} is no integer from {low} to {high}")
        return number

    return convert


def real(low: float, high: float) -> Callable[[str], float]:
    """Return a converter that takes numbers of low…high."""

    def convert(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise ArgumentTypeError(f"{text[:40]!r} is no number from {low:g} to {high:g}")
        return number

    return convert


def utf8(given: str) -> str:
    """Take an argument that a model shall read; bytes that are no UTF-8 come as surrogates."""
    if not is_text(given):
        raise ArgumentTypeError("is not UTF-8; convert it, for example with iconv")
    return given


def is_text(given: str) -> bool:
    """Whether a string came from proper UTF-8, rather than with surrogates for other bytes."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is to be loaded."""

    model: str
    devices: tuple[str, ...]
    split: tuple[float, ...] | None
    gpu_layers: int | None
    context: int | None
    kv_type: str
    threads: int | None
    adapters: tuple[tuple[str, float], ...] = ()
    """Files of adapters, and what each counts."""
    context_shift: bool = False
    keep: int = 0

    @classmethod
    def of(cls, parsed: Namespace) -> "LoadOptions":
        """Take the options that `add_load_options` added."""
        return cls(
            parsed.model,
            tuple(parsed.device),
            None if parsed.split is None else tuple(parsed.split),
            parsed.gpu_layers,
            parsed.context,
            parsed.kv_type,
            parsed.threads,
            tuple(parsed.lora),
            getattr(parsed, "context_shift", False),
            getattr(parsed, "keep", 0),
        )


def add_model(parser: Parser) -> None:
    """Add the positional MODEL."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_load_options(group: "Parser | _ArgumentGroup", *, context: int | None = None) -> None:
    """Add what `LoadOptions` holds, except the model."""
    add_devices(group, computes=True)
    add_context(group, default=context)
    add_kv_type(group)
    add_adapters(group)
    group.add_argument(
        "--threads",
        metavar="N",
        type=whole(1, MAX_THREADS),
        help="threads of the CPU (default: all it may use)",
    )


def add_adapters(group: "Parser | _ArgumentGroup") -> None:
    """Add --lora."""
    group.add_argument(
        "--lora",
        metavar="FILE[:SCALE]",
        type=adapter,
        action="append",
        default=[],
        help="a LoRA adapter that changes the model, and how much (default: 1); may be repeated",
    )


def adapter(given: str) -> tuple[str, float]:
    """Take FILE or FILE:SCALE."""
    from corral.contract.worker import AdapterSpec

    try:
        spec = AdapterSpec.parse(given)
    except InvalidArgument as error:
        raise ArgumentTypeError(str(error)) from None
    return spec.path, spec.scale


def add_devices(group: "Parser | _ArgumentGroup", *, computes: bool = False) -> None:
    """Add --device, --split and --gpu-layers.

    For a command that `computes` only devices that do are accepted; no device need be here.
    """
    convert = _computing_device if computes else _device
    group.add_argument(
        "--device",
        metavar="NAME[,NAME…]",
        type=listed(convert),
        default=["auto"],
        help="where to compute: cpu, cuda:0, a card's UUID; or several that share the layers, "
        "such as cuda:0,cuda:1 (default: auto, a card if there is one)",
    )
    group.add_argument(
        "--split",
        metavar="N[,N…]",
        type=listed(real(1e-6, 1e6)),
        help="weights of several devices to each other (default: equal)",
    )
    group.add_argument(
        "--gpu-layers",
        metavar="N",
        type=whole(0),
        help="keep only the last N layers on the card, the others on the CPU",
    )


def listed(convert: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """Return a converter of values with commas between them."""

    def convert_all(text: str) -> list[_T]:
        return [convert(part) for part in text.split(",")]

    return convert_all


def size_bytes(text: str) -> int:
    """Take a size such as 24GiB, 512M or 1000; units are powers of 1024, but GB and MB are not."""
    try:
        return parse_size(text)
    except InvalidArgument as error:
        raise ArgumentTypeError(str(error)) from None


def _device(name: str) -> str:
    from corral.devices.registry import AUTO, resolve

    # Whether a card is in this machine is not for the command line to say.
    try:
        if name != AUTO:
            resolve(name)
    except DeviceUnavailable as error:
        raise ArgumentTypeError(str(error)) from None
    return name


def _computing_device(name: str) -> str:
    if _device(name) == "null":
        raise ArgumentTypeError(
            "the null device counts bytes and computes nothing: it is for corral plan, use cpu here"
        )
    return name


def add_context(group: "Parser | _ArgumentGroup", *, default: int | None) -> None:
    """Add --context."""
    shown = "the model's own, at most 4096" if default is None else default
    group.add_argument(
        "--context",
        metavar="N",
        type=whole(1),
        default=default,
        help=f"tokens of prompt and answer together (default: {shown})",
    )


def add_shift(group: "Parser | _ArgumentGroup") -> None:
    """Add --context-shift and --keep."""
    group.add_argument(
        "--context-shift",
        action="store_true",
        help="go on when the context is full: drop half of the tokens behind the kept ones",
    )
    group.add_argument(
        "--keep",
        metavar="N",
        type=whole(0),
        default=0,
        help="with --context-shift: tokens of the prompt that are never dropped, rounded up to "
        "blocks of 32; more than it has are all, and two blocks of the context must be left "
        "(default: 0, and one that begins every text)",
    )


def add_kv_type(group: "Parser | _ArgumentGroup") -> None:
    """Add --kv-type."""
    group.add_argument(
        "--kv-type",
        choices=("f16", "bf16", "f32", "q8_0"),
        default="f16",
        help="data type of the KV cache (default: f16)",
    )


def add_json(group: "Parser | _ArgumentGroup") -> None:
    """Add --json."""
    group.add_argument("--json", action="store_true", help="print one JSON object instead of text")
