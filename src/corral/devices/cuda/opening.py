"""From a name to an open CUDA device: finds the card, knows what its context costs."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from corral.devices.base import MemoryReading
from corral.devices.cuda.context import Contexts, DeviceContext, process_contexts
from corral.devices.cuda.device import CudaDevice
from corral.devices.cuda.traits import cuda_traits
from corral.devices.listing import machine_sources
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
    return device_of(name, contexts, lambda: replace(machine_sources(), in_process=contexts.read))


def device_of(name: str, contexts: Contexts, sources: Callable[[], Sources]) -> CudaDevice:
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
    facts = context.facts
    return CudaDevice(
        own_name,
        context,
        contexts.driver,
        cuda_traits(planned_context(facts.name, sources().nvml).size_bytes),
        read=lambda: _reading(own_name, Gpu(facts.uuid, facts.name), sources()),
    )


def _names(contexts: Contexts) -> Iterator[tuple[str, DeviceContext]]:
    for context in contexts:
        yield f"cuda:{context.facts.ordinal}", context


def _reading(name: str, gpu: Gpu, sources: Sources) -> MemoryReading:
    told = read_device(name, gpu, sources)
    return MemoryReading(told.total_bytes or 0, told.free_bytes, told.source)
