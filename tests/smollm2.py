"""The demo model against the exact answers: what is compared, and how far off it may be.

Used by the tests and by benchmarks/quality.py, so that both judge alike.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from corral.config import settings
from corral.hub.demo import DEMO
from golden import GOLDEN

FOLDER = GOLDEN / "smollm2"
PROMPTS = ("chat", "prose", "code")

# Mean KL(exact ‖ llama.cpp) with its int8 activations and F16 cache: ours may be 1.25 times as far
# on one prompt, and must be nearer on average.
LLAMA_CPP_KL = {"chat": 0.00365, "prose": 0.00245, "code": 0.00362}
HIGHEST_KL = {name: 1.25 * value for name, value in LLAMA_CPP_KL.items()}
HIGHEST_MEAN_KL = 0.0032

CLEAR_GAP = 0.3
"""Between the two best logits: below it, rounding may decide which is chosen."""


def demo_path() -> Path | None:
    """Return where the demo model lies in the cache directory, or None."""
    path = settings().cache / "models" / DEMO.file_name
    return path if path.is_file() and path.stat().st_size == DEMO.size_bytes else None


needs_demo = pytest.mark.skipif(
    demo_path() is None, reason="the demo model is not in the cache: corral pull demo"
)


@dataclass(frozen=True)
class Case:
    """One prompt: the exact model's distributions over it, and how it goes on."""

    name: str
    tokens: list[int]
    top_ids: np.ndarray
    """The 64 likeliest tokens after each one: (tokens, 64)."""
    top_logits: np.ndarray
    logsumexp: np.ndarray
    """(tokens,)"""
    continuation: list[int]
    gaps: list[float]
    """Between the two best logits at each token of the continuation."""

    @property
    def all_tokens(self) -> list[int]:
        """The prompt and all of its continuation but the last token, which nothing follows."""
        return self.tokens + self.continuation[:-1]


def cases() -> Iterator[Case]:
    """Yield the golden prompts."""
    greedy = json.loads((FOLDER / "greedy.json").read_text())
    with np.load(FOLDER / "logits.npz") as data:
        for name in PROMPTS:
            yield Case(
                name,
                data[f"{name}_tokens"].tolist(),
                data[f"{name}_top_ids"],
                data[f"{name}_top_logits"].astype(np.float64),
                data[f"{name}_logsumexp"],
                greedy[name]["tokens"],
                greedy[name]["gaps"],
            )


def mean_kl(case: Case, logits: np.ndarray) -> float:
    """Return the mean of KL(exact ‖ ours) over the top 64 and one bucket for the rest.

    `logits` are ours after each token of the prompt: (tokens, vocabulary).
    """
    ours = logits[: len(case.tokens)].astype(np.float64)
    highest = ours.max(axis=1, keepdims=True)
    total = highest[:, 0] + np.log(np.exp(ours - highest).sum(axis=1))
    top = np.take_along_axis(ours, case.top_ids.astype(np.int64), axis=1)
    p = _with_rest(np.exp(case.top_logits - case.logsumexp[:, None]))
    q = _with_rest(np.exp(top - total[:, None]))
    return float((p * (np.log(p) - np.log(q))).sum(axis=1).mean())


def _with_rest(probabilities: np.ndarray) -> np.ndarray:
    """Append what is missing to one."""
    rest = np.maximum(1 - probabilities.sum(axis=1, keepdims=True), 1e-12)
    return np.concatenate([probabilities, rest], axis=1)


@dataclass(frozen=True)
class Greedy:
    """How often the best token was the exact model's, fed with the exact model's choices."""

    steps: int
    agreed: int
    clear_steps: int
    """Steps whose gap is at least CLEAR_GAP."""
    clear_agreed: int


def greedy_agreement(case: Case, logits: np.ndarray) -> Greedy:
    """Compare the best tokens; `logits` belong to `case.all_tokens`: (tokens, vocabulary)."""
    ours = logits[len(case.tokens) - 1 :].argmax(axis=1)
    same = ours == np.asarray(case.continuation)
    clear = np.asarray(case.gaps) >= CLEAR_GAP
    return Greedy(len(same), int(same.sum()), int(clear.sum()), int((same & clear).sum()))


def texts() -> list[dict]:
    """Return texts with their tokens: with special tokens parsed (`ids`), and not."""
    return json.loads((FOLDER / "tokenize.json").read_text())
