"""Qwen2 and Qwen2.5: llama with biases on q, k and v, and halves that turn together."""

from corral.kv.spec import KVSpec
from corral.models.architecture import Architecture
from corral.models.blocks.attention import AttentionStyle
from corral.models.blocks.decoder import decoder, full_layers
from corral.models.hyper import Hyper, read_hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import RopePairs
from corral.tensor.tensor import Tensor


def build(g: GraphBuilder, weights: Weights, hyper: Hyper, kv: KVSpec) -> Tensor:
    """Write the graph; the biases are found by name."""
    return decoder(g, weights, hyper, kv, AttentionStyle(RopePairs.HALVES))


ARCHITECTURE = Architecture(read_hyper, full_layers, build)
