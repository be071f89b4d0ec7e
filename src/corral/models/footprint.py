"""From a file's header to every byte the model will hold, without a device and without weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from corral.errors import InvalidArgument
from corral.gguf import Metadata, TensorInfo
from corral.kv.shift import LEAST_CONTEXT
from corral.kv.spec import KV_TYPES, KVSpec, LayerSpec, blocks_for, kv_spec
from corral.memory.lifetime import Lifetime
from corral.memory.plan import ModelPlan, Plan, place_tables, plan_graph, plan_model
from corral.memory.planner import align
from corral.memory.traits import DeviceTraits
from corral.models.architecture import family_of
from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.attach import Attachment
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import Graph, ShapeClass
from corral.tensor.rewrite import fuse
from corral.tensor.shift import require_shift, shift_graph
from corral.tensor.verify import verify

DEFAULT_CONTEXT = 4096
"""Context when the user names none and the model was trained for more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a model's work is planned for."""

    context: int
    """Tokens of one sequence."""
    parallel: int = 1
    """Sequences at once."""
    kv_type: str = "f16"
    chunk: int = 512
    """Tokens of one evaluation."""
    outputs: int = 32
    """Rows of logits of one evaluation, at least `parallel`."""
    kv_blocks: int | None = None
    """Blocks of layers that see everything; None is enough for `parallel` full sequences."""
    embeddings: bool = False
    """Whether the last hidden states can be read beside the logits."""
    context_shift: bool = False
    """Whether a sequence whose context is full can go on, its older tokens dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelDesign:
    """A model read, its cache specified, its graphs planned for one kind of device."""

    hyper: Hyper
    limits: Limits
    kv: KVSpec
    plan: ModelPlan


def choose_limits(
    metadata: Metadata,
    *,
    context: int | None = None,
    parallel: int = 1,
    kv_type: str = "f16",
    chunk: int = 512,
    kv_blocks: int | None = None,
    embeddings: bool = False,
    context_shift: bool = False,
) -> Limits:
    """Return limits with defaults from the model's own context, checked.

    Raises:
        InvalidArgument: naming the setting, what it is and what it may be.
    """
    trained = family_of(metadata).read(metadata).context
    if context is None:
        context = min(trained, DEFAULT_CONTEXT)
    if not 1 <= context <= trained:
        raise InvalidArgument(f"context is {context}, the model allows 1 to {trained} tokens")
    if not 1 <= parallel <= 256:
        raise InvalidArgument(f"parallel is {parallel}, expected 1 to 256 sequences")
    if kv_type not in KV_TYPES:
        raise InvalidArgument(f"KV type is {kv_type!r}, expected one of {', '.join(KV_TYPES)}")
    each = blocks_for(context)
    if kv_blocks is not None and not each <= kv_blocks <= each * parallel:
        raise InvalidArgument(
            f"there are to be {kv_blocks} KV blocks, expected {each} to {each * parallel}: enough "
            f"for one sequence of {context} tokens, and no more than {parallel} can use"
        )
    if context_shift and context < LEAST_CONTEXT:
        raise InvalidArgument(
            f"context is {context}, shifting it needs at least {LEAST_CONTEXT} tokens: a block "
            "of 32 to keep, one to drop and one to go on from"
        )
    chunk = min(chunk, context * parallel)
    outputs = max(32, parallel)
    return Limits(context, parallel, kv_type, chunk, outputs, kv_blocks, embeddings, context_shift)


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """A model read, its cache specified, its graph as the family wrote it: for no device yet."""

    hyper: Hyper
    limits: Limits
    kv: KVSpec
    graph: Graph


def design_model(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], limits: Limits, traits: DeviceTraits
) -> ModelDesign:
    """Plan a model for one kind of device; raises as `write_graph` does."""
    model = write_graph(metadata, tensors, limits)
    return ModelDesign(model.hyper, limits, model.kv, plan_graph_of(model.graph, limits, traits))


def plan_attached(graph: Graph, traits: DeviceTraits, attachment: Attachment) -> Plan:
    """Fuse and plan a graph as `plan_graph_of` does, with adapters attached.

    Weights and state lie where the model's own plan puts them; the rest is this plan's.
    """
    attachment = replace(attachment, part_columns=traits.adapter_part_columns)
    return plan_graph(verify(fuse(graph, traits.fused, attachment=attachment)), traits)


def attached_footprint(plan: Plan) -> dict[Lifetime, int]:
    """Return the bytes that a plan with adapters needs beside the model's, without adapters."""
    sizes = {
        Lifetime.ADAPTER: place_tables(plan.graph, plan.traits).size_bytes,
        Lifetime.SCRATCH: plan.scratch_bytes,
        Lifetime.STAGING: plan.staging.size_bytes,
        Lifetime.RECORDS: plan.records_bytes,
    }
    return {life: align(size, plan.traits.granularity) for life, size in sizes.items()}


def plan_graph_of(graph: Graph, limits: Limits, traits: DeviceTraits) -> ModelPlan:
    """Fuse a graph for one kind of device and plan it, and behind it the one that shifts."""
    graphs = [verify(fuse(graph, traits.fused))]
    if limits.context_shift:
        graphs.append(verify(shift_graph(graph)))
    return plan_model(graphs, traits, loading_bytes=traits.loading_bytes)


def write_graph(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], limits: Limits
) -> ModelGraph:
    """Read a model's sizes and write its graph.

    Raises:
        ModelError: if the file contradicts itself or needs what corral does not run.
        InvalidArgument: if the KV type does not fit the model's heads, or its context cannot be
            shifted.
    """
    family = family_of(metadata)
    hyper = family.read(metadata)
    kv = cache_spec(family.layers(hyper), hyper, limits)
    builder = GraphBuilder(shape_class(limits))
    output = family.build(builder, Weights(builder, tensors), hyper, kv)
    # The logits are a product of the head's norm, which is what a text's meaning is read from.
    outputs = (output, output.sources[0]) if limits.embeddings else (output,)
    graph = verify(builder.finish(*outputs))
    if limits.context_shift:
        require_shift(graph)
    return ModelGraph(hyper, limits, kv, graph)


def cache_spec(layers: tuple[LayerSpec, ...], hyper: Hyper, limits: Limits) -> KVSpec:
    """Return what the cache of a model holds.

    Raises:
        InvalidArgument: if the KV type does not fit the model's heads.
    """
    kv_type = KV_TYPES[limits.kv_type]
    if hyper.head_dim % kv_type.block_elements:
        raise InvalidArgument(
            f"KV type {limits.kv_type} needs heads of a multiple of {kv_type.block_elements} "
            f"dimensions, this model has {hyper.head_dim}: use f16, bf16 or f32"
        )
    return kv_spec(
        layers,
        kv_type,
        context=limits.context,
        parallel=limits.parallel,
        chunk_tokens=limits.chunk,
        num_blocks=limits.kv_blocks,
    )


def shape_class(limits: Limits) -> ShapeClass:
    """Return the capacities of a graph with these limits."""
    outputs = min(limits.outputs, limits.chunk)
    return ShapeClass(limits.chunk, outputs, limits.parallel, blocks_for(limits.context))
