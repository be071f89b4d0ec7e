"""tools/make_model.py: models of real shapes with random weights."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from corral.gguf import open_model
from corral.quant.dequantize import dequantize
from corral.quant.types import DType


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[3] / "tools" / "make_model.py"
    spec = importlib.util.spec_from_file_location("make_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_model"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K_M", "Q6_K"])
def test_weights_are_sane(tool: ModuleType, tmp_path: Path, kind: str):
    """Every file type opens, and its weights have mean 0 and mean square 1 / columns."""
    path = tmp_path / "tiny.gguf"
    tool.write(path, "tiny", kind)
    with open_model(path) as model:
        assert model.metadata.int("llama.block_count") == 2
        assert len(model.metadata.strings("tokenizer.ggml.tokens")) == 512
        for name, info in model.tensors.items():
            data = np.empty(info.size_bytes, dtype=np.uint8)
            model.read(name, data)
            values = dequantize(data, info.dtype, info.shape)
            if len(info.shape) > 1:
                scaled = values * np.sqrt(info.shape[-1])
                assert abs(scaled.mean()) < 0.05
                assert abs(scaled.std() - 1) < 0.05
            else:
                assert (values == 1).all()


def test_the_same_seed_gives_the_same_file(tool: ModuleType, tmp_path: Path):
    """Files depend on shape, type and seed alone."""
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        tool.write(path, "tiny", "Q4_K_M", seed)
    a, b, c = (p.read_bytes() for p in paths)
    assert a == b != c


def test_q4_k_m_mixture(tool: ModuleType):
    """The 1B shape has six-bit embeddings and eight layers with more bits; 8B keeps them apart."""
    counts = {}
    for name in ("llama-1b", "llama-8b"):
        shape, mixture = tool.SHAPES[name], tool.MIXTURES["Q4_K_M"]
        types = tool.tensor_types(shape, mixture)
        counts[name] = Counter(types.values())
        assert types["token_embd.weight"] is (DType.Q6_K if name == "llama-1b" else DType.Q4_K)
    assert counts["llama-1b"] == {DType.Q4_K: 96, DType.Q6_K: 17, DType.F32: 34}
    assert counts["llama-8b"] == {DType.Q4_K: 193, DType.Q6_K: 33, DType.F32: 66}


def test_narrow_models_fall_back(tool: ModuleType):
    """A width that is no multiple of 256 gives Q8_0 embeddings, as in the published Q4_1 file."""
    shape, mixture = tool.SHAPES["smollm2-135m"], tool.MIXTURES["Q4_1"]
    types = tool.tensor_types(shape, mixture)
    assert Counter(types.values()) == {DType.Q8_0: 1, DType.Q4_1: 210, DType.F32: 61}
