"""All logits of one causal pass, chunk by chunk, beside whatever else is running."""

import numpy as np
from numpy.typing import NDArray

from corral.engine.batch import Rows
from corral.engine.cache import Cache
from corral.engine.runner import Runner
from corral.engine.sequence import Sequence
from corral.errors import ContextExceeded, ResourceError
from corral.kv.spec import blocks_for


def compute_logits(
    sequence: Sequence,
    into: NDArray[np.float32],
    runner: Runner,
    cache: Cache,
    num_running: int,
    context: int,
) -> None:
    """Write the logits of every token of a sequence nobody else knows: (tokens, vocabulary).

    Nothing may be under way.

    Raises:
        ContextExceeded: if there are more tokens than the context holds.
        ResourceError: if as many sequences are running as there may be.
    """
    if len(sequence.tokens) > context:
        raise ContextExceeded(
            f"{len(sequence.tokens)} tokens were given, the context holds {context}: load the "
            "model with a larger context"
        )
    shapes, free = runner.shapes, cache.num_free
    has_blocks = free is None or blocks_for(len(sequence.tokens)) <= free
    if num_running >= shapes.sequences or not has_blocks:
        raise ResourceError(
            f"all {shapes.sequences} sequences the model was loaded for are in use: finish or "
            "cancel an answer first, or raise --parallel"
        )
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
