"""The demo model on a card: as near to the exact model as on the CPU."""

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
)

pytestmark = [needs_golden, needs_demo]


@pytest.fixture(scope="module", params=["f16", "bf16", "q8_0"])
def scored(request):
    """Every prompt with the card's logits over it and its continuation, for each kind of cache."""
    options = {"device": "cuda:0", "context": 512, "kv_type": request.param}
    with Model.load(demo_path(), **options) as model:
        return [(case, model.logits(case.all_tokens)) for case in cases()]


def test_distributions_are_near(scored):
    """On average nearer to the exact distributions than llama.cpp, and nowhere far."""
    found = {case.name: mean_kl(case, logits) for case, logits in scored}
    assert all(found[name] <= highest for name, highest in HIGHEST_KL.items()), found
    assert statistics.mean(found.values()) <= HIGHEST_MEAN_KL, found


def test_clear_choices_are_the_same(scored):
    """Wherever the exact model's choice is clear, the card's is the same."""
    found = {case.name: greedy_agreement(case, logits) for case, logits in scored}
    assert all(g.clear_agreed == g.clear_steps for g in found.values()), found
