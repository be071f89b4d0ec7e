"""From a name to an open CUDA device: finds the card, knows what its context costs.

The driver counts the devices that this process sees, and calls slices of a card GPU- as well; NVML
knows their own names. Both speak of one device where the digits of its UUID are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from corral.config import settings
from corral.devices.base import MemoryReading
from corral.devices.context_cost import ContextCost
from corral.devices.cuda.compile import Compiler
from corral.devices.cuda.contexts import Contexts, process_contexts
from corral.devices.cuda.device import CudaDevice
from corral.devices.cuda.traits import cuda_traits
from corral.devices.listing import (
    machine_costs,
    machine_nvml,
    machine_probe,
    machine_sources,
    machine_visible,
)
from corral.devices.nvml import Gpu, MigSlice
from corral.devices.planned_context import planned_context
from corral.devices.reading import DRIVER, DeviceReading, Sources, read_device
from corral.devices.visible import Visible
from corral.paths import CacheTree


def open_cuda(name: str) -> CudaDevice:
    """Open cuda:N or a card by the beginning of its UUID; loads the driver, makes no context.

    Raises:
        DeviceUnavailable: if the bindings, the driver or the card is missing.
    """
    contexts = process_contexts()
    return device_of(
        name,
        contexts,
        machine_sources,
        cost=lambda card: planned_context(
            card, machine_nvml(), machine_costs(), probe=machine_probe()
        ),
        cards=machine_visible().devices,
    )


def device_of(
    name: str,
    contexts: Contexts,
    sources: Callable[[], Sources],
    *,
    cost: Callable[[Gpu | MigSlice], ContextCost],
    cards: Sequence[Gpu | MigSlice] = (),
) -> CudaDevice:
    """Return the device of that name among some contexts, read through some sources.

    `cards` are NVML's, as far as there are any.

    Raises:
        DeviceUnavailable: if there is none; it names those there are.
    """
    known = {_digits(card.uuid): card for card in cards}
    seen = [known.get(_digits(c.facts.uuid), Gpu(c.facts.uuid, c.facts.name)) for c in contexts]
    asked = name if cards else name.replace("MIG-", "GPU-", 1)
    card = Visible(tuple(seen)).named(asked)
    number = seen.index(card)
    own_name, context = f"cuda:{number}", tuple(contexts)[number]
    traits = cuda_traits(cost(card).size_bytes)

    def read() -> MemoryReading:
        begun = 0

        def in_process(uuid: str) -> tuple[int, int] | None:
            nonlocal begun
            begun = 0 if context.is_active() else traits.context_bytes
            return contexts.read(uuid)

        told = read_device(own_name, card, replace(sources(), in_process=in_process))
        return _as_plans_count(told, begun if told.source == DRIVER else 0)

    compiler = Compiler(CacheTree(settings().cache).kernels())
    return CudaDevice(own_name, context, contexts.driver, traits, compiler=compiler, read=read)


def _digits(uuid: str) -> str:
    return uuid[4:]


def _as_plans_count(told: DeviceReading, begun: int) -> MemoryReading:
    """Return a reading less its margin, and with the context that was begun for it given back."""
    total, free = told.total_bytes or 0, told.free_bytes
    usable = None if free is None else min(total, told.usable_bytes + begun)
    return MemoryReading(total, usable, told.source)
