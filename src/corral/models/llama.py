"""Llama and what follows it: Llama 1 to 3, SmolLM2, Mistral, and many fine-tunes of them."""

from corral.errors import UnsupportedModel
from corral.gguf import Metadata
from corral.kv.spec import KVSpec
from corral.models.architecture import Architecture
from corral.models.blocks.attention import AttentionStyle
from corral.models.blocks.decoder import decoder, full_layers
from corral.models.hyper import Hyper, read_hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import RopePairs
from corral.tensor.tensor import Tensor


def read(metadata: Metadata) -> Hyper:
    """Read the sizes of a dense llama."""
    if metadata.int("llama.expert_count", 0):
        raise UnsupportedModel("this llama is a mixture of experts, which corral does not run yet")
    return read_hyper(metadata)


def build(g: GraphBuilder, weights: Weights, hyper: Hyper, kv: KVSpec) -> Tensor:
    """Write the graph; its converter stores q and k so that neighbours turn together."""
    return decoder(g, weights, hyper, kv, AttentionStyle(RopePairs.NEIGHBOURS))


ARCHITECTURE = Architecture(read, full_layers, build)
