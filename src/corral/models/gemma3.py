"""Gemma 3: five windowed layers to each full one, norms before and after both halves, GELU.

Windowed layers turn by the local base and without scaling (Gemma 3 report, arXiv 2503.19786).
"""

import math
from dataclasses import replace

from corral.errors import InvalidModelFile
from corral.gguf import Metadata
from corral.kv.spec import KVSpec, LayerSpec
from corral.models.architecture import Architecture
from corral.models.blocks.attention import AttentionStyle, attention
from corral.models.blocks.head import embed, logits
from corral.models.blocks.mlp import gated_mlp
from corral.models.blocks.rope import frequencies, magnitude
from corral.models.hyper import Hyper, RopeScaling, read_hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import Activation, RopePairs
from corral.tensor.tensor import Tensor

LOCAL_ROPE_BASE = 10000.0
FULL_LAYER_EVERY = 6
LAYERS_OF_27B = 62
"""The largest model scales q·k by its width a head, not by its head size."""


def read(metadata: Metadata) -> Hyper:
    """Read the sizes; the window is required."""
    hyper = read_hyper(metadata)
    if hyper.window is None:
        raise InvalidModelFile("metadata has no gemma3.attention.sliding_window")
    if "gemma3.rope.freq_base" not in metadata:
        hyper = replace(hyper, rope_base=1e6)
    return hyper


def layers(hyper: Hyper) -> tuple[LayerSpec, ...]:
    """Return what the layers keep: each sixth looks back without limit."""
    return tuple(
        LayerSpec(hyper.kv_heads, hyper.head_dim, None if _is_full(i) else hyper.window)
        for i in range(hyper.layers)
    )


def build(g: GraphBuilder, weights: Weights, hyper: Hyper, kv: KVSpec) -> Tensor:
    """Write the graph."""
    local = frequencies(hyper.rope_dims, LOCAL_ROPE_BASE, RopeScaling("none"))
    full = frequencies(hyper.rope_dims, hyper.rope_base, hyper.rope_scaling)
    mscale = magnitude(hyper.rope_scaling)
    turns = {
        False: g.rotations("rotations_local", g.constant("rope_frequencies_local", local)),
        True: g.rotations("rotations", g.constant("rope_frequencies", full), magnitude=mscale),
    }
    scale = (hyper.width / hyper.heads) ** -0.5 if hyper.layers == LAYERS_OF_27B else None
    style = AttentionStyle(RopePairs.HALVES, norms=True, scale=scale)
    x = embed(g, weights, hyper, scale=math.sqrt(hyper.width))
    for i in range(hyper.layers):
        g.layer = i
        normed = _norm(g, x, weights, hyper, "attn_norm")
        mixed = attention(g, normed, weights, hyper, kv, turns[_is_full(i)], style=style)
        x = g.add(f"attention_add.{i}", x, _norm(g, mixed, weights, hyper, "post_attention_norm"))
        if i == hyper.layers - 1:
            x = g.select_rows("selected", x)
        normed = _norm(g, x, weights, hyper, "ffn_norm")
        fed = gated_mlp(g, normed, weights, hyper, Activation.GELU)
        x = g.add(f"ffn_add.{i}", x, _norm(g, fed, weights, hyper, "post_ffw_norm"))
    return logits(g, x, weights, hyper)


def _is_full(layer: int) -> bool:
    return layer % FULL_LAYER_EVERY == FULL_LAYER_EVERY - 1


def _norm(g: GraphBuilder, x: Tensor, weights: Weights, hyper: Hyper, name: str) -> Tensor:
    weight = weights.get(f"blk.{g.layer}.{name}.weight", hyper.width)
    return g.rms_norm(f"{name}.{g.layer}", x, weight, hyper.epsilon)


ARCHITECTURE = Architecture(read, layers, build)
