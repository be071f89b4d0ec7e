"""A model over several devices: a run of layers, a graph and a plan for each of them.

Embeddings lie on the first device, the final norm and the output matrix on the last; where one
table serves as both, each has it. Keys and values lie beside their layer. On one device it is the
plan of `design_model`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from corral.kv.spec import KVSpec, kv_spec
from corral.memory.lifetime import Lifetime
from corral.memory.plan import ModelPlan, resized_footprint
from corral.memory.planner import align
from corral.memory.stored import stored_form
from corral.memory.traits import DeviceTraits
from corral.models.assign import Cost, assign
from corral.models.footprint import Limits, ModelGraph, plan_graph_of, shape_class
from corral.tensor.cut import cut
from corral.tensor.graph import Graph
from corral.tensor.ops import Op
from corral.tensor.tensor import Extent, Tensor
from corral.tensor.verify import verify

Footprint = Mapping[Lifetime, int]


@dataclass(frozen=True, slots=True, eq=False)
class SplitDesign:
    """A model planned for one or several devices."""

    model: ModelGraph
    layers: tuple[range, ...]
    plans: tuple[ModelPlan, ...]
    """One a device, in the order in which they are evaluated."""

    def footprints(self, limits: Limits | None = None) -> tuple[Footprint, ...]:
        """Return the bytes on each device; also for limits that differ in the context only.

        Such limits must leave the chunk and the outputs as they are.
        """
        if limits is None or limits == self.model.limits:
            return tuple(plan.footprint() for plan in self.plans)
        own = self.model.limits
        assert replace(limits, context=own.context) == own
        shapes, kv = shape_class(limits), resized_cache(self.model, limits)

        def resize(leaf: Tensor) -> Tensor:
            if leaf.op is Op.STATE:
                assert leaf.layer is not None
                return replace(leaf, shape=kv.state_shape(leaf.layer))
            is_table = leaf.extent is Extent.FIXED
            return replace(leaf, shape=(shapes.sequences, shapes.blocks)) if is_table else leaf

        return tuple(resized_footprint(plan, shapes, resize) for plan in self.plans)


def resized_cache(model: ModelGraph, limits: Limits) -> KVSpec:
    """Return what the cache of a model holds with other limits."""
    return kv_spec(
        model.kv.layers,
        model.kv.dtype,
        context=limits.context,
        parallel=limits.parallel,
        chunk_tokens=limits.chunk,
        num_blocks=limits.kv_blocks,
    )


def design_split(
    model: ModelGraph, traits: Sequence[DeviceTraits], layers: Sequence[range]
) -> SplitDesign:
    """Plan each run of layers for its device."""
    parts = cut(model.graph, layers)
    graphs = map(verify, parts) if len(parts) > 1 else parts  # all of it was verified when written
    pairs = zip(graphs, traits, strict=True)
    plans = tuple(plan_graph_of(graph, model.limits, device) for graph, device in pairs)
    return SplitDesign(model, tuple(layers), plans)


def split_by_weights(
    model: ModelGraph, traits: Sequence[DeviceTraits], shares: Sequence[float], *, first: int = 0
) -> tuple[range, ...]:
    """Return runs of layers whose weights are to each other as the shares are, nearly.

    Layers before the `first` are left to others.

    Raises:
        InvalidArgument: if there are more devices than layers, or a share is not positive.
    """
    if len(traits) == 1 and first < model.hyper.layers:
        return (range(first, model.hyper.layers),)
    weights = [weight_bytes(model, device) for device in dict.fromkeys(traits)]
    sizes = dict(zip(dict.fromkeys(traits), weights, strict=True))

    def cost(device: DeviceTraits) -> Cost:
        return lambda begin, end: sizes[device].of(first + begin, first + end)

    runs = assign(model.hyper.layers - first, [cost(device) for device in traits], shares)
    return tuple(range(first + run.start, first + run.stop) for run in runs)


class RunBytes:
    """Bytes of runs of layers, each leaf of a run counted once."""

    def __init__(self, num_layers: int, leaves: Mapping[str, tuple[int, Sequence[int]]]) -> None:
        """Take each leaf's bytes and the layers that need it, ascending, by its name."""
        own = [0] * num_layers
        for size, layers in leaves.values():
            if len(layers) == 1:
                own[layers[0]] += size
        self.own = tuple(own)
        """Of leaves that one layer needs, by layer."""
        self.shared = tuple((n, tuple(layers)) for n, layers in leaves.values() if len(layers) > 1)
        """(bytes, layers) of those that several need."""
        self._sums = (0, *accumulate(own))
        self._shared: list[tuple[int, tuple[int, ...]]] = []  # with how many need it before a layer
        for size, layers in self.shared:
            needed = (layer in layers for layer in range(num_layers))
            self._shared.append((size, (0, *accumulate(needed))))

    def of(self, first: int, end: int) -> int:
        """Return the bytes of layers first … end - 1."""
        total = self._sums[end] - self._sums[first]
        for size, before in self._shared:
            if before[end] > before[first]:
                total += size
        return total


def weight_bytes(model: ModelGraph, traits: DeviceTraits) -> RunBytes:
    """Return the bytes of weights by run of layers, those at both ends of the model included."""
    leaves: dict[str, tuple[int, list[int]]] = {}
    for layer, graph in enumerate(_one_by_one(model)):
        for leaf in (*graph.leaves(Op.WEIGHT), *graph.leaves(Op.CONSTANT)):
            if leaf.name not in leaves:
                size = stored_form(leaf, traits).size_bytes
                leaves[leaf.name] = align(size, traits.alignment), []
            leaves[leaf.name][1].append(layer)
    return RunBytes(model.hyper.layers, leaves)


def state_bytes(model: ModelGraph, kv: KVSpec, traits: DeviceTraits) -> RunBytes:
    """Return the bytes of keys and values by run of layers."""
    leaves = {}
    for state in model.graph.leaves(Op.STATE):
        assert state.layer is not None
        size = replace(state, shape=kv.state_shape(state.layer)).size_bytes
        leaves[state.name] = align(size, traits.alignment), (state.layer,)
    return RunBytes(model.hyper.layers, leaves)


def _one_by_one(model: ModelGraph) -> tuple[Graph, ...]:
    layers = range(model.hyper.layers)
    return cut(model.graph, [range(layer, layer + 1) for layer in layers])
