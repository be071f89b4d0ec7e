"""The feed-forward half of a layer: down(activation(gate(x)) · up(x))."""

from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import Activation
from corral.tensor.tensor import Tensor


def gated_mlp(
    g: GraphBuilder, x: Tensor, weights: Weights, hyper: Hyper, activation: Activation
) -> Tensor:
    """Return the feed-forward output of the layer g.layer: (rows, width) → (rows, width)."""
    prefix, i = f"blk.{g.layer}.ffn_", g.layer
    gate = g.matmul(f"gate.{i}", x, weights.get(f"{prefix}gate.weight", hyper.ffn, hyper.width))
    up = g.matmul(f"up.{i}", x, weights.get(f"{prefix}up.weight", hyper.ffn, hyper.width))
    active = g.mul(f"gated.{i}", g.activate(f"active.{i}", gate, activation), up)
    down = weights.get(f"{prefix}down.weight", hyper.width, hyper.ffn)
    return g.matmul(f"down.{i}", active, down)
