"""Quantize models with corral and with llama.cpp, and compare the files byte by byte.

    python benchmarks/quantize_files.py LIBLLAMA [--model FILE …] [--types Q4_K_M,Q8_0,…]

LIBLLAMA is a shared library that exports `llama_model_quantize` (llama.cpp's libllama.so). Without
--model, small models with random weights are compared: every family that corral runs and some that
it does not, tied and untied, of few and of 80 layers, with experts, and with rows that no K-quant
fits. Last line: JSON.
"""

import argparse
import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corral.devices.cpu.device import CpuDevice
from corral.devices.cpu.encoder import Encoder
from corral.engine.quantizing import convert, plan_conversion
from corral.errors import CorralError
from corral.gguf import open_model, write_model
from corral.models.mixture import MIXTURES
from corral.quant.types import DType
from machine import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # a vocabulary lies there
import tiny

THREADS = 2


class _Parameters(ctypes.Structure):
    """The beginning of `llama_model_quantize_params`, and room for what follows."""

    _fields_ = (
        *[(name, ctypes.c_int32) for name in ("threads", "file_type", "output", "embeddings")],
        *[(name, ctypes.c_bool) for name in ("allow_requantize", "output_too", "copy", "pure")],
        ("others", ctypes.c_char * 256),
    )


class Reference:
    """llama.cpp's quantizer."""

    def __init__(self, path: str) -> None:
        """Load the library and keep it quiet."""
        self._library = ctypes.CDLL(path)
        self._library.llama_model_quantize_default_params.restype = _Parameters
        self._log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda level, text, data: None
        )
        self._library.llama_log_set(self._log, None)
        self._library.llama_backend_init()

    def __call__(self, source: Path, target: Path, name: str, pure: bool) -> bool:
        """Write a file and return whether llama.cpp did."""
        parameters = self._library.llama_model_quantize_default_params()
        parameters.file_type = MIXTURES[name].file_type
        parameters.threads, parameters.pure = THREADS, pure
        parameters.allow_requantize = True
        files = str(source).encode(), str(target).encode()
        return self._library.llama_model_quantize(*files, ctypes.byref(parameters)) == 0


@dataclass(frozen=True)
class Result:
    """One comparison."""

    model: str
    type: str
    pure: bool
    same_file: bool
    other_types: list[str]
    other_bytes: list[str]
    refused: list[str]
    """Who would not."""
    seconds: float
    """Of processor time, of all threads together."""
    seconds_llama_cpp: float


def compare(
    reference: Reference, encode: Encoder, source: Path, name: str, pure: bool, folder: Path
) -> Result:
    """Quantize a model twice and compare."""
    ours, theirs = folder / "by-corral.gguf", folder / "by-llama.gguf"
    refused = []
    started = time.process_time()
    if not reference(source, theirs, name, pure):
        refused.append("llama.cpp")
    between = time.process_time()
    try:
        with open_model(source) as file:
            plan = plan_conversion(file, MIXTURES[name], is_pure=pure, may_requantize=True)
            convert(file, ours, plan, threads=THREADS, encode=encode)
    except CorralError as error:
        refused.append(f"corral: {error}")
    ended = time.process_time()
    types, data, same = [], [], False
    if not refused:
        types, data = differences(ours, theirs)
        same = ours.read_bytes() == theirs.read_bytes()
    for path in (ours, theirs):
        path.unlink(missing_ok=True)
    times = round(ended - between, 2), round(between - started, 2)
    return Result(source.stem, name, pure, same, types, data, refused, *times)


def differences(ours: Path, theirs: Path) -> tuple[list[str], list[str]]:
    """Return the tensors of other types, and those of the same type with other bytes."""
    types, data = [], []
    with open_model(ours) as one, open_model(theirs) as other:
        assert set(one.tensors) == set(other.tensors)
        for name, tensor in one.tensors.items():
            if tensor.dtype is not other.tensors[name].dtype:
                types.append(f"{name}: {tensor.dtype.name}, not {other.tensors[name].dtype.name}")
                continue
            both = [np.empty(tensor.size_bytes, np.uint8) for _ in range(2)]
            for file, into in zip((one, other), both, strict=True):
                file.read(name, into)
            if (both[0] != both[1]).any():
                data.append(name)
    return types, data


def models(folder: Path) -> Iterator[Path]:
    """Write small models of many kinds, one after the other."""
    for family in tiny.FAMILIES:
        for layers in (2, 17, 80):
            table = tiny.tensors(family, layers)
            path = folder / f"{family}-{layers}.gguf"
            yield tiny.write(path, family, table=table, block_count=layers)
    for dtype in (DType.F16, DType.BF16, DType.Q8_0):
        path = folder / f"llama-of-{dtype.name}.gguf"
        yield tiny.write(path, table=tiny.tensors(dtype=dtype))
    for family in ("llama", "falcon"):
        for experts in (0, 4, 8):
            yield _wide(folder / f"{family}-wide-{experts}.gguf", family, experts)
    yield _wide(folder / "tied-wide.gguf", "llama", 0, tied=True)


def _wide(path: Path, family: str, experts: int, *, tied: bool = False, layers: int = 20) -> Path:
    """Write a model whose rows K-quants fit, perhaps with experts: only its names are those."""
    shapes = {"token_embd.weight": (tiny.VOCABULARY, 256), "output_norm.weight": (256,)}
    if not tied:
        shapes["output.weight"] = (tiny.VOCABULARY, 256)
    for layer in range(layers):
        own = dict.fromkeys(("attn_q", "attn_k", "attn_output"), (256, 256))
        own["attn_qkv" if family == "falcon" else "attn_v"] = (256, 256)
        own |= {"attn_norm": (256,), "ffn_norm": (256,)}
        if experts:
            own |= {f"ffn_{name}_exps": (experts, 256, 256) for name in ("up", "gate", "down")}
            own["ffn_gate_inp"] = (experts, 256)
        else:
            own |= {"ffn_up": (320, 256), "ffn_gate": (320, 256), "ffn_down": (256, 320)}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
    table = {name: (DType.F32, s, tiny.values(name, s)) for name, s in shapes.items()}
    sizes = {"block_count": layers, "embedding_length": 256, "attention.layer_norm_epsilon": 1e-5}
    if experts:
        sizes |= {"expert_count": experts, "expert_used_count": 2}
    keys = {key.replace("llama.", f"{family}."): v for key, v in tiny.keys(**sizes).items()}
    keys["general.architecture"] = family
    write_model(path, keys | tiny.vocabulary(), table)
    return path


def main() -> None:
    """Compare, and exit with 1 if a tensor differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--model", type=Path, nargs="*")
    parser.add_argument("--types", default=",".join(MIXTURES))
    args = parser.parse_args()
    reference, results = Reference(args.library), []
    with CpuDevice() as device, tempfile.TemporaryDirectory() as name:
        encode = Encoder(device.compiler, DType)
        folder = Path(name)
        for path in args.model or models(folder):
            for kind in args.types.split(","):
                for pure in (False, True):
                    result = compare(reference, encode, path, kind, pure, folder)
                    results.append(vars(result))
                    if result.refused or not result.same_file or args.model:
                        print(result, flush=True)
            print(f"{path.stem}: compared", flush=True)
    same = sum(result["same_file"] for result in results)
    print(f"{same} of {len(results)} files are the same to the byte")
    print(json.dumps({"machine": machine(), "results": results}))
    sys.exit(any(result["other_types"] or result["other_bytes"] for result in results))


if __name__ == "__main__":
    main()
