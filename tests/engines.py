"""Engines on a runner that keeps tokens where a model keeps keys and values, and checks them."""

import pytest

from corral.contract.sampling import SamplingParams
from corral.engine.engine import Engine
from corral.kv.spec import GroupSpec, blocks_for, window_blocks
from corral.sampling.sampler import Sampler
from token_memory import VOCABULARY, TokenMemory, logits_after

ROWS, SEQUENCES, CONTEXT = 16, 2, 128
WINDOW = 20
FULL = (GroupSpec(None, SEQUENCES * blocks_for(CONTEXT)),)
WINDOWED = (GroupSpec(WINDOW, SEQUENCES * window_blocks(WINDOW, ROWS)), *FULL)
LAYOUTS = pytest.mark.parametrize("groups", [FULL, WINDOWED], ids=["full", "windowed"])


SHORT = (GroupSpec(None, blocks_for(CONTEXT) + 1),)
"""One block more than a single sequence may need."""


def make(groups=FULL, *, sequences=SEQUENCES, chunk_beside=None, keep=None, **shapes):
    """Return an engine and its runner."""
    runner = TokenMemory(groups, rows=ROWS, sequences=sequences, context=CONTEXT, **shapes)
    engine = Engine(runner, groups, context=CONTEXT, chunk_beside=chunk_beside, keep=keep)
    return engine, runner


DEFAULTS = {}
"""Sampling parameters that a test may set for all its sequences."""


def sampler(seed=1, **options):
    return Sampler(SamplingParams(seed=seed, **(DEFAULTS | options)), VOCABULARY)


def submit(engine, tokens, max_tokens=5, *, seed=1, temperature=None, top_k=None, **options):
    given = {"temperature": temperature, "top_k": top_k}
    chosen = {name: value for name, value in given.items() if value is not None}
    chooser = sampler(seed, **chosen)
    return engine.submit(tokens, sampler=chooser, max_tokens=max_tokens, **options)


def finish(engine, *sequences):
    """Step until all sequences have ended; return what each of them generated."""
    while any(sequence.finish_reason is None for sequence in sequences):
        engine.step()
    return [generated(sequence) for sequence in sequences]


def generated(sequence):
    return sequence.tokens[sequence.num_prompt :]


def alone(tokens, max_tokens, seed, **options):
    """Return what a sequence generates that has the machine for itself."""
    tokens, chooser = list(tokens), sampler(seed, **options)
    num_prompt = len(tokens)
    for _ in range(min(max_tokens, CONTEXT - num_prompt)):
        tokens.append(chooser.sample(logits_after(tokens), len(tokens)))
        chooser.accept(tokens[-1])
    return tokens[num_prompt:]


def is_empty(engine, groups=FULL):
    """Return whether no sequence is there and no block is used."""
    statistics = engine.statistics()
    free = tuple(group.num_blocks for group in groups)
    return (statistics.waiting, statistics.running, statistics.free_blocks) == (0, 0, free)
