"""What clients of a server ask: a stream of requests that a number determines. It is pure.

Prompts are words in random order behind no common beginning, so that nothing of one is known from
another; with a shared beginning, every one follows the same text. Answers have a length of their
own, and one in twenty is left on the way.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PROMPT_WORDS = (16, 64, 200, 700)
"""Words of prompts, each as frequent as the others; a word is about a token."""
ANSWER_TOKENS = (32, 64, 128)
CANCELLED = 0.05
"""The part of answers whose clients leave before the end."""
COMMON = (
    "the of and to in is that for it was on as with be at by this had not are but from or have "
    "an they which one you were all her she there would their we him been has when who will no "
    "more if out so up said what its about than into them can only other time new some could "
    "these two may first then do any like my now over such our man me even most made after also "
    "did many off before must well back through years where much your way down should because "
    "long each just state people those too mr how little good world make very year still see "
    "own work men day get here old life both between being under three never know same last "
    "another while us might great go come since against right came take used himself few house "
    "use place during high without again home around small however found part once general upon "
    "school every "
)
WORDS = tuple(COMMON.split())
"""Frequent words of English, of which most are one token of most vocabularies."""
SHARED = (
    "You are a helpful assistant. Answer in plain words, be exact about numbers and names, say so "
    "where you do not know, and never invent a source. "
)


@dataclass(frozen=True)
class Ask:
    """One request and what its client does with the answer."""

    prompt: str
    answer_tokens: int
    leaves_after: int | None = None
    """Tokens after which its client goes away; None if it stays."""

    @property
    def body(self) -> bytes:
        """The request as both servers understand it; the likeliest token is taken each time."""
        fields = {
            "prompt": self.prompt,
            "max_tokens": self.answer_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(fields).encode()


def asks(
    seed: int,
    *,
    shared: bool = False,
    words: Sequence[int] = PROMPT_WORDS,
    answers: Sequence[int] = ANSWER_TOKENS,
    cancelled: float = CANCELLED,
) -> Iterator[Ask]:
    """Yield requests without end; equal numbers give equal requests.

    Lengths come in shuffled rounds, so that any few dozen requests hold each as often.
    """
    chance = random.Random(seed)
    rounds = [(count, tokens) for count in words for tokens in answers]
    while True:
        chance.shuffle(rounds)
        for count, tokens in rounds:
            text = " ".join(chance.choices(WORDS, k=count))
            leaves = chance.randrange(1, tokens) if chance.random() < cancelled else None
            yield Ask(SHARED * shared + text, tokens, leaves)
