"""Every operation and the cache, lowered by the CUDA rules and run in the emulator."""

import pytest

import attention_cases
import op_cases
from emulation import needs_emulator
from emulation.device import EmulatedDevice
from emulation.instances import prepare_common

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
