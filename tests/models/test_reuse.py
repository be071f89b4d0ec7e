"""A chat with the demo model: what was said before is not computed again, and nothing changes."""

import numpy as np

from corral.contract.sampling import SamplingParams
from corral.engine.model import Model
from smollm2 import demo_path, needs_demo

pytestmark = needs_demo

QUESTIONS = (
    "Name three rivers in Europe, with one sentence each.",
    "And in Asia?",
    "Which is longest?",
)
GREEDY = SamplingParams(temperature=0.0)


def test_every_turn_says_what_it_says_without_a_past():
    """Each turn computes its new tokens and the block they begin in, and answers the same."""
    messages = []
    with Model.load(demo_path(), context=1024) as model:
        for question in QUESTIONS:
            known = model.statistics().known_blocks[0]
            messages.append({"role": "user", "content": question})
            reply = model.chat(messages, max_tokens=24, sampling=GREEDY)
            fresh = fresh_reply(messages)
            assert reply.text == fresh.text
            assert fresh.statistics.cached_tokens == 0
            # All that was computed and is part of this prompt, in whole blocks.
            assert known // 2 * 32 <= reply.statistics.cached_tokens <= known * 32
            messages.append({"role": "assistant", "content": reply.text})


def fresh_reply(messages):
    """Return the reply of a model that knows nothing yet."""
    with Model.load(demo_path(), context=1024) as model:
        return model.chat(messages, max_tokens=24, sampling=GREEDY)


def test_logits_do_not_see_what_is_known():
    """A pass over tokens that an answer left in the cache gives the bits it gave before."""
    with Model.load(demo_path(), context=256) as model:
        tokens = model.tokenize("The quick brown fox jumps over the lazy dog. " * 8)
        before = model.logits(tokens)
        list(model.generate(tokens, max_tokens=8, ignore_eos=True))
        assert model.statistics().known_blocks[0] > 0
        np.testing.assert_array_equal(model.logits(tokens), before)
