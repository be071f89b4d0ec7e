"""From a plan to a program: one record for each node, with raw addresses.

A record begins with the row that the team executes (kernel, address of the fields, flags); the
fields of its kernel follow. It is written once and only read while evaluating.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corral.devices.base import ModelBuffers
from corral.devices.binding import BoundPlan
from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.hazards import Span, Touched, barriers_after
from corral.devices.cpu.kernels.team import NO_BARRIER, ROW
from corral.devices.cpu.traits import RECORD_WORDS, WORD_BYTES
from corral.devices.host import array_at
from corral.errors import CapacityExceeded, InternalError
from corral.memory.plan import Plan
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Instruction:
    """One kernel with its fields, and the bytes it touches."""

    spec: KernelSpec
    fields: tuple[int, ...]
    touched: Touched


@dataclass(frozen=True, slots=True)
class Binding(BoundPlan):
    """A plan on one model's buffers, and what its nodes touch there."""

    def span(self, tensor: Tensor) -> Span:
        """Return the bytes of a tensor at full capacity; those of its source for a view."""
        base = tensor.base
        first = self.address(base)
        return Span(first, first + base.size_bytes)


Lowered = tuple[KernelSpec, Mapping[str, int], Sequence[str]]
"""A kernel, the values of its fields, and their order."""
Rule = Callable[[Binding, Tensor], Lowered]
Rules = Mapping[Op, tuple[Rule, ...]]
"""For each operation the kernels that compute it, in order."""


def lower_graph(plan: Plan, buffers: ModelBuffers, rules: Rules) -> tuple[Instruction, ...]:
    """Return the instructions of a plan in order, each node by the rule of its operation.

    Raises:
        InternalError: if a node has no kernel here; device traits promised one.
    """
    binding = Binding(plan, buffers)
    nodes = [node for node in plan.graph if node.op is not Op.VIEW]
    return tuple(part for node in nodes for part in _lower(binding, node, rules))


def _lower(binding: Binding, node: Tensor, rules: Rules) -> Iterator[Instruction]:
    if node.op not in rules:
        raise InternalError(f"the CPU has no kernel for {node!r}")
    reads = tuple(binding.span(source) for source in node.sources if source.op is not Op.WEIGHT)
    touched = Touched(reads, (binding.span(node),))
    for rule in rules[node.op]:
        spec, values, order = rule(binding, node)
        if set(values) != set(order):
            odd = set(values) ^ set(order)
            raise InternalError(f"fields of {spec.name} and their values differ in {sorted(odd)}")
        yield Instruction(spec, tuple(values[name] for name in order), touched)


def write_records(
    address: int, instructions: Sequence[Instruction], kernels: Mapping[KernelSpec, int]
) -> None:
    """Write the records of a program, one after the other, at an address.

    Raises:
        CapacityExceeded: if a kernel has more fields than a record holds.
    """
    records = array_at(address, (len(instructions), RECORD_WORDS), np.int64)
    waits = barriers_after([instruction.touched for instruction in instructions])
    head = len(ROW)
    for number, (instruction, wait) in enumerate(zip(instructions, waits, strict=True)):
        if head + len(instruction.fields) > RECORD_WORDS:
            raise CapacityExceeded(
                f"{instruction.spec.name} has {len(instruction.fields)} fields, "
                f"a record holds {RECORD_WORDS - head}"
            )
        fields = address + (number * RECORD_WORDS + head) * WORD_BYTES
        flags = 0 if wait else NO_BARRIER
        records[number, :head] = kernels[instruction.spec], fields, flags
        records[number, head : head + len(instruction.fields)] = instruction.fields
