"""engine/merging.py: a file with adapters in its weights."""

import numpy as np
import pytest

import adapters
import corral
import tiny
from corral.engine.merging import merge, plan_merge
from corral.errors import InvalidAdapter, InvalidArgument, UnsupportedModel
from corral.gguf import open_model
from corral.quant.dequantize import dequantize
from corral.quant.types import DType
from golden import nmse

TOKENS = list(range(5, 45))


def merged(tmp_path, base, given, dtype=None):
    """Write a merged model; return its path."""
    out = tmp_path / "merged.gguf"
    with open_model(base) as file:
        merge(file, out, plan_merge(file, given, dtype), threads=2)
    return out


def values(path):
    """Return the type and the values of each tensor of a file."""
    found = {}
    with open_model(path) as file:
        for name, info in file.tensors.items():
            data = bytearray(info.size_bytes)
            file.read(name, data)
            found[name] = info.dtype, dequantize(data, info.dtype, info.shape), bytes(data)
    return found


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_weights_are_sums_in_f32(tmp_path, family):
    """Each changed weight is W + scale·B·A as float64 has it; every other byte is as it was."""
    base = tiny.write(tmp_path / "base.gguf", family, table=tiny.tensors(family))
    path = adapters.write(tmp_path / "a.gguf", family=family, targets=("attn_q", "ffn_down"))
    out = values(merged(tmp_path, base, [(path, 0.7)]))
    before = values(base)
    wanted = adapters.merged(family=family, targets=("attn_q", "ffn_down"), scale=0.7)
    changed = adapters.halves(family=family, targets=("attn_q", "ffn_down"))
    assert set(out) == set(before)
    for name, (dtype, found, data) in out.items():
        assert dtype is before[name][0]
        if name in changed:
            assert nmse(found, wanted[name][2].astype(np.float64)) <= 1e-12
        else:
            assert data == before[name][2]


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0, DType.F16, DType.BF16])
def test_weights_are_packed_in_their_own_type(tmp_path, dtype):
    """What is lost is what the type loses."""
    base = tiny.write(tmp_path / "base.gguf", table=tiny.tensors(dtype=dtype))
    out = values(merged(tmp_path, base, [(adapters.write(tmp_path / "a.gguf"), 0.3)]))
    kept = values(base)
    limit = {DType.Q8_0: 1e-4, DType.Q4_0: 1e-2, DType.F16: 1e-6, DType.BF16: 1e-5}[dtype]
    for name, (a, b) in adapters.halves().items():
        exact = kept[name][1].astype(np.float64) + 0.3 * 8 / 4 * (b.astype(np.float64) @ a)
        assert out[name][0] is dtype
        assert nmse(out[name][1], exact) <= limit


def test_another_type_may_be_chosen(tmp_path):
    """With a type, the weights that change get it, and the others keep theirs."""
    base = tiny.write(tmp_path / "base.gguf", table=tiny.tensors(dtype=DType.Q4_0))
    path = adapters.write(tmp_path / "a.gguf", targets=("attn_q",))
    out = values(merged(tmp_path, base, [(path, 1.0)], DType.F16))
    types = {name: dtype for name, (dtype, _, _) in out.items()}
    assert types["blk.0.attn_q.weight"] is DType.F16
    assert types["blk.0.attn_k.weight"] is DType.Q4_0


def test_merged_is_as_good_as_attached(tmp_path):
    """Two adapters with scales, in the weights or beside them: the same logits."""
    base = tiny.write(tmp_path / "base.gguf")
    paths = [adapters.write(tmp_path / f"{seed}.gguf", seed, strength=0.2) for seed in (0, 1)]
    given = list(zip(paths, (0.5, -0.25), strict=True))
    out = merged(tmp_path, base, given)
    with corral.Model.load(out, device="cpu", kv_type="f32") as one:
        expected = one.logits(TOKENS)
    with corral.Model.load(base, device="cpu", kv_type="f32") as model:
        for path, scale in given:
            model.adapters.load(path, scale=scale)
        assert nmse(model.logits(TOKENS), expected) <= 1e-6


def test_refuses_before_anything_is_written(tmp_path):
    """Another architecture, a scale that is none, a type that cannot be packed: no file appears."""
    base = tiny.write(tmp_path / "base.gguf")
    other = adapters.write(tmp_path / "other.gguf", family="qwen3")
    own = adapters.write(tmp_path / "own.gguf")
    with pytest.raises(InvalidAdapter, match="is for qwen3"):
        merged(tmp_path, base, [(other, 1.0)])
    with pytest.raises(InvalidArgument, match="scale"):
        merged(tmp_path, base, [(own, float("inf"))])
    table = tiny.tensors()
    name = "blk.0.attn_q.weight"
    shape = table[name][1]
    blocks = np.zeros((shape[0], DType.IQ4_NL.row_bytes(shape[1])), np.uint8)
    odd = tiny.write(tmp_path / "odd.gguf", table=table | {name: (DType.IQ4_NL, shape, blocks)})
    with pytest.raises(UnsupportedModel, match="--merge-type"):
        merged(tmp_path, odd, [(own, 1.0)])
    with (
        pytest.raises(InvalidArgument, match="is the model that is read"),
        open_model(base) as file,
    ):
        merge(file, base, plan_merge(file, [(own, 1.0)]))
    assert not (tmp_path / "merged.gguf").exists()


def test_what_exceeds_the_type_is_refused(tmp_path):
    """A sum that is no number any more leaves no file."""
    base = tiny.write(tmp_path / "base.gguf", table=tiny.tensors(dtype=DType.F16))
    path = adapters.write(tmp_path / "a.gguf", alpha=1e6, strength=1e3)
    with pytest.raises(corral.CorralError, match=r"blk\.0"):
        merged(tmp_path, base, [(path, 1e3)])
    assert not (tmp_path / "merged.gguf").exists()
