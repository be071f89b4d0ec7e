"""Compare our quantizers with llama.cpp's: the same bytes, and how long they take.

    python benchmarks/quantize.py LIBRARY [--rows 512] [--digests]

LIBRARY is a shared library that exports `ggml_quantize_chunk`: llama.cpp's libggml-base.so, or the
module of a Python package that contains it. One thread each. `--digests` prints what the tests keep
in tests/encoded.py. Last line: JSON.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from corral.quant.quantize import quantize
from corral.quant.types import DType
from machine import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the values lie there
from encoded import CASES, ENCODED, digest

COLUMNS = 4096


class Reference:
    """The quantizers of a library."""

    def __init__(self, path: str) -> None:
        """Load the library."""
        self._encode = ctypes.CDLL(path).ggml_quantize_chunk
        self._encode.restype = ctypes.c_size_t
        self._encode.argtypes = (
            [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
            + 3 * [ctypes.c_int64]  # first element, rows, columns
            + [ctypes.c_void_p]  # importance of columns
        )

    def __call__(self, values: np.ndarray, dtype: DType) -> np.ndarray:
        """Encode (rows, columns)."""
        rows, columns = values.shape
        data = np.zeros((rows, dtype.row_bytes(columns)), dtype=np.uint8)
        size = self._encode(
            dtype.value.ggml_id, values.ctypes.data, data.ctypes.data, 0, rows, columns, None
        )
        assert size == data.nbytes
        return data


def nanoseconds(encode: Callable, values: np.ndarray, dtype: DType) -> float:
    """Return the time for one value, the best of three."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        encode(values, dtype)
        times.append(time.perf_counter() - started)
    return min(times) / values.size * 1e9


def print_digests(reference: Reference) -> None:
    """Print the dictionary that tests/encoded.py keeps."""
    for dtype in ENCODED:
        print(f"    DType.{dtype.name}: {{")
        for name, values in CASES.items():
            print(f'        "{name}": "{digest(reference(values, dtype))}",')
        print("    },")


def main() -> None:
    """Compare every type, and exit with 1 if a byte differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--digests", action="store_true")
    args = parser.parse_args()
    reference = Reference(args.library)
    if args.digests:
        print_digests(reference)
        return
    normal = np.random.default_rng(1).standard_normal((args.rows, COLUMNS), dtype=np.float32)
    results = {}
    for dtype in ENCODED:
        cases = {**CASES, "more of normal": normal}
        differing = [
            n for n, v in cases.items() if (quantize(v, dtype) != reference(v, dtype)).any()
        ]
        results[dtype.name] = {
            "differing": differing,
            "ns_per_value": round(nanoseconds(quantize, normal, dtype), 2),
            "ns_per_value_llama_cpp": round(nanoseconds(reference, normal, dtype), 2),
        }
        print(dtype.name, results[dtype.name])
    print(json.dumps({"machine": machine(), "types": results}))
    sys.exit(any(result["differing"] for result in results.values()))


if __name__ == "__main__":
    main()
