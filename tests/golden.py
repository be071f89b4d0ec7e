"""Where the golden data lies, and how far from it a result may be.

The data is not part of the repository; tests that need it skip, with this reason, where it is
missing.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden"

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")

HIGHEST_FLOAT_NMSE = 1e-5
"""Of float weights with float math."""

TWINS = {"llama": 1.5 * 3.9e-3, "gemma3": 1.5 * 4.9e-5}
"""Families with a twin in Q4_K_M, and its highest NMSE with int8 activations: 1.5 times
what they cost llama.cpp."""

needs_golden = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason="the golden data is not beside this checkout"
)


def nmse(actual, expected) -> float:
    """Return Σ(actual − expected)² / Σ expected², in float64."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(((actual - expected) ** 2).sum() / (expected**2).sum())


def write_architecture(name: str, folder: Path, dtype: str) -> Path:
    """Write the small random model that a golden file belongs to, and return its path."""
    spec = importlib.util.spec_from_file_location("make_archs", GOLDEN / "make_archs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = folder / f"{name}.{dtype}.gguf"
    module.write(name, path, dtype)
    return path
