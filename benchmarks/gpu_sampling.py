"""Tokens chosen on a card: are they those of the host, and what do they cost.

    python benchmarks/gpu_sampling.py MODEL.gguf [--batch 16] [--generated 192] [--repeat 5]

The same evaluation gives its logits once and its tokens once; the host's samplers choose from the
former what the card must have chosen. Speeds are tokens a second through the engine, kinds of
sampling taking turns.
"""

import argparse
import json
import statistics
import time

import numpy as np

from corral import Model, SamplingParams
from corral.devices.staging import DRAW, biases_of
from corral.engine.engine import Engine
from corral.engine.runner import Runner
from corral.memory.choices import DRAWS
from corral.sampling.candidates import Workspace
from corral.sampling.sampler import Sampler
from gpu_passes import Batch, Passes, inputs_of
from machine import machine

KINDS = {
    "greedy": {"temperature": 0.0},
    "usual": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "128 candidates": {"temperature": 1.0, "top_k": 128, "top_p": 1.0, "min_p": 0.0},
    "on the host": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "frequency_penalty": 1e-6},
}
"""The last edits logits, which only the host does."""


def compared(model: Model, batch: Batch, *, rounds: int) -> tuple[int, int]:
    """Return how many tokens the card chose, and how many of them as the host would."""
    loaded, size = model._opened.loaded, model.vocabulary_size
    backend, program = loaded.parts[0].backend, loaded.parts[0].program
    tables = [group.tables_name for group in loaded.design.kv.groups]
    inputs = inputs_of(batch, tables, 1 + (batch.depth + batch.rows) // 32, size)
    rng, same, total = np.random.default_rng(0), 0, 0
    for _ in range(rounds):
        inputs["tokens"] = rng.integers(0, size, batch.total).astype(np.int32)
        samplers = [_any_sampler(rng, size) for _ in range(batch.sequences)]
        positions = rng.integers(0, 2**33, batch.sequences).tolist()
        draws = np.zeros(batch.sequences, DRAW)
        for row, (sampler, position) in enumerate(zip(samplers, positions, strict=True)):
            draw = sampler.draw
            words = (draw.top_p, draw.floor, draw.temperature, draw.top_k)
            draws[row] = (sampler.seed, position, *words, *biases_of(draw.biases))
        backend.run(program, inputs, batch.sequences)
        logits = program.plan.graph.outputs[0]
        rows = backend.read(program, logits, batch.sequences).copy()
        backend.run(program, inputs | {DRAWS: draws}, batch.sequences, chooses=True)
        given = backend.choices(program, batch.sequences).tolist()
        for row, sampler, position, token in zip(rows, samplers, positions, given, strict=True):
            same += sampler.sample(row, position) == token
            total += 1
    return total, same


def _any_sampler(rng: np.random.Generator, size: int) -> Sampler:
    params = SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 0.8, 1.0, 2.0])),
        top_k=int(rng.integers(1, 129)),
        top_p=float(rng.choice([0.5, 0.9, 0.95, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.3])),
        seed=int(rng.integers(0, 2**63)),
    )
    return Sampler(params, size)


def rate(model: Model, kind: str, batch: int, generated: int) -> float:
    """Return tokens a second of so many sequences that are all past their prompts."""
    loaded, size = model._opened.loaded, model.vocabulary_size
    groups, workspace = loaded.design.kv.groups, Workspace(size)
    engine = Engine(Runner(loaded.parts, groups), groups, context=model.context)
    rng = np.random.default_rng(0)
    sequences = [
        engine.submit(
            rng.integers(0, size, 100).tolist(),
            sampler=Sampler(SamplingParams(seed=n, **KINDS[kind]), size, workspace=workspace),
            max_tokens=model.context,
            reuse=False,
        )
        for n in range(batch)
    ]
    while any(one.num_generated == 0 for one in sequences):
        engine.step()
    for _ in range(4):
        engine.step()
    started = time.perf_counter()
    count = sum(len(engine.step()) for _ in range(generated))
    seconds = time.perf_counter() - started
    for one in sequences:
        engine.cancel(one)
    while engine._flights:  # what was launched ahead
        engine.step()
    if count != generated * batch:
        raise SystemExit(f"{count} tokens came of {batch} sequences in {generated} steps")
    return count / seconds


def kernels(model: Model, batch: int) -> dict[str, float]:
    """Return what choosing takes of a step on the card, in µs, by kind and kernel."""
    import gpu_passes

    found, plain = {}, gpu_passes.inputs_of
    for kind in ("greedy", "usual", "128 candidates"):
        draw = Sampler(SamplingParams(seed=1, **KINDS[kind]), model.vocabulary_size).draw
        words = (1, 5, draw.top_p, draw.floor, draw.temperature, draw.top_k)
        row = np.array((*words, *biases_of(draw.biases)), DRAW)
        draws = {DRAWS: np.repeat(row, batch)}
        gpu_passes.inputs_of = lambda *given, draws=draws: plain(*given) | draws
        passes = Passes(model)
        found[f"{kind}: step"] = passes.time(Batch(batch, depth=100))["seconds"] * 1e6
        table = passes.table(Batch(batch, depth=100))
        for row in table["kernels"]:
            if row["kernel"].startswith("choose"):
                found[f"{kind}: {row['kernel']}, alone"] = row["alone_us"]
                found[f"{kind}: {row['kernel']}, left out"] = row["left_out_us"]
    gpu_passes.inputs_of = plain
    return found


def main() -> None:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--generated", type=int, default=192)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with Model.load(args.model, device="cuda:0", context=1024, parallel=args.batch) as model:
        agreed = []
        for batch in (Batch(1, depth=0), Batch(args.batch), Batch(1, rows=300)):
            agreed.append(compared(model, batch, rounds=args.rounds))
            print(f"{batch}: {agreed[-1][1]} of {agreed[-1][0]} tokens are the host's")
        rates: dict[str, list[float]] = {}
        for _ in range(args.repeat):
            for batch in (1, args.batch):
                for kind in KINDS:
                    steps = args.generated if kind != "on the host" else args.generated // 3
                    rates.setdefault(f"{kind}, {batch}", []).append(rate(model, kind, batch, steps))
        for name, found in rates.items():
            print(f"{name:24} {statistics.median(found):9.1f} tokens/s  {min(found):.1f}…")
        taken = {batch: kernels(model, batch) for batch in (1, args.batch)}
        for batch, found_us in taken.items():
            print(batch, {name: round(value, 1) for name, value in found_us.items()})
    result = {"compared": agreed, "tokens_per_s": rates, "kernels_us": taken}
    print(json.dumps({"machine": machine(), "model": args.model} | result))


if __name__ == "__main__":
    main()
