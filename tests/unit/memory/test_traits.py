"""For which numbers of rows a plan is lowered."""

import pytest

from corral.devices.cuda.traits import DECODE_BUCKETS, cuda_traits
from corral.devices.reference.device import reference_traits


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        (1, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        (17, (1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512)),
        (40, (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512)),
        (128, (*DECODE_BUCKETS, 256, 512)),
        (600, (*DECODE_BUCKETS, 256, 512)),
    ],
)
def test_buckets_between_powers_of_two_are_for_many_sequences(sequences, expected):
    """Up to the one that holds them all; prompts take the next power of two."""
    assert cuda_traits(0).buckets_of(512, sequences) == expected


def test_a_device_without_buckets_has_one():
    """It is lowered once, for all rows."""
    assert reference_traits().buckets_of(96, 4) == (96,)
