"""How each operation becomes launches: the instance, its grid, the values of its fields.

Rows stand in the grid's first dimension at the plan's capacity; kernels read the true count of a
batch from staging and leave the other blocks early.
"""

from dataclasses import replace

from corral.devices.binding import float_word
from corral.devices.cuda.attention_rules import PLANES, attention, kv_append, kv_shift
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import (
    Binding,
    Launch,
    Rules,
    Size,
    ceil_divide,
)
from corral.devices.cuda.lora_rules import lora_down, lora_up
from corral.devices.cuda.matmul_rules import matmul
from corral.devices.node_fields import rope_fields, rotation_fields, row_fields
from corral.quant.packed import LAYOUTS
from corral.tensor.ops import Cap, Embed, Gate, Norm, Op, Rope, RopePairs
from corral.tensor.tensor import Tensor

_WARP = 32
_MOST_THREADS = 1024
_ELEMENT_THREADS = 256
_ELEMENT_COLUMNS = 4 * _ELEMENT_THREADS
_EMBED_THREADS = 128
_NORM_THREADS = 128
_ROPE_THREADS = 256


def _elements(at: Binding, node: Tensor) -> tuple[Size, Size]:
    """Return grid and block of kernels with four columns a thread."""
    grid = (at.rows(node), ceil_divide(node.columns, _ELEMENT_COLUMNS), 1)
    return grid, (_ELEMENT_THREADS, 1, 1)


