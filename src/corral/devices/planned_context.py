"""What to plan for the context of a card: as measured once, else assumed. Starts no driver here."""

from corral.devices.context_cost import ContextCost, ContextCosts, Measurer
from corral.devices.driver_files import driver_version_in_files
from corral.devices.nvml import Gpu, MigSlice, Nvml, NvmlFailure


def planned_context(
    card: Gpu | MigSlice | None,
    nvml: Nvml | None,
    costs: ContextCosts,
    *,
    probe: Measurer | None = None,
) -> ContextCost:
    """Return what a context takes on a card; None is one that is not in this machine.

    With a probe, what is not known yet is measured, in another process and about 0.4 s once.
    """
    if card is None:
        return costs.planned("", None)
    version = _driver_version(nvml)
    known = costs.planned(card.name, version)
    if known.is_measured or probe is None:
        return known
    measured = costs.measure(probe, card.uuid)
    return known if measured is None else ContextCost(measured, is_measured=True)


def _driver_version(nvml: Nvml | None) -> str | None:
    try:
        return nvml.driver_version() if nvml else driver_version_in_files()
    except NvmlFailure:
        return driver_version_in_files()
