"""Batches of few rows: each step by kernels that read weights once for all rows.

    q, k, v of one layout ──▶ one launch             the rest ──▶ the rule of the operation
    gate and up with GATED ──▶ one launch, codes and all
    heads of q and k, turned and on their way to the cache with v ──▶ one launch
    ATTENTION, QUANTIZE ──▶ attention gives the codes itself
    many rows of codes ──▶ rows of F16 first, in the place of a left factor

Products that no tuned kernel takes go to the plain one.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from corral.devices.cuda import matmul_launch as tuned
from corral.devices.cuda.attention_rules import PLANES, coded_attention, rope_append
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.lora_rules import lora_down, lora_up
from corral.devices.cuda.matmul_launch import MAX_PARTS, Product, Result
from corral.devices.cuda.matmul_tuning import choose, wants_half_rows
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.rules import RULES
from corral.errors import InternalError
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from corral.tensor.ops import Gate, Op
from corral.tensor.steps import Step
from corral.tensor.tensor import Tensor

LEAST_SHARED_BYTES = 99 << 10
"""Shared memory of a block that tuned kernels fit into."""


def narrow(at: Binding, step: Step, chip: Chip) -> tuple[Launch, ...]:
    """Return the launches of one step.

    Raises:
        InternalError: if a node has no kernel here; device traits promised one.
    """
    if not step.is_product:
        joined = _joined(at, step)
        return joined or tuple(launch for node in step.nodes for launch in by_rule(at, node))
    if step.gate is not None:
        product = _gated(at, step.nodes, step.gate)
        if product is not None and _is_tuned(product, chip):
            return tuple(_tuned(at, step.nodes, product, chip, (step.gate,)))
        return (*_products(at, step.nodes, chip), *by_rule(at, step.gate))
    return tuple(_products(at, step.nodes, chip))


def _joined(at: Binding, step: Step) -> tuple[Launch, ...] | None:
    """Return the launches of several nodes in one go, where there is a kernel for that."""
    if step.is_lora:
        lower = lora_down if step.nodes[0].op is Op.LORA_DOWN else lora_up
        return lower(at, step.nodes)
    if step.is_turned_append:
        return rope_append(at, step.nodes)
    if step.is_coded_attention:
        return coded_attention(at, *step.nodes)
    return None


def by_rule(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launches of one node by the plain rule of its operation."""
    if node.op not in RULES:
        raise InternalError(f"CUDA has no kernel for {node!r}")
    return RULES[node.op](at, node)


def _products(at: Binding, nodes: Sequence[Tensor], chip: Chip) -> Iterator[Launch]:
    """Yield launches of products that share x, those of one layout together."""
    for _dtype, run in groupby(nodes, key=lambda node: node.sources[1].dtype):
        part = tuple(run)
        product = _plain(at, part)
        if len(part) <= MAX_PARTS and _is_tuned(product, chip):
            yield from _tuned(at, part, product, chip, part)
        else:
            for node in part:
                yield from by_rule(at, node)


def _is_tuned(product: Product, chip: Chip) -> bool:
    """Say whether a tuned kernel takes a product on a card with so little shared memory."""
    return tuned.supports(product) and chip.shared_bytes >= LEAST_SHARED_BYTES


def _plain(at: Binding, nodes: Sequence[Tensor]) -> Product:
    x, weight = nodes[0].sources[:2]
    return Product(
        layout=LAYOUTS[weight.dtype].name,
        rows=tuple(node.sources[1].rows for node in nodes),
        columns=weight.columns,
        batch=at.rows(nodes[0]),
        planes=PLANES.get(x.dtype, 1),
    )


def _gated(at: Binding, nodes: Sequence[Tensor], gate: Tensor) -> Product | None:
    """Return the product whose result is what the gate gives; None if no kernel gives that."""
    first, second = nodes
    is_one = first.sources[1].dtype is second.sources[1].dtype
    has_bias = len(first.sources) + len(second.sources) > 4
    if not is_one or has_bias or gate.dtype is DType.A16:
        return None
    assert isinstance(gate.attributes, Gate)
    plain = _plain(at, nodes)
    result = Result.GATED_CODES if gate.op is Op.GATED_QUANTIZE else Result.GATED
    gating = gate.attributes.activation.name.lower()
    return Product(
        plain.layout, plain.rows, plain.columns, plain.batch, plain.planes, result, gating
    )


def _tuned(
    at: Binding,
    nodes: Sequence[Tensor],
    product: Product,
    chip: Chip,
    results: Sequence[Tensor],
) -> Iterator[Launch]:
    x = nodes[0].sources[0]
    values = {
        "count": at.count(nodes[0]),
        "x": at.address(x),
        "x_stride": x.row_bytes,
        "capacity": x.shape[0],
    }
    half_bytes = tuned.half_row_bytes(product.columns)
    if wants_half_rows(product) and at.plan.factors.left_bytes >= half_bytes * product.batch:
        halves = at.factors + at.plan.factors.left(0)
        yield _half_rows(at, nodes[0], product, halves)
        product = Product(
            product.layout,
            product.rows,
            product.columns,
            product.batch,
            0,
            product.result,
            product.gating,
        )
        values |= {"x": halves, "x_stride": half_bytes, "capacity": product.batch}
    for number, node in enumerate(nodes):
        residual, bias = _added(node)
        result = results[number] if number < len(results) else None
        values |= {
            f"weights{number}": at.address(node.sources[1]),
            f"out{number}": at.address(result),
            f"residual{number}": at.address(residual),
            f"bias{number}": at.address(bias),
            f"rows{number}": node.sources[1].rows,
            f"out_stride{number}": result.row_bytes if result is not None else 0,
            f"residual_stride{number}": residual.row_bytes if residual is not None else 0,
        }
    kernel = choose(product, chip.multiprocessors, chip.shared_bytes)
    fields = {name: values.get(name, 0) for name in tuned.FIELDS}
    yield Launch.of(kernel, fields)


def _half_rows(at: Binding, node: Tensor, product: Product, out: int) -> Launch:
    x = node.sources[0]
    fields = {
        "count": at.count(node),
        "x": at.address(x),
        "x_stride": x.row_bytes,
        "out": out,
        "out_stride": tuned.half_row_bytes(product.columns),
        "columns": product.columns,
    }
    return Launch.of(tuned.half_rows(product), fields)


def _added(node: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the residual and the bias of a product, where it has them."""
    rest = list(node.sources[2:])
    residual = rest.pop(0) if node.op is Op.MATMUL_ADD else None
    return residual, rest[0] if rest else None
