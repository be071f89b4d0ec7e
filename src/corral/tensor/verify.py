"""The rules of a legal graph, as functions that are run.

Model files and rewrites may produce any graph; the planner and the devices rely on these rules and
check nothing again. Every rule names the node it refuses.
"""

from collections.abc import Callable

from corral.errors import InvalidGraph
from corral.quant.types import DType
from corral.tensor.attach import ADAPTER_WORDS, SPAN_WORDS, UNIT_RANKS
from corral.tensor.graph import Graph
from corral.tensor.ops import Attend, Columns, Constant, Norm, Op, Rope
from corral.tensor.tensor import Extent, Tensor


def verify(graph: Graph) -> Graph:
    """Return the graph if it obeys every rule.

    Raises:
        InvalidGraph: naming the first node that breaks a rule, and the rule.
    """
    seen: set[Tensor] = set()
    names: set[str] = set()
    leaves: dict[str, Tensor] = {}
    for node in graph:
        _check_node(node, seen)
        _check_leaves(node, leaves)
        if node.name in names:
            raise _broken(node, "its name is used twice")
        names.add(node.name)
        seen.add(node)
    for output in graph.outputs:
        if output not in seen:
            raise _broken(output, "it is an output but no node")
    return graph


def _check_node(node: Tensor, seen: set[Tensor]) -> None:
    traits = node.op.traits
    if traits.is_leaf:
        raise _broken(node, "leaves are no nodes")
    fewest = len(traits.sources) - traits.optional
    if not fewest <= len(node.sources) <= len(traits.sources):
        raise _broken(
            node, f"it has {len(node.sources)} sources, needs {', '.join(traits.sources)}"
        )
    if traits.attributes is not None and not isinstance(node.attributes, traits.attributes):
        raise _broken(node, f"its attributes are {node.attributes!r}")
    for source in node.sources:
        if not source.op.traits.is_leaf and source not in seen:
            raise _broken(node, f"it reads {source.name} before that is computed")
        if source.op is Op.RECEIVED and not _can_cross(source):
            raise _broken(node, f"{source!r} cannot come from another device, only rows of F32 can")
    if any(size <= 0 for size in node.shape):
        raise _broken(node, "a dimension is empty")
    message = _types(node) or _rows(node) or RULES[node.op](node)
    if message:
        raise _broken(node, message)


def _check_leaves(node: Tensor, leaves: dict[str, Tensor]) -> None:
    """Refuse two different leaves of one name: plans know leaves by name."""
    for leaf in node.sources:
        if leaf.op.traits.is_leaf:
            known = leaves.setdefault(leaf.name, leaf)
            if (known.op, known.dtype, known.shape) != (leaf.op, leaf.dtype, leaf.shape):
                raise _broken(node, f"it reads {leaf!r}, another node reads {known!r}")


def _can_cross(tensor: Tensor) -> bool:
    """Whether a tensor may go from device to device: rows of this batch, in full precision."""
    is_rows = len(tensor.shape) == 2 and tensor.extent is not Extent.FIXED
    return is_rows and tensor.dtype is DType.F32


def _types(node: Tensor) -> str | None:
    expected = {DType.A8, DType.A16} if node.op in _QUANTIZING else {DType.F32}
    if node.op in (Op.KV_APPEND, Op.KV_SHIFT):
        expected = {node.base.dtype}
    if node.dtype not in expected:
        return f"its result is not {' or '.join(sorted(t.name for t in expected))}"
    multiplied = node.sources[0] if node.op in (Op.MATMUL, Op.MATMUL_ADD) else None
    for source in node.sources:
        if source.dtype.is_activation and source is not multiplied:
            return f"it reads {source!r}, which only products can"
    return None


def _rows(node: Tensor) -> str | None:
    first = node.sources[0]
    if node.op in (Op.KV_APPEND, Op.KV_SHIFT, Op.SELECT_ROWS):
        return None
    if node.shape[0] != first.shape[0] or node.extent is not first.extent:
        return f"its rows are not those of {first!r}"
    return None


