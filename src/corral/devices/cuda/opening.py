"""From a name to an open CUDA device: finds the card, knows what its context costs."""

from collections.abc import Callable, Iterator
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
    known = dict(_names(contexts))
    context = known.get(name) or next(
        (c for c in contexts if name.startswith("GPU-") and c.facts.uuid.startswith(name)), None
    )
    if context is None:
        raise DeviceUnavailable(f"there is no {name} here, only {', '.join(known) or 'the CPU'}")
    own_name = f"cuda:{context.facts.ordinal}"
    card = Gpu(context.facts.uuid, context.facts.name)
    return CudaDevice(
        own_name,
        context,
        contexts.driver,
        cuda_traits(cost(card).size_bytes),
        read=lambda: _reading(own_name, card, sources()),
    )


def _names(contexts: Contexts) -> Iterator[tuple[str, DeviceContext]]:
    for context in contexts:
        yield f"cuda:{context.facts.ordinal}", context


def _reading(name: str, gpu: Gpu, sources: Sources) -> MemoryReading:
    told = read_device(name, gpu, sources)
    return MemoryReading(told.total_bytes or 0, told.free_bytes, told.source)
