"""What LoRA adapters cost: decoding and prompts with none, with one, and with several mixed.

    python benchmarks/lora.py [--model FILE] [--device cpu] [--rank 16] [--batches 1 4] [--repeat 5]

Without a model, one of the 1B shape with random weights is written to a temporary folder. Adapters
are random, of all seven matrices a layer. The kinds are measured in turns, each after a warm-up,
and what is told are medians. The last line is JSON with every value.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import make_lora
import make_model

import corral
from machine import machine

GREEDY = corral.SamplingParams(temperature=0.0)
KINDS: dict[str, Callable[[int], list[str]]] = {
    "none": lambda _: [],
    "one": lambda _: ["0"],
    "mixed": lambda number: [str(number % 4)],
}
"""The adapters that answer number n has."""
NUM_ADAPTERS = 4
PROMPT_TOKENS = 16


def decode(model: corral.Model, kind: str, batch: int, tokens: int) -> float:
    """Return the tokens a second that so many answers get together, prompts left out."""
    answers = [
        model.generate(
            [40 + number + n for n in range(PROMPT_TOKENS)],
            max_tokens=tokens,
            ignore_eos=True,
            sampling=GREEDY,
            adapters=KINDS[kind](number),
        )
        for number in range(batch)
    ]
    for answer in answers:
        next(answer)
    started = time.perf_counter()
    for answer in answers:
        for _ in answer:
            pass
    return (tokens - 1) * batch / (time.perf_counter() - started)


def prefill(model: corral.Model, kind: str, first: int, tokens: int) -> float:
    """Return the tokens a second of one prompt, which begins as no other does."""
    prompt = [first, *(7 + n % 200 for n in range(tokens - 1))]
    answer = model.generate(prompt, max_tokens=1, sampling=GREEDY, adapters=KINDS[kind](0))
    started = time.perf_counter()
    for _ in answer:
        pass
    return tokens / (time.perf_counter() - started)


def swaps(model: corral.Model, path: Path, count: int) -> list[float]:
    """Return the seconds of loading an adapter beside the others and letting it go."""
    found = []
    for _ in range(count):
        started = time.perf_counter()
        model.adapters.unload(model.adapters.load(path, name="swapped", scale=0.0).id)
        found.append(time.perf_counter() - started)
    return found


def measure(model: corral.Model, args: argparse.Namespace, paths: Sequence[Path]) -> dict:
    """Return every value: rates by kind, of each batch and of a prompt, and times of swaps."""
    found: dict = {"decode": {}, "prefill": {}}
    for batch in args.batches:
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for kind in KINDS:
            decode(model, kind, batch, 8)
        for _ in range(args.repeat):
            for kind, values in rates.items():
                values.append(decode(model, kind, batch, args.tokens))
        found["decode"][str(batch)] = rates
    rates = {"none": [], "one": []}
    for number in range(args.repeat + 1):
        for place, (kind, values) in enumerate(rates.items()):
            rate = prefill(model, kind, 2 * number + place, args.prompt)
            values += [rate] if number else []
    found["prefill"] = rates
    found["swap_s"] = swaps(model, paths[0], args.repeat)
    return found


def show(found: dict) -> None:
    """Print medians, and what is left of the speed without adapters."""
    rows = [(f"decode, {n} at once", rates) for n, rates in found["decode"].items()]
    for name, rates in [*rows, ("prompt", found["prefill"])]:
        medians = {kind: statistics.median(values) for kind, values in rates.items()}
        told = (f"{kind} {m:.1f} ({m / medians['none']:.1%})" for kind, m in medians.items())
        print(f"{name:20} tokens/s: {', '.join(told)}")
    print(f"{'load and unload':20} {1000 * statistics.median(found['swap_s']):.1f} ms")
    print(f"{'held':20} {found['adapter_bytes'] / 1e6:.1f} MB for {NUM_ADAPTERS} adapters")


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder) / "llama-1b.gguf"
        if args.model is None:
            make_model.write(path, "llama-1b", "Q4_K_M")
        paths = [Path(folder) / f"{number}.gguf" for number in range(NUM_ADAPTERS)]
        for seed, out in enumerate(paths):
            make_lora.write(path, out, rank=args.rank, seed=seed)
        sizes = {"context": max(args.prompt, args.tokens + PROMPT_TOKENS) + 8}
        with corral.Model.load(
            path, device=args.device, parallel=max(args.batches), **sizes
        ) as model:
            loaded = [model.adapters.load(one, scale=0.0) for one in paths]
            found = measure(model, args, paths)
            found["adapter_bytes"] = sum(one.bytes for one in loaded)
    found |= {"machine": facts, "model": path.name, "device": args.device, "rank": args.rank}
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
