"""Cards of a played driver, opened as devices whose kernels need no compiler."""

from corral.devices.context_cost import ContextCost
from corral.devices.cuda.compile import Cubin, Usage
from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.opening import device_of
from corral.devices.nvml import NvmlMemory
from corral.devices.reading import Sources
from fake_driver import CONTEXT_BYTES, TOTAL_BYTES, uuid_of
from fake_nvml import FakeNvml


class PlayedCompiler:
    """Gives each kernel a cubin that the played driver takes."""

    def request(self, instances, arch, progress=None):
        assert arch == "sm_90a"
        return {one: Cubin(one.name, Usage(), "", one.name.encode()) for one in instances}


class LiveNvml(FakeNvml):
    """Tells what the played driver shows."""

    def __init__(self, driver):
        super().__init__()
        self._driver = driver

    def memory(self, uuid):
        (ordinal,) = (n for n in range(len(self._driver.facts)) if uuid_of(n) == uuid)
        used = self._driver.used(ordinal)
        return NvmlMemory(TOTAL_BYTES, 0, TOTAL_BYTES - used, used)


def cards(driver):
    """Return a device for each card, to be closed by whoever asks."""
    sources = Sources(host=lambda: None, nvml=LiveNvml(driver))
    cost = ContextCost(CONTEXT_BYTES, is_measured=True)
    contexts, opened = Contexts(driver), []
    for number in range(len(driver.facts)):
        name = f"cuda:{number}"
        opened.append(device_of(name, contexts, lambda: sources, cost=lambda card: cost))
        opened[-1].compiler = PlayedCompiler()
    return opened
