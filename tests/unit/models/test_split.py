"""A model over several devices: nothing is lost, nothing twice, and the answer is the same."""

from contextlib import ExitStack
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from corral.devices.cpu.traits import CPU_TRAITS
from corral.devices.cuda.traits import cuda_traits
from corral.devices.null.device import NullDevice
from corral.devices.reference.device import ReferenceDevice, reference_traits
from corral.gguf import Metadata, TensorInfo
from corral.memory.lifetime import Lifetime
from corral.models.footprint import Limits, design_model, write_graph
from corral.models.split import design_split, split_by_weights, state_bytes, weight_bytes
from corral.quant.types import DType
from corral.tensor.cut import cut
from corral.tensor.ops import Op
from corral.tensor.rewrite import fuse
from evaluation import Evaluation
from headers import LLAMA_70B

LAYERS = {"llama": 4, "qwen2": 4, "qwen3": 4, "gemma3": 7}
LIMITS = Limits(64, parallel=2, chunk=16, outputs=4)
CUDA = cuda_traits(640 << 20)
ALL_TRAITS = (CPU_TRAITS, CUDA, reference_traits())
BATCHES = (
    {"sequences": [0] * 9 + [1] * 5, "positions": [*range(9), *range(5)], "output_rows": [8, 13]},
    {"sequences": [0, 1], "positions": [9, 5], "output_rows": [0, 1]},
)
"""Two prompts, then a token of each, which sees what the prompts left in the cache."""


def header(family, dtype=DType.F32):
    infos = {
        name: TensorInfo(name, dtype if len(shape) > 1 else DType.F32, shape, 0, 0)
        for name, shape in tiny.shapes(family, LAYERS[family]).items()
    }
    return Metadata.of(tiny.keys(family, block_count=LAYERS[family])), infos


def graph_of(family, dtype=DType.F32, limits=LIMITS):
    return write_graph(*header(family, dtype), limits)


@st.composite
def runs(draw, layers):
    """Return a way to cut so many layers, uncut included."""
    cuts = draw(st.sets(st.integers(1, layers - 1), max_size=layers - 1))
    ends = [0, *sorted(cuts), layers]
    return tuple(range(a, b) for a, b in pairwise(ends))


@st.composite
def splits(draw):
    family = draw(st.sampled_from(tiny.FAMILIES))
    return family, draw(runs(LAYERS[family]))


@cache
def file_bytes(family, dtype):
    table = tiny.tensors(family, LAYERS[family], dtype)
    return {name: np.ascontiguousarray(data).tobytes() for name, (_, _, data) in table.items()}


def answers(graphs, device, weights):
    """Evaluate graphs one after the other, each with what those before it gave."""
    with ExitStack() as stack:
        evaluations = [stack.enter_context(Evaluation(device, g, weights)) for g in graphs]
        found = []
        for batch in BATCHES:
            tables = [[2 * block + s for block in range(2)] for s in range(2)]
            rows = batch | {"tokens": [(7 * p + 3) % 250 for p in batch["positions"]]}
            rows |= {"tables": tables, f"tables.window{tiny.WINDOW}": tables}
            sent = {}
            for evaluation in evaluations:
                results = evaluation.run(**rows, **sent, outputs=2)
                names = [output.name for output in evaluation.graph.outputs]
                sent |= dict(zip(names, results, strict=True))
            found.append(sent["logits"])
    return found


@cache
def whole_answer(family, dtype, fused):
    graph = fuse(graph_of(family, dtype).graph, fused)
    with ReferenceDevice(fused) as device:
        return answers([graph], device, file_bytes(family, dtype))


@settings(max_examples=40, deadline=None)
@given(
    splits(),
    st.sampled_from([DType.F32, DType.Q8_0]),
    st.sampled_from([frozenset(), CPU_TRAITS.fused]),
)
def test_parts_give_the_answer_of_the_whole(split, dtype, fused):
    """Evaluated one after the other, parts give the same logits to the bit, each with its cache."""
    family, layers = split
    graphs = [fuse(part, fused) for part in cut(graph_of(family, dtype).graph, layers)]
    with ReferenceDevice(fused) as device:
        actual = answers(graphs, device, file_bytes(family, dtype))
    for one, other in zip(actual, whole_answer(family, dtype, fused), strict=True):
        assert np.isfinite(one).all()
        assert np.array_equal(one, other)


def test_the_cpu_takes_parts_too():
    """A device that computes in the host's memory receives what it did not compute."""
    from corral.devices import registry

    graph = graph_of("llama", DType.Q8_0).graph
    weights = file_bytes("llama", DType.Q8_0)
    with registry.open("cpu", threads=1) as device:
        whole = answers([fuse(graph, device.traits.fused)], device, weights)
        parts = [fuse(p, device.traits.fused) for p in cut(graph, (range(1), range(1, 4)))]
        for one, other in zip(answers(parts, device, weights), whole, strict=True):
            assert np.array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(splits(), st.sampled_from(ALL_TRAITS))
