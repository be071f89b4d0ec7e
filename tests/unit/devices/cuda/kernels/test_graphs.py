"""Every operation and the cache, lowered by the CUDA rules and run in the emulator."""

from dataclasses import replace

import pytest

import attention_cases
import op_cases
from corral.devices.cuda.traits import cuda_traits
from corral.devices.reference.device import ReferenceDevice
from corral.quant.types import DType
from corral.tensor.rewrite import fuse
from emulation import needs_emulator
from emulation.device import EmulatedDevice
from emulation.instances import prepare_common
from evaluation import Evaluation, random_weights
from golden import nmse
from transformers import batch, transformer

pytestmark = needs_emulator


@pytest.fixture(scope="module")
def emulated():
    """A CUDA device without a card; all its bytes are back at the end."""
    prepare_common("matmul", "elementwise", "embed", "pack")
    with EmulatedDevice() as device:
        yield device


@pytest.mark.parametrize("case", op_cases.CASES, ids=repr)
def test_operation(emulated, case):
    """CUDA kernels give what the formula says, from the rows of this batch and nothing else."""
    op_cases.check(emulated, case)


@pytest.mark.parametrize("case", attention_cases.CASES, ids=repr)
def test_attention(emulated, case):
    """Each row sees its own sequence's past, in or before this batch, and no other."""
    attention_cases.check(emulated, case)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("way", ["narrow", "wide"])
def test_steps_in_one_go(way, norms):
    """Steps that are joined give what their nodes give, in a scratch that is full of NaN before."""
    sizes = {"width": 128, "heads": 4, "kv_heads": 2, "norms": norms, "kv_dtype": DType.F16}
    graph = transformer(**sizes, dtype=DType.Q8_0)
    weights = random_weights(graph)
    traits = replace(cuda_traits(0), narrow_rows=4 if way == "wide" else 128)
    fused = fuse(graph, traits.fused)
    with EmulatedDevice(traits=traits) as device, Evaluation(device, fused, weights) as evaluation:
        stems = {launch.instance.stem for launch in evaluation.program.launches}
        names = {launch.instance.name.split("<")[0] for launch in evaluation.program.launches}
        actual = evaluation.run(**batch((33, 2)))[0]
    assert "rope_append" in stems
    assert not stems & {"kv_append"}
    assert not names & {"corral::rope", "corral::group_norm", "corral::quantize"}
    plain = fused if way == "narrow" else graph
    with ReferenceDevice() as device, Evaluation(device, plain, weights) as evaluation:
        expected = evaluation.run(**batch((33, 2)))[0]
    assert nmse(actual, expected) <= 5e-4
