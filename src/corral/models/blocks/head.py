"""The two ends of a model: token embedding, and logits from the last hidden state."""

from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.tensor import Tensor

EMBEDDING = "token_embd.weight"


def embed(g: GraphBuilder, weights: Weights, hyper: Hyper, *, scale: float = 1.0) -> Tensor:
    """Return the embeddings of the batch's tokens: (rows, width)."""
    return g.embed(g.tokens, weights.get(EMBEDDING, hyper.vocabulary, hyper.width), scale=scale)


def logits(g: GraphBuilder, x: Tensor, weights: Weights, hyper: Hyper) -> Tensor:
    """Return logits of the selected rows; without an output matrix the embedding serves."""
    g.layer = None
    norm = weights.get("output_norm.weight", hyper.width)
    x = g.rms_norm("output_norm", x, norm, hyper.epsilon)
    name = "output.weight" if weights.has("output.weight") else EMBEDDING
    weight = weights.get(name, hyper.vocabulary, hyper.width)
    return g.matmul("logits", x, weight, is_precise=True)
