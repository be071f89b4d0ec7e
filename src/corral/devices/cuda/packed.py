"""Batches of a few dozen rows on sm_90a: packed weights, read once, times rows of 16 bits.

    NORM_QUANTIZE, ATTENTION with QUANTIZE ──▶ left factor ──▶ product ◀── packed weights
    other codes ──▶ prepare ───────────────────────┘
    gate and up with GATED  ──▶ one product whose result is a left factor
    q, k and a v of another layout ──▶ one launch

Where something else reads the codes too, or weights have no such kernel, rows become codes and go
the narrow way. So does attention: every row is of a sequence of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from corral.devices.cuda import packed_launch
from corral.devices.cuda.attention_rules import tiled_attention
from corral.devices.cuda.instance import Kernel
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.matmul_launch import FIELDS, MAX_PARTS, Product, Result
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.rules import norm_tiled
from corral.devices.cuda.wide import QUANTIZING, LeftFactor, Narrow, Wide, bias_of
from corral.memory.factors import Form
from corral.quant.packed import LAYOUTS
from corral.tensor.ops import Gate, Op
from corral.tensor.steps import Step
from corral.tensor.tensor import Tensor


def lower_packed(at: Binding, chip: Chip, narrow: Narrow) -> tuple[Launch, ...]:
    """Return the launches of a plan for batches of 9 to 128 rows.

    Raises:
        InternalError: if more left factors are needed at once than there is room for.
    """
    return tuple(_Packed(at, chip, narrow).launches())


class _Packed(Wide):
    """One lowering: which rows are left factors, and who still reads them."""

    def _tile_bytes(self, rows: Tensor) -> int:
        """Return what the products of these rows expect: outputs can be fewer than the batch."""
        return packed_launch.tile_bytes(self._at.rows(rows))

    def _step(self, step: Step) -> Iterator[Launch]:
        node = step.nodes[-1]
        if step.is_product and step.x in self._left:
            yield from self._products(step)
        elif step.is_coded_attention and self._feeds_products(node) and self._free:
            tiles = self._new_left(node, Form.BF16, node.columns).address
            yield from tiled_attention(self._at, step.nodes[0], tiles, self._tile_bytes(node))
        elif node.op in QUANTIZING and self._feeds_products(node) and self._free:
            yield self._rounded(node)
        else:
            yield from self._narrow(self._at, step)

    def _rounded(self, node: Tensor) -> Launch:
        """Return the launch that writes the rows which were to be codes as a left factor."""
        if node.op is not Op.NORM_QUANTIZE:
            return self._prepared(node, node, Form.BF16)
        tiles = self._new_left(node, Form.BF16, node.columns).address
        return norm_tiled(self._at, node, tiles, self._tile_bytes(node))

    def _feeds_products(self, coded: Tensor) -> bool:
        """Whether all that reads these codes are products that there is a kernel for."""
        readers = self._readers.get(coded, ())
        return bool(readers) and all(
            node.op in (Op.MATMUL, Op.MATMUL_ADD)
            and node.sources[0] is coded
            and packed_launch.supports(self._plain((node,)))
            for node in readers
        )

    def _products(self, step: Step) -> Iterator[Launch]:
        left = self._left[step.x]
        if step.gate is not None and self._is_one_product(step):
            yield self._gated(step.nodes, left, step.gate)
        else:
            yield from self._plain_products(step.nodes, left)
        self._read(step.x, len(step.nodes))
        if step.gate is not None and step.gate not in self._left:
            yield from self._narrow(self._at, Step((step.gate,)))

    def _plain_products(self, nodes: tuple[Tensor, ...], left: LeftFactor) -> Iterator[Launch]:
        """Yield the launches of products, each of one layout, or of one and a last of another."""
        runs = [tuple(run) for _dtype, run in groupby(nodes, key=lambda n: n.sources[1].dtype)]
        if len(runs) == 2 and len(nodes) <= MAX_PARTS and len(runs[1]) == 1:
            same, last = map(self._plain, runs)
            kernel = packed_launch.paired(same, last, self._chip.multiprocessors)
            if kernel is not None:
                yield self._several(nodes, left, kernel)
                return
        for run in runs:
            for first in range(0, len(run), MAX_PARTS):
                part = run[first : first + MAX_PARTS]
                yield self._several(part, left, self._kernel(self._plain(part)))

    def _is_one_product(self, step: Step) -> bool:
        """Whether gate and up are of one type without biases, and their result a left factor."""
        gate, nodes = step.gate, step.nodes
        assert gate is not None
        is_alike = nodes[0].sources[1].dtype is nodes[1].sources[1].dtype
        return is_alike and not any(map(bias_of, nodes)) and self._is_joined(gate)

    def _plain(self, nodes: Sequence[Tensor]) -> Product:
        weight = nodes[0].sources[1]
        return Product(
            layout=LAYOUTS[weight.dtype].name,
            rows=tuple(node.sources[1].rows for node in nodes),
            columns=weight.columns,
            batch=self._at.rows(nodes[0]),
            planes=0,
        )

    def _gated(self, nodes: tuple[Tensor, ...], left: LeftFactor, gate: Tensor) -> Launch:
        assert isinstance(gate.attributes, Gate)
        product = replace(
            self._plain(nodes),
            result=Result.GATED_CODES,
            gating=gate.attributes.activation.name.lower(),
        )
        out = self._new_left(gate, Form.BF16, gate.columns)
        return self._launched(self._kernel(product), nodes, left, {"out0": out.address})

    def _kernel(self, product: Product) -> Kernel:
        return packed_launch.packed(product, self._chip.multiprocessors)

    def _several(self, nodes: tuple[Tensor, ...], left: LeftFactor, kernel: Kernel) -> Launch:
        values: dict[str, int] = {}
        for number, node in enumerate(nodes):
            residual, bias = node.sources[2] if node.op is Op.MATMUL_ADD else None, bias_of(node)
            values |= {
                f"out{number}": self._at.address(node),
                f"out_stride{number}": node.row_bytes,
                f"residual{number}": self._at.address(residual),
                f"residual_stride{number}": residual.row_bytes if residual is not None else 0,
                f"bias{number}": self._at.address(bias),
            }
        return self._launched(kernel, nodes, left, values)

    def _launched(
        self, kernel: Kernel, nodes: Sequence[Tensor], left: LeftFactor, values: dict[str, int]
    ) -> Launch:
        values = {
            "count": self._at.count(nodes[0]),
            "x": left.address,
            "capacity": self._at.rows(nodes[0]),
            **values,
        }
        for number, node in enumerate(nodes):
            values[f"weights{number}"] = self._at.address(node.sources[1])
            values[f"rows{number}"] = node.sources[1].rows
        return Launch.of(kernel, {name: values.get(name, 0) for name in FIELDS})
