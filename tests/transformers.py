"""Graphs as model files write them, small or large, with every operation in its usual place."""

from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Activation, Attend, Rope, RopePairs

TINY = ShapeClass(rows=48, outputs=4, sequences=2, blocks=4)


def transformer(
    shape_class=TINY,
    *,
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    ffn=96,
    vocabulary=80,
    dtype=DType.F32,
    kv_dtype=DType.F32,
    window=None,
    norms=False,
):
    """Return the graph of a llama-like model; `norms`: with norms of the heads of q and k."""
    g, dim = GraphBuilder(shape_class), width // heads
    table = g.weight("table", dtype, (vocabulary, width))
    x = g.embed(g.tokens, table)
    frequencies = tuple(10000.0 ** (-2 * i / dim) for i in range(dim // 2))
    turns = g.rotations("turns", g.constant("frequencies", frequencies))
    rope = Rope(dim, RopePairs.HALVES)
    attend = Attend(heads, kv_heads, dim, dim**-0.5, window)
    state_shape = (shape_class.sequences * shape_class.blocks, 2, kv_heads, 32, dim)

    def weight(name, rows, columns):
        return g.weight(f"{name}.{i}.weight", dtype, (rows, columns))

    def norm(name, value):
        return g.rms_norm(
            f"{name}.{i}", value, g.weight(f"{name}.{i}.w", DType.F32, (width,)), 1e-5
        )

    def turn(name, value):
        if norms:
            w = g.weight(f"{name}_norm.{i}.w", DType.F32, (dim,))
            value = g.rms_norm(f"{name}_norm.{i}", value, w, 1e-5, group=dim)
        return g.rope(f"{name}_rope.{i}", value, turns, rope)

    for i in range(layers):
        g.layer = i
        h = norm("attn_norm", x)
        q = g.matmul(f"q.{i}", h, weight("q", width, width))
        k = g.matmul(f"k.{i}", h, weight("k", kv_heads * dim, width))
        v = g.matmul(f"v.{i}", h, weight("v", kv_heads * dim, width))
        q, k = turn("q", q), turn("k", k)
        state = g.state(f"kv.{i}", kv_dtype, state_shape)
        appended = g.kv_append(f"append.{i}", k, v, state, g.tables("tables"))
        mixed = g.attention(f"attention.{i}", q, appended, attend)
        x = g.add(f"add.{i}", x, g.matmul(f"o.{i}", mixed, weight("o", width, width)))
        if i == layers - 1:
            x = g.select_rows("selected", x)
        h = norm("ffn_norm", x)
        gate = g.matmul(f"gate.{i}", h, weight("gate", ffn, width))
        up = g.matmul(f"up.{i}", h, weight("up", ffn, width))
        active = g.activate(f"active.{i}", gate, Activation.SILU)
        down = g.matmul(f"down.{i}", g.mul(f"gated.{i}", active, up), weight("down", width, ffn))
        x = g.add(f"ffn_add.{i}", x, down)
    i, g.layer = layers, None
    return g.finish(g.matmul("logits", norm("output_norm", x), table))


def batch(lengths, starts=(0, 0), *, blocks=4, outputs=None):
    """Return the inputs of a batch: `lengths[s]` tokens of sequence s from position `starts[s]`.

    Wanted are the logits of each sequence's last token, unless `outputs` says other rows. The
    blocks of the sequences are mixed, so that a table which is not followed is found out.
    """
    tokens, positions, sequences, last = [], [], [], []
    for sequence, (length, start) in enumerate(zip(lengths, starts, strict=False)):
        positions += range(start, start + length)
        sequences += [sequence] * length
        tokens += [(7 * p + 11 * sequence + 3) % 80 for p in range(start, start + length)]
        last.append(len(tokens) - 1)
    tables = [[2 * b + s for b in reversed(range(blocks))] for s in range(len(lengths))]
    wanted = last if outputs is None else outputs
    return {
        "tokens": tokens,
        "positions": positions,
        "sequences": sequences,
        "tables": tables,
        "output_rows": wanted,
        "outputs": len(wanted),
    }
