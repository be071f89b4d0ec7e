"""Tiny models of every family through the engine, their graphs run launch by launch."""

from dataclasses import replace

import numpy as np
import pytest

import tiny
from corral.contract.sampling import SamplingParams
from corral.devices.cuda.traits import cuda_traits
from corral.devices.reference.device import ReferenceDevice
from corral.models.footprint import Limits
from corral.quant.types import DType
from corral.sampling.sampler import Sampler
from corral.tensor.graph import ShapeClass
from corral.tensor.rewrite import fuse
from emulation import needs_emulator
from emulation.device import HOPPER, TUNED, EmulatedDevice
from emulation.instances import prepare_common
from evaluation import Evaluation, random_weights
from golden import nmse
from loaded import Loaded, Recorder, prompt
from transformers import batch, transformer

pytestmark = needs_emulator

LIMITS = Limits(context=64, parallel=2, kv_type="f16", chunk=8, outputs=4)
SPLIT = {"segment_blocks": 1, "segment_bytes": 4096}
"""Scratch that lets attention be cut."""


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the models share, at once."""
    prepare_common("matmul", "elementwise", "embed", "pack")


def logits(path, device, layers=(), limits=LIMITS):
    """Return the logits after a prompt in chunks, the last of one token, and after a short one.

    One token is generated of each, since a near tie may be decided otherwise by rounding.
    """
    loaded = Loaded(path, device, limits, layers=layers)
    recorder = Recorder.on(loaded)
    sequences = [loaded.submit(prompt(length), 1, temperature=0) for length in (33, 5, 9)]
    loaded.finish(*sequences)
    rows = [np.stack(recorder.logits[sequence]) for sequence in sequences]
    loaded.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("way", ["narrow", "wide"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_family(tmp_path, family, dtype, way):
    """Prefill in chunks and decoding give what the reference gives with the same fusions.

    Prompts of many rows meet no codes: they are nearer to the reference without them.
    """
    path = tiny.write(tmp_path / "m.gguf", family, table=tiny.tensors(family, dtype=dtype))
    rows = 4 if way == "wide" else 128
    traits = replace(cuda_traits(0), **SPLIT, narrow_rows=rows)
    with ReferenceDevice(traits.fused if way == "narrow" else frozenset()) as reference:
        expected = logits(path, reference)
    with EmulatedDevice(traits=traits) as emulated:
        actual = logits(path, emulated)
    assert nmse(actual, expected) <= (1e-5 if dtype is DType.F32 else 5e-4)


@pytest.mark.parametrize("family", ["llama"])
def test_tuned_products(tmp_path, family):
    """The same with the matrix kernels that cards use."""
    path = tiny.write(tmp_path / "m.gguf", family, table=tiny.tensors(family, dtype=DType.Q8_0))
    traits = replace(cuda_traits(0), **SPLIT)
    with ReferenceDevice(traits.fused) as reference:
        expected = logits(path, reference)
    with EmulatedDevice(traits=traits, chip=TUNED) as emulated:
        actual = logits(path, emulated)
    assert nmse(actual, expected) <= 5e-4


def test_tokens_drawn_on_the_card_are_those_of_the_host(tmp_path):
    """Of the same logits, though each step is begun before the token before it is known."""
    path = tiny.write(tmp_path / "m.gguf", table=tiny.tensors(dtype=DType.Q8_0))
    kinds = (
        SamplingParams(seed=3, temperature=1.5, top_k=40, top_p=0.95, min_p=0.01),
        SamplingParams(temperature=0.0),
    )

    def answers(*, chooses):
        with EmulatedDevice(chooses=chooses) as device:
            loaded = Loaded(path, device, LIMITS)
            sequences = [
                loaded.engine.submit(
                    prompt(5), sampler=Sampler(params, tiny.VOCABULARY), max_tokens=4
                )
                for params in kinds
            ]
            found = loaded.finish(*sequences)
            while loaded.engine.has_work:  # what was begun ahead
                loaded.engine.step()
            loaded.close()
            return found

    drawn = answers(chooses=True)
    assert drawn == answers(chooses=False)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_1], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_packed_products(tmp_path, family, dtype):
    """The same with rows of 16 bits and packed weights, as batches of some dozens are computed."""
    path = tiny.write(tmp_path / "m.gguf", family, table=tiny.tensors(family, dtype=dtype))
    traits = cuda_traits(0)
    limits = replace(LIMITS, chunk=2 * traits.narrow_rows)
    with ReferenceDevice(frozenset()) as reference:
        expected = logits(path, reference, limits=limits)
    with EmulatedDevice(traits=traits, chip=HOPPER, bucket=48) as emulated:
        actual = logits(path, emulated, limits=limits)
    assert nmse(actual, expected) <= 5e-4


def test_outputs_may_be_fewer_than_rows():
    """A prompt of some dozens of rows has one output; several tiles of it are read as written."""
    shape = ShapeClass(rows=256, outputs=8, sequences=2, blocks=4)
    graph = transformer(shape, width=128, heads=2, kv_heads=1, ffn=128, dtype=DType.Q8_0)
    weights, inputs = random_weights(graph), batch((25, 30), blocks=4)
    with ReferenceDevice() as reference, Evaluation(reference, graph, weights) as evaluation:
        (expected,) = evaluation.run(**inputs)
    with EmulatedDevice(chip=HOPPER, bucket=64) as emulated:
        fused = fuse(graph, emulated.traits.fused)
        with Evaluation(emulated, fused, weights) as evaluation:
            (actual,) = evaluation.run(**inputs)
    assert nmse(actual, expected) <= 5e-4


@pytest.mark.parametrize("way", ["narrow", "wide"])
def test_parts_give_the_answer_of_the_whole(tmp_path, way):
    """A model over two cards computes what it computes on one, to the bit."""
    table = tiny.tensors(layers=3, dtype=DType.Q8_0)
    path = tiny.write(tmp_path / "m.gguf", table=table, block_count=3)
    traits = replace(cuda_traits(0), **SPLIT, narrow_rows=4 if way == "wide" else 128)
    with EmulatedDevice(traits=traits) as one, EmulatedDevice(traits=traits) as other:
        whole = logits(path, one)
        parts = logits(path, (one, other), (range(1), range(1, 3)))
    assert np.array_equal(parts, whole)
