"""One measurement of `gpu.py` in a process of its own; its last line of output is JSON.

    python benchmarks/gpu_child.py NAME MODEL.gguf '{"option": value, …}'

What it measures is a function of that name below, or in `gpu_memory.py`.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

DEVICE = "cuda:0"
WARM_UP_TOKENS = 32


def single(
    model: str,
    *,
    context: int,
    prompts: Sequence[int],
    generated: int,
    repeat: int,
    depth: int,
) -> dict:
    """Measure one sequence as `corral bench` does, and the card's own time of a step."""
    from gpu_passes import Batch, Passes

    with _load(model, context=context) as loaded:
        decode = [loaded.benchmark(0, generated)[1] for _ in range(repeat + 1)][1:]
        prefill = {}
        for count in prompts:
            seconds = [loaded.benchmark(count, 0)[0] for _ in range(repeat + 1)][1:]
            prefill[str(count)] = [count / one for one in seconds]
        passes = Passes(loaded)
        step = passes.time(Batch(1, depth=depth))
        floors = {str(n): passes.time(Batch(1, rows=n)) for n in prompts if n <= _rows(loaded)}
        return {
            "decode": [generated / one for one in decode],
            "prefill": prefill,
            "step": step,
            "prefill_pass": floors,
        }


def deep(model: str, *, depth: int, generated: int, repeat: int) -> dict:
    """Measure decoding behind a long prompt."""
    from gpu_passes import Batch, Passes

    rates, prompt_rates = [], []
    with _load(model, context=depth + generated + 2) as loaded:
        for number in range(repeat + 1):
            tokens = _tokens(loaded.vocabulary_size, depth, seed=number)
            answer = loaded.generate(
                tokens, max_tokens=generated + 1, ignore_eos=True, sampling=_greedy()
            )
            for _ in answer:
                pass
            rates.append(answer.statistics.decode_tokens_per_s)
            prompt_rates.append(answer.statistics.prefill_tokens_per_s)
        step = Passes(loaded).time(Batch(1, depth=depth))
    return {"decode": rates[1:], "prefill": prompt_rates[1:], "step": step}


def batches(model: str, *, sizes: Sequence[int], prompt: int, generated: int, context: int) -> dict:
    """Measure steps of many sequences: the card's own time, and through the engine."""
    from gpu_passes import Batch, Passes

    found: dict[str, dict] = {}
    with _load(model, context=context, parallel=max(sizes)) as loaded:
        for size in sizes:
            rate = through_engine(loaded._opened, size, prompt, generated)
            step = Passes(loaded).time(Batch(size, depth=prompt))
            found[str(size)] = {"engine": rate, "step": step}
    return found


def through_engine(opened, size: int, prompt: int, generated: int) -> float:
    """Return tokens/s of so many sequences of an opened model, all past their prompts."""
    from corral.engine.engine import Engine
    from corral.engine.runner import Runner
    from corral.sampling.candidates import Workspace
    from corral.sampling.sampler import Sampler

    inner, vocabulary = opened.loaded, opened.vocabulary_size
    groups, workspace = inner.design.kv.groups, Workspace(vocabulary)
    engine = Engine(Runner(inner.parts, groups), groups, context=opened.context)
    sequences = [
        engine.submit(
            _tokens(vocabulary, prompt, seed=number),
            sampler=Sampler(_greedy(), vocabulary, workspace=workspace),
            max_tokens=opened.context,
            reuse=False,
        )
        for number in range(size)
    ]
    while any(one.num_generated == 0 for one in sequences):
        if any(one.finish_reason is not None for one in sequences):
            raise SystemExit("a sequence ended before its first token")
        engine.step()
    for _ in range(4):
        engine.step()
    started = time.perf_counter()
    count = sum(len(engine.step()) for _ in range(generated))
    seconds = time.perf_counter() - started
    if count != size * generated:
        raise SystemExit(f"{count} tokens came of {size} sequences in {generated} steps")
    for one in sequences:
        engine.cancel(one)
    while engine._flights:  # what was launched ahead
        engine.step()
    return count / seconds


def kernels(model: str, *, sizes: Sequence[int], depth: int, prompt: int, context: int) -> dict:
    """Return where the time of a step goes, for each batch, and that of a prompt."""
    from gpu_passes import Batch, Passes

    with _load(model, context=context, parallel=max(sizes)) as loaded:
        passes = Passes(loaded)
        found = {f"batch {size}": passes.table(Batch(size, depth=depth)) for size in sizes}
        rows = min(prompt, _rows(loaded))
        return found | {f"prefill {rows}": passes.table(Batch(1, rows=rows))}


def start(model: str, *, repeat: int, is_fresh: bool) -> dict:
    """Time `corral run` to its first byte of output; in a fresh cache the first run compiles.

    The cache is that of the environment, which `is_fresh` replaces by an empty one.
    """
    from startup import Corral, read_once

    read_once(Path(model))
    with tempfile.TemporaryDirectory() as empty:
        cache = empty if is_fresh else os.environ["CORRAL_CACHE"]
        command = Corral(cache, DEVICE)
        arguments = command.run_arguments(Path(model), 1)
        first = command.timed(arguments)
        warm = [command.timed(arguments) for _ in range(repeat)]
        kept = len(list(Path(cache, "kernels").glob("**/*.cubin")))
    return {
        "first_s": first.first_byte_s,
        "warm_s": [one.first_byte_s for one in warm],
        "exit_s": [one.exit_s for one in warm],
        "cubins": kept,
    }


def stages(model: str, *, context: int) -> dict:
    """Return when each stage of loading began and ended, in seconds from the start of Python."""
    import psutil

    began = time.time() - psutil.Process().create_time()
    started = time.perf_counter()

    def now() -> float:
        return began + time.perf_counter() - started

    marks: dict[str, list[float]] = {"python": [0.0, now()]}

    def progress(stage: str, done: int, total: int) -> None:
        mark = marks.setdefault(stage, [now(), 0.0])
        mark[1] = now()

    import corral

    marks["import"] = [marks["python"][1], now()]
    with corral.Model.load(model, device=DEVICE, context=context, progress=progress) as loaded:
        marks["loaded"] = [marks["import"][1], now()]
        begun = now()
        for _ in loaded.generate([1, 2, 3], max_tokens=1, ignore_eos=True, sampling=_greedy()):
            pass
        marks["first token"] = [begun, now()]
    return marks


def _rows(loaded) -> int:
    """Return the most rows of one evaluation."""
    return loaded._opened.loaded.parts[0].program.plan.graph.shape_class.rows


def _load(model: str, *, context: int, parallel: int = 1):
    from corral import Model

    return Model.load(model, device=DEVICE, context=context, parallel=parallel)


def _greedy():
    from corral import SamplingParams

    return SamplingParams(temperature=0.0)


def _tokens(vocabulary: int, count: int, *, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()


def measurements() -> Iterator[tuple[str, object]]:
    """Give every measurement by its name."""
    from gpu_memory import memory

    yield from ((one.__name__, one) for one in (single, deep, batches, kernels, start, stages))
    yield "memory", memory


def main() -> None:
    """Measure one thing."""
    name, model, options = sys.argv[1:]
    reply = dict(measurements())[name](model, **json.loads(options))
    print(json.dumps(reply))


if __name__ == "__main__":
    main()