def _broken(node: Tensor, message: str) -> InvalidGraph:
    return InvalidGraph(f"node {node!r}: {message}")


def _embed(node: Tensor) -> str | None:
    tokens, table = node.sources
    if node.shape != (tokens.shape[0], table.columns):
        return f"its shape is not tokens × {table.columns}"
    return None


def _same_shape(node: Tensor) -> str | None:
    for source in node.sources:
        if source.shape != node.shape or source.extent is not node.extent:
            return f"{source!r} has another shape or extent"
    return None


def _norm(node: Tensor) -> str | None:
    x, weight = node.sources
    attributes = node.attributes
    assert isinstance(attributes, Norm)
    if node.columns % attributes.group:
        return f"{node.columns} columns are no whole groups of {attributes.group}"
    if weight.shape != (attributes.group,):
        return f"its weight is {weight!r}, not {attributes.group} long"
    return None if x.shape == node.shape else "it changes the shape"


def _matmul(node: Tensor) -> str | None:
    x, weight = node.sources[:2]
    if x.columns != weight.columns or node.shape != (x.shape[0], weight.rows):
        return f"{x!r} and {weight!r} do not fit"
    if x.dtype is not DType.F32 and not x.dtype.is_activation:
        return f"it multiplies {x.dtype.name}"
    if x.dtype.is_activation and not weight.dtype.is_quantized:
        return f"{x.dtype.name} activations meet {weight.dtype.name} weights"
    rest = list(node.sources[2:])
    if node.op is Op.MATMUL_ADD:
        residual = rest.pop(0)
        if residual.shape != node.shape or residual.extent is not node.extent:
            return f"the residual {residual!r} has another shape or extent"
    if rest and rest[0].shape != (node.columns,):
        return f"the bias {rest[0]!r} has another length"
    return None


def _rotations(node: Tensor) -> str | None:
    positions, frequencies, *factors = node.sources
    if not isinstance(frequencies.attributes, Constant):
        return "its frequencies are no constant"
    if any(factor.shape != frequencies.shape for factor in factors):
        return "it has another number of factors than of frequencies"
    return None if node.shape == (positions.shape[0], 2 * frequencies.columns) else "wrong shape"


def _rope(node: Tensor) -> str | None:
    x, rotations = node.sources
    attributes = node.attributes
    assert isinstance(attributes, Rope)
    if x.columns % attributes.head_dim:
        return f"{x.columns} columns are no whole heads of {attributes.head_dim}"
    if rotations.extent is not x.extent:
        return f"the rotations {rotations!r} are of other rows"
    if rotations.columns > attributes.head_dim:
        return f"it turns {rotations.columns} dimensions of heads of {attributes.head_dim}"
    return None if x.shape == node.shape else "it changes the shape"


def _kv_append(node: Tensor) -> str | None:
    k, v, state = node.sources[:3]
    if state.op is not Op.STATE or node.shape != state.shape:
        return f"it appends to {state!r}"
    _, _, heads, _, dim = state.shape
    if k.columns != heads * dim or v.columns != heads * dim:
        return f"{k!r} and {v!r} are not {heads} heads of {dim}"
    return None


def _kv_shift(node: Tensor) -> str | None:
    state, rotations, *blocks = node.sources
    attributes = node.attributes
    assert isinstance(attributes, Rope)
    if state.op is not Op.STATE or node.shape != state.shape:
        return f"it turns keys of {state!r}"
    if state.columns != attributes.head_dim:
        return f"the state {state!r} has other heads than {attributes.head_dim} dimensions"
    if rotations.columns > attributes.head_dim:
        return f"it turns {rotations.columns} dimensions of heads of {attributes.head_dim}"
    for one in blocks:
        if one.shape != rotations.shape[:1] or one.extent is not rotations.extent:
            return f"{one!r} has other rows than the rotations {rotations!r}"
    return None


