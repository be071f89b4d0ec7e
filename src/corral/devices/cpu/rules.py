"""How each operation becomes a kernel and its fields."""

from corral.devices.binding import float_word
from corral.devices.cpu.compile import Emit, KernelSpec
from corral.devices.cpu.kernels import (
    attention,
    elementwise,
    embed,
    gated,
    kv_append,
    kv_shift,
    lora,
    matmul,
    norm,
    pack,
    quantize,
    rope,
    select_rows,
)
from corral.devices.cpu.lower import Binding, Lowered, Rules
from corral.devices.node_fields import (
    append_fields,
    rope_fields,
    rotation_fields,
    row_fields,
    shift_fields,
)
from corral.errors import InternalError
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from corral.tensor.ops import Attend, Cap, Embed, Gate, Norm, Op, Rope
from corral.tensor.tensor import Tensor


def pack_spec(dtype: DType) -> KernelSpec:
    """Return the kernel that packs weights of a data type."""
    return KernelSpec.of(pack.pack, dtype=dtype.name)


def _planes(coded: Tensor) -> int:
    return quantize.PLANES[coded.dtype]


def _embed(at: Binding, node: Tensor) -> Lowered:
    tokens, table = node.sources
    assert isinstance(node.attributes, Embed)
    values = {
        "tokens": at.address(tokens),
        "count": at.count(node),
        "table": at.address(table),
        "out": at.address(node),
        "out_stride": node.row_bytes,
        "columns": table.columns,
        "vocabulary": table.rows,
        "scale": float_word(node.attributes.scale),
    }
    return KernelSpec.of(embed.embed, dtype=table.dtype.name), values, embed.FIELDS


def _rms_norm(at: Binding, node: Tensor) -> Lowered:
    attributes = node.attributes
    assert isinstance(attributes, Norm)
    values = row_fields(at, node) | {
        "weight": at.address(node.sources[1]),
        "groups": node.columns // attributes.group,
        "group": attributes.group,
        "epsilon": float_word(attributes.epsilon),
    }
    return KernelSpec.of(norm.rms_norm), values, norm.NORM_FIELDS


def _norm_quantize(at: Binding, node: Tensor) -> Lowered:
    attributes = node.attributes
    assert isinstance(attributes, Norm)
    values = row_fields(at, node) | {
        "weight": at.address(node.sources[1]),
        "columns": node.columns,
        "epsilon": float_word(attributes.epsilon),
    }
    return (
        KernelSpec.of(norm.norm_quantize, planes=_planes(node)),
        values,
        norm.NORM_QUANTIZE_FIELDS,
    )


def _quantize(at: Binding, node: Tensor) -> Lowered:
    values = row_fields(at, node) | {"columns": node.columns}
    return KernelSpec.of(quantize.quantize, planes=_planes(node)), values, quantize.FIELDS


def _matmul(at: Binding, node: Tensor) -> Lowered:
    x, weight, *rest = node.sources
    residual = rest.pop(0) if node.op is Op.MATMUL_ADD else None
    layout = LAYOUTS[weight.dtype].name
    plan = at.plan
    values = {
        "x": at.address(x),
        "weights": at.address(weight),
        "out": at.address(node),
        "out_stride": node.row_bytes,
        "bias": at.address(rest[0]) if rest else 0,
        "residual": at.address(residual) if residual else 0,
        "residual_stride": residual.row_bytes if residual else 0,
        "rows": weight.rows,
        "num_tokens": at.count(node),
        "scratch": at.buffers.scratch.address + plan.scratch.size_bytes,
        "scratch_stride": plan.workspace_bytes,
    }
    planes = _planes(x) if x.dtype.is_activation else 1
    spec = KernelSpec.of(matmul.matmul, layout=layout, columns=weight.columns, planes=planes)
    return spec, values, matmul.FIELDS


def _gated(at: Binding, node: Tensor) -> Lowered:
    gate, up = node.sources
    assert isinstance(node.attributes, Gate)
    values = {
        "gate": at.address(gate),
        "up": at.address(up),
        "count": at.count(node),
        "out": at.address(node),
        "gate_stride": gate.row_bytes,
        "up_stride": up.row_bytes,
        "out_stride": node.row_bytes,
        "columns": node.columns,
    }
    activation = node.attributes.activation.name
    if node.op is Op.GATED:
        spec = KernelSpec.of(gated.gated, activation=activation)
    else:
        spec = KernelSpec.of(gated.gated_quantize, activation=activation, planes=_planes(node))
    return spec, values, gated.FIELDS


def _binary(at: Binding, node: Tensor) -> Lowered:
    a, b = node.sources
    values = {
        "a": at.address(a),
        "b": at.address(b),
        "count": at.count(node),
        "out": at.address(node),
        "a_stride": a.row_bytes,
        "b_stride": b.row_bytes,
        "out_stride": node.row_bytes,
        "columns": node.columns,
    }
    emit = elementwise.add if node.op is Op.ADD else elementwise.mul
    return KernelSpec.of(emit), values, elementwise.BINARY_FIELDS


def _activate(at: Binding, node: Tensor) -> Lowered:
    assert isinstance(node.attributes, Gate)
    values = row_fields(at, node) | {"columns": node.columns}
    spec = KernelSpec.of(elementwise.activate, activation=node.attributes.activation.name)
    return spec, values, elementwise.UNARY_FIELDS


