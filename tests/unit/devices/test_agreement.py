"""Whole models on two devices: the CPU against the reference device with the CPU's fusions."""

import pytest

from corral.devices import registry
from corral.devices.reference.device import ReferenceDevice
from corral.quant.types import DType
from corral.tensor.rewrite import fuse
from evaluation import Evaluation, random_weights
from golden import nmse
from transformers import batch, transformer

SIZES = {"width": 256, "heads": 8, "kv_heads": 2, "ffn": 512}


def runs(device, graph, weights):
    """Return the logits of a prompt, of a second one beside the first's next token, and of both."""
    with Evaluation(device, graph, weights) as evaluation:
        for lengths, starts in (((33, 2), (0, 0)), ((1, 40), (33, 2)), ((1, 1), (34, 42))):
            yield evaluation.run(**batch(lengths, starts))[0]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kv_dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q4_0, DType.Q8_0, DType.Q4_K])
def test_the_cpu_agrees_with_the_reference(dtype, kv_dtype, window):
    """Up to values on the border of two codes, which the order of additions tips over."""
    graph = transformer(**SIZES, dtype=dtype, kv_dtype=kv_dtype, window=window)
    weights = random_weights(graph)
    tolerance = 1e-4 if dtype.is_quantized else 1e-11 if kv_dtype is DType.F32 else 1e-7
    with registry.open("cpu") as cpu, ReferenceDevice(cpu.traits.fused) as reference:
        graph = fuse(graph, cpu.traits.fused)
        pairs = zip(runs(cpu, graph, weights), runs(reference, graph, weights), strict=True)
        for actual, expected in pairs:
            assert nmse(actual, expected) <= tolerance
