"""From a file's header to every byte the model will hold, without a device and without weights."""

from collections.abc import Mapping
from dataclasses import dataclass

from corral.errors import InvalidArgument
from corral.gguf import Metadata, TensorInfo
from corral.kv.spec import KV_TYPES, KVSpec, blocks_for, kv_spec
from corral.memory.plan import ModelPlan, plan_model
from corral.memory.traits import DeviceTraits
from corral.models.architecture import architecture
from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import Graph, ShapeClass
from corral.tensor.rewrite import fuse
from corral.tensor.verify import verify

LOADING_BYTES = 8 << 20
"""Staging through which weights pass while loading."""
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
) -> Limits:
    """Return limits with defaults from the model's own context, checked.

    Raises:
        InvalidArgument: naming the setting, what it is and what it may be.
    """
    trained = architecture(metadata.architecture).read(metadata).context
    if context is None:
        context = min(trained, DEFAULT_CONTEXT)
    if not 1 <= context <= trained:
        raise InvalidArgument(f"context is {context}, the model allows 1 to {trained} tokens")
    if not 1 <= parallel <= 256:
        raise InvalidArgument(f"parallel is {parallel}, expected 1 to 256 sequences")
    if kv_type not in KV_TYPES:
        raise InvalidArgument(f"KV type is {kv_type!r}, expected one of {', '.join(KV_TYPES)}")
    return Limits(context, parallel, kv_type, min(512, context * parallel), max(32, parallel))


def design_model(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], limits: Limits, traits: DeviceTraits
) -> ModelDesign:
    """Plan a model for one kind of device.

    Raises:
        ModelError: if the file contradicts itself or needs what corral does not run.
        InvalidArgument: if the KV type does not fit the model's heads.
    """
    family = architecture(metadata.architecture)
    hyper = family.read(metadata)
    kv_type = KV_TYPES[limits.kv_type]
    if hyper.head_dim % kv_type.block_elements:
        raise InvalidArgument(
            f"KV type {limits.kv_type} needs heads of a multiple of {kv_type.block_elements} "
            f"dimensions, this model has {hyper.head_dim}: use f16, bf16 or f32"
        )
    kv = kv_spec(
        family.layers(hyper),
        kv_type,
        context=limits.context,
        parallel=limits.parallel,
        chunk_tokens=limits.chunk,
    )
    shapes = ShapeClass(
        limits.chunk, min(limits.outputs, limits.chunk), limits.parallel, blocks_for(limits.context)
    )
    builder = GraphBuilder(shapes)
    output = family.build(builder, Weights(builder, tensors), hyper, kv)
    graph: Graph = verify(fuse(verify(builder.finish(output)), traits.fused))
    return ModelDesign(hyper, limits, kv, plan_model([graph], traits, loading_bytes=LOADING_BYTES))
