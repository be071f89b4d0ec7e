"""Plans and footprints: every byte before any exists."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from corral.devices.null.device import NullDevice
from corral.devices.reference.device import ReferenceDevice, reference_traits
from corral.memory.lifetime import Lifetime
from corral.memory.plan import COUNTS, COUNTS_BYTES, ZEROS, plan_graph, plan_model
from corral.memory.planner import align
from corral.memory.traits import DeviceTraits
from corral.quant.types import DType
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Op
from evaluation import Evaluation, random_weights
from transformers import TINY, batch, transformer

PACKED = DeviceTraits(
    kind="packed",
    alignment=256,
    granularity=1 << 21,
    interleave=16,
    fused=frozenset(),
    record_bytes=128,
    context_bytes=123_456,
)


def test_staging_holds_every_input_and_the_counts():
    """Inputs lie apart, aligned, behind the two counts."""
    plan = plan_graph(transformer(), PACKED)
    offsets = plan.staging.offsets
    sizes = {t.name: t.size_bytes for t in plan.graph.leaves(Op.INPUT)} | {COUNTS: COUNTS_BYTES}
    assert set(offsets) == set(sizes)
    assert offsets[COUNTS] == 0
    ends = sorted((offset, offset + sizes[name]) for name, offset in offsets.items())
    for (_, end), (start, _) in pairwise(ends):
        assert end <= start
    assert ends[-1][1] <= plan.staging.size_bytes
    assert all(offset % 256 == 0 for offset in offsets.values())


def test_one_record_a_node():
    """The record pool is as large as the graph is long."""
    plan = plan_graph(transformer(), PACKED)
    assert plan.records_bytes == 128 * len(plan.graph)


def test_values_in_place_share_an_offset():
    """A value lies where its owner does."""
    plan = plan_graph(transformer(), PACKED)
    shared = [t for t, owner in plan.owner.items() if t is not owner]
    assert shared
    for tensor in shared:
        assert plan.scratch_offset(tensor) == plan.scratch.offsets[plan.owner[tensor]]


def test_the_footprint_rounds_each_allocation_up():
    """Every lifetime is a multiple of the granularity; the context is as measured."""
    model = plan_model([transformer()], PACKED, loading_bytes=1)
    footprint = model.footprint()
    assert footprint.pop(Lifetime.CONTEXT) == 123_456
    assert all(size % (1 << 21) == 0 for size in footprint.values())
    assert model.loading_bytes == 1 << 21
    state = sum(t.size_bytes for t in model.plans[0].graph.leaves(Op.STATE))
    assert footprint[Lifetime.STATE] == align(state, 1 << 21)


def test_plans_of_one_model_share_arena_and_staging():
    """The largest graph decides; records add up; weights and state count once."""
    large = transformer(TINY)
    small = transformer(ShapeClass(rows=1, outputs=1, sequences=2, blocks=4))
    traits = reference_traits()
    one = plan_model([large], traits, loading_bytes=0)
    both = plan_model([large, small], traits, loading_bytes=0)
    for lifetime in (Lifetime.SCRATCH, Lifetime.STAGING, Lifetime.WEIGHTS, Lifetime.STATE):
        assert both.footprint()[lifetime] == one.footprint()[lifetime]
    records = sum(plan.records_bytes for plan in both.plans)
    assert both.footprint()[Lifetime.RECORDS] == align(records, traits.granularity)
    assert both.traits is traits


def test_flights_of_all_plans_begin_at_the_same_places():
    """A plan with few inputs writes nothing where another keeps zeros for a later flight."""
    traits = replace(PACKED, has_own_memory=True, flights=2, segments=264)
    many, one = ShapeClass(500, 4, 2, 4), ShapeClass(1, 1, 1, 1)
    graphs = [transformer(many), transformer(one)]
    large, small = plan_model(graphs, traits, loading_bytes=0).plans
    alone = plan_graph(graphs[1], traits)
    assert small.staging.inputs_bytes == large.staging.inputs_bytes > alone.staging.inputs_bytes
    assert small.staging.offsets[ZEROS] == large.staging.offsets[ZEROS]
    logits = small.graph.outputs[0].name
    assert small.staging.offsets[logits] >= 2 * large.staging.inputs_bytes


def test_state_of_one_name_is_one():
    """Two graphs of a model append to the same cache."""
    graphs = [transformer(), transformer()]
    model = plan_model(graphs, PACKED, loading_bytes=0)
    assert set(model.state.offsets) == {"kv.0", "kv.1"}
    assert len(set(model.state.offsets.values())) == 2


def test_planning_is_repeatable():
    """The same graph gives the same offsets."""
    graph = transformer()
    first, second = (plan_graph(graph, PACKED) for _ in range(2))
    assert first.scratch == second.scratch


def test_one_graph_on_two_devices_at_once():
    """No field of a tensor belongs to a device: two plans of one graph run side by side."""
    graph = transformer(dtype=DType.Q8_0)
    weights = random_weights(graph)
    with (
        ReferenceDevice() as one,
        ReferenceDevice() as two,
        NullDevice(PACKED) as three,
        Evaluation(one, graph, weights) as first,
        Evaluation(three, graph, weights) as third,
        Evaluation(two, graph, weights) as second,
    ):
        (expected,) = first.run(**batch((20,)))
        third.run(**batch((20,)))
        second.run(**batch((7,)))
        (after,) = second.run(**batch((20,)))
        assert np.array_equal(after, expected)
        assert third.backend.statistics().launches == len(graph)
        assert third.plan.staging.offsets != first.plan.staging.offsets
        assert three.allocated_bytes == sum(third.model.footprint().values()) - 123_456


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0])
def test_the_cache_takes_what_its_type_says(dtype):
    """State is blocks × K and V × heads × tokens × a row of the type."""
    graph = transformer(width=128, kv_dtype=dtype)
    model = plan_model([graph], reference_traits(), loading_bytes=0)
    assert model.state.size_bytes == 2 * 8 * 2 * 2 * 32 * dtype.row_bytes(32)
