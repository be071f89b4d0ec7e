"""From a name to an open CUDA device: finds the card, knows what its context costs."""

from collections.abc import Callable
from dataclasses import replace

from corral.devices.base import MemoryReading
from corral.devices.context_cost import ContextCost
from corral.devices.cuda.context import Contexts, DeviceContext, process_contexts
from corral.devices.cuda.device import CudaDevice
from corral.devices.cuda.traits import cuda_traits
from corral.devices.listing import machine_costs, machine_nvml, machine_probe, machine_sources
from corral.devices.nvml import Gpu
from corral.devices.planned_context import planned_context
from corral.devices.reading import Sources, read_device
from corral.errors import DeviceUnavailable


def open_cuda(name: str) -> CudaDevice:
    """Open cuda:N or a card by the beginning of its UUID; loads the driver, makes no context.

    Raises:
        DeviceUnavailable: if the bindings, the driver or the card is missing.
    """
    contexts = process_contexts()
    return device_of(
        name,
        contexts,
        lambda: replace(machine_sources(), in_process=contexts.read),
        cost=lambda card: planned_context(
            card, machine_nvml(), machine_costs(), probe=machine_probe()
        ),
    )


def device_of(
    name: str,
    contexts: Contexts,
    sources: Callable[[], Sources],
    *,
    cost: Callable[[Gpu], ContextCost],
) -> CudaDevice:
    """Return the device of that name among some contexts, read through some sources.

    Raises:
        DeviceUnavailable: if there is none; it names those there are.
    """
    context = _named(name, contexts)
    own_name = _name(context)
    card = Gpu(context.facts.uuid, context.facts.name)
    return CudaDevice(
        own_name,
        context,
        contexts.driver,
        cuda_traits(cost(card).size_bytes),
        read=lambda: _reading(own_name, card, sources()),
    )


def _named(name: str, contexts: Contexts) -> DeviceContext:
    found = [context for context in contexts if name == _name(context) or _begins(name, context)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{_name(c)} ({c.facts.uuid})" for c in contexts) or "none"
    raise DeviceUnavailable(
        f"{name} names {len(found) or 'no'} CUDA device{'s' * (len(found) > 1)} that this process "
        f"sees; there: {there}"
    )


def _name(context: DeviceContext) -> str:
    return f"cuda:{context.facts.ordinal}"


def _begins(name: str, context: DeviceContext) -> bool:
    """Whether a name is the beginning of a UUID, which the driver calls GPU- for slices too."""
    kind, digits = name[:4], name[4:].lower()
    return kind in ("GPU-", "MIG-") and bool(digits) and context.facts.uuid[4:].startswith(digits)


def _reading(name: str, gpu: Gpu, sources: Sources) -> MemoryReading:
    told = read_device(name, gpu, sources)
    return MemoryReading(told.total_bytes or 0, told.free_bytes, told.source)
