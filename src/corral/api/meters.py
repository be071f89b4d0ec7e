"""What the server counted: Prometheus series under corral:, llamacpp: and vllm: names.

Numbers that the engine knows are asked for at each scrape; times that clients see are measured
here, where they see them.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corral.contract.events import FinishEvent
from corral.contract.questions import Description, ServiceStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP = "See docs/howto/serve.md."
_MODEL = "model_name"
FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WHOLE_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ModelMeters(Protocol):
    """Notes what clients see of one model."""

    def first_token(self, seconds: float) -> None:
        """Note how long a request waited for its first token."""
        ...

    def next_token(self, seconds: float) -> None:
        """Note how long a request waited for a further token."""
        ...

    def finished(self, event: FinishEvent, seconds: float) -> None:
        """Note that a request ended after so many seconds."""
        ...


class Meters:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self, model: str) -> None:
        """Start from zero; the model's name is a label where dashboards expect it."""
        self._model = model
        self._registry = CollectorRegistry()
        self._first = self._histogram("time_to_first_token_seconds", "first token", FIRST_TOKEN_S)
        self._next = self._histogram("inter_token_latency_seconds", "next token", NEXT_TOKEN_S)
        self._whole = self._histogram("e2e_request_latency_seconds", "whole answer", WHOLE_S)
        self._finished = Counter(
            "corral:requests_finished",
            "Requests that ended, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self.prompt_s = self.generation_s = 0.0

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> list[Histogram]:
        text = f"Seconds to the {what}, as clients see it."
        more: dict[str, Any] = {"buckets": buckets, "registry": self._registry}
        labelled = Histogram(f"vllm:{name}", text, [_MODEL], **more)
        return [Histogram(f"corral:{name}", text, **more), labelled.labels(self._model)]

    def first_token(self, seconds: float) -> None:
        """Note how long a request waited for its first token."""
        for histogram in self._first:
            histogram.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Note how long a request waited for a further token."""
        for histogram in self._next:
            histogram.observe(seconds)

    def finished(self, event: FinishEvent, seconds: float) -> None:
        """Note that a request ended after so many seconds."""
        for histogram in self._whole:
            histogram.observe(seconds)
        self._finished.labels(event.reason.value).inc()
        self.prompt_s += event.timings.prompt_s
        self.generation_s += event.timings.generation_s

    def exposition(self, statistics: ServiceStatistics, description: Description) -> bytes:
        """Return everything in Prometheus's text format."""
        registry = CollectorRegistry()
        families = _families(statistics, description, self)
        registry.register(Families([*families, *_vllm(statistics, self._model)]))
        return generate_latest(registry) + generate_latest(self._registry)


class Families:
    """Metrics made for one scrape, as a collector."""

    def __init__(self, families: list[Metric]) -> None:
        """Tell these."""
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self._families


def _families(held: ServiceStatistics, runs: Description, meters: Meters) -> list[Metric]:
    computed = held.prompt_tokens - held.cached_tokens
    gauges = {
        "corral:requests_running": held.running_requests,
        "corral:requests_waiting": held.waiting_requests,
        "corral:queue_capacity": held.queue_capacity,
        "corral:kv_blocks_used": held.kv_blocks_used,
        "corral:kv_blocks_total": held.kv_blocks_total,
        "corral:step_age_seconds": held.step_age_s,
        "corral:context_tokens": runs.context,
        "corral:weights_bytes": runs.weights_bytes,
        "llamacpp:requests_processing": held.running_requests,
        "llamacpp:requests_deferred": held.waiting_requests,
        "llamacpp:kv_cache_usage_ratio": _used(held),
        "llamacpp:prompt_tokens_seconds": _rate(computed, meters.prompt_s),
        "llamacpp:predicted_tokens_seconds": _rate(held.generated_tokens, meters.generation_s),
    }
    counters = {
        "corral:prompt_tokens": held.prompt_tokens,
        "corral:cached_tokens": held.cached_tokens,
        "corral:generated_tokens": held.generated_tokens,
        "corral:preemptions": held.preemptions,
        "corral:steps": held.steps,
        "corral:sessions_restored": held.sessions.restored_sessions,
        "corral:sessions_returned": held.sessions.returned_sessions,
        "corral:session_tokens_restored": held.sessions.restored_tokens,
        "corral:session_tokens_returned": held.sessions.returned_tokens,
        "corral:session_errors": held.sessions.errors,
        "llamacpp:prompt_tokens": computed,
        "llamacpp:prompt_seconds": meters.prompt_s,
        "llamacpp:tokens_predicted": held.generated_tokens,
        "llamacpp:tokens_predicted_seconds": meters.generation_s,
        "llamacpp:n_decode": held.steps,
    }
    return [
        *(GaugeMetricFamily(name, _HELP, value=value) for name, value in gauges.items()),
        *(CounterMetricFamily(name, _HELP, value=value) for name, value in counters.items()),
        *_memory(runs),
    ]


def _vllm(held: ServiceStatistics, model: str) -> Iterator[Metric]:
    gauges = {
        "num_requests_running": held.running_requests,
        "num_requests_waiting": held.waiting_requests,
        "kv_cache_usage_perc": _used(held),
    }
    counters = {
        "prompt_tokens": held.prompt_tokens,
        "generation_tokens": held.generated_tokens,
        "num_preemptions": held.preemptions,
    }
    for kind, values in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, value in values.items():
            family = kind(f"vllm:{name}", _HELP, labels=[_MODEL])
            family.add_metric([model], value)
            yield family


def _used(held: ServiceStatistics) -> float:
    return held.kv_blocks_used / held.kv_blocks_total if held.kv_blocks_total else 0.0


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _memory(runs: Description) -> Iterator[Metric]:
    for name in ("planned_bytes", "allocated_bytes"):
        family = GaugeMetricFamily(f"corral:{name}", _HELP, labels=["device", "lifetime"])
        for row in runs.memory:
            family.add_metric([row.device, row.lifetime], getattr(row, name))
        yield family
