"""What to plan for the context of a card: as measured once, else assumed. Asks no driver."""

from corral.config import settings
from corral.devices.context_cost import ContextCost, ContextCosts
from corral.devices.nvml import Nvml, NvmlFailure
from corral.paths import CacheTree


def planned_context(card: str | None, nvml: Nvml | None) -> ContextCost:
    """Return the cost of a context on a card by its name, with the driver that is here."""
    costs = ContextCosts(CacheTree(settings().cache).contexts_file())
    return costs.planned(card or "", _driver_version(nvml) if card else None)


def _driver_version(nvml: Nvml | None) -> str | None:
    try:
        return nvml.driver_version() if nvml else None
    except NvmlFailure:
        return None
