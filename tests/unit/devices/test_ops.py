"""Every operation on every device that computes, against slow formulas in float64."""

import pytest

from corral.devices.reference.ops import KERNELS
from corral.tensor.ops import Op
from op_cases import CASES, check


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_operation(computing, case):
    """A device gives what the formula says, from the rows of this batch and nothing else."""
    check(computing, case)


def test_every_operation_has_a_kernel():
    """The reference device computes all operations of the table but leaves and views."""
    assert set(KERNELS) == {op for op in Op if not op.traits.is_leaf} - {Op.VIEW}
