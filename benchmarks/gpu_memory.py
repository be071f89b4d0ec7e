"""What a card holds while a model works: by the plan, by the ledger, and as the card tells it."""

from collections.abc import Iterable

import numpy as np

DEVICE = "cuda:0"


class Watch:
    """Samples of what this process and the whole card hold."""

    def __init__(self) -> None:
        """Begin with what the card holds now, before this process has touched it."""
        import corral
        from corral.devices.nvml import process_nvml

        self._nvml = process_nvml()
        (self._uuid,) = {d.uuid for d in corral.devices() if d.name == DEVICE}
        self._before = self._nvml.memory(self._uuid).used_bytes
        self.samples: dict[str, list[tuple[int, int]]] = {}

    def held(self) -> int:
        """Return what the card holds more than before."""
        return self._nvml.memory(self._uuid).used_bytes - self._before

    def sample(self, what: str, model) -> None:
        """Note the bytes that buffers have, and those of the card."""
        row = (model._opened.allocated_bytes, self.held())
        self.samples.setdefault(what, []).append(row)

    def spread(self, what: str) -> dict[str, int]:
        """Return how many samples there are, and how far they lie apart."""
        buffers, card = zip(*self.samples[what], strict=True)
        return {
            "samples": len(card),
            "buffers_bytes": max(buffers) - min(buffers),
            "card_bytes": max(card) - min(card),
        }


def memory(
    model: str, *, context: int, steps: int, requests: int, parallel: int, seed: int = 0
) -> dict:
    """Load, generate, serve requests of mixed lengths, close; return what was held when."""
    import corral

    watch = Watch()
    loaded = corral.Model.load(model, device=DEVICE, context=context, parallel=parallel)
    with loaded:
        at_load = watch.held()
        rows = loaded.memory().rows
        _decode(loaded, watch, steps)
        _serve(loaded, watch, requests, parallel, np.random.default_rng(seed))
        after = loaded.memory().rows
    closed = watch.held()
    plan = corral.plan(model, device=DEVICE, context=context, parallel=parallel)
    planned = {(p.device, row.lifetime): row.bytes for p in plan.devices for row in p.rows}
    allocated = by_life(rows)
    on_card = {life: size for (device, life), size in allocated.items() if device == DEVICE}
    return {
        "planned_bytes": {f"{device} {life}": size for (device, life), size in planned.items()},
        "allocated_bytes": {f"{device} {life}": size for (device, life), size in allocated.items()},
        "ledger_is_exact": all(row.planned_bytes == row.allocated_bytes for row in rows),
        "plan_is_exact": _without_empty(planned) == _without_empty(allocated),
        "rows_stay": allocated == by_life(after),
        "planned_on_card_bytes": sum(on_card.values()),
        "held_on_card_bytes": at_load,
        "decode": watch.spread("decode"),
        "requests": watch.spread("requests"),
        "context_bytes": on_card.get("context", 0),
        "held_after_close_bytes": closed,
    }


def by_life(rows: Iterable) -> dict[tuple[str, str], int]:
    """Return allocated bytes by device and lifetime, whoever owns them."""
    sizes: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row.device, row.lifetime)
        sizes[key] = sizes.get(key, 0) + row.allocated_bytes
    return sizes


def _without_empty(sizes: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {key: size for key, size in sizes.items() if size}


def _decode(loaded, watch: Watch, steps: int) -> None:
    """Generate as many tokens, in answers as long as the context allows."""
    left, every = steps, max(1, steps // 50)
    for _ in _request(loaded, 1, 4):  # what is begun with the first evaluation
        pass
    while left > 0:
        count = min(left, loaded.context - 2)
        for number, _ in enumerate(_request(loaded, 1, count)):
            if number % every == 0:
                watch.sample("decode", loaded)
        watch.sample("decode", loaded)
        left -= count


def _serve(loaded, watch: Watch, requests: int, parallel: int, random: np.random.Generator) -> None:
    """Answer requests of random lengths, as many at once as there may be."""
    left = requests
    while left > 0:
        lengths = random.integers(1, loaded.context // 2, min(left, parallel))
        answers = [_request(loaded, int(n), int(random.integers(1, 64))) for n in lengths]
        for answer in answers:
            for _ in answer:
                pass
            watch.sample("requests", loaded)
        left -= len(answers)


def _request(loaded, prompt: int, count: int):
    from corral import SamplingParams

    tokens = np.random.default_rng(prompt).integers(0, loaded.vocabulary_size, prompt).tolist()
    sampling = SamplingParams(temperature=0.0)
    return loaded.generate(tokens, max_tokens=count, ignore_eos=True, sampling=sampling)
