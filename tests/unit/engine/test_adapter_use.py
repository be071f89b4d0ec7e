"""engine/adapter_use.py: which rows have which adapters, as devices are told."""

from dataclasses import dataclass
from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.adapter_use import AdapterUse, NoAdapters, cache_namespace, spans
from corral.errors import InvalidArgument


@dataclass(frozen=True)
class Fake:
    """An adapter of which only numbers are known."""

    slot: int
    units: int
    fingerprint: str = ""


ADAPTERS = tuple(Fake(slot, units, f"f{slot}") for slot, units in enumerate((1, 2, 1, 5)))
USES = st.lists(
    st.tuples(st.sampled_from(ADAPTERS), st.sampled_from((0.5, 1.0, -2.0))),
    max_size=3,
    unique_by=lambda pair: pair[0].slot,
).map(lambda pairs: tuple(AdapterUse(*pair) for pair in sorted(pairs, key=lambda p: p[0].slot)))


@given(st.lists(st.tuples(st.integers(0, 5), USES), max_size=6))
def test_every_row_has_what_its_sequence_has(batch):
    """Spans say of each row exactly its adapters, scales and places, however they are joined."""
    rows, expected, first = [], {}, 0
    for count, uses in batch:
        rows.append((first, first + count, uses))
        unit = 0
        for use in uses:
            for row in range(first, first + count):
                expected[row, use.adapter.slot] = unit, use.scale
            unit += use.adapter.units
        first += count
    found = {}
    for begin, end, slot, unit, bits in spans(rows):
        assert begin < end
        for row in range(begin, end):
            assert (row, slot) not in found
            found[row, slot] = unit, unpack("<f", pack("<i", bits))[0]
    assert found == expected


def test_rows_that_share_an_adapter_are_one_span():
    """Sequences that stand together and have the same are read for once."""
    use = (AdapterUse(ADAPTERS[1], 1.0),)
    found = spans([(0, 1, use), (1, 2, use), (2, 9, use), (9, 10, ()), (10, 11, use)])
    assert [span[:4] for span in found] == [(0, 9, 1, 0), (10, 11, 1, 0)]


def test_blocks_belong_to_adapters_and_scales():
    """Another adapter, another scale or none: each has a namespace of its own."""
    one, other = AdapterUse(ADAPTERS[0], 1.0), AdapterUse(ADAPTERS[1], 1.0)
    half = AdapterUse(ADAPTERS[0], 0.5)
    names = [cache_namespace("me", uses) for uses in ((), (one,), (half,), (other,), (one, other))]
    assert len(set(names)) == len(names)
    assert names[0] == "me"
    assert cache_namespace("me", (other, one)) == names[-1]
    assert cache_namespace("you", (one,)) != names[1]


def test_a_model_without_adapters_gives_none():
    """Asking for one is refused, saying nothing is fine."""
    nobody = NoAdapters()
    assert nobody.uses(None) == nobody.uses(()) == ()
    with pytest.raises(InvalidArgument, match="has none"):
        nobody.uses([(0, 1.0)])
