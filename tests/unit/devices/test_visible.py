"""CUDA_VISIBLE_DEVICES means here what it means to the driver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.devices.visible import visible_devices
from fake_nvml import gpu

CARDS = [gpu(number) for number in range(3)]
FULL = CARDS[0].uuid
ONE = [CARDS[0]]


@pytest.mark.parametrize(
    ("variable", "count"),
    [
        *((None, 1), ("", 0), ("-1", 0), ("0", 1), ("0,0", 0), ("0,1", 1), ("1", 0), ("1,0", 0)),
        *(("0,-1", 1), ("-1,0", 0), (" 0", 1), ("0 ", 1), ("0, 0", 0), ("+0", 1), ("00", 1)),
        *(("0x0", 1), ("0abc", 1), ("abc", 0), ("0,abc", 1), ("abc,0", 0), (FULL, 1)),
        *((FULL[:8], 1), (FULL[:12], 1), ("GPU-" + FULL[4:].upper(), 1), (FULL.lower(), 0)),
        *(("6f8570f0-350e", 0), ("GPU-", 0), (f"{FULL},{FULL}", 0), (f"{FULL[:8]},0", 1)),
        *((f"0,{FULL}", 1), (f"{FULL}0", 1), ("GPU-ffffffff,0", 0), ("MIG-abc,0", 0)),
        *((",0", 0), ("0,", 1), (";0", 0), ("0;1", 1), ("NoDevFiles", 0)),
    ],
)
def test_one_card_as_driver_580_sees_it(variable, count):
    """Each row was tried on an H200: how many devices `cuDeviceGetCount` then told."""
    assert visible_devices(ONE, variable, None).devices == tuple(ONE[:count])


def test_order_is_that_of_the_list():
    """The list is no set: its first entry is cuda:0."""
    assert visible_devices(CARDS, "2,0", None).devices == (CARDS[2], CARDS[0])
    named = f"{CARDS[1].uuid[:6]},{CARDS[0].uuid}"
    assert visible_devices(CARDS, named, None).devices == (CARDS[1], CARDS[0])


@given(st.lists(st.integers(-2, 4), max_size=6))
def test_ordinals_end_at_the_first_that_is_none(numbers):
    """Against the rule said plainly: take while valid, and nothing of a list with a double."""
    taken = []
    for number in numbers:
        if not 0 <= number < len(CARDS):
            break
        taken.append(number)
    expected = [] if len(set(taken)) < len(taken) else [CARDS[n] for n in taken]
    variable = ",".join(map(str, numbers))
    assert list(visible_devices(CARDS, variable, None).devices) == expected


@given(st.text(max_size=60))
def test_any_text_gives_an_answer(text):
    """No text is an error, and no card is seen twice."""
    devices = visible_devices(CARDS, text, None).devices
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(CARDS)


def test_ambiguous_beginnings_are_none():
    """A beginning that two cards share names neither."""
    twins = [gpu(1), gpu(1).__class__("GPU-1abd0000-0000-0000-0000-000000000000", "Twin")]
    assert visible_devices(twins, "GPU-1ab", None).devices == ()
    assert visible_devices(twins, "GPU-1abd", None).devices == (twins[1],)


def test_slices_are_named_by_uuid_or_place():
    """MIG slices in all their spellings; unnamed, a cut card shows its first slice."""
    card = gpu(4, slices=2)
    first, second = card.slices
    assert visible_devices([card], None, None).devices == (first,)
    assert visible_devices([card], "0", None).devices == (first,)
    for name in (second.uuid, second.uuid[:8], f"MIG-{card.uuid}/8/0"):
        assert visible_devices([card], name, None).devices == (second,)
    assert visible_devices([card], f"MIG-{card.uuid}/9/0", None).devices == ()


def test_notes_say_what_hides_and_what_is_uncertain():
    """A wrong entry, a double, and cards whose order only the driver knows."""
    assert "'7' is no card here" in visible_devices(CARDS, "0,7,1", None).note
    assert "names a card twice" in visible_devices(CARDS, "1,1", None).note
    assert visible_devices(CARDS, "", None).note == ""
    mixed = [gpu(0), gpu(1, "Other card")]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in visible_devices(mixed, None, None).note
    assert visible_devices(mixed, None, "PCI_BUS_ID").note == ""
