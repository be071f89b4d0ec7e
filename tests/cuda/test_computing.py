"""Every operation and whole small models on a card, against formulas and the reference device."""

import pytest

import attention_cases
import op_cases
from corral.devices.reference.device import ReferenceDevice
from corral.quant.types import DType
from corral.tensor.graph import ShapeClass
from corral.tensor.rewrite import fuse
from evaluation import Evaluation, random_weights
from golden import nmse
from transformers import batch, transformer

FLOAT_NMSE = 1e-5
QUANTIZED_NMSE = 5e-4
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
SIZES = {"width": 256, "heads": 8, "kv_heads": 2, "ffn": 512}


@pytest.mark.parametrize("case", op_cases.CASES, ids=repr)
def test_operation(device, case):
    """Each gives what the formula says, from the rows of this batch and nothing else."""
    op_cases.check(device, case, exact=FLOAT_NMSE, int8=QUANTIZED_NMSE)


@pytest.mark.parametrize("case", attention_cases.CASES + attention_cases.WIDE_HEADS, ids=repr)
def test_attention(device, case):
    """Each row sees its own sequence's past, in or before this batch, and no other."""
    attention_cases.check(device, case, least=FLOAT_NMSE)


def runs(device, graph, weights):
    """Yield logits of a prompt, of a second one beside the first's next token, and of both."""
    with Evaluation(device, graph, weights) as evaluation:
        for lengths, starts in (((33, 2), (0, 0)), ((1, 40), (33, 2)), ((1, 1), (34, 42))):
            yield evaluation.run(**batch(lengths, starts))[0]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kv_dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0])
@pytest.mark.parametrize("name", TYPES)
def test_models_agree_with_the_reference(device, name, kv_dtype, window):
    """Prompts, single tokens and mixtures of both."""
    dtype = DType[name]
    graph = transformer(**SIZES, dtype=dtype, kv_dtype=kv_dtype, window=window)
    weights = random_weights(graph)
    tolerance = QUANTIZED_NMSE if dtype.is_quantized else FLOAT_NMSE
    graph = fuse(graph, device.traits.fused)
    with ReferenceDevice(device.traits.fused) as reference:
        pairs = zip(runs(device, graph, weights), runs(reference, graph, weights), strict=True)
        for actual, expected in pairs:
            assert nmse(actual, expected) <= tolerance


LONG = ShapeClass(rows=400, outputs=8, sequences=2, blocks=16)
RUNS = (
    ((290, 90), (0, 0)),
    ((150, 40), (290, 90)),
    ((25, 30), (440, 130)),
    ((12, 8), (465, 160)),
    ((33, 60), (477, 168)),
)
"""Lengths and starts of both sequences: many rows, then some dozens for every kernel of those."""


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("kv_dtype", [DType.F16, DType.BF16, DType.Q8_0])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_K", "Q6_K"])
def test_long_prompts_agree_with_the_reference(device, name, kv_dtype, window):
    """Prompts of many rows, then more rows behind them: through factors and attention in tiles."""
    dtype = DType[name]
    sizes = SIZES | {"heads": 4}
    graph = transformer(LONG, **sizes, dtype=dtype, kv_dtype=kv_dtype, window=window)
    weights = random_weights(graph)

    def logits(device, graph):
        with Evaluation(device, graph, weights) as evaluation:
            for lengths, starts in RUNS:
                yield evaluation.run(**batch(lengths, starts, blocks=16))[0]

    with ReferenceDevice() as reference:
        expected = list(logits(reference, graph))
    tolerance = (
        QUANTIZED_NMSE if dtype.is_quantized else FLOAT_NMSE if dtype is not DType.BF16 else 1e-4
    )
    for actual, right in zip(
        logits(device, fuse(graph, device.traits.fused)), expected, strict=True
    ):
        assert nmse(actual, right) <= tolerance
