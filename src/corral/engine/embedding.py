"""Hidden states to embeddings: how a file wants them pooled, and the vector that is handed out."""

import numpy as np
from numpy.typing import NDArray

from corral.contract.questions import EmbeddingAnswer
from corral.engine.adapter_use import Uses, overflow_advice
from corral.engine.opened import OpenedModel
from corral.engine.runner import NO_EMBEDDINGS
from corral.errors import NotFinite, UnsupportedModel

_POOLINGS = ("none", "mean", "cls", "last", "rank")
"""Kinds of pooling by the number that files give."""
_LAST = 3


def require_embeddings(opened: OpenedModel) -> None:
    """Refuse a model that was loaded for texts only, or whose file wants another pooling.

    Only the last token's hidden state is read: the one that has seen all others. A file that says
    nothing, or "none", is taken to want that.

    Raises:
        UnsupportedModel: if no vector can be had.
    """
    if not opened.loaded.design.limits.embeddings:
        raise UnsupportedModel(NO_EMBEDDINGS)
    architecture = opened.metadata.architecture
    kind = opened.metadata.int(f"{architecture}.pooling_type", _LAST)
    if kind not in (0, _LAST):
        name = _POOLINGS[kind] if 0 <= kind < len(_POOLINGS) else str(kind)
        raise UnsupportedModel(
            f"{opened.name} wants embeddings pooled by {name!r}; corral gives the last token's"
        )


def embedding(vector: NDArray[np.float32], num_tokens: int, adapters: Uses) -> EmbeddingAnswer:
    """Return a hidden state, made with adapters, as a vector of length 1.

    Raises:
        NotFinite: if it has no direction.
    """
    wide = vector.astype(np.float64)
    length = float(np.linalg.norm(wide))
    if not 0 < length < np.inf:
        raise NotFinite(
            f"the hidden state has length {length}; expected a finite one above 0: "
            f"{overflow_advice(adapters)}"
        )
    return EmbeddingAnswer((wide / length).astype("<f4").tobytes(), num_tokens)
