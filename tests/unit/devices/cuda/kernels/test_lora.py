"""Adapters on a card: kernels against float64, and whole models against the reference."""

from dataclasses import replace

import numpy as np
import pytest

import adapters
import tiny
from corral.devices.cuda.traits import cuda_traits
from corral.devices.reference.device import ReferenceDevice
from corral.engine.adapters import Adapters
from corral.gguf import open_model
from corral.models.footprint import Limits
from corral.quant.types import DType
from emulation import needs_emulator
from emulation.device import EmulatedDevice
from emulation.instances import prepare_common
from golden import nmse
from loaded import Loaded, Recorder, prompt
from unit.devices.test_lora import run

pytestmark = needs_emulator
LIMITS = Limits(context=64, parallel=3, kv_type="f16", chunk=8, outputs=4)


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests share, at once."""
    prepare_common("matmul", "elementwise", "embed", "pack")


@pytest.mark.parametrize(("width", "rows"), [(64, 64), (1056, 40)])
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0], ids=lambda dtype: dtype.name)
def test_adapters_add_what_they_should(width, rows, dtype):
    """Several adapters of other ranks, scales and weights in one batch, and rows with none."""
    if dtype is DType.Q8_0 and rows % 32:
        rows = 64
    with EmulatedDevice() as device:
        outputs, formulas = run(device, dtype, width, rows)
    for actual, formula in zip(outputs, formulas, strict=True):
        assert nmse(actual, formula) <= (1e-6 if dtype is DType.F32 else 1e-4)


@pytest.mark.parametrize("bucket", [23, 64])
def test_tiles_change_no_bit(bucket):
    """A row has the same bits in a short span and in a long one."""
    with EmulatedDevice() as device:
        together, _ = run(device, DType.F32, 96, 40, (((0, 23, 1, 0, 30.0),), ()))
        apart = tuple((row, row + 1, 1, row % 3, 30.0) for row in range(10))
        alone, _ = run(device, DType.F32, 96, 40, (apart, ()))
    assert np.array_equal(together[1][:10], alone[1][:10])


def logits(path, device, given, uses):
    """Return the logits of prompts that have adapters, mixed in one engine."""
    loaded = Loaded(path, device, LIMITS)
    recorder = Recorder.on(loaded)
    with open_model(path) as file:
        tensors = file.tensors
    owner = Adapters(loaded.loaded, loaded.runner, loaded.ledger, "tiny", tensors)
    loaded.engine.adapters = owner
    for adapter in given:
        owner.add(owner.prepare(adapter), scale=0.0)
    lengths = (33, 5, 9)
    sequences = [
        loaded.submit(prompt(length), 1, temperature=0, adapters=wanted)
        for length, wanted in zip(lengths, uses, strict=True)
    ]
    loaded.finish(*sequences)
    rows = [np.stack(recorder.logits[sequence]) for sequence in sequences]
    owner.close()
    loaded.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("way", ["narrow", "wide"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0], ids=lambda dtype: dtype.name)
def test_models_with_adapters(tmp_path, dtype, way):
    """Prompts in chunks and single tokens, two adapters and none beside each other."""
    path = tiny.write(tmp_path / "m.gguf", table=tiny.tensors(dtype=dtype))
    given = [adapters.write(tmp_path / f"{seed}.gguf", seed, strength=0.2) for seed in (0, 1)]
    uses = [((0, 0.5),), ((0, 0.25), (1, 0.5)), ()]
    rows = 4 if way == "wide" else 128
    traits = replace(cuda_traits(0), segment_blocks=1, segment_bytes=4096, narrow_rows=rows)
    with ReferenceDevice(traits.fused if way == "narrow" else frozenset()) as reference:
        expected = logits(path, reference, given, uses)
    with EmulatedDevice(traits=traits) as emulated:
        actual = logits(path, emulated, given, uses)
    assert nmse(actual, expected) <= (1e-5 if dtype is DType.F32 else 5e-4)
