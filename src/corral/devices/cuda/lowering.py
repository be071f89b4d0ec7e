"""From a plan to launches for batches of some size: few rows go the narrow way, many the wide."""

from corral.devices.base import ModelBuffers
from corral.devices.cuda.attention_rules import coded_attention, rope_append
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.rules import RULES
from corral.devices.cuda.wide import lower_wide
from corral.errors import InternalError
from corral.memory.plan import Plan
from corral.tensor.steps import Step, steps


def lower_plan(plan: Plan, buffers: ModelBuffers, bucket: int, chip: Chip) -> tuple[Launch, ...]:
    """Return the launches of a plan for batches of at most so many rows, in order.

    Raises:
        InternalError: if a node has no kernel here; device traits promised one.
    """
    at = Binding(plan, buffers, bucket)
    if 0 < plan.traits.narrow_rows < bucket:
        return lower_wide(at, chip, narrow)
    return tuple(launch for step in steps(plan.graph) for launch in narrow(at, step))


def narrow(at: Binding, step: Step) -> tuple[Launch, ...]:
    """Return the launches of one step for few rows: joined where there is a kernel for that."""
    if (joined := _joined(at, step)) is not None:
        return joined
    launches: list[Launch] = []
    for node in step.all_nodes:
        if node.op not in RULES:
            raise InternalError(f"CUDA has no kernel for {node!r}")
        launches += RULES[node.op](at, node)
    return tuple(launches)


def _joined(at: Binding, step: Step) -> tuple[Launch, ...] | None:
    if step.is_turned_append:
        return rope_append(at, step.nodes)
    if step.is_coded_attention:
        return coded_attention(at, *step.nodes)
    return None
