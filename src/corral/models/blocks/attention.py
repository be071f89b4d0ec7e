"""The attention half of a layer: projections, optional norms of q and k, rope, cache, output."""

from dataclasses import dataclass

from corral.kv.spec import KVSpec, state_name
from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import Attend, Rope, RopePairs
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class AttentionStyle:
    """How a family's attention differs from the plain one."""

    pairs: RopePairs
    norms: bool = False
    """Whether q and k are normed a head at a time."""
    scale: float | None = None
    """Factor of q·k; None is 1/√head_dim."""


def attention(
    g: GraphBuilder,
    x: Tensor,
    weights: Weights,
    hyper: Hyper,
    kv: KVSpec,
    rotations: Tensor,
    *,
    style: AttentionStyle,
) -> Tensor:
    """Return the attention output of the layer g.layer: (rows, width) → (rows, width)."""
    assert g.layer is not None
    prefix, i, dim = f"blk.{g.layer}.attn_", g.layer, hyper.head_dim

    def project(part: str, heads: int) -> Tensor:
        weight = weights.get(f"{prefix}{part}.weight", heads * dim, hyper.width)
        bias = weights.find(f"{prefix}{part}.bias", heads * dim)
        # Errors in values go straight to the output, and these products are a small part of all.
        return g.matmul(f"{part}.{i}", x, weight, bias, is_precise=True)

    def turn(part: str, value: Tensor) -> Tensor:
        if style.norms:
            weight = weights.get(f"{prefix}{part}_norm.weight", dim)
            value = g.rms_norm(f"{part}_norm.{i}", value, weight, hyper.epsilon, group=dim)
        return g.rope(f"{part}_rope.{i}", value, rotations, Rope(dim, style.pairs))

    # The three products come first: nothing separates them, so they can run side by side.
    q, k, v = project("q", hyper.heads), project("k", hyper.kv_heads), project("v", hyper.kv_heads)
    q, k = turn("q", q), turn("k", k)
    state = g.state(state_name(i), kv.dtype, kv.state_shape(i))
    appended = g.kv_append(f"kv_append.{i}", k, v, state, g.tables(kv.group(i).tables_name))
    attend = Attend(hyper.heads, hyper.kv_heads, dim, style.scale or dim**-0.5, kv.layers[i].window)
    mixed = g.attention(f"attention.{i}", q, appended, attend)
    weight = weights.get(f"{prefix}output.weight", hyper.width, hyper.heads * dim)
    bias = weights.find(f"{prefix}output.bias", hyper.width)
    return g.matmul(f"attention_out.{i}", mixed, weight, bias)
