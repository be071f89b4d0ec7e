"""One answer on the terminal: options, streaming, Ctrl-C, and the line of statistics."""

import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final, TypedDict

from corral.cli import sampling
from corral.cli.arguments import Parser, real, utf8, whole
from corral.log import logger
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral import (
        Generation,
        GenerationStatistics,
        MemoryStatistics,
        Model,
        SamplingParams,
    )

_log = logger(__name__)
DEFAULT_MAX_TOKENS: Final = 1024
"""Longest answer to a prompt where nothing is said: small models may never end by themselves."""
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")


class Keywords(TypedDict):
    """What every way to ask a model takes."""

    max_tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    sampling: "SamplingParams"


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is to be made; the same options serve every way to ask."""

    max_tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    given: Mapping[str, float]
    """Fields of the sampling that the user set."""

    @classmethod
    def of(cls, parsed: Namespace) -> "AnswerOptions":
        """Take the options that `add_answer_options` added.

        Raises:
            InvalidArgument: a sampling parameter is out of range.
        """
        from corral.contract.sampling import SamplingParams

        values = {name: getattr(parsed, name) for name in _SAMPLING}
        given = {name: value for name, value in values.items() if value is not None}
        SamplingParams(**given)  # refused now rather than after a download
        return cls(parsed.max_tokens, tuple(parsed.stop), parsed.ignore_eos, given)

    def keywords(self, model: "Model", *, longest: int | None = None) -> Keywords:
        """Return the options for a model; `longest` is the limit where the user set none."""
        limit = self.max_tokens
        if limit is None and not self.ignore_eos:
            limit = longest
        return Keywords(
            max_tokens=limit,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            sampling=sampling.choose(model, self.given),
        )


def add_answer_options(parser: Parser) -> None:
    """Add what `AnswerOptions` holds."""
    group = parser.add_argument_group("answer")
    group.add_argument(
        "-n",
        "--max-tokens",
        metavar="N",
        type=whole(0),
        help=f"longest answer (default: {DEFAULT_MAX_TOKENS}; no limit in a chat or with "
        "--ignore-eos)",
    )
    group.add_argument(
        "--stop",
        metavar="TEXT",
        type=utf8,
        action="append",
        default=[],
        help="text that ends the answer; may be given several times",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on when the model wants to end"
    )
    _add_sampling(parser)


def _add_sampling(parser: Parser) -> None:
    group = parser.add_argument_group(
        "sampling", "What is not given is as the model's makers advise in its file, else as said."
    )
    group.add_argument(
        "--temperature",
        metavar="X",
        type=real(0, 100),
        help="0 takes the likeliest token (default: 0.8)",
    )
    group.add_argument(
        "--top-k", metavar="N", type=whole(0), help="likeliest tokens kept; 0 is all (default: 40)"
    )
    group.add_argument(
        "--top-p", metavar="X", type=real(0, 1), help="probability mass kept (default: 0.95)"
    )
    group.add_argument(
        "--min-p",
        metavar="X",
        type=real(0, 1),
        help="least probability kept, relative to the likeliest (default: 0.05)",
    )
    group.add_argument(
        "--repeat-penalty",
        metavar="X",
        type=real(0, 100),
        help="above 1 makes tokens of late unlikelier (default: 1)",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=whole(0, 2**64 - 1),
        help="repeat an answer exactly (default: random)",
    )


def stream(generation: "Generation", write: Callable[[str], None]) -> str:
    """Write an answer piece by piece and return it whole.

    The first Ctrl-C ends the answer, which keeps what it has; a second one interrupts for good.
    """
    pieces: list[str] = []
    began = time.monotonic()
    with generation, _first_interrupt(generation.interrupt):
        for piece in generation:
            _log.debug("piece %d after %.3f s: %r", len(pieces), time.monotonic() - began, piece)
            pieces.append(piece)
            write(piece)
    return "".join(pieces)


@contextmanager
def _first_interrupt(then: Callable[[], None]) -> Iterator[None]:
    """Call `then` on the first SIGINT instead of raising: no step of the engine is torn apart."""
    came = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        then()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def statistics_line(
    statistics: "GenerationStatistics", memory_bytes: int, *, unasked_limit: int | None = None
) -> str:
    """Return what an answer took, on one line; it tells of a limit that the user did not set."""
    cached = f" ({statistics.cached_tokens} cached)" if statistics.cached_tokens else ""
    word = "token" if statistics.prompt_tokens == 1 else "tokens"
    parts = [
        f"{statistics.prompt_tokens} prompt {word}{cached}{_at(statistics.prefill_tokens_per_s)}",
        f"{statistics.generated_tokens} generated{_at(statistics.decode_tokens_per_s)}",
        f"first after {statistics.time_to_first_token_s:.2f} s",
        f"memory {format_bytes(memory_bytes)}",
    ]
    if not statistics.generated_tokens:
        del parts[2]
    if unasked_limit is not None and statistics.finish_reason.value == "length":
        parts.insert(2, f"stopped at the default limit of {unasked_limit:,}, -n N sets another")
    return " · ".join(parts)


def _at(tokens_per_s: float) -> str:
    """Return the speed; nothing where too few tokens were computed to have one."""
    if not tokens_per_s:
        return ""
    return f" at {tokens_per_s:,.{0 if tokens_per_s >= 100 else 1}f} tokens/s"


def as_json(
    text: str, statistics: "GenerationStatistics", memory: "MemoryStatistics"
) -> dict[str, object]:
    """Return an answer and what it took as one object."""
    held: dict[str, object] = {
        "total_bytes": memory.total_bytes,
        "rows": [asdict(row) for row in memory.rows],
    }
    if memory.growth is not None:
        held["growth"] = asdict(memory.growth)
    return {
        "text": text,
        "finish_reason": statistics.finish_reason.value,
        "prompt_tokens": statistics.prompt_tokens,
        "cached_tokens": statistics.cached_tokens,
        "generated_tokens": statistics.generated_tokens,
        "prefill_s": statistics.prefill_s,
        "decode_s": statistics.decode_s,
        "prefill_tokens_per_s": statistics.prefill_tokens_per_s,
        "decode_tokens_per_s": statistics.decode_tokens_per_s,
        "time_to_first_token_s": statistics.time_to_first_token_s,
        "memory": held,
    }
