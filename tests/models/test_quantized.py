"""Models that corral quantized run in corral, as near to the original as their types allow."""

import numpy as np
import pytest

import tiny
from corral.devices.cpu.device import CpuDevice
from corral.devices.cpu.encoder import Encoder
from corral.engine.model import Model
from corral.engine.quantizing import convert, plan_conversion
from corral.gguf import open_model, write_model
from corral.models.mixture import mixture
from corral.quant.dequantize import dequantize
from corral.quant.types import DType
from golden import nmse
from smollm2 import demo_path, needs_demo

WIDTH, HEAD_DIM, FFN, LAYERS = 256, 64, 512, 3

HIGHEST_NMSE = {
    "F16": 1.5e-6,
    "BF16": 6e-5,
    "Q8_0": 1.2e-3,
    "Q6_K": 7e-3,
    "Q5_K_M": 2.4e-2,
    "Q5_K_S": 2.4e-2,
    "Q4_K_M": 0.1,
    "Q4_K_S": 0.1,
    "Q4_0": 0.14,
    "Q3_K_M": 0.3,
}
"""Of logits beside those of the F32 model: 1.5 times what was measured. Weights lose 3e-5 (Q8_0) to
6e-3 (Q4_K), and three random layers make ten times as much of that."""
HIGHEST_ACTIVATION_NMSE = 1e-3
"""Beside the same weights in F32: what int8 activations lose."""
PROMPT = list(range(40, 104))


def quantized(source, target, name, **options):
    """Quantize a model as the command does, and return where it is."""
    with CpuDevice() as device, open_model(source) as file:
        conversion = plan_conversion(file, mixture(name), **options)
        convert(file, target, conversion, encode=Encoder(device.compiler, DType))
    return target


def logits(path, tokens):
    """Return the logits after each token."""
    with Model.load(path, device="cpu", context=128) as model:
        return model.logits(tokens)


def decoded(source, target):
    """Write a model with the weights that a quantized one has, as F32."""
    with open_model(source) as file:
        table = {}
        for name, info in file.tensors.items():
            data = np.empty(info.size_bytes, np.uint8)
            file.read(name, data)
            table[name] = (DType.F32, info.shape, dequantize(data, info.dtype, info.shape))
        write_model(target, {key: file.metadata.value(key) for key in file.metadata}, table)
    return target


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model in F32 whose rows K-quants fit, and its logits."""
    sizes = {
        "block_count": LAYERS,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
    }
    widths = {tiny.WIDTH: WIDTH, tiny.FFN: FFN, tiny.KV_HEADS * tiny.HEAD_DIM: 2 * HEAD_DIM}
    table = {}
    for name, shape in tiny.shapes(layers=LAYERS).items():
        shape = tuple(widths.get(size, size) for size in shape)
        values = tiny.values(name, shape)
        if "attn_q" in name or "attn_k" in name:
            values *= np.float32(0.25)  # scores of random heads are large, and errors would grow
        table[name] = (DType.F32, shape, values)
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    tiny.write(path, table=table, **sizes)
    return path, logits(path, PROMPT)


@pytest.mark.parametrize("name", HIGHEST_NMSE)
def test_logits_stay_near(wide, tmp_path, name):
    """Logits of a quantized model are as near to the original's as its type allows."""
    path, exact = wide
    found = logits(quantized(path, tmp_path / "model.gguf", name), PROMPT)
    assert nmse(found, exact) <= HIGHEST_NMSE[name]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K_M", "Q5_K_S", "Q6_K", "Q8_0"])
def test_what_is_lost_is_lost_in_the_file(wide, tmp_path, name):
    """The model computes what its weights say: beside them only activations are rounded."""
    path = quantized(wide[0], tmp_path / "model.gguf", name)
    exact = logits(decoded(path, tmp_path / "decoded.gguf"), PROMPT)
    assert nmse(logits(path, PROMPT), exact) <= HIGHEST_ACTIVATION_NMSE


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_runs_quantized(tmp_path, family):
    """Models whose rows no K-quant fits run in what stands in for it."""
    source = tiny.write(tmp_path / "tiny.gguf", family)
    path = quantized(source, tmp_path / "model.gguf", "Q5_K_M")
    exact = logits(decoded(path, tmp_path / "decoded.gguf"), PROMPT[:8])
    assert nmse(logits(path, PROMPT[:8]), exact) <= HIGHEST_ACTIVATION_NMSE


@needs_demo
def test_the_demo_is_the_same_in_eight_bits(tmp_path):
    """The demo, rounded once more to Q8_0, gives the same distributions and an answer."""
    path = quantized(demo_path(), tmp_path / "demo.gguf", "Q8_0", may_requantize=True)
    with Model.load(demo_path(), device="cpu", context=128) as model:
        tokens = model.tokenize("The capital of France is")
        exact = model.logits(tokens)
    with Model.load(path, device="cpu", context=128) as model:
        found = model.logits(tokens)
        answer = model.generate("The capital of France is", max_tokens=4)
        assert "Paris" in "".join(answer)
    assert nmse(found, exact) <= HIGHEST_ACTIVATION_NMSE
