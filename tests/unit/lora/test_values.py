"""lora/values.py: the values of an adapter, read and checked."""

import numpy as np
import pytest

import adapters
from corral.errors import InvalidAdapter
from corral.gguf import write_model
from corral.lora.adapter import open_adapter
from corral.lora.values import read_pair, require_finite
from corral.quant.types import DType

WEIGHT = "blk.1.ffn_down.weight"


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_values_are_those_of_the_file(tmp_path, dtype):
    """Both halves come as F32, row by row."""
    a, b = adapters.halves(1)[WEIGHT]
    with open_adapter(adapters.write(tmp_path / "a.gguf", 1, dtype=dtype)) as (adapter, file):
        found = read_pair(file, adapter.pairs[WEIGHT])
    tolerance = {DType.F32: 0.0, DType.F16: 1e-3, DType.BF16: 8e-3}[dtype]
    np.testing.assert_allclose(found[0], a, rtol=tolerance, atol=1e-6)
    np.testing.assert_allclose(found[1], b, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("half", [0, 1])
def test_refuses_values_that_are_no_numbers(tmp_path, half, value):
    """One NaN or infinity is found, and its tensor named."""
    pairs = adapters.halves()
    table = adapters.table(pairs)
    pairs[WEIGHT][half][2, 3] = value
    for suffix, values in zip(("lora_a", "lora_b"), pairs[WEIGHT], strict=True):
        table[f"{WEIGHT}.{suffix}"] = DType.F32, values.shape, values
    path = tmp_path / "bad.gguf"
    write_model(path, adapters.metadata(), table)
    with open_adapter(path) as (adapter, file):
        named = f"{WEIGHT}.lora_{'ab'[half]} holds a value that is no finite number"
        with pytest.raises(InvalidAdapter, match=named):
            require_finite(file, adapter)
