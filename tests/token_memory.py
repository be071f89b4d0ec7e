"""A runner whose keys and values are the tokens themselves, so that every read can be checked.

It stands where a model would: it writes each row's token to the block of its position, reads back
what attention would read, and refuses to go on unless that is what the sequence holds. Its logits
are random but depend on all of these tokens.
"""

import zlib

import numpy as np

from corral.engine.batch import BatchArrays
from corral.kv.spec import BLOCK_TOKENS
from corral.tensor.graph import ShapeClass

VOCABULARY = 11


def logits_after(tokens):
    """Return the logits that follow some tokens."""
    seed = zlib.crc32(np.array(tokens, np.int32).tobytes())
    return np.random.RandomState(seed).standard_normal(VOCABULARY).astype(np.float32)


class TokenMemory:
    """Keeps tokens in blocks, one array for each group of layers."""

    def __init__(self, groups, *, rows=16, outputs=8, sequences=2, context=128):
        self.shapes = ShapeClass(rows, outputs, sequences, -(-context // BLOCK_TOKENS))
        self.num_rows = []
        """Rows of each evaluation so far."""
        self._groups = groups
        self._logits = None
        self._arrays = BatchArrays(self.shapes, groups)
        self._kept = [np.full((group.num_blocks, BLOCK_TOKENS), -1) for group in groups]

    is_asynchronous = False

    def run(self, batch):
        """Start a batch and finish it."""
        self.start(batch)
        return self.finish()

    def finish(self):
        """Return the logits of the rows that wanted some, once."""
        logits, self._logits = self._logits, None
        assert logits is not None
        return logits

    def start(self, batch):
        """Write and read back; the last batch must be finished."""
        assert self._logits is None
        inputs = self._arrays.fill(batch)
        positions, sequences = inputs["positions"], inputs["sequences"]
        assert 0 < len(positions) <= self.shapes.rows
        assert len(batch) <= self.shapes.sequences
        self.num_rows.append(len(positions))
        for group, kept in zip(self._groups, self._kept, strict=True):
            blocks = inputs[group.tables_name][sequences, positions // BLOCK_TOKENS]
            kept[blocks, positions % BLOCK_TOKENS] = inputs["tokens"]
            for number, rows in enumerate(batch):
                table = inputs[group.tables_name][number]
                mine = positions[sequences == number]
                self._check(group, kept, table, rows.sequence, mine)
        rows = inputs["output_rows"]
        self._logits = np.array(
            [logits_after(batch[sequences[r]].sequence.tokens[: positions[r] + 1]) for r in rows],
            np.float32,
        ).reshape(len(rows), VOCABULARY)

    def _check(self, group, kept, table, sequence, positions):
        """Compare all that the rows of one sequence see with what the sequence holds."""
        window = group.window or positions[-1] + 1
        seen = np.arange(max(0, positions[0] - window + 1), positions[-1] + 1)
        read = kept[table[seen // BLOCK_TOKENS], seen % BLOCK_TOKENS]
        assert read.tolist() == sequence.tokens[seen[0] : seen[-1] + 1]
