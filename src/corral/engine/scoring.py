"""All logits of one causal pass, chunk by chunk."""

import numpy as np
from numpy.typing import NDArray

from corral.engine.batch import Rows
from corral.engine.cache import Cache
from corral.engine.runner import Runner
from corral.engine.sequence import Sequence


def compute_logits(
    sequence: Sequence, into: NDArray[np.float32], runner: Runner, cache: Cache
) -> None:
    """Write the logits of every token of a sequence nobody else knows: (tokens, vocabulary)."""
    shapes = runner.shapes
    cache.open_tables(sequence)
    chunk = min(shapes.outputs, shapes.rows)
    try:
        for first in range(0, len(sequence.tokens), chunk):
            count = min(chunk, len(sequence.tokens) - first)
            cache.grow(sequence, count)
            into[first : first + count] = runner.run([Rows(sequence, count, count)])
            cache.advance(sequence, count)
    finally:
        cache.close_tables(sequence)
