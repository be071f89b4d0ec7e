"""Batches of many rows: products through factors of 16 bits on tensor cores.

    NORM_QUANTIZE, QUANTIZE ──▶ prepare: left factor      weights ──▶ dequantize: right factor
                                         └──────────▶ product ◀──────────┘
    gate and up with GATED  ──▶ one product whose result is a left factor
    ATTENTION, QUANTIZE     ──▶ attention gives the left factor itself

Left factors alternate between two places of the arena; one is free as soon as the last product that
reads it has its launch. What belongs to the rows of outputs, which are few, goes the narrow way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from corral.devices.binding import float_word
from corral.devices.cuda.instance import Kernel
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.prefill_launch import (
    ATTENTION_FIELDS,
    DEQUANTIZE_FIELDS,
    FINISHES,
    GATED_SOURCES,
    PREPARE_FIELDS,
    PRODUCT_FIELDS,
    Chip,
    Finish,
    Heads,
    Mixed,
    Source,
    attention,
    dequantize,
    prepare,
    product,
)
from corral.devices.cuda.traits import DECODE_BUCKETS
from corral.errors import InternalError
from corral.memory.factors import (
    LEFT_FACTORS,
    TILE_BYTES,
    Form,
    factor_tiles,
    form_of,
    is_wide,
    stride,
)
from corral.quant.types import DType
from corral.tensor.ops import Attend, Gate, Norm, Op
from corral.tensor.steps import Step, steps
from corral.tensor.tensor import Extent, Tensor

Narrow = Callable[[Binding, Step], tuple[Launch, ...]]
"""Gives the launches of a step whose rows are few, or that is no product."""
QUANTIZING = (Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED_QUANTIZE)
_CODES = {DType.A8: Source.A8, DType.A16: Source.A16}
_HEAD_DIMS = (64, 80, 96, 128, 256)
_MOST_GROUP = 8


@dataclass(frozen=True, slots=True)
class LeftFactor:
    """Rows as products read them."""

    address: int
    scales: int
    form: Form
    columns: int


def lower_wide(at: Binding, chip: Chip, narrow: Narrow) -> tuple[Launch, ...]:
    """Return the launches of a plan for batches of many rows.

    Raises:
        InternalError: if more left factors are needed at once than there is room for.
    """
    return tuple(Wide(at, chip, narrow).launches())


class Wide:
    """One lowering: which left factors exist, and who still reads them."""

    def __init__(self, at: Binding, chip: Chip, narrow: Narrow) -> None:
        self._at = at
        self._chip = chip
        self._narrow = narrow
        self._steps = steps(at.plan.graph)
        self._readers = at.plan.graph.consumers()
        self._space = at.plan.factors
        self._base = at.factors
        self._left: dict[Tensor, LeftFactor] = {}
        self._free = list(range(LEFT_FACTORS))
        self._places: dict[Tensor, int] = {}
        self._reading: dict[Tensor, int] = {}

    def launches(self) -> Iterator[Launch]:
        """Yield every launch in order."""
        for step in self._steps:
            yield from self._step(step)

    def _step(self, step: Step) -> Iterator[Launch]:
        node = step.nodes[-1]
        if is_wide(step):
            yield from self._products(step)
        elif node.op is Op.ATTENTION and self._is_tiled(node):
            yield self._mixed(node, node)
        elif step.is_coded_attention:
            yield from self._coded_attention(*step.nodes)
        elif node.op in QUANTIZING and self._feeds_products(node):
            yield self._prepared(node, node, Form.BF16)
        else:
            yield from self._narrow(self._at, step)

    def _feeds_products(self, coded: Tensor) -> bool:
        """Whether all that reads these codes are products of the rows of the batch."""
        readers = self._readers.get(coded, ())
        products = (Op.MATMUL, Op.MATMUL_ADD)
        return coded.extent is Extent.ROWS and all(node.op in products for node in readers)

    # --- left factors ---

    def _new_left(self, node: Tensor, form: Form, columns: int) -> LeftFactor:
        """Give rows a place; it is free again when all products that read the node are lowered."""
        if not self._free:
            raise InternalError(f"{node!r} needs a third left factor; a plan has room for two")
        place = self._free.pop(0)
        base = self._base
        factor = LeftFactor(
            base + self._space.left(place), base + self._space.scales(place), form, columns
        )
        self._left[node], self._places[node] = factor, place
        self._reading[node] = len(self._readers.get(node, ()))
        return factor

    def _read(self, node: Tensor, count: int) -> None:
        self._reading[node] -= count
        if self._reading[node] == 0:
            self._free.append(self._places[node])

    def _tile_bytes(self, rows: Tensor) -> int:
        """Return the bytes of a tile of a left factor, which are the same for all rows here."""
        return TILE_BYTES

    def _prepared(self, node: Tensor, rows: Tensor, form: Form) -> Launch:
        """Return the launch that makes rows the left factor that `node` stands for.

        Rows that were to be quantized are taken from before that, and normed or gated here.
        """
        is_coded = rows.dtype.is_activation
        x, *rest = rows.sources if node is rows and is_coded else (rows,)
        other = rest[0] if rest else None
        source, epsilon = _CODES.get(x.dtype, Source.ROWS), 0.0
        if node is rows and isinstance(rows.attributes, Norm):
            source, epsilon = Source.NORM, rows.attributes.epsilon
        elif node is rows and isinstance(rows.attributes, Gate):
            source = GATED_SOURCES[rows.attributes.activation]
        factor, at = self._new_left(node, form, x.columns), self._at
        values = {
            "x": at.address(x),
            "x_stride": x.row_bytes,
            "count": at.count(x),
            "other": at.address(other),
            "other_stride": other.row_bytes if other else 0,
            "columns": x.columns,
            "epsilon": float_word(epsilon),
            "out": factor.address,
            "stride": stride(x.columns, form, is_tiled=True),
            "scales": factor.scales if form is Form.F16 else 0,
            "tile_bytes": self._tile_bytes(x),
        }
        kernel = prepare(source, form, at.rows(x), is_tiled=True)
        return _launch(kernel, PREPARE_FIELDS, values)

    # --- attention ---

    def _is_tiled(self, node: Tensor) -> bool:
        """Whether rows attend in tiles: rows of a prompt do; others are of a sequence each."""
        attend = node.attributes
        assert isinstance(attend, Attend)
        group = attend.heads // attend.kv_heads
        is_served = attend.head_dim in _HEAD_DIMS and group <= _MOST_GROUP
        return is_served and self._at.bucket > DECODE_BUCKETS[-1]

    def _coded_attention(self, node: Tensor, codes: Tensor) -> Iterator[Launch]:
        """Yield the launches of attention and of what makes codes of it, one if that may be."""
        if self._is_tiled(node) and self._feeds_products(codes):
            yield self._mixed(node, codes)
            return
        for each in (node, codes):
            yield from self._step(Step((each,)))

    def _mixed(self, node: Tensor, coded: Tensor) -> Launch:
        """Return the launch of attention, into a left factor where codes were to be made of it."""
        at, attend = self._at, node.attributes
        assert isinstance(attend, Attend)
        q, appended, positions, sequences, tables = node.sources
        heads = Heads(
            attend.heads,
            attend.kv_heads,
            attend.head_dim,
            appended.dtype,
            is_windowed=attend.window is not None,
            is_capped=attend.softcap is not None,
        )
        out, out_stride, to = at.address(node), node.row_bytes, Mixed.FLOATS
        if coded is not node:
            factor = self._new_left(coded, Form.BF16, node.columns)
            out, to = factor.address, Mixed.TILES
            out_stride = stride(node.columns, Form.BF16, is_tiled=True)
        values = {
            "q": at.address(q),
            "state": at.address(appended),
            "out": out,
            "count": at.count(node),
            "positions": at.address(positions),
            "sequences": at.address(sequences),
            "tables": at.address(tables),
            "q_stride": q.row_bytes,
            "out_stride": out_stride,
            "tables_stride": tables.row_bytes,
            "kv_heads": attend.kv_heads,
            "scale": float_word(attend.scale),
            "window": attend.window or 0,
            "softcap": float_word(attend.softcap or 0.0),
        }
        return _launch(attention(heads, at.rows(node), self._chip, to=to), ATTENTION_FIELDS, values)

    # --- products ---

    def _products(self, step: Step) -> Iterator[Launch]:
        forms = [form_of(node.sources[1].dtype) for node in step.nodes]
        has_bias = any(map(bias_of, step.nodes))
        is_one = len(set(forms)) == 1 and (len(step.nodes) == 1 or not has_bias)
        if is_one:
            yield from self._product(step.nodes, forms[0], step.gate)
            return
        for node, form in zip(step.nodes, forms, strict=True):
            yield from self._product((node,), form, None)
        if step.gate is not None:
            yield from self._narrow(self._at, Step((step.gate,)))

    def _product(
        self, nodes: tuple[Tensor, ...], form: Form, gate: Tensor | None
    ) -> Iterator[Launch]:
        x = nodes[0].sources[0]
        key = x if x in self._left else nodes[0]
        if key is not x:
            yield self._prepared(key, x, form)
            self._reading[key] = len(nodes)
        left = self._left[key]
        gated = gate if gate is not None and self._is_joined(gate) else None
        yield from self._right(nodes, form, is_spread=gated is not None)
        yield self._multiplied(nodes, left, gated)
        self._read(key, len(nodes))
        if gate is not None and gated is None:
            yield from self._narrow(self._at, Step((gate,)))

    def _is_joined(self, gate: Tensor) -> bool:
        """Whether the gate's result is wanted as codes for products, and so as a left factor."""
        return gate.op is Op.GATED_QUANTIZE and self._feeds_products(gate) and bool(self._free)

    def _right(self, nodes: tuple[Tensor, ...], form: Form, *, is_spread: bool) -> Iterator[Launch]:
        """Yield the launches that make one right factor of the weights of some products."""
        first = 0
        for number, node in enumerate(nodes):
            weight = node.sources[1]
            values = {
                "weights": self._at.address(weight),
                "out": self._base,
                "rows": weight.rows,
                "columns": weight.columns,
                "stride": stride(weight.columns, form, is_tiled=True),
                "first_row": 8 * number if is_spread else first,
                "spread": 2 if is_spread else 1,
            }
            kernel = dequantize(weight.dtype, weight.rows, weight.columns, is_tiled=True)
            yield _launch(kernel, DEQUANTIZE_FIELDS, values)
            first += weight.rows

    def _multiplied(
        self, nodes: tuple[Tensor, ...], left: LeftFactor, gate: Tensor | None
    ) -> Launch:
        at, node = self._at, nodes[0]
        columns = [each.columns for each in nodes]
        total, finish = sum(columns), Finish.PLAIN
        places = [(at.address(each), each.row_bytes) for each in nodes]
        if gate is not None:
            assert isinstance(gate.attributes, Gate)
            finish = FINISHES[gate.attributes.activation, True]
            out = self._new_left(gate, Form.BF16, gate.columns)
            places = [(out.address, stride(gate.columns, Form.BF16, is_tiled=True))]
            columns = [total]
        places += [places[0]] * (3 - len(places))
        ends = [sum(columns[: number + 1]) for number in range(len(columns))] + [total, total]
        residual = node.sources[2] if node.op is Op.MATMUL_ADD else None
        values = {
            "x": left.address,
            "weights": self._base,
            "count": at.count(node),
            "tiles": factor_tiles(left.columns, left.form),
            "columns": total,
            "columns_1": ends[0],
            "columns_2": ends[1],
            "out": places[0][0],
            "out_1": places[1][0],
            "out_2": places[2][0],
            "out_stride": places[0][1],
            "out_stride_1": places[1][1],
            "out_stride_2": places[2][1],
            "bias": at.address(bias_of(node)),
            "residual": at.address(residual),
            "residual_stride": residual.row_bytes if residual else 0,
            "scales": left.scales if left.form is Form.F16 else 0,
        }
        kernel = product(left.form, finish, at.rows(node), total, self._chip)
        return _launch(kernel, PRODUCT_FIELDS, values)


def bias_of(node: Tensor) -> Tensor | None:
    """Return the bias of a product, if it has one."""
    rest = node.sources[3 if node.op is Op.MATMUL_ADD else 2 :]
    return rest[0] if rest else None


def _launch(kernel: Kernel, order: tuple[str, ...], values: dict[str, int]) -> Launch:
    assert tuple(values) == order, "the values stand in the order of the struct"
    return Launch.of(kernel, values)
