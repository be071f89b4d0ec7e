"""corral on a CUDA card: speed, loading and memory of an 8B and a 1B model, beside llama.cpp.

    python benchmarks/gpu.py [--only NAME …] [--quick] [--models FOLDER] [--cache FOLDER]

Models of real shapes with random weights are written first. Every measurement is a process of its
own with a time limit; what fails is listed, and the rest goes on. Last line: JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gpu_figures import rounded
from gpu_parts import PARTS
from gpu_session import HERE, Session, card, driver_version, say
from machine import machine


def written(folder: Path, shape: str) -> Path:
    """Return a model of random weights, written if it is not there."""
    sys.path.insert(0, str(HERE.parent / "tools"))
    import make_model

    path = folder / f"{shape}.Q4_K_M.gguf"
    if not path.exists():
        started = time.perf_counter()
        part = path.with_suffix(".part")
        make_model.write(part, shape, "Q4_K_M")
        part.rename(path)
        say(f"wrote {path.name} in {time.perf_counter() - started:.1f} s")
    return path


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one process a figure, fewer steps")
    parser.add_argument("--models", type=Path, help="folder of models (default: a temporary one)")
    parser.add_argument("--cache", type=Path, help="kernel cache (default: a fresh one)")
    parser.add_argument("--limit", type=float, default=470, help="seconds in all (470)")
    parser.add_argument("--large", default="llama-8b", help="shape of tools/make_model.py")
    parser.add_argument("--small", default="llama-1b", help="shape of tools/make_model.py")
    return parser.parse_args()


def summary(session: Session, about: Mapping[str, object]) -> dict[str, object]:
    """Return everything, as the last line says it."""
    results = {name: result.row() for name, result in session.results.items()}
    ratios = {name: row["ratio"] for name, row in results.items() if row["ratio"] is not None}
    return rounded(
        {
            **about,
            "figures": results,
            "ratios": ratios,
            "details": session.details,
            "failures": session.failures,
        }
    )


def main() -> None:
    """Measure, print as it goes, and end with JSON."""
    args = options()
    ends_at = time.monotonic() + args.limit
    about = {"machine": machine(), "card": card().title, "driver": driver_version()}
    say(f"{about['card']}, driver {about['driver']}, {about['machine']['date']}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cache = args.cache or Path(temporary, "cache")
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        wants_small = "small" in args.only
        session = Session(
            large=written(folder, args.large),
            small=written(folder, args.small) if wants_small else folder,
            cache=cache,
            owns_cache=args.cache is None,
            is_quick=args.quick,
            ends_at=ends_at,
        )
        for name in (name for name in PARTS if name in args.only):
            started = time.perf_counter()
            say(f"\n{name}: {PARTS[name].__doc__}")
            try:
                PARTS[name](session)
            except (KeyError, TypeError, ValueError) as error:  # an answer that is not understood
                session.fail(name, f"{type(error).__name__}: {error}")
            say(f"  [{time.perf_counter() - started:.1f} s]")
        result = summary(session, about)
    for failure in session.failures:
        say(f"FAILED {failure}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