def test_nothing_is_lost_and_nothing_twice(split, traits):
    """Each layer's weights, and its keys and values, are on exactly one device.

    Twice is only what each device needs to turn positions, and a table that serves at both ends.
    """
    family, layers = split
    model = graph_of(family, DType.Q8_0)
    whole = design_model(*header(family, DType.Q8_0), LIMITS, traits).plan
    parts = design_split(model, [traits] * len(layers), layers).plans
    places = {}
    for number, plan in enumerate(parts):
        for name, slot in plan.weights.slots.items():
            places.setdefault(name, []).append(number)
            assert slot.form == whole.weights.slots[name].form
    assert set(places) == set(whole.weights.slots)
    twice = {name for name, numbers in places.items() if len(numbers) > 1}
    assert all("rope_freq" in name or name == "token_embd.weight" for name in twice)
    for number, (run, plan) in enumerate(zip(layers, parts, strict=True)):
        assert set(plan.state.offsets) == {f"kv.{layer}" for layer in run}
        own = {name for name, numbers in places.items() if numbers == [number]}
        assert {n.split(".")[1] for n in own if n.startswith("blk.")} == {str(i) for i in run}
    assert places["token_embd.weight"][0] == 0
    assert places["output_norm.weight"] == [len(layers) - 1]
    again = sum(
        -(-whole.weights.slots[name].form.size_bytes // traits.alignment)
        * traits.alignment
        * (len(places[name]) - 1)
        for name in twice
    )
    assert sum(plan.weights.size_bytes for plan in parts) == whole.weights.size_bytes + again
    assert sum(plan.state.size_bytes for plan in parts) == whole.state.size_bytes


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("traits", ALL_TRAITS, ids=lambda traits: traits.kind)
def test_one_device_has_the_plan_of_one_device(family, traits):
    """A split over one device is no other plan: the same offsets for the same names."""
    alone = design_model(*header(family), LIMITS, traits).plan
    (split,) = design_split(graph_of(family), [traits], [range(LAYERS[family])]).plans
    assert split.footprint() == alone.footprint()
    assert {n: s.offset for n, s in split.weights.slots.items()} == {
        n: s.offset for n, s in alone.weights.slots.items()
    }
    assert split.state == alone.state
    one, other = split.plans[0], alone.plans[0]
    assert one.staging == other.staging
    assert [(t.name, one.scratch_offset(t)) for t in one.owner] == [
        (t.name, other.scratch_offset(t)) for t in other.owner
    ]


@settings(max_examples=60, deadline=None)
@given(splits(), st.sampled_from(ALL_TRAITS), st.data())
def test_runs_are_weighed_as_they_are_placed(split, traits, data):
    """What the assignment counts is what the plan of a part holds, before it is rounded up."""
    family, layers = split
    model = graph_of(family, DType.Q8_0)
    weights, state = weight_bytes(model, traits), state_bytes(model, model.kv, traits)
    design = design_split(model, [traits] * len(layers), layers)
    number = data.draw(st.integers(0, len(layers) - 1))
    run, plan = layers[number], design.plans[number]
    assert weights.of(run.start, run.stop) == plan.weights.size_bytes
    assert state.of(run.start, run.stop) == plan.state.size_bytes


@settings(max_examples=60, deadline=None)
@given(splits(), st.sampled_from(ALL_TRAITS), st.integers(1, 40), st.sampled_from(["f16", "f32"]))
def test_footprints_of_other_contexts_need_no_other_plan(split, traits, blocks, kv_type):
    """What follows from one plan is what planning anew gives, windows included."""
    family, layers = split
    metadata, tensors = header(family)
    base = Limits(96, parallel=3, kv_type=kv_type, chunk=48, outputs=5)
    other = Limits(32 * blocks - 7, parallel=3, kv_type=kv_type, chunk=48, outputs=5)
    every = [traits] * len(layers)
    design = design_split(write_graph(metadata, tensors, base), every, layers)
    anew = design_split(write_graph(metadata, tensors, other), every, layers)
    assert design.footprints(other) == anew.footprints()
    assert design.footprints() == tuple(plan.footprint() for plan in design.plans)


def test_one_graph_over_two_kinds_of_devices():
    """Each part is fused and packed as its own device wants it."""
    layers = (range(1), range(1, 4))
    plain, packed = design_split(graph_of("llama"), [reference_traits(), CUDA], layers).plans
    assert {node.op for node in plain.plans[0].graph}.isdisjoint(CUDA.fused)
    assert not {node.op for node in packed.plans[0].graph}.isdisjoint(CUDA.fused)
    assert plain.footprint()[Lifetime.CONTEXT] == 0
    assert packed.footprint()[Lifetime.CONTEXT] == 640 << 20


def test_both_ends_count():
    """An output matrix on the last device takes the place of layers there."""
    model = write_graph(*LLAMA_70B.header, Limits(4096))
    traits = [CUDA] * 8
    first, *middle, last = map(len, split_by_weights(model, traits, [1.0] * 8))
    assert max(first, last) < min(middle)


def test_a_part_counts_on_the_null_device():
    """A part can be allocated and lowered like any graph: its rows have a place."""
    part = cut(graph_of("gemma3").graph, (range(3), range(3, 7)))[1]
    with NullDevice(CPU_TRAITS) as device, Evaluation(device, part) as evaluation:
        (rows,) = part.leaves(Op.RECEIVED)
        scratch = evaluation.buffers.scratch
        place = evaluation.buffers.address(evaluation.plan, rows) - scratch.address
        assert 0 <= place <= scratch.size_bytes - rows.size_bytes
