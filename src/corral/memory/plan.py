"""Plans: a graph and where each of its bytes will lie. Pure data; nothing is allocated here.

Graph ── plan_graph ──▶ Plan (scratch, staging, records of one shape class)
Plans + weights + state ──▶ ModelPlan ──▶ footprint: bytes by lifetime, known before any exists
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from corral.memory.choices import DRAW_BYTES, DRAWS, choosing_rows, partials_bytes
from corral.memory.factors import ALIGNMENT as FACTORS_ALIGNMENT
from corral.memory.factors import FactorSpace, factor_space
from corral.memory.lifetime import Lifetime, liveness
from corral.memory.planner import ScratchLayout, align, place
from corral.memory.stored import WeightsLayout, place_weights
from corral.memory.traits import DeviceTraits
from corral.tensor.graph import Graph, ShapeClass
from corral.tensor.ops import Attend, Op
from corral.tensor.tensor import Tensor

COUNTS = "counts"
"""Name of the staging slot with two I64: rows and outputs of this batch."""
COUNTS_BYTES = 16
ZEROS = "zeros"
"""Name of the staging slot with a zero for each segment of attention, for devices that count."""


@dataclass(frozen=True, slots=True)
class StagingLayout:
    """Where the host writes each input, by name, and where it finds the outputs.

    Outputs, and rows received from another device, are there only for devices with memory of their
    own; those of others lie in scratch.
    """

    offsets: dict[str, int]
    inputs_bytes: int
    """Of counts, zeros, draws and all inputs of one flight; those of all flights come first."""
    choices_offset: int
    """Where the tokens lie that the device chose, for each flight; behind the outputs."""
    choices_bytes: int
    """Of one flight."""
    size_bytes: int

    def choices(self, flight: int) -> int:
        """Return where the host finds the tokens chosen by a flight."""
        return self.choices_offset + flight * self.choices_bytes


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Where the state of each layer lies, by name."""

    offsets: dict[str, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Where the table of adapters of each weight lies, by the table's name."""

    offsets: dict[str, int]
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One graph with an offset for each of its values on one kind of device."""

    graph: Graph
    traits: DeviceTraits
    scratch: ScratchLayout
    owner: Mapping[Tensor, Tensor]
    """Every scratch value to the value whose bytes it uses."""
    staging: StagingLayout

    workspace_bytes: int
    """Scratch of one worker, enough for the widest matrix product."""
    segments_bytes: int
    """Scratch for segments of attention, one row of each sequence."""
    factors: FactorSpace
    """Scratch for products of many rows."""

    @property
    def segments_offset(self) -> int:
        """Where the segments of attention lie in the arena, behind values and workspaces."""
        return self.scratch.size_bytes + self.traits.workers * self.workspace_bytes

    @property
    def factors_offset(self) -> int:
        """Where the factors of products lie in the arena."""
        end = self.segments_offset + self.segments_bytes
        return align(end, FACTORS_ALIGNMENT) if self.factors.size_bytes else end

    @property
    def inputs_offset(self) -> int:
        """Where a device with memory of its own has its copy of the inputs in the arena."""
        return self.factors_offset + self.factors.size_bytes

    @property
    def choices_offset(self) -> int:
        """Where the device keeps the tokens it chose, and what it needs to choose them."""
        inputs = self.staging.inputs_bytes if self.traits.has_own_memory else 0
        return self.inputs_offset + inputs

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the arena: values, workspaces, segments, factors, inputs, choices."""
        return self.choices_offset + self.choices_bytes

    @property
    def choices_bytes(self) -> int:
        """Bytes in the arena for choosing tokens."""
        rows, vocabulary = choosing_rows(self.graph, self.traits), self.graph.outputs[0].columns
        return self.staging.choices_bytes + partials_bytes(rows, vocabulary)

    @property
    def num_records(self) -> int:
        """Records that lowering may take."""
        twice = sum(node.op in self.traits.two_records for node in self.graph)
        choosing = 2 if choosing_rows(self.graph, self.traits) else 0
        crossing = 2 * self.traits.flights if self.traits.has_own_memory else 0
        return (len(self.graph) + twice + choosing + crossing) * len(self.buckets)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Numbers of rows that lowering makes launches for, ascending."""
        shapes = self.graph.shape_class
        return self.traits.buckets_of(shapes.rows, shapes.sequences)

    @property
    def records_bytes(self) -> int:
        """Bytes of the record pool."""
        return self.num_records * self.traits.record_bytes

    def scratch_offset(self, tensor: Tensor) -> int:
        """Return where a scratch value lies in the arena."""
        return self.scratch.offsets[self.owner[tensor]]


def plan_graph(graph: Graph, traits: DeviceTraits) -> Plan:
    """Plan one graph for one kind of device."""
    lives = liveness(graph, joins_steps=traits.narrow_rows > 0)
    rows = graph.shape_class.rows
    is_wide = 0 < traits.narrow_rows < rows
    scratch = place(lives.intervals, traits.alignment)
    return Plan(
        graph,
        traits,
        scratch,
        lives.owner,
        _place_staging(graph.leaves(Op.INPUT), graph, traits),
        _workspace_bytes(graph, traits),
        _segments_bytes(graph, graph.shape_class, traits),
        factor_space(graph, rows) if is_wide else FactorSpace(),
    )


def _workspace_bytes(graph: Graph, traits: DeviceTraits) -> int:
    products = (node for node in graph if node.op in (Op.MATMUL, Op.MATMUL_ADD))
    widest = max((node.sources[0].columns for node in products), default=0)
    size = traits.workspace_bytes + widest * traits.workspace_bytes_per_column
    return align(size, traits.alignment)


def _segments_bytes(graph: Graph, shapes: ShapeClass, traits: DeviceTraits) -> int:
    if traits.segments:
        segments = traits.segments
    elif traits.segment_blocks:
        segments = -(-shapes.blocks // traits.segment_blocks) * shapes.sequences
    else:
        return 0
    attends = (node.attributes for node in graph if isinstance(node.attributes, Attend))
    sizes = (a.heads * (traits.segment_bytes + 4 * a.head_dim) for a in attends)
    return align(segments * max(sizes, default=0), traits.alignment)


def _place_staging(
    inputs: Iterable[Tensor], graph: Graph, traits: DeviceTraits, *, least_bytes: int = 0
) -> StagingLayout:
    """Place what crosses; a flight has at least so many bytes of inputs."""
    offsets = {COUNTS: 0}
    offset = align(COUNTS_BYTES, traits.alignment)

    def place(tensors: Iterable[Tensor]) -> int:
        nonlocal offset
        for tensor in tensors:
            offsets[tensor.name] = offset
            offset += align(tensor.size_bytes, traits.alignment)
        return offset

    if traits.segments:
        offsets[ZEROS] = offset
        offset += align(4 * traits.segments, traits.alignment)
    choosing = choosing_rows(graph, traits)
    if choosing:
        offsets[DRAWS] = offset
        offset += align(DRAW_BYTES * choosing, traits.alignment)
    inputs_bytes = max(place(inputs), least_bytes)
    offset = inputs_bytes * traits.flights
    passing = (*graph.outputs, *graph.leaves(Op.RECEIVED)) if traits.has_own_memory else ()
    end = place(passing)
    choices = align(4 * choosing, traits.alignment)
    return StagingLayout(offsets, inputs_bytes, end, choices, end + traits.flights * choices)


def place_state(states: Iterable[Tensor], traits: DeviceTraits) -> StateLayout:
    """Give the state of each layer its place in one buffer."""
    offsets: dict[str, int] = {}
    offset = 0
    for tensor in states:
        if tensor.name not in offsets:
            offsets[tensor.name] = offset
            offset += align(tensor.size_bytes, traits.alignment)
    return StateLayout(offsets, offset)


def place_tables(graph: Graph, traits: DeviceTraits) -> TableLayout:
    """Give the tables of adapters that a graph reads their places in one buffer."""
    offsets: dict[str, int] = {}
    offset = 0
    for tensor in graph.leaves(Op.ADAPTERS):
        offsets[tensor.name] = offset
        offset += align(tensor.size_bytes, traits.alignment)
    return TableLayout(offsets, offset)


@dataclass(frozen=True, slots=True, eq=False)
class ModelPlan:
    """Everything one model holds on one device."""

    plans: tuple[Plan, ...]
    weights: WeightsLayout
    state: StateLayout
    loading_bytes: int
    """Staging through which weights pass; given back when loading is done.

    A device with memory of its own has a place for as much in its scratch arena.
    """

    @property
    def traits(self) -> DeviceTraits:
        """The traits of the device planned for."""
        return self.plans[0].traits

    def footprint(self) -> dict[Lifetime, int]:
        """Return the bytes the model holds once loaded, by lifetime, each allocation rounded up.

        All plans share one scratch arena and one staging buffer, so the largest counts.
        """
        sizes = {
            Lifetime.WEIGHTS: self.weights.size_bytes,
            Lifetime.STATE: self.state.size_bytes,
            Lifetime.SCRATCH: max(plan.scratch_bytes for plan in self.plans),
            Lifetime.STAGING: max(plan.staging.size_bytes for plan in self.plans),
            Lifetime.RECORDS: sum(plan.records_bytes for plan in self.plans),
        }
        rounded = {life: align(size, self.traits.granularity) for life, size in sizes.items()}
        return rounded | {Lifetime.CONTEXT: self.traits.context_bytes}


def _side_by_side(plans: Sequence[Plan], resize: "Resize") -> tuple[Plan, ...]:
    """Return plans whose flights begin at the same places of the one staging buffer.

    What stands at the beginning of a flight, zeros among it, is then written by none of the others.
    """

    def placed(plan: Plan, least_bytes: int) -> StagingLayout:
        inputs = map(resize, plan.graph.leaves(Op.INPUT))
        return _place_staging(inputs, plan.graph, plan.traits, least_bytes=least_bytes)

    widest = max(placed(plan, 0).inputs_bytes for plan in plans)
    return tuple(replace(plan, staging=placed(plan, widest)) for plan in plans)


Resize = Callable[[Tensor], Tensor]
"""Gives an input or a state as it would be in a graph of another shape class."""


def resized_footprint(model: ModelPlan, shapes: ShapeClass, resize: Resize) -> dict[Lifetime, int]:
    """Return the footprint for a shape class that differs from the model's in `blocks` only.

    Equal to what planning anew gives, and much sooner: how many blocks a sequence has changes the
    sizes of leaves and of segments, and no value that a node computes.
    """
    traits = model.traits
    assert replace(model.plans[0].graph.shape_class, blocks=shapes.blocks) == shapes

    def resized(plan: Plan) -> Plan:
        return replace(plan, segments_bytes=_segments_bytes(plan.graph, shapes, traits))

    states = (resize(t) for plan in model.plans for t in plan.graph.leaves(Op.STATE))
    plans = _side_by_side(tuple(map(resized, model.plans)), resize)
    return replace(model, plans=plans, state=place_state(states, traits)).footprint()


def plan_model(graphs: Sequence[Graph], traits: DeviceTraits, *, loading_bytes: int) -> ModelPlan:
    """Plan the graphs of one model, which share weights and state, for one kind of device."""
    stored = [t for g in graphs for op in (Op.WEIGHT, Op.CONSTANT) for t in g.leaves(op)]
    plans = tuple(plan_graph(graph, traits) for graph in graphs)
    if len(plans) > 1:
        plans = _side_by_side(plans, lambda leaf: leaf)
    loading_bytes = align(loading_bytes, traits.granularity)
    if traits.has_own_memory:  # what is read lands in the scratch arena
        scratch_bytes = align(max(plan.scratch_bytes for plan in plans), traits.granularity)
        loading_bytes = min(loading_bytes, scratch_bytes)
    return ModelPlan(
        plans,
        place_weights(stored, traits),
        place_state((t for graph in graphs for t in graph.leaves(Op.STATE)), traits),
        loading_bytes,
    )
