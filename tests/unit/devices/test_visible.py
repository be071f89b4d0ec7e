"""CUDA_VISIBLE_DEVICES means here what it means to the driver."""

import ctypes
import dataclasses
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.devices.nvml import Gpu
from corral.devices.visible import ordinal, visible_devices
from corral.errors import DeviceUnavailable
from fake_nvml import gpu

CARDS = [gpu(number) for number in range(3)]
FULL = "GPU-6bd0145e-e041-4ea6-732b-2b6fede0cd28"
DIGITS = FULL[4:]
ONE = [Gpu(FULL, "NVIDIA H200")]


@pytest.mark.parametrize(
    ("variable", "count"),
    [
        *((None, 1), ("", 0), (" ", 0), ("-1", 0), ("0", 1), ("0,0", 0), ("0,1", 1), ("1", 0)),
        *(("1,0", 0), ("0,-1", 1), ("-1,0", 0), (" 0", 1), ("0 ", 1), ("0, 0", 0), ("+0", 1)),
        *(("\t0", 1), ("\v0", 1), ("\n0", 1), ("0\n", 1), ("-0", 1), ("+-0", 0), ("00", 1)),
        *(("0x0", 1), ("0x1", 1), ("08", 0), ("0b1", 1), ("0gpu", 1), ("gpu0", 0), ("0.0", 1)),
        *(("0abc", 1), ("abc", 0), ("0,abc", 1), ("abc,0", 0), (",0", 0), ("0,", 1), ("0,,0", 1)),
        *((";0", 0), ("0;1", 1), ("0:0", 1), ("0 0", 1), ("0 ,0", 0), ("0,1,0", 1), ("0,0,1", 0)),
        *(("'0'", 0), ('"0"', 0), ("all", 0), ("none", 0), ("NoDevFiles", 0), ("0" * 300, 1)),
        *(("4294967296", 1), ("-4294967296", 1), ("2147483648", 0), ("18446744073709551616", 0)),
        *(("99999999999999999999", 0), ("0," * 1000, 0), ("GPU", 0), ("GPU-", 0), ("GPU-zz", 0)),
        *((FULL, 1), (FULL[:5], 1), (FULL[:8], 1), (FULL[:13], 1), (FULL[:-1], 1)),
        *((f"{FULL},{FULL}", 0), (f"{FULL},{FULL[:8]}", 0), (f"{FULL},MIG-{DIGITS}", 0)),
        *((f"{FULL},0", 1), (f"0,{FULL}", 1), (f"{FULL},1", 1), (f"1,{FULL}", 0)),
        *((f"GPU-{DIGITS.upper()}", 1), (FULL.upper(), 1), (FULL.lower(), 0), (DIGITS, 0)),
        *((f" {FULL}", 0), (f"\t{FULL}", 0), (f"{FULL} ", 1), (f"{FULL}, {FULL[:8]}", 1)),
        *((f"{FULL}0", 1), (f"{FULL}x", 1), (f"{FULL}-", 1), (f"{FULL}0123", 1)),
        *((f"{FULL[:12]}z", 0), (f"{FULL[:12]} zz", 0), (f"{FULL[:12]}-zz", 0), (DIGITS[:8], 0)),
        *((f"GPU-{DIGITS.replace('-', '')}", 1), (f"GPU--{DIGITS[:8]}", 1), ("GPU-6-b-d-0", 1)),
        *((f"GPU- {DIGITS[:8]}", 0), (f"{FULL},GPU-ffffffff", 1), (f"{FULL},,{FULL}", 1)),
        *((f"{FULL},{FULL[:8]}zz", 1), (f"GPU-zz,{FULL}", 0), (f"{FULL},MIG-zz", 1)),
        *((f"MIG-{DIGITS}", 1), (f"MIG-{DIGITS[:8]}", 1), (f"MIG-{DIGITS}/0/0", 1)),
        *((f"MIG-{DIGITS[:8]}/0/0", 0), (f"MIG-{FULL}/0/0", 0), (f"MIG-{FULL}", 0), ("MIG-", 0)),
    ],
)
def test_one_card_as_driver_580_sees_it(variable, count):
    """Each row was tried on an H200: how many devices `cuDeviceGetCount` then told."""
    assert visible_devices(ONE, variable, None).devices == tuple(ONE[:count])