def _attention(node: Tensor) -> str | None:
    q, appended = node.sources[:2]
    attributes = node.attributes
    assert isinstance(attributes, Attend)
    if appended.op is not Op.KV_APPEND:
        return "it reads a state that this evaluation has not appended to"
    if node.columns != q.columns or q.extent is not node.sources[2].extent:
        return f"it does not give what {q!r} asks for"
    if q.columns != attributes.heads * attributes.head_dim:
        return f"{q!r} is not {attributes.heads} heads of {attributes.head_dim}"
    if attributes.heads % attributes.kv_heads:
        return f"{attributes.heads} heads cannot share {attributes.kv_heads} kv heads evenly"
    if appended.shape[2] != attributes.kv_heads or appended.shape[4] != attributes.head_dim:
        return f"the state {appended!r} has other heads"
    return None


def _select_rows(node: Tensor) -> str | None:
    x, rows = node.sources
    if node.shape != (rows.shape[0], x.columns) or node.extent is not Extent.OUTPUTS:
        return f"it is not {rows!r} of {x!r}"
    return None


def _view(node: Tensor) -> str | None:
    attributes = node.attributes
    assert isinstance(attributes, Columns)
    if attributes.first < 0 or attributes.first + node.columns > node.sources[0].columns:
        return f"columns {attributes.first}… lie outside {node.sources[0]!r}"
    return None


def _quantize(node: Tensor) -> str | None:
    if node.columns % DType.A8.block_elements:
        return f"{node.columns} columns are no whole groups of {DType.A8.block_elements}"
    return None


def _quantize_plain(node: Tensor) -> str | None:
    return _same_shape(node) or _quantize(node)


def _lora_down(node: Tensor) -> str | None:
    _x, spans, adapters = node.sources
    if node.columns % UNIT_RANKS:
        return f"{node.columns} columns are no whole units of {UNIT_RANKS} ranks"
    return _adapter_inputs(spans, adapters)


def _lora_up(node: Tensor) -> str | None:
    y, down, spans, adapters = node.sources
    if y.shape != node.shape:
        return "it changes the shape"
    if down.op is not Op.LORA_DOWN or down.shape[0] != y.shape[0] or down.extent is not y.extent:
        return f"{down!r} is not what adapters make of the same rows"
    if down.sources[1:] != (spans, adapters):
        return f"{down!r} is of other spans or of another weight"
    return _adapter_inputs(spans, adapters)


def _adapter_inputs(spans: Tensor, adapters: Tensor) -> str | None:
    if spans.op is not Op.INPUT or spans.columns != SPAN_WORDS:
        return f"{spans!r} are no spans of rows"
    if adapters.op is not Op.ADAPTERS or adapters.columns != ADAPTER_WORDS:
        return f"{adapters!r} does not say where adapters lie"
    return None


_QUANTIZING = frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED_QUANTIZE})

RULES: dict[Op, Callable[[Tensor], str | None]] = {
    Op.EMBED: _embed,
    Op.RMS_NORM: _norm,
    Op.MATMUL: _matmul,
    Op.MATMUL_ADD: _matmul,
    Op.ADD: _same_shape,
    Op.MUL: _same_shape,
    Op.ACTIVATE: _same_shape,
    Op.SOFTCAP: _same_shape,
    Op.ROTATIONS: _rotations,
    Op.ROPE: _rope,
    Op.KV_APPEND: _kv_append,
    Op.KV_SHIFT: _kv_shift,
    Op.ATTENTION: _attention,
    Op.SELECT_ROWS: _select_rows,
    Op.VIEW: _view,
    Op.QUANTIZE: _quantize_plain,
    Op.NORM_QUANTIZE: lambda node: _norm(node) or _quantize(node),
    Op.GATED: _same_shape,
    Op.GATED_QUANTIZE: _quantize_plain,
    Op.LORA_DOWN: _lora_down,
    Op.LORA_UP: _lora_up,
}
"""The rule of each operation: what is wrong with a node, or None."""
