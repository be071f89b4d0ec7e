"""The pre-norm decoder that llama made common: norm, attention, add; norm, feed-forward, add."""

from corral.kv.spec import KVSpec, LayerSpec
from corral.models.blocks.attention import AttentionStyle, attention
from corral.models.blocks.head import embed, logits
from corral.models.blocks.mlp import gated_mlp
from corral.models.blocks.rope import frequencies, magnitude
from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import Activation
from corral.tensor.tensor import Tensor


def full_layers(hyper: Hyper) -> tuple[LayerSpec, ...]:
    """Return what the layers keep when each of them looks back without limit."""
    return (LayerSpec(hyper.kv_heads, hyper.head_dim),) * hyper.layers


def decoder(
    g: GraphBuilder, weights: Weights, hyper: Hyper, kv: KVSpec, style: AttentionStyle
) -> Tensor:
    """Return the logits of a plain pre-norm decoder."""
    constant = g.constant(
        "rope_frequencies", frequencies(hyper.rope_dims, hyper.rope_base, hyper.rope_scaling)
    )
    factors = weights.find("rope_freqs.weight", hyper.rope_dims // 2)
    mscale = magnitude(hyper.rope_scaling)
    rotations = g.rotations("rotations", constant, factors, magnitude=mscale)
    x = embed(g, weights, hyper)
    for i in range(hyper.layers):
        g.layer = i
        norm = weights.get(f"blk.{i}.attn_norm.weight", hyper.width)
        normed = g.rms_norm(f"attn_norm.{i}", x, norm, hyper.epsilon)
        mixed = attention(g, normed, weights, hyper, kv, rotations, style=style)
        x = g.add(f"attention_add.{i}", x, mixed)
        if i == hyper.layers - 1:
            x = g.select_rows("selected", x)
        norm = weights.get(f"blk.{i}.ffn_norm.weight", hyper.width)
        normed = g.rms_norm(f"ffn_norm.{i}", x, norm, hyper.epsilon)
        x = g.add(f"ffn_add.{i}", x, gated_mlp(g, normed, weights, hyper, Activation.SILU))
    return logits(g, x, weights, hyper)
