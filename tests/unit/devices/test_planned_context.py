"""A context's cost is measured once and then known; for absent cards it is assumed."""

from types import SimpleNamespace

import pytest

from corral.devices.context_cost import DEFAULT_CONTEXT_BYTES, ContextCosts
from corral.devices.nvml import NvmlFailure
from corral.devices.planned_context import planned_context
from fake_nvml import MIB, FakeNvml, gpu

CARD = gpu(0)


class Prober:
    """Measures, and counts how often."""

    def __init__(self, context_bytes=500 * MIB):
        self.count, self.context_bytes = 0, context_bytes

    def read(self, uuid):
        self.count += 1
        if self.context_bytes is None:
            return None
        return SimpleNamespace(
            name=CARD.name,
            driver_version=FakeNvml(CARD).driver_version(),
            context_bytes=self.context_bytes,
            context_is_measured=True,
        )


@pytest.fixture
def costs(tmp_path):
    """Return costs that know nothing yet."""
    return ContextCosts(tmp_path / "contexts.json")


def test_a_card_is_measured_once(costs):
    """The second plan asks nobody."""
    prober, nvml = Prober(), FakeNvml(CARD)
    for _ in range(2):
        cost = planned_context(CARD, nvml, costs, probe=prober)
        assert (cost.size_bytes, cost.is_measured) == (500 * MIB, True)
    assert prober.count == 1


def test_without_a_probe_nothing_is_measured(costs):
    """The assumption says that it is one."""
    cost = planned_context(CARD, FakeNvml(CARD), costs)
    assert (cost.size_bytes, cost.is_measured) == (DEFAULT_CONTEXT_BYTES, False)


def test_what_cannot_be_measured_is_assumed(costs):
    """A probe that fails leaves the assumption."""
    cost = planned_context(CARD, FakeNvml(CARD), costs, probe=Prober(None))
    assert (cost.size_bytes, cost.is_measured) == (DEFAULT_CONTEXT_BYTES, False)


def test_absent_cards_are_not_probed(costs):
    """Planning for another machine asks this one nothing."""
    prober = Prober()
    assert not planned_context(None, None, costs, probe=prober).is_measured
    assert prober.count == 0


def test_a_library_that_fails_is_no_error(costs):
    """Without the driver's version nothing is known, and a measurement still counts."""
    nvml = FakeNvml(CARD)
    nvml.failures["driver_version"] = NvmlFailure("no answer")
    assert planned_context(CARD, nvml, costs, probe=Prober()).is_measured
