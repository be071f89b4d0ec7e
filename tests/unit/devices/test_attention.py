"""The cache and attention on every device that computes, against the formula over history."""

import numpy as np
import pytest

from attention_cases import BLOCKS, CASES, CachedAttention, block_tables, check
from corral.devices.host import array_at
from golden import nmse


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_attention(computing, case):
    """Each row sees its own sequence's past, in or before this batch, and no other."""
    check(computing, case)


def test_blocks_behind_the_window_are_not_read(computing):
    """A table may name any block where a windowed layer has given its block back."""
    case = next(case for case in CASES if case.name == "window")
    with CachedAttention(computing, case) as attention:
        attention.run([(0, 40)])
        tables, gone = block_tables(), 11
        assert gone not in tables[0]
        _poison(attention, gone)
        tables[0][0] = gone
        actual, expected = attention.run([(0, 8)], tables)
    assert nmse(actual, expected) <= case.tolerance


def test_unwritten_tokens_of_the_last_block_are_not_read(computing):
    """What an earlier sequence left behind the last position never reaches a sum."""
    with CachedAttention(computing, CASES[0]) as attention:
        for block in range(BLOCKS):
            _poison(attention, block)
        actual, expected = attention.run([(0, 33), (1, 2)])
    assert nmse(actual, expected) <= CASES[0].tolerance


def _poison(attention, block):
    evaluation = attention.evaluation
    state = attention.graph.nodes[3]
    address = evaluation.buffers.address(evaluation.plan, state)
    array_at(address, state.shape, np.float32)[block] = np.nan
