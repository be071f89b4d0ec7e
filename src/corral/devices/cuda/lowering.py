"""From a plan to launches for batches of some size.

few rows ──▶ narrow     some dozens, on sm_90a ──▶ packed     many ──▶ wide
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from corral.devices.base import ModelBuffers
from corral.devices.cuda.choice_rules import choose
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.narrow import narrow
from corral.devices.cuda.packed import lower_packed
from corral.devices.cuda.packed_launch import LEAST_ROWS
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.wide import lower_wide
from corral.memory.choices import choosing_rows
from corral.memory.plan import Plan
from corral.tensor.steps import steps


def lower_plan(plan: Plan, buffers: ModelBuffers, bucket: int, chip: Chip) -> tuple[Launch, ...]:
    """Return the launches of a plan for batches of at most so many rows; raises as `lower_all`."""
    return lower_all(plan, buffers, (bucket,), chip)[bucket]


def lower_all(
    plan: Plan, buffers: ModelBuffers, buckets: Iterable[int], chip: Chip
) -> dict[int, tuple[Launch, ...]]:
    """Return the launches of a plan for batches of at most so many rows, in order, by bucket.

    The first begins when the inputs are there; those behind it read them before they wait.

    Raises:
        InternalError: if a node has no kernel here; device traits promised one.
    """
    known, parts, few = Binding(plan, buffers), steps(plan.graph), partial(narrow, chip=chip)

    def lowered(bucket: int) -> Iterator[Launch]:
        at = replace(known, bucket=bucket)
        if 0 < plan.traits.narrow_rows < bucket:
            yield from lower_wide(at, chip, few)
        elif chip.has_wgmma and bucket >= LEAST_ROWS and plan.factors.left_bytes:
            yield from lower_packed(at, chip, few)
        else:
            for step in parts:
                yield from few(at, step)
        yield from _choosing(at)

    return {bucket: _behind_inputs(lowered(bucket)) for bucket in buckets}


def _behind_inputs(launches: Iterator[Launch]) -> tuple[Launch, ...]:
    """Return launches of which the first begins no sooner than what is ahead of it has ended."""
    first = next(launches)
    return (replace(first, is_early=False), *launches)


def _choosing(at: Binding) -> tuple[Launch, ...]:
    """Return the launches that choose the token of each row of logits."""
    plan = at.plan
    if choosing_rows(plan.graph, plan.traits) == 0:
        return ()
    logits = plan.graph.outputs[0]
    return choose(
        at.address(logits),
        at.count(logits),
        at.rows(logits),
        logits.columns,
        draws=at.draws,
        scratch=at.choices + plan.staging.choices_bytes,
        tokens=at.choices,
    )
