"""What a device needs that chooses tokens itself: the likeliest, or one drawn among the likeliest.

    row of logits ─▶ biases ─▶ parts ─▶ the greatest keys of each ─▶ the greatest of all ─▶ token
    draws (an input, one a row) ─┴──────────────┴─────────────────────────┘

Sizes only; how a token is drawn is known to who draws it.
"""

from corral.memory.traits import DeviceTraits
from corral.tensor.graph import Graph
from corral.tensor.tensor import Extent

DRAWS = "draws"
"""Name of the staging slot that says for each row of logits how its token is chosen."""
DRAW_BYTES = 80
"""Of one row."""
MOST_CANDIDATES = 128
"""Likeliest tokens that one is drawn among at most."""
MOST_BIASES = 4
"""Tokens whose logits get a bias before: enough for those that end an answer."""
_LEAST_PARTS = 32
"""Parts of a row of logits, whose greatest are found apart: as many as keep a card busy …"""
_MOST_PARTS = 96
_PART_LOGITS = 4096
"""… or as have no more logits than this."""
_KEY_BYTES = 8


def choosing_rows(graph: Graph, traits: DeviceTraits) -> int:
    """Return for how many rows of logits at most the device chooses tokens; 0 if it does not."""
    logits = graph.outputs[0]
    if traits.flights < 2 or logits.extent is not Extent.OUTPUTS:
        return 0
    return logits.shape[0] if choice_parts(logits.columns) <= _MOST_PARTS else 0


def choice_parts(vocabulary: int) -> int:
    """Return in how many parts a row of logits is searched."""
    return max(_LEAST_PARTS, -(-vocabulary // _PART_LOGITS))


def partials_bytes(rows: int, vocabulary: int) -> int:
    """Return the scratch for the greatest keys of each part of so many rows."""
    return rows * choice_parts(vocabulary) * MOST_CANDIDATES * _KEY_BYTES
