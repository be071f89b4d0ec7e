"""Answers without end, for leak.py: contexts that are shifted again and again."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from corral import Model, SamplingParams
from leak_work import CONTEXT, NONE, PROMPT, SETTLING, Action, Setting, Work

ANSWERS = 8
"""Answers at once, six of them greedy."""
TOKENS = 1000
"""Tokens of one action, of all answers together."""


@contextmanager
def endless(setting: Setting) -> Iterator[Action]:
    """Go on with answers that never end; at the end none of them has."""
    with ExitStack() as stack:
        model = stack.enter_context(
            Model.load(
                setting.model,
                device=setting.device,
                context=CONTEXT,
                parallel=ANSWERS,
                threads=1,
                context_shift=True,
                keep=4,
            )
        )
        answers = [
            stack.enter_context(
                model.generate(
                    f"{PROMPT} {number}",
                    ignore_eos=True,
                    sampling=SamplingParams(seed=number, temperature=0.8 * (number % 4 == 0)),
                )
            )
            for number in range(ANSWERS)
        ]

        def act(number: int) -> None:
            wanted = model.statistics().evaluations + TOKENS // ANSWERS
            while model.statistics().evaluations < wanted:
                # What is generated and not read is kept: read where most of it waits.
                next(max(answers, key=lambda answer: answer.num_unread))

        yield act
        left = [len(answer.tokens) for answer in answers]
        if max(left) > CONTEXT or model.statistics().evaluations < 2 * CONTEXT:
            raise SystemExit(f"nothing was shifted: the answers hold {left} tokens")


WORKS = (
    Work(
        *("endless answers", "token", endless, 1_000_000, NONE),
        batch=TOKENS,
        every=2,
        warm_up=20,
        settling=SETTLING,
    ),
)
