"""From a plan to launches for batches of some size: few rows go the narrow way, many the wide."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from corral.devices.base import ModelBuffers
from corral.devices.cuda.choice_rules import choose
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.narrow import narrow
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

    Raises:
        InternalError: if a node has no kernel here; device traits promised one.
    """
    known, parts = Binding(plan, buffers), steps(plan.graph)

    def lowered(bucket: int) -> tuple[Launch, ...]:
        at = replace(known, bucket=bucket)
        if 0 < plan.traits.narrow_rows < bucket:
            return (*lower_wide(at, chip, partial(narrow, chip=chip)), *_choosing(at))
        launches = (launch for step in parts for launch in narrow(at, step, chip))
        return (*launches, *_choosing(at))

    return {bucket: lowered(bucket) for bucket in buckets}


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