@pytest.mark.parametrize(
    ("order", "count"),
    [
        *((None, 1), ("PCI_BUS_ID", 1), ("FASTEST_FIRST", 1)),
        *(("", 0), ("x", 0), ("pci_bus_id", 0), (" PCI_BUS_ID", 0), ("FASTEST", 0)),
    ],
)
def test_an_order_that_the_driver_does_not_know(order, count):
    """It does not start then, whatever the list says; tried on an H200, too."""
    for variable in (None, "0", FULL):
        seen = visible_devices(ONE, variable, order)
        assert len(seen.devices) == count
        assert count or "unset it" in seen.note


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system's C library")
@given(st.text(alphabet="0123456789+-xXabf \t\n\v\f\r.٣", max_size=30))
def test_numbers_are_what_strtol_says(entry):
    """Against C's own function, cut to an int as the driver does; no digits are no number."""
    libc = ctypes.CDLL(None)
    libc.strtol.restype = ctypes.c_long
    raw, end = ctypes.c_char_p(entry.encode()), ctypes.c_char_p()
    number = libc.strtol(raw, ctypes.byref(end), 10)
    has_digits = len(end.value) < len(entry.encode())
    assert ordinal(entry) == (ctypes.c_int32(number).value if has_digits else -1)


def model(cards, text):
    """Say the rules again, on what a token means, with no code of corral's."""
    tokens = text.split(",")
    taken = []
    for token in tokens:
        if tokens[0].startswith("GPU-"):
            body = "".join(c for c in token[4:] if c != "-").lower()[:32]
            named = [
                place
                for place, card in enumerate(cards)
                if token[:4] == "GPU-"
                and body
                and "".join(card.uuid[4:].split("-")).find(body) == 0
            ]
            place = named[0] if len(named) == 1 else None
        else:
            stripped = token.lstrip(" \t")
            place = int(stripped) if stripped.lstrip("-").isdecimal() else None
            place = place if place in range(len(cards)) else None
        if place is None:
            break
        if place in taken:
            return []
        taken.append(place)
    return [cards[place] for place in taken]


ENTRIES = st.one_of(
    st.integers(-2, 4).map(str),
    st.integers(0, 2).map(lambda n: f" {n}"),
    st.sampled_from(["", "abc", "GPU-", "GPU-f", "gpu-0abc"]),
    st.builds(
        lambda card, end, upper: (
            card.uuid[:4] + (card.uuid[4:end].upper() if upper else card.uuid[4:end])
        ),
        st.sampled_from(CARDS),
        st.integers(5, 45),
        st.booleans(),
    ),
)


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_lists_mean_what_the_model_says(entries):
    """Ordinals, names, beginnings, doubles and nonsense in any order."""
    text = ",".join(entries)
    assert list(visible_devices(CARDS, text, None).devices) == model(CARDS, text)


@given(st.text(max_size=60), st.sampled_from([None, "PCI_BUS_ID"]))
def test_any_text_gives_an_answer(text, order):
    """No text is an error, no card is seen twice, and what is hidden is said."""
    seen = visible_devices(CARDS, text, order)
    assert len(set(seen.devices)) == len(seen.devices)
    assert set(seen.devices) <= set(CARDS)
    assert seen.note or len(seen.devices) == len(CARDS)
    assert len(seen.note) < 500


def test_order_is_that_of_the_list():
    """The list is no set: its first entry is cuda:0."""
    assert visible_devices(CARDS, "2,0", None).devices == (CARDS[2], CARDS[0])
    named = f"{CARDS[1].uuid[:6]},{CARDS[0].uuid}"
    assert visible_devices(CARDS, named, None).devices == (CARDS[1], CARDS[0])


def test_ambiguous_beginnings_are_none():
    """A beginning that two cards share names neither."""
    twins = [gpu(1), Gpu("GPU-1abd0000-0000-0000-0000-000000000000", "Twin")]
    assert visible_devices(twins, "GPU-1ab", None).devices == ()
    assert visible_devices(twins, "GPU-1abd", None).devices == (twins[1],)


