"""A runner whose keys and values are the tokens themselves, so that every read can be checked.

It stands where a model would: it writes each row's token to the block of its position, reads back
what attention would read, and refuses to go on unless that is what the sequence holds. Its logits
are random but depend on all of these tokens.
"""

import zlib
from collections import deque

import numpy as np

from corral.engine.batch import BatchArrays, can_draw
from corral.kv.spec import BLOCK_TOKENS
from corral.memory.choices import DRAWS
from corral.sampling import steps
from corral.sampling.candidates import Candidates, Workspace, largest
from corral.sampling.random import uniform
from corral.tensor.graph import ShapeClass

VOCABULARY = 11


def logits_after(tokens):
    """Return the logits that follow some tokens."""
    seed = zlib.crc32(np.array(tokens, np.int32).tobytes())
    return np.random.RandomState(seed).standard_normal(VOCABULARY).astype(np.float32)


def drawn(logits, draw):
    """Return the token that a device chooses which is told no more than a `DRAW`."""
    logits = logits.copy()
    for token, bias in zip(draw["tokens"], draw["biases"], strict=True):
        logits[token] += bias if token >= 0 else 0.0
    found = largest(logits, int(draw["top_k"]), Workspace(VOCABULARY))
    if draw["top_p"] < 1:
        found = steps.top_p(found, draw["top_p"])
    kept = found.logits >= found.logits[0] + draw["floor"]
    found = steps.temperature(Candidates(found.ids[kept], found.logits[kept]), draw["temperature"])
    return steps.draw(found, uniform(int(draw["seed"]), int(draw["position"])))


class TokenMemory:
    """Keeps tokens in blocks, one array for each group of layers."""

    def __init__(self, groups, *, rows=16, outputs=8, sequences=2, context=128):
        self.shapes = ShapeClass(rows, outputs, sequences, -(-context // BLOCK_TOKENS))
        self.num_rows = []
        """Rows of each evaluation so far."""
        self.shifts = []
        """(moves, distance) of each shift so far."""
        self._groups = groups
        self._logits = None
        self._chosen, self._last = deque(), []
        self._arrays = BatchArrays(self.shapes, groups)
        self._kept = [np.full((group.num_blocks, BLOCK_TOKENS), -1) for group in groups]
        self._places = [kept.copy() for kept in self._kept]
        """The position for which each token was computed."""

    is_asynchronous = False

    @property
    def can_feed(self):
        return self.is_asynchronous

    def run(self, batch):
        """Start a batch and finish it."""
        self.start(batch)
        return self.finish()

    def finish(self):
        """Return the logits of the rows that wanted some, once."""
        logits, self._logits = self._logits, None
        assert logits is not None
        return logits

    def can_choose(self, samplers):
        """Say whether all of them can be told by a draw; the device has no other limits."""
        draws = [sampler and sampler.draw for sampler in samplers]
        return self.is_asynchronous and bool(draws) and all(map(can_draw, draws))

    def choices(self):
        """Return the tokens of the oldest batch that chose."""
        return self._chosen.popleft()

    def shift(self, moves, distance):
        """Move what blocks hold, and turn it to lower positions."""
        assert self._logits is None and not self._chosen, "something is under way"
        assert distance > 0 and distance % BLOCK_TOKENS == 0
        (kept,) = self._kept
        (places,) = self._places
        sources, targets = [move.source for move in moves], [move.target for move in moves]
        kept[targets] = kept[sources]
        places[targets] = places[sources] - distance
        self.shifts.append((tuple(moves), distance))

    def start(self, batch, *, chooses=False):
        """Write and read back; the last batch must be finished, or both choose."""
        assert self._logits is None
        assert len(self._chosen) <= int(chooses)
        inputs = self._arrays.fill(batch)
        self._before = self._last
        given = inputs["tokens"]
        given[given < 0] = [self._before[-1 - token] for token in given[given < 0]]
        positions, sequences = inputs["positions"], inputs["sequences"]
        assert 0 < len(positions) <= self.shapes.rows
        assert len(batch) <= self.shapes.sequences
        self.num_rows.append(len(positions))
        for group, kept, places in zip(self._groups, self._kept, self._places, strict=True):
            blocks = inputs[group.tables_name][sequences, positions // BLOCK_TOKENS]
            kept[blocks, positions % BLOCK_TOKENS] = inputs["tokens"]
            places[blocks, positions % BLOCK_TOKENS] = positions
            for number, rows in enumerate(batch):
                table = inputs[group.tables_name][number]
                mine = positions[sequences == number]
                seen = self._seen(group, mine)
                at = (table[seen // BLOCK_TOKENS], seen % BLOCK_TOKENS)
                assert kept[at].tolist() == self._tokens_of(rows)[seen[0] : seen[-1] + 1]
                assert places[at].tolist() == seen.tolist()
        held = [self._tokens_of(rows) for rows in batch]
        rows = inputs["output_rows"]
        logits = np.array(
            [logits_after(held[sequences[r]][: positions[r] + 1]) for r in rows], np.float32
        ).reshape(len(rows), VOCABULARY)
        if chooses:
            self._last = [drawn(*one) for one in zip(logits, inputs[DRAWS], strict=True)]
            self._chosen.append(self._last)
        else:
            self._logits = logits

    def _tokens_of(self, rows):
        """Return the tokens of a sequence, with the one that it is fed."""
        fed = [] if rows.fed_by is None else [self._before[rows.fed_by]]
        return rows.sequence.tokens + fed

    def _seen(self, group, positions):
        """Return the positions that the rows of one sequence see."""
        window = group.window or positions[-1] + 1
        return np.arange(max(0, positions[0] - window + 1), positions[-1] + 1)
