"""A sequence's blocks: grown, slid behind a window, trimmed, adopted; then any order of all."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from corral.errors import CapacityExceeded
from corral.kv.pool import BlockPool
from corral.kv.spec import BLOCK_TOKENS, blocks_for
from corral.kv.table import GONE, BlockTable


def test_grows_by_whole_blocks():
    """The first token of a block takes it, the others find it there."""
    pool = BlockPool(4)
    table = BlockTable(pool)
    for tokens, blocks in ((0, 0), (1, 1), (32, 1), (33, 2)):
        table.grow(tokens)
        assert len(table.blocks) == blocks
    assert table.blocks_missing(100) == 2
    assert pool.statistics().num_free == 2


def test_says_whether_it_can_grow():
    """A sequence asks before it takes, and only for what it lacks."""
    pool = BlockPool(2)
    table = BlockTable(pool)
    table.grow(32)
    assert table.can_grow(64)
    assert not table.can_grow(65)
    with pytest.raises(CapacityExceeded):
        table.grow(65)


def test_trim_gives_back_from_the_end():
    """The kept tokens stay where they were."""
    pool = BlockPool(4)
    table = BlockTable(pool)
    table.grow(128)
    before = list(table.blocks)
    table.trim(40)
    assert table.blocks == before[:2]
    table.trim(0)
    assert table.blocks == []
    assert pool.statistics().num_free == 4


def test_without_a_window_nothing_slides():
    """A layer that sees everything keeps everything."""
    pool = BlockPool(4)
    table = BlockTable(pool)
    table.grow(128)
    table.slide(128)
    assert pool.statistics().num_free == 0


@pytest.mark.parametrize(
    ("next_position", "gone"), [(0, 0), (40, 0), (63, 0), (64, 1), (95, 1), (96, 2)]
)
def test_blocks_behind_the_window_go(next_position, gone):
    """With a window of 33, the row at position p sees p − 32 and what follows."""
    pool = BlockPool(4)
    table = BlockTable(pool, window=33)
    table.grow(128)
    before = list(table.blocks)
    table.slide(next_position)
    assert pool.statistics().num_free == gone
    assert table.blocks == [GONE] * gone + before[gone:]


def test_trimming_a_slid_table_frees_each_block_once():
    """Blocks that went behind the window are not given back again."""
    pool = BlockPool(4)
    table = BlockTable(pool, window=1)
    table.grow(128)
    table.slide(100)
    table.trim(0)
    assert pool.statistics().num_free == 4
    table.grow(128)
    assert sorted(table.blocks) == [0, 1, 2, 3]


def test_adopted_blocks_are_shared():
    """Two sequences with one beginning hold its blocks together."""
    pool = BlockPool(4)
    first, second = BlockTable(pool), BlockTable(pool)
    first.grow(64)
    second.adopt(first.blocks)
    second.grow(96)
    assert second.blocks[:2] == first.blocks
    first.trim(0)
    assert [pool.references(block) for block in second.blocks] == [1, 1, 1]
    second.trim(0)
    assert pool.statistics().num_free == 4


NUM_BLOCKS = 12


class Tables(RuleBasedStateMachine):
    """Sequences come, grow, slide, share and go in any order; the pool's books must balance."""

    tables = Bundle("tables")

    @initialize()
    def begin(self):
        self.pool = BlockPool(NUM_BLOCKS)
        self.open = {}

    @rule(target=tables, window=st.sampled_from([None, 1, 33, 64]))
    def new(self, window):
        table = BlockTable(self.pool, window=window)
        self.open[table] = [window, 0, 0]  # window, tokens, blocks behind the window
        return table

    @rule(target=tables, table=tables, keep=st.integers(0, NUM_BLOCKS))
    def adopt(self, table, keep):
        _, tokens, gone = self.open[table]
        child = BlockTable(self.pool)
        blocks = [] if gone else table.blocks[: min(keep, tokens // BLOCK_TOKENS)]
        child.adopt(blocks)
        self.open[child] = [None, len(blocks) * BLOCK_TOKENS, 0]
        return child

    @rule(table=tables, more=st.integers(1, 100))
    def grow(self, table, more):
        tokens = self.open[table][1] + more
        missing = max(0, blocks_for(tokens) - len(table.blocks))
        assert table.blocks_missing(tokens) == missing
        before = list(table.blocks)
        if table.can_grow(tokens):
            table.grow(tokens)
            self.open[table][1] = tokens
        else:
            assert missing > self.pool.statistics().num_free
            with pytest.raises(CapacityExceeded):
                table.grow(tokens)
        assert table.blocks[: len(before)] == before

    @rule(table=tables)
    def slide(self, table):
        window, tokens, gone = self.open[table]
        table.slide(tokens)
        if window is not None:
            seen = max(0, tokens - window + 1) // BLOCK_TOKENS
            self.open[table][2] = max(gone, seen)

    @rule(table=tables, share=st.floats(0, 1))
    def trim(self, table, share):
        _, tokens, gone = self.open[table]
        kept = int(tokens * share)
        table.trim(kept)
        self.open[table][1:] = kept, min(gone, blocks_for(kept))
        assert len(table.blocks) == blocks_for(kept)

    @rule(table=consumes(tables))
    def end(self, table):
        table.trim(0)
        assert table.blocks == []
        del self.open[table]

    def held(self):
        return [block for table, (_, _, gone) in self.open.items() for block in table.blocks[gone:]]

    @invariant()
    def references_are_what_tables_hold(self):
        if hasattr(self, "pool"):
            held = self.held()
            for block in range(NUM_BLOCKS):
                assert self.pool.references(block) == held.count(block)

    @invariant()
    def no_block_is_lost(self):
        if hasattr(self, "pool"):
            statistics = self.pool.statistics()
            assert statistics.num_free == NUM_BLOCKS - len(set(self.held()))
            assert self.pool.can_take(statistics.num_free)
            assert not self.pool.can_take(statistics.num_free + 1)

    @invariant()
    def a_table_never_holds_a_block_twice(self):
        for table, (_, _, gone) in getattr(self, "open", {}).items():
            live = table.blocks[gone:]
            assert len(live) == len(set(live))
            assert table.blocks[:gone] == [GONE] * gone


TestTables = Tables.TestCase
