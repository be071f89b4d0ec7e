"""From a model's header to what it would hold on each kind of device, layer by layer.

Runs in the planning process: to read what others wrote may take long, or much memory, or fail in
ways nobody thought of, and the router is to live on.
"""

from collections.abc import Sequence
from pathlib import Path

from corral.contract.advice import PREFIX, advice_of
from corral.devices.cpu.traits import cpu_traits
from corral.devices.cuda.traits import cuda_traits
from corral.errors import CorralError, InvalidArgument
from corral.gguf import ModelFile, fingerprint, open_model
from corral.lora.adapter import Adapter, open_adapter, require_fitting
from corral.lora.placing import attachment, place_adapter
from corral.memory.lifetime import Lifetime, is_elsewhere
from corral.memory.planner import align
from corral.memory.traits import DeviceTraits
from corral.models.footprint import (
    ModelGraph,
    attached_footprint,
    choose_limits,
    plan_attached,
    write_graph,
)
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
        footprints.append(_footprint(model, traits, _adapters(file, job)))
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


def _adapters(file: ModelFile, job: PlanJob) -> list[Adapter]:
    """Read the headers of the adapters, which must fit the model."""
    found = []
    for path in job.adapters:
        with open_adapter(Path(path)) as (adapter, _own):
            architecture, name = file.metadata.architecture, file.path.name
            require_fitting(adapter, architecture, file.tensors, base=name)
            found.append(adapter)
    return found


def _attached(
    model: ModelGraph, traits: DeviceTraits, adapters: Sequence[Adapter]
) -> dict[Lifetime, int]:
    """Return what adapters and the programs with them take beside a model."""
    if not adapters:
        return {}
    needed = attachment(adapters, slots=len(adapters), sequences=model.limits.parallel)
    sizes = attached_footprint(plan_attached(model.graph, traits, needed))
    for one in adapters:
        size = place_adapter(one, one.pairs).size_bytes
        sizes[Lifetime.ADAPTER] += align(size, traits.granularity)
    return sizes


def _footprint(model: ModelGraph, traits: DeviceTraits, adapters: Sequence[Adapter]) -> Footprint:
    design = design_split(model, [traits], [range(model.hyper.layers)])
    (own,) = design.footprints()
    attached = _attached(model, traits, adapters)
    sizes = {life: own.get(life, 0) + attached.get(life, 0) for life in {**own, **attached}}
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
