"""The op table is complete and consistent."""

import pytest

from corral.tensor.ops import TABLE, Op
from corral.tensor.verify import RULES


def test_every_operation_has_a_row():
    """No operation without traits."""
    assert set(TABLE) == set(Op)


def test_every_computed_operation_has_a_rule():
    """No operation reaches a device unchecked."""
    assert set(RULES) == {op for op in Op if not op.traits.is_leaf}


@pytest.mark.parametrize("op", Op)
def test_rows_are_consistent(op):
    """What may be overwritten is a source that is always there, and optional sources exist."""
    traits = op.traits
    assert 0 <= traits.optional <= len(traits.sources)
    if traits.in_place is not None:
        assert traits.in_place < len(traits.sources) - traits.optional
