"""`corral perplexity`: how well a model predicts a text, cut and scored as llama-perplexity does.

text ─▶ tokens ─▶ chunks of `context` tokens, the rest is left out
each chunk: BOS in place of its first token (where the model wants one), one pass from empty;
only the second half is scored, so that every scored token has context
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import LoadOptions, Parser, whole
from corral.cli.loading import loaded
from corral.cli.output import note, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.errors import InvalidArgument, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from corral import Model

_DEFAULT_CONTEXT = 512
_ROWS_AT_ONCE = 32
_NOTE_EVERY = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """Sums over the tokens scored so far."""

    chunks: int = 0
    tokens: int = 0
    nll: float = 0.0
    """Σ −ln p."""
    nll_squared: float = 0.0
    """Σ (ln p)²."""

    def plus(self, scores: Sequence[float]) -> "Estimate":
        """Return the estimate with another chunk's −ln p."""
        return Estimate(
            self.chunks + 1,
            self.tokens + len(scores),
            self.nll + math.fsum(scores),
            self.nll_squared + math.fsum(score * score for score in scores),
        )

    @property
    def perplexity(self) -> float:
        """e to the mean of −ln p."""
        return math.exp(self.nll / self.tokens)

    @property
    def error(self) -> float:
        """Standard error of the perplexity."""
        mean = self.nll / self.tokens
        variance = self.nll_squared / self.tokens - mean * mean
        if self.tokens < 2 or variance <= 0:
            return 0.0
        return math.sqrt(variance / (self.tokens - 1)) * self.perplexity


def execute(given: Sequence[str]) -> int:
    """Score a text, print the perplexity, and return the exit code."""
    parser = Parser(
        "perplexity", "MODEL -f FILE [OPTIONS]", "Measure how well a model predicts a text."
    )
    options.add_model(parser)
    parser.add_argument("-f", "--file", metavar="FILE", required=True, help="text in UTF-8")
    parser.add_argument(
        "--chunks", metavar="N", type=whole(1), help="score the first N chunks (default: all)"
    )
    options.add_load_options(parser, context=_DEFAULT_CONTEXT)
    options.add_json(parser)
    parsed = parser.parse_args(given)
    if parsed.context < 4:
        raise InvalidArgument(f"--context is {parsed.context}; expected at least 4")
    text = read_text(Path(parsed.file))
    with loaded(LoadOptions.of(parsed)) as model:
        estimate = _score(model, text, parsed.context, parsed.chunks)
        _print(model.name, parsed.context, estimate, is_json=parsed.json)
    return 0


def read_text(path: Path) -> str:
    """Return a text without its last line feed.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a text file with -f") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}; convert it") from error


def chunked(model: "Model", text: str, context: int) -> list[list[int]]:
    """Return the chunks of a text, as they are given to the model.

    Raises:
        UsageError: the text does not fill one chunk.
    """
    tokens = model.tokenize(text)
    count = len(tokens) // context
    if not count:
        raise UsageError(
            f"the text has {len(tokens)} tokens and one chunk needs {context}: "
            "use a longer text or a smaller --context"
        )
    chunks = [tokens[i * context : (i + 1) * context] for i in range(count)]
    bos = _bos(model)
    return chunks if bos is None else [[bos, *chunk[1:]] for chunk in chunks]


def _bos(model: "Model") -> int | None:
    """Return the token that the model wants before a text, if any."""
    with_special = model.tokenize("a")
    return with_special[0] if with_special[0] != model.tokenize("a", add_special=False)[0] else None


def _score(model: "Model", text: str, context: int, limit: int | None) -> Estimate:
    chunks = chunked(model, text, context)[:limit]
    estimate = Estimate()
    with ProgressDisplay() as display:
        display("score", 0, len(chunks))
        for estimate in estimates(model, chunks):
            if estimate.chunks % _NOTE_EVERY == 0 and estimate.chunks < len(chunks):
                display.close()
                note(f"after {estimate.chunks} of {len(chunks)} chunks: {_shown(estimate)}")
            display("score", estimate.chunks, len(chunks))
    return estimate


def estimates(model: "Model", chunks: Sequence[Sequence[int]]) -> Iterator[Estimate]:
    """Yield the estimate after each chunk."""
    estimate = Estimate()
    for chunk in chunks:
        first = len(chunk) // 2
        logits = model.logits(chunk)
        estimate = estimate.plus(_negative_log(logits[first:-1], chunk[first + 1 :]))
        yield estimate


def _negative_log(logits: "NDArray[np.float32]", targets: Sequence[int]) -> list[float]:
    """Return −ln softmax(logits)[target] of each row; few rows at once, to need little memory."""
    import numpy as np

    scores: list[float] = []
    for start in range(0, len(targets), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE]
        wanted = targets[start : start + _ROWS_AT_ONCE]
        highest = rows.max(axis=1, keepdims=True)
        sums = np.exp(rows - highest).sum(axis=1, dtype=np.float64)
        picked = rows[np.arange(len(wanted)), wanted].astype(np.float64)
        scores += (np.log(sums) + highest[:, 0] - picked).tolist()
    return scores


def _shown(estimate: Estimate) -> str:
    return f"PPL = {estimate.perplexity:.4f} ± {estimate.error:.5f}"


def _print(name: str, context: int, estimate: Estimate, *, is_json: bool) -> None:
    if not is_json:
        say(f"{_shown(estimate)} ({estimate.tokens} tokens of {estimate.chunks} chunks)")
        return
    print_json(
        {
            "model": name,
            "context": context,
            "chunks": estimate.chunks,
            "tokens": estimate.tokens,
            "perplexity": estimate.perplexity,
            "standard_error": estimate.error,
            "mean_negative_log_likelihood": estimate.nll / estimate.tokens,
        }
    )