def _embed(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    tokens, table = node.sources
    assert isinstance(node.attributes, Embed)
    layout = LAYOUTS[table.dtype]
    fields = {
        "tokens": at.address(tokens),
        "count": at.count(node),
        "chosen": at.choices,
        "table": at.address(table),
        "out": at.address(node),
        "out_stride": node.row_bytes,
        "columns": table.columns,
        "vocabulary": table.rows,
        "scale": float_word(node.attributes.scale),
    }
    items = table.columns if layout.is_float else table.columns // 4
    grid = (at.rows(node), ceil_divide(items, _EMBED_THREADS), 1)
    instance = Instance.of("embed", "embed", layout.name)
    return (Launch(instance, grid, (_EMBED_THREADS, 1, 1), fields),)


def norm_shape(columns: int) -> tuple[int, int]:
    """Return threads of a block that normalizes one row, and its steps of four columns each."""
    fours = ceil_divide(columns, 4)
    threads = min(_MOST_THREADS, _WARP * ceil_divide(fours, _WARP))
    return threads, ceil_divide(fours, threads)


def _rms_norm(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    attributes = node.attributes
    assert isinstance(attributes, Norm)
    x, weight = node.sources
    epsilon = float_word(attributes.epsilon)
    fields = row_fields(at, node) | {"weight": at.address(weight)}
    if attributes.group < node.columns or node.columns % 4:
        groups = node.columns // attributes.group
        fields |= {"groups": groups, "group": attributes.group, "epsilon": epsilon}
        grid = (at.rows(node), ceil_divide(groups, _NORM_THREADS // _WARP), 1)
        instance = Instance.of("norm", "group_norm", _NORM_THREADS)
        return (Launch(instance, grid, (_NORM_THREADS, 1, 1), fields),)
    fields |= {"columns": node.columns, "epsilon": epsilon}
    threads, steps = norm_shape(node.columns)
    instance = Instance.of("norm", "rms_norm", threads, steps, at.is_aligned(x, node))
    return (Launch(instance, (at.rows(node), 1, 1), (threads, 1, 1), fields),)


def _norm_quantize(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    attributes = node.attributes
    assert isinstance(attributes, Norm)
    assert attributes.group == node.columns, "no model quantizes a norm of parts of its rows"
    x, weight = node.sources
    fields = row_fields(at, node) | {
        "weight": at.address(weight),
        "columns": node.columns,
        "epsilon": float_word(attributes.epsilon),
    }
    threads, steps = norm_shape(node.columns)
    arguments = (PLANES[node.dtype], threads, steps, at.is_aligned(x))
    instance = Instance.of("norm", "norm_quantize", *arguments)
    return (Launch(instance, (at.rows(node), 1, 1), (threads, 1, 1), fields),)


def norm_tiled(at: Binding, node: Tensor, tiles: int, tile_bytes: int) -> Launch:
    """Return the launch of NORM_QUANTIZE that writes tiles of a left factor instead of codes."""
    (launch,) = _norm_quantize(at, node)
    threads, steps = norm_shape(node.columns)
    instance = Instance.of("norm", "norm_tiled", threads, steps, at.is_aligned(node.sources[0]))
    written = {"out": tiles, "out_stride": tile_bytes}
    return replace(launch, instance=instance, fields={**launch.fields, **written})


def _unary(
    at: Binding, node: Tensor, function: str, *arguments: int | bool | str, limit: float = 0.0
) -> tuple[Launch, ...]:
    fields = row_fields(at, node) | {"columns": node.columns, "limit": float_word(limit)}
    instance = Instance.of("elementwise", function, *arguments)
    return (Launch(instance, *_elements(at, node), fields),)


def _quantize(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    is_aligned = at.is_aligned(node.sources[0])
    return _unary(at, node, "quantize", PLANES[node.dtype], is_aligned)


def _activate(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    assert isinstance(node.attributes, Gate)
    operation = f"Activate<corral::{node.attributes.activation.name}>"
    return _unary(at, node, "unary", operation, at.is_aligned(node.sources[0], node))


def _softcap(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    assert isinstance(node.attributes, Cap)
    is_aligned = at.is_aligned(node.sources[0], node)
    return _unary(at, node, "unary", "Softcap", is_aligned, limit=node.attributes.limit)


def _binary(
    at: Binding, node: Tensor, function: str, *arguments: int | bool | str
) -> tuple[Launch, ...]:
    a, b = node.sources
    fields = {
        "a": at.address(a),
        "b": at.address(b),
        "count": at.count(node),
        "out": at.address(node),
        "a_stride": a.row_bytes,
        "b_stride": b.row_bytes,
        "out_stride": node.row_bytes,
        "columns": node.columns,
    }
    instance = Instance.of("elementwise", function, *arguments)
    return (Launch(instance, *_elements(at, node), fields),)


def _add(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    return _binary(at, node, "binary", "Add", at.is_aligned(*node.sources, node))


def _mul(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    return _binary(at, node, "binary", "Mul", at.is_aligned(*node.sources, node))


def _gated(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    assert isinstance(node.attributes, Gate)
    operation = f"Gated<corral::{node.attributes.activation.name}>"
    return _binary(at, node, "binary", operation, at.is_aligned(*node.sources, node))


def _gated_quantize(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    assert isinstance(node.attributes, Gate)
    arguments = (node.attributes.activation.name, PLANES[node.dtype], at.is_aligned(*node.sources))
    return _binary(at, node, "gated_quantize", *arguments)


def _rotations(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    instance = Instance.of("rope", "rotations", len(node.sources) > 2)
    threads = min(128, _WARP * ceil_divide(node.sources[1].columns, _WARP))
    grid = (at.rows(node), 1, 1)
    return (Launch(instance, grid, (threads, 1, 1), rotation_fields(at, node)),)


def _rope(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    attributes = node.attributes
    assert isinstance(attributes, Rope)
    are_neighbours = attributes.pairs is RopePairs.NEIGHBOURS
    arguments = (attributes.head_dim, node.sources[1].columns, are_neighbours)
    grid = (at.rows(node), ceil_divide(node.columns // 2, _ROPE_THREADS), 1)
    instance = Instance.of("rope", "rope", *arguments)
    return (Launch(instance, grid, (_ROPE_THREADS, 1, 1), rope_fields(at, node)),)


def _select_rows(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    x, rows = node.sources
    fields = row_fields(at, node) | {"rows": at.address(rows), "columns": node.columns}
    instance = Instance.of("elementwise", "select_rows", at.is_aligned(x, node))
    return (Launch(instance, *_elements(at, node), fields),)


RULES: Rules = {
    Op.EMBED: _embed,
    Op.RMS_NORM: _rms_norm,
    Op.NORM_QUANTIZE: _norm_quantize,
    Op.QUANTIZE: _quantize,
    Op.MATMUL: matmul,
    Op.MATMUL_ADD: matmul,
    Op.GATED: _gated,
    Op.GATED_QUANTIZE: _gated_quantize,
    Op.ADD: _add,
    Op.MUL: _mul,
    Op.ACTIVATE: _activate,
    Op.SOFTCAP: _softcap,
    Op.ROTATIONS: _rotations,
    Op.ROPE: _rope,
    Op.KV_APPEND: kv_append,
    Op.KV_SHIFT: kv_shift,
    Op.ATTENTION: attention,
    Op.SELECT_ROWS: _select_rows,
    Op.LORA_DOWN: lambda at, node: lora_down(at, (node,)),
    Op.LORA_UP: lambda at, node: lora_up(at, (node,)),
}
"""The launches of each operation; `RULES | {op: rule}` replaces one."""
