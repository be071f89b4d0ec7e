"""From a model's header to what it would hold on each kind of device, layer by layer.

Runs in the planning process: to read what others wrote may take long, or much memory, or fail in
ways nobody thought of, and the router is to live on.
"""

from corral.contract.advice import PREFIX, advice_of
from corral.devices.cpu.traits import cpu_traits
from corral.devices.cuda.traits import cuda_traits
from corral.errors import CorralError, InvalidArgument
from corral.gguf import ModelFile, fingerprint, open_model
from corral.memory.lifetime import is_elsewhere
from corral.memory.traits import DeviceTraits
from corral.models.footprint import ModelGraph, choose_limits, write_graph
from corral.models.split import design_split, state_bytes, weight_bytes
from corral.router.entry import Footprint, LayerBytes, Planned, Unusable
from corral.router.plan_job import PlanJob


def plan_header(job: PlanJob) -> Planned | Unusable:
    """Return what a model would hold, or why it cannot be used; raises nothing on purpose."""
    try:
        with open_model(job.path, skip_arrays=True) as file:
            return _planned(file, job)
    except CorralError as error:
        return Unusable(error.code, str(error))


def _planned(file: ModelFile, job: PlanJob) -> Planned:
    kinds = [_traits(kind, job) for kind in job.kinds]
    widest = max(traits.chunk_tokens for traits in kinds)
    footprints, model = [], None
    for traits in kinds:
        model = _graph(file, job, widest if job.are_mixed else traits.chunk_tokens)
        footprints.append(_footprint(model, traits))
    assert model is not None, "a job has kinds"
    return Planned(
        fingerprint=fingerprint(file),
        architecture=file.metadata.architecture,
        context=model.limits.context,
        trained_context=model.hyper.context,
        num_layers=model.hyper.layers,
        footprints=tuple(footprints),
        advice=advice_of(file.metadata.plain(PREFIX)),
    )


def _graph(file: ModelFile, job: PlanJob, chunk: int) -> ModelGraph:
    limits = choose_limits(
        file.metadata,
        context=job.context,
        parallel=job.parallel,
        kv_type=job.kv_type,
        chunk=chunk,
        kv_blocks=job.kv_blocks,
        embeddings=job.embeddings,
        context_shift=job.context_shift,
    )
    return write_graph(file.metadata, file.tensors, limits)


def _footprint(model: ModelGraph, traits: DeviceTraits) -> Footprint:
    design = design_split(model, [traits], [range(model.hyper.layers)])
    (sizes,) = design.footprints()
    weights = weight_bytes(model, traits)
    layers = LayerBytes(weights.own, state_bytes(model, model.kv, traits).own, weights.shared)
    elsewhere = {life for life in sizes if is_elsewhere(life, traits)}
    return Footprint(
        kind=traits.kind,
        own={life.value: n for life, n in sizes.items() if n and life not in elsewhere},
        host={life.value: n for life, n in sizes.items() if n and life in elsewhere},
        layers=layers,
        granularity=traits.granularity,
    )


def _traits(kind: str, job: PlanJob) -> DeviceTraits:
    match kind:
        case "cpu":
            return cpu_traits(job.threads)
        case "cuda":
            return cuda_traits(0)  # what a context takes depends on the card
    raise InvalidArgument(f"nothing is planned for devices of kind {kind!r}")
