"""Compare our quantizers, in NumPy and as kernels, with llama.cpp's: the bytes and the time.

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

from corral.devices.cpu.device import CpuDevice
from corral.devices.cpu.encoder import Encoder
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
    """Return the processor time for one value, the best of three."""
    times = []
    for _ in range(3):
        started = time.process_time()
        encode(values, dtype)
        times.append(time.process_time() - started)
    return min(times) / values.size * 1e9


def print_digests(reference: Reference) -> None:
    """Print the dictionary that tests/encoded.py keeps."""
    for dtype in ENCODED:
        print(f"    DType.{dtype.name}: {{")
        for name, values in CASES.items():
            print(f'        "{name}": "{digest(reference(values, dtype))}",')
        print("    },")


def compare(encoder: Encoder, reference: Reference, normal: np.ndarray) -> dict[str, dict]:
    """Return by type where bytes differ, and the nanoseconds that a value takes."""
    results = {}
    for dtype in ENCODED:
        cases = {**CASES, "more of normal": normal}
        differing = [
            name
            for name, values in cases.items()
            if any(
                (encode(values, dtype) != reference(values, dtype)).any()
                for encode in (quantize, encoder)
            )
        ]
        results[dtype.name] = {
            "differing": differing,
            "numpy": round(nanoseconds(quantize, normal, dtype), 2),
            "kernel": round(nanoseconds(encoder, normal, dtype), 2),
            "llama.cpp": round(nanoseconds(reference, normal, dtype), 2),
        }
        print(dtype.name, results[dtype.name], flush=True)
    return results


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
    with CpuDevice() as device:
        results = compare(Encoder(device.compiler, ENCODED), reference, normal)
    print(json.dumps({"machine": machine(), "types": results}))
    sys.exit(any(result["differing"] for result in results.values()))


if __name__ == "__main__":
    main()
