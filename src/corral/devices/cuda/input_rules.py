"""The launches at both ends of a step that is one graph: inputs come in, chosen tokens go out.

    staging of a flight ─▶ take_inputs ─▶ the arena's copy ─▶ … ─▶ choices ─▶ give_tokens ─▶ staging

Kernels read and write pinned memory themselves: a copy in the stream would have the card wait for
another engine, twice a step.
"""

from itertools import pairwise

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch, ceil_divide
from corral.memory.choices import choosing_rows
from corral.tensor.attach import SPANS
from corral.tensor.ops import Op

MOST_PIECES = 12
"""`kMostPieces` of the kernel."""
_THREADS = 256
_UNIT_BYTES = 16
_MOST_PARTS = 64
"""Thread blocks of one piece."""
_TAKE, _GIVE = INSTANCES = (
    Instance.of("inputs", "take_inputs"),
    Instance.of("inputs", "give_tokens"),
)


def take_inputs(at: Binding, flight: int) -> Launch:
    """Return the launch that copies a flight's inputs from staging, as many as a bucket may have.

    It must have ended before the next begins: kernels read inputs before they wait.
    """
    plan, buffers = at.plan, at.buffers
    copied = pieces(at)
    padded = [*copied, *[(0, 0)] * (MOST_PIECES - len(copied))]
    fields = {
        "source": buffers.staging.address + flight * plan.staging.inputs_bytes,
        "target": buffers.inputs_address(plan),
    }
    for number, (first, count) in enumerate(padded):
        fields |= {f"first{number}": first, f"count{number}": count}
    parts = min(_MOST_PARTS, ceil_divide(max(count for _, count in copied), _THREADS))
    return Launch(_TAKE, (len(copied), parts, 1), (_THREADS, 1, 1), fields)


def give_tokens(at: Binding, flight: int) -> tuple[Launch, ...]:
    """Return the launch that writes the tokens the device chose to a flight's staging, if any."""
    plan, buffers = at.plan, at.buffers
    if choosing_rows(plan.graph, plan.traits) == 0:
        return ()
    fields = {
        "tokens": at.choices,
        "count": at.count(plan.graph.outputs[0]),
        "target": buffers.staging.address + plan.staging.choices(flight),
    }
    return (Launch(_GIVE, (1, 1, 1), (_THREADS, 1, 1), fields),)


def pieces(at: Binding, most: int = MOST_PIECES) -> list[tuple[int, int]]:
    """Return what of the inputs a bucket may need: (first, count) of each slot, in 16 bytes.

    If there are more slots than `most`, it is all of them in one piece.
    """
    layout = at.plan.staging
    needed = {
        tensor.name: tensor.size_bytes // tensor.shape[0] * at.rows(tensor)
        for tensor in at.plan.graph.leaves(Op.INPUT)
        if tensor.name not in SPANS.values()  # as many rows as sequences have adapters
    }
    slots = sorted((first, name) for name, first in layout.offsets.items())
    inside = [(first, name) for first, name in slots if first < layout.inputs_bytes]
    if len(inside) > most:
        return [(0, layout.inputs_bytes // _UNIT_BYTES)]
    return [
        (first // _UNIT_BYTES, ceil_divide(needed.get(name, end - first), _UNIT_BYTES))
        for (first, name), (end, _) in pairwise([*inside, (layout.inputs_bytes, "")])
    ]