def test_slices_are_named_by_uuid_or_place():
    """MIG slices in all their spellings; unnamed, a cut card shows its first slice."""
    card = gpu(4, slices=2)
    first, second = card.slices
    for name in (None, "0", card.uuid, card.uuid[:8], first.uuid, first.uuid[:9]):
        assert visible_devices([card], name, None).devices == (first,)
    for name in (second.uuid, second.uuid[:8], second.uuid.upper(), f"MIG-{card.uuid}/8/0"):
        assert visible_devices([card], name, None).devices == (second,)
    for name in (f"MIG-{card.uuid}/9/0", f"MIG-{card.uuid}/8/1", f"MIG-{card.uuid}/8", "MIG-4"):
        assert visible_devices([card], name, None).devices == ()


def test_a_process_sees_one_slice_and_no_card_beside_it():
    """CUDA enumerates a single compute instance, and then no other device."""
    cut, whole = gpu(4, slices=2), gpu(1)
    first, second = cut.slices
    seen = visible_devices([whole, cut], None, None)
    assert seen.devices == (first,)
    assert "one MIG slice to a process" in seen.note
    assert visible_devices([cut], f"{second.uuid},{first.uuid}", None).devices == (second,)
    assert visible_devices([whole, cut], "0", None).devices == (whole,)
    assert visible_devices([cut], f"{first.uuid},{first.uuid}", None).devices == ()


def test_a_cut_card_without_slices_is_no_device():
    """It keeps its number, and whoever names it hides what follows."""
    cards = [gpu(0, is_cut=True), gpu(1)]
    assert visible_devices(cards, None, None).devices == (cards[1],)
    assert visible_devices(cards, "0,1", None).devices == ()
    assert visible_devices(cards, cards[0].uuid, None).devices == ()


def test_a_lost_card_is_no_device():
    """The driver does not count what it cannot open."""
    lost = Gpu("", "card 0", failure="fell off the bus")
    assert visible_devices([lost, gpu(1)], "0", None).devices == (gpu(1),)


def test_notes_say_what_hides_and_what_is_uncertain():
    """A wrong entry, a double, what is hidden, and cards whose order only the driver knows."""
    assert "'7' is no card here" in visible_devices(CARDS, "0,7,1", None).note
    assert "names a card twice" in visible_devices(CARDS, "1,1", None).note
    assert "hides every card: unset it" in visible_devices(CARDS, "", None).note
    assert "hides 2 of 3 cards" in visible_devices(CARDS, "1", None).note
    assert visible_devices(CARDS, None, None).note == ""


def test_cards_that_differ_have_an_order_only_the_driver_knows():
    """Said where numbers matter; the bus's order, names and equal cards leave no doubt."""
    mixed = [gpu(0), gpu(1, "Other card")]
    for variable in (None, "0,1", "1"):
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in visible_devices(mixed, variable, None).note
        assert "PCI_BUS_ID" in visible_devices(mixed, variable, "FASTEST_FIRST").note
        assert "PCI_BUS_ID" not in visible_devices(mixed, variable, "PCI_BUS_ID").note
    by_name = ",".join(card.uuid for card in mixed)
    assert visible_devices(mixed, by_name, None).note == ""
    assert visible_devices(CARDS, "0,1,2", None).note == ""


def test_devices_are_found_by_number_or_uuid():
    """What --device takes, among what this process sees."""
    seen = visible_devices(CARDS, "2,0", None)
    assert seen.named("cuda:0") is CARDS[2]
    for name in (CARDS[0].uuid, CARDS[0].uuid[:9], CARDS[0].uuid[:4] + CARDS[0].uuid[4:].upper()):
        assert seen.named(name) is CARDS[0]
    hidden = CARDS[1].uuid
    for name in ("cuda:2", hidden, "GPU-", "cuda", "x" * 1000):
        with pytest.raises(DeviceUnavailable, match="there are: cuda:0 \\(GPU-2") as caught:
            seen.named(name)
        assert len(str(caught.value)) < 400
    with pytest.raises(DeviceUnavailable, match="none \\(CUDA_VISIBLE_DEVICES=''"):
        dataclasses.replace(visible_devices(CARDS, "", None)).named("cuda:0")
