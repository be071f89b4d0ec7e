"""tools/make_lora.py: random adapters for models of any shape."""

import importlib.util
import sys
from pathlib import Path

import pytest

import tiny
from corral.gguf import open_model
from corral.lora.adapter import open_adapter, require_fitting
from corral.lora.values import require_finite
from corral.quant.types import DType


@pytest.fixture(scope="module")
def tool():
    """Load the script as a module."""
    path = Path(__file__).parents[3] / "tools" / "make_lora.py"
    spec = importlib.util.spec_from_file_location("make_lora", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_lora"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0])
def test_adapters_fit_their_model(tool, tmp_path, dtype):
    """What is written can be read, fits the base and holds numbers."""
    base, out = tiny.write(tmp_path / "base.gguf"), tmp_path / "lora.gguf"
    tool.write(base, out, rank=8, targets=("attn_q", "ffn_down"), dtype=dtype)
    with open_adapter(out) as (adapter, file), open_model(base) as model:
        require_fitting(adapter, "llama", model.tensors, base="base.gguf")
        require_finite(file, adapter)
        assert len(adapter.pairs) == 2 * tiny.LAYERS["llama"]
        assert adapter.max_rank == 8


def test_the_same_seed_gives_the_same_file(tool, tmp_path):
    """Files depend on the arguments alone."""
    base = tiny.write(tmp_path / "base.gguf")
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        tool.write(base, path, seed=seed)
    a, b, c = (path.read_bytes() for path in paths)
    assert a == b != c
