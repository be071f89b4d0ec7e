"""The demo model on the CPU: as near to the exact model as it must be."""

import statistics

import pytest

from corral.engine.model import Model
from golden import needs_golden
from smollm2 import (
    HIGHEST_KL,
    HIGHEST_MEAN_KL,
    cases,
    demo_path,
    greedy_agreement,
    mean_kl,
    needs_demo,
    texts,
)

pytestmark = [needs_golden, needs_demo]


@pytest.fixture(scope="module")
def model():
    with Model.load(demo_path(), device="cpu", context=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def scored(model):
    """Every prompt with our logits over it and its continuation."""
    return [(case, model.logits(case.all_tokens)) for case in cases()]


def test_distributions_are_near(scored):
    """On average nearer to the exact distributions than llama.cpp, and nowhere far."""
    found = {case.name: mean_kl(case, logits) for case, logits in scored}
    assert all(found[name] <= highest for name, highest in HIGHEST_KL.items()), found
    assert statistics.mean(found.values()) <= HIGHEST_MEAN_KL


def test_clear_choices_are_the_same(scored):
    """Wherever the exact model's choice is clear, ours is the same."""
    found = {case.name: greedy_agreement(case, logits) for case, logits in scored}
    assert all(g.clear_agreed == g.clear_steps for g in found.values()), found


def test_tokens_are_the_same(model):
    """All texts become llama.cpp's tokens, with special tokens parsed and not."""
    for text in texts():
        assert model.tokenize(text["text"], parse_special=True) == text["ids"]
        assert model.tokenize(text["text"]) == text["ids_no_special"]


def test_chat_prompt_is_the_same(model):
    """The template and the tokenizer together give as many tokens as the golden chat prompt."""
    question = "What is the capital of France, and what is it known for?"
    reply = model.chat([{"role": "user", "content": question}], max_tokens=1)
    assert reply.statistics.prompt_tokens == len(next(cases()).tokens)