def _softcap(at: Binding, node: Tensor) -> Lowered:
    assert isinstance(node.attributes, Cap)
    limit = float_word(node.attributes.limit)
    values = row_fields(at, node) | {"columns": node.columns, "limit": limit}
    return KernelSpec.of(elementwise.softcap), values, elementwise.SOFTCAP_FIELDS


def _rotations(at: Binding, node: Tensor) -> Lowered:
    spec = KernelSpec.of(rope.rotations, has_factors=len(node.sources) > 2)
    return spec, rotation_fields(at, node), rope.ROTATIONS_FIELDS


def _rope(at: Binding, node: Tensor) -> Lowered:
    attributes = node.attributes
    assert isinstance(attributes, Rope)
    spec = KernelSpec.of(
        rope.rope,
        head_dim=attributes.head_dim,
        turned=node.sources[1].columns,
        pairs=attributes.pairs.name,
    )
    return spec, rope_fields(at, node), rope.ROPE_FIELDS


def _kv_append(at: Binding, node: Tensor) -> Lowered:
    state = node.sources[2]
    spec = KernelSpec.of(kv_append.kv_append, head_dim=state.shape[-1], dtype=state.dtype.name)
    return spec, append_fields(at, node), kv_append.FIELDS


def _kv_shift(at: Binding, node: Tensor) -> Lowered:
    attributes = node.attributes
    assert isinstance(attributes, Rope)
    spec = KernelSpec.of(
        kv_shift.kv_shift,
        head_dim=attributes.head_dim,
        turned=node.sources[1].columns,
        pairs=attributes.pairs.name,
        dtype=node.dtype.name,
    )
    return spec, shift_fields(at, node), kv_shift.FIELDS


def _attend(at: Binding, node: Tensor, emit: Emit) -> Lowered:
    q, appended, positions, sequences, tables = node.sources
    attributes = node.attributes
    assert isinstance(attributes, Attend)
    plan = at.plan
    values = {
        "q": at.address(q),
        "state": at.address(appended),
        "out": at.address(node),
        "count": at.count(node),
        "positions": at.address(positions),
        "sequences": at.address(sequences),
        "tables": at.address(tables),
        "q_stride": q.row_bytes,
        "out_stride": node.row_bytes,
        "tables_stride": tables.row_bytes,
        "kv_heads": attributes.kv_heads,
        "scale": float_word(attributes.scale),
        "window": attributes.window or 0,
        "softcap": float_word(attributes.softcap or 0.0),
        "partials": at.buffers.scratch.address + plan.segments_offset,
        "partials_bytes": plan.segments_bytes,
    }
    spec = KernelSpec.of(
        emit,
        head_dim=attributes.head_dim,
        group=attributes.heads // attributes.kv_heads,
        dtype=appended.dtype.name,
        windowed=attributes.window is not None,
        capped=attributes.softcap is not None,
    )
    return spec, values, attention.FIELDS


def _attention(at: Binding, node: Tensor) -> Lowered:
    return _attend(at, node, attention.attention)


def _attention_merge(at: Binding, node: Tensor) -> Lowered:
    return _attend(at, node, attention.attention_merge)


def _select_rows(at: Binding, node: Tensor) -> Lowered:
    values = row_fields(at, node) | {"rows": at.address(node.sources[1]), "columns": node.columns}
    return KernelSpec.of(select_rows.select_rows), values, select_rows.FIELDS


def _lora_down(at: Binding, node: Tensor) -> Lowered:
    x, spans, adapters = node.sources
    values = {
        "x": at.address(x),
        "out": at.address(node),
        "x_stride": x.row_bytes,
        "out_stride": node.row_bytes,
        "columns": x.columns,
        "spans": at.address(spans),
        "adapters": at.address(adapters),
    }
    return KernelSpec.of(lora.lora_down), values, lora.DOWN_FIELDS


def _lora_up(at: Binding, node: Tensor) -> Lowered:
    y, down, spans, adapters = node.sources
    if at.address(y) != at.address(node):
        raise InternalError(f"{node!r} adds to {y!r}, and does not lie in its bytes")
    values = {
        "y": at.address(y),
        "down": at.address(down),
        "y_stride": y.row_bytes,
        "down_stride": down.row_bytes,
        "columns": node.columns,
        "spans": at.address(spans),
        "adapters": at.address(adapters),
    }
    return KernelSpec.of(lora.lora_up), values, lora.UP_FIELDS


RULES: Rules = {
    Op.EMBED: (_embed,),
    Op.RMS_NORM: (_rms_norm,),
    Op.NORM_QUANTIZE: (_norm_quantize,),
    Op.QUANTIZE: (_quantize,),
    Op.MATMUL: (_matmul,),
    Op.MATMUL_ADD: (_matmul,),
    Op.GATED: (_gated,),
    Op.GATED_QUANTIZE: (_gated,),
    Op.ADD: (_binary,),
    Op.MUL: (_binary,),
    Op.ACTIVATE: (_activate,),
    Op.SOFTCAP: (_softcap,),
    Op.ROTATIONS: (_rotations,),
    Op.ROPE: (_rope,),
    Op.KV_APPEND: (_kv_append,),
    Op.KV_SHIFT: (_kv_shift,),
    Op.ATTENTION: (_attention, _attention_merge),
    Op.SELECT_ROWS: (_select_rows,),
    Op.LORA_DOWN: (_lora_down,),
    Op.LORA_UP: (_lora_up,),
}
"""The kernels of each operation."""
