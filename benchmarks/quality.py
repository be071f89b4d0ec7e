"""How near to the exact answers: the demo model and the golden architectures, on one device.

    python benchmarks/quality.py [--device cpu]

Needs the golden data beside the checkout and the demo model in the cache. The bounds are those of
the tests. Last line: JSON.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from corral.engine.model import Model
from machine import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the data and its bounds live there
import golden
import smollm2


def demo(path: Path, device: str) -> dict[str, dict]:
    """Return the distance of the demo model from the exact one, by prompt."""
    results = {}
    with Model.load(path, device=device, context=512) as model:
        for case in smollm2.cases():
            logits = model.logits(case.all_tokens)
            greedy = smollm2.greedy_agreement(case, logits)
            results[case.name] = {
                "kl": smollm2.mean_kl(case, logits),
                "kl_bound": smollm2.HIGHEST_KL[case.name],
                "kl_llama_cpp": smollm2.LLAMA_CPP_KL[case.name],
                "greedy": [greedy.agreed, greedy.steps],
                "greedy_clear": [greedy.clear_agreed, greedy.clear_steps],
            }
    return results


def architecture(path: Path, data: Path, device: str) -> float:
    """Return the NMSE of one golden model."""
    with np.load(data) as expected:
        tokens, logits = expected["tokens"].tolist(), expected["logits"]
    with Model.load(path, device=device, context=128) as model:
        return golden.nmse(model.logits(tokens), logits)


def architectures(device: str) -> dict[str, dict]:
    """Return the NMSE of every golden model that is supported, with its bound."""
    archs, results = golden.GOLDEN / "archs", {}
    with tempfile.TemporaryDirectory() as folder:
        for name in golden.FAMILIES:
            for dtype in ("f32", "f16"):
                path = golden.write_architecture(name, Path(folder), dtype)
                nmse = architecture(path, archs / f"{name}.npz", device)
                results[f"{name} {dtype}"] = {"nmse": nmse, "bound": golden.HIGHEST_FLOAT_NMSE}
    for name, bound in golden.TWINS.items():
        path = archs / f"{name}.Q4_K_M.gguf"
        nmse = architecture(path, path.with_suffix(".npz"), device)
        results[f"{name} Q4_K_M"] = {"nmse": nmse, "bound": bound}
    return results


def show(prompts: dict[str, dict], models: dict[str, dict]) -> None:
    """Print both tables."""
    print(f"{'prompt':10}{'KL':>10}{'bound':>10}{'llama.cpp':>11}   greedy   where clear")
    for name, row in prompts.items():
        greedy = "/".join(map(str, row["greedy"]))
        clear = "/".join(map(str, row["greedy_clear"]))
        distances = f"{row['kl']:10.5f}{row['kl_bound']:10.5f}{row['kl_llama_cpp']:11.5f}"
        print(f"{name:10}{distances}   {greedy:8} {clear}")
    print(f"\n{'model':16}{'NMSE':>12}{'bound':>12}")
    for name, row in models.items():
        print(f"{name:16}{row['nmse']:12.2e}{row['bound']:12.2e}")


def main() -> None:
    """Compare, print, and end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    card = machine()
    path = smollm2.demo_path()
    if path is None or not golden.GOLDEN.is_dir():
        raise SystemExit("needs the golden data and the demo model: corral pull demo")
    prompts, models = demo(path, args.device), architectures(args.device)
    mean = sum(row["kl"] for row in prompts.values()) / len(prompts)
    show(prompts, models)
    result = {
        "device": args.device,
        "demo": prompts,
        "mean_kl": mean,
        "mean_kl_bound": smollm2.HIGHEST_MEAN_KL,
        "architectures": models,
    }
    print(json.dumps({"machine": card, "quality": result}))


if __name__ == "__main__":
    main()
