"""Llama and what follows it: Llama 1 to 3, SmolLM2, Mistral, and many fine-tunes of them."""

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
    """Write the graph; its converter stores q and k so that neighbours turn together."""
    return decoder(g, weights, hyper, kv, AttentionStyle(RopePairs.NEIGHBOURS))


ARCHITECTURE = Architecture(read_hyper, full_layers, build)
