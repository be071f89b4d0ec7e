"""What a server of many models counted, by model: Prometheus series that no process takes along.

Tokens and times are counted where clients see them, so that a model's process may come and go.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corral.api.meters import FIRST_TOKEN_S, NEXT_TOKEN_S, WHOLE_S, Families
from corral.contract.events import FinishEvent
from corral.contract.fleet import DeviceStatus, FleetStatus, ModelState, ModelStatus
from corral.contract.questions import ServiceStatistics

_HELP = "See docs/howto/router.md."
_MODEL = "model_name"
_RETURNS = {
    "restored_sessions": "restored_sessions",
    "restored_tokens": "restored_tokens",
    "returned_sessions": "returned_sessions",
    "returned_tokens": "returned_tokens",
    "session_errors": "errors",
}
"""Series of restored conversations, and where they are counted."""


class FleetMeters:
    """Counters and histograms of all models, in a registry of their own."""

    def __init__(self) -> None:
        """Start from zero."""
        self.registry = CollectorRegistry()
        self.first = self._histogram("time_to_first_token_seconds", "first token", FIRST_TOKEN_S)
        self.next = self._histogram("inter_token_latency_seconds", "next token", NEXT_TOKEN_S)
        self.whole = self._histogram("e2e_request_latency_seconds", "whole answer", WHOLE_S)
        self.finished = self._counter("requests_finished", "Requests that ended.", "reason")
        self.tokens = self._counter("tokens", "Tokens of requests that ended.", "kind")

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        text = f"Seconds to the {what}, as clients see it."
        return Histogram(f"corral:{name}", text, [_MODEL], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"corral:{name}", text, [_MODEL, label], registry=self.registry)

    def of(self, model: str) -> "RoutedMeters":
        """Return the meters of one model."""
        return RoutedMeters(self, model)

    def exposition(self, status: FleetStatus, held: Mapping[str, ServiceStatistics]) -> bytes:
        """Return everything in Prometheus's text format; `held` is of models that are loaded."""
        registry = CollectorRegistry()
        families = [*_models(status.models), *_devices(status.devices), *_held(held)]
        families += _sessions(status.models, held)
        families.append(_plain("corral:requests_waiting_for_models", status.waiting))
        families.append(_plain("corral:longest_wait_seconds", status.longest_wait_s))
        registry.register(Families(families))
        return generate_latest(registry) + generate_latest(self.registry)


class RoutedMeters:
    """What clients see of one model."""

    def __init__(self, meters: FleetMeters, model: str) -> None:
        """Count for a model."""
        self._meters = meters
        self._model = model

    def first_token(self, seconds: float) -> None:
        """Note how long a request waited for its first token, loads included."""
        self._meters.first.labels(self._model).observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Note how long a request waited for a further token."""
        self._meters.next.labels(self._model).observe(seconds)

    def finished(self, event: FinishEvent, seconds: float) -> None:
        """Note that a request ended after so many seconds."""
        self._meters.whole.labels(self._model).observe(seconds)
        self._meters.finished.labels(self._model, event.reason.value).inc()
        usage = event.usage
        counts = {
            "prompt": usage.prompt_tokens,
            "cached": usage.cached_tokens,
            "generated": usage.generated_tokens,
        }
        for kind, count in counts.items():
            self._meters.tokens.labels(self._model, kind).inc(count)


def _plain(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, _HELP, value=value)


def _models(models: Iterable[ModelStatus]) -> Iterator[Metric]:
    """Yield how each model is; of those that nobody ever wanted, nothing."""
    used = [one for one in models if one.generation or one.state is not ModelState.UNLOADED]
    counters = {
        "model_loads": [(one.name, one.loads) for one in used],
        "model_evictions": [(one.name, one.evictions) for one in used],
        "model_crashes": [(one.name, one.crashes) for one in used],
    }
    for name, values in counters.items():
        counter = CounterMetricFamily(f"corral:{name}", _HELP, labels=[_MODEL])
        for model, count in values:
            counter.add_metric([model], count)
        yield counter
    gauges = {
        "model_loaded": [(one.name, float(one.state is ModelState.READY)) for one in used],
        "model_requests_waiting": [(one.name, float(one.waiting)) for one in used],
        "model_requests_running": [(one.name, float(one.running)) for one in used],
        "model_load_seconds": [(one.name, one.load_s) for one in used if one.load_s is not None],
    }
    for name, levels in gauges.items():
        gauge = GaugeMetricFamily(f"corral:{name}", _HELP, labels=[_MODEL])
        for model, level in levels:
            gauge.add_metric([model], level)
        yield gauge
    for name in ("planned_bytes", "measured_bytes"):
        gauge = GaugeMetricFamily(f"corral:model_{name}", _HELP, labels=[_MODEL, "device"])
        for one in used:
            for held in one.held:
                if getattr(held, name) is not None:
                    gauge.add_metric([one.name, held.device], getattr(held, name))
        yield gauge


def _sessions(
    models: Iterable[ModelStatus], held: Mapping[str, ServiceStatistics]
) -> Iterator[Metric]:
    """Yield what became of conversations, in processes that have ended and in those there are."""
    used = [one for one in models if one.generation]
    for name in ("saved_sessions", "saved_tokens", "unsaved_sessions"):
        counter = CounterMetricFamily(f"corral:model_{name}", _HELP, labels=[_MODEL])
        for one in used:
            counter.add_metric([one.name], getattr(one.sessions, name))
        yield counter
    for name, field in _RETURNS.items():
        counter = CounterMetricFamily(f"corral:model_{name}", _HELP, labels=[_MODEL])
        for one in used:
            living = getattr(held[one.name].sessions, field) if one.name in held else 0
            counter.add_metric([one.name], getattr(one.sessions, field) + living)
        yield counter


def _devices(devices: Iterable[DeviceStatus]) -> Iterator[Metric]:
    known = list(devices)
    for name in ("total_bytes", "free_bytes", "booked_bytes", "margin_bytes", "foreign_bytes"):
        gauge = GaugeMetricFamily(f"corral:device_{name}", _HELP, labels=["device", "name"])
        for one in known:
            if getattr(one, name) is not None:
                gauge.add_metric([one.memory, one.name], getattr(one, name))
        yield gauge


def _held(held: Mapping[str, ServiceStatistics]) -> Iterator[Metric]:
    for name in ("kv_blocks_used", "kv_blocks_total", "step_age_s", "preemptions"):
        gauge = GaugeMetricFamily(f"corral:model_{name}", _HELP, labels=[_MODEL])
        for model, statistics in held.items():
            gauge.add_metric([model], getattr(statistics, name))
        yield gauge
