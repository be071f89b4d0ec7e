"""`corral.plan`: one device or several, here or elsewhere, and what fits them."""

import os
import subprocess
import sys

import pytest

import tiny
from corral import plan
from corral.devices import registry
from corral.devices.context_cost import DEFAULT_CONTEXT_BYTES
from corral.devices.listing import Listing
from corral.devices.nvml import Gpu
from corral.devices.reading import DeviceReading
from corral.devices.visible import Visible
from corral.engine import planning, targets
from corral.errors import DeviceUnavailable, InvalidArgument, OutOfMemory
from corral.gguf import Value, ValueType, open_model, write_model
from corral.models.footprint import choose_limits, design_model
from headers import LLAMA_70B, write_sparse

GIB, MIB = 1 << 30, 1 << 20
TWO = ("cuda:0", "cuda:1")
UUID = "GPU-6f85ab3c-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "70b.gguf"
    write_sparse(path, LLAMA_70B)
    return path


@pytest.fixture
def machine(monkeypatch):
    """Replace the machine's devices; return them and the count of readings."""
    devices, count = {}, []

    def listing():
        count.append(1)
        return Listing(tuple(devices.values()))

    def add(name, free, *, uuid=None, note="", margin=0, is_on_host=False):
        told = (name, uuid, "a card", 48 * GIB, free, None, None, "NVML", note)
        devices[name] = DeviceReading(*told, margin_bytes=margin, is_on_host=is_on_host)

    monkeypatch.setattr(planning, "machine_listing", listing)
    add("cpu", 64 * GIB, is_on_host=True)
    return add, count


def bytes_of(report, device):
    part = next(part for part in report.devices if part.device == device)
    return {row.lifetime: row.bytes for row in part.rows}


@pytest.mark.parametrize("device", ["cpu", "reference", "null", "auto"])
def test_one_device_is_planned_as_ever(path, device):
    """A device in the host's memory has one part, with the footprint of the design."""
    report = plan(path, device=device, context=64)
    with open_model(path) as file:
        limits = choose_limits(file.metadata, context=64)
        design = design_model(file.metadata, file.tensors, limits, registry.traits(device))
    expected = {life.value: size for life, size in design.plan.footprint().items()}
    assert {row.lifetime: row.bytes for row in report.rows} == expected
    assert list(expected) == [row.lifetime for row in report.rows]
    assert report.total_bytes == sum(expected.values())
    assert report.device == registry.resolve(device)
    assert len(report.devices) == 1


def test_a_card_that_is_elsewhere_is_planned(large):
    """No card, no driver: weights, state, scratch and context there, the rest here."""
    report = plan(large, device="cuda:7", context=8192)
    card = bytes_of(report, "cuda:7")
    assert set(card) == {"weights", "state", "scratch", "context"}
    assert card["context"] == DEFAULT_CONTEXT_BYTES
    assert all(size % (2 << 20) == 0 for size in card.values())
    assert set(bytes_of(report, "host")) == {"staging", "records"}
    assert not report.devices[0].context_is_measured
    assert report.device == "cuda:7"


@pytest.mark.parametrize("name", ["GPU-6f85ab3c", "MIG-12345678-1234", "cuda:31"])
def test_cards_have_other_names_too(path, name):
    """A name that means a card somewhere can be planned for."""
    assert plan(path, device=name, context=64).device == name


def test_several_devices_share_the_layers(large):
    """Each has its layers in order; the rows of the report are the sums."""
    report = plan(large, device=TWO, context=4096, split=(3, 1))
    first, second, host = report.devices
    assert (first.layers, second.layers, host.layers) == ((0, 60), (61, 79), None)
    assert sum(row.bytes for row in report.rows) == report.total_bytes
    assert report.total_bytes == sum(part.total_bytes for part in report.devices)
    assert report.device == "cuda:0,cuda:1"
    assert report.num_layers == 80


def test_kinds_of_devices_may_differ(large):
    """The host can be one of several devices."""
    report = plan(large, device=["cuda:0", "cpu"], context=4096, split=(3, 1))
    assert "context" in bytes_of(report, "cuda:0")
    assert "staging" in bytes_of(report, "cpu")
    assert [part.device for part in report.devices] == ["cuda:0", "cpu", "host"]


def test_what_fits_a_card_that_is_elsewhere(large):
    """With its memory told, the largest context for a card is found without one."""
    report = plan(large, device="cuda:0", fit=True, memory=48 * GIB)
    (card, _host) = report.devices
    assert card.total_bytes <= card.usable_bytes == 48 * GIB - 256 * MIB
    assert report.context % 32 == 0
    more = plan(large, device="cuda:0", context=report.context + 32)
    assert more.devices[0].total_bytes > card.usable_bytes


def test_one_size_may_stand_for_all(large):
    """Cards of one kind have their size once."""
    one = plan(large, device=TWO, fit=True, memory=24 * GIB)
    assert one == plan(large, device=TWO, fit=True, memory=(24 * GIB, 24 * GIB))
    assert one.device == "cuda:0,cuda:1"


def test_a_larger_margin_is_a_smaller_context(large):
    """The margin is left free on each device."""
    sizes = {"device": TWO, "fit": True, "memory": 24 * GIB}
    wide, narrow = plan(large, margin=512 * MIB, **sizes), plan(large, margin=0, **sizes)
    assert wide.context < narrow.context
    assert all(part.total_bytes <= 24 * GIB - 512 * MIB for part in wide.devices[:2])


def test_free_memory_is_read_once(large, machine):
    """All devices of a plan come from one reading, and it counts what others hold (4, 31)."""
    add, count = machine
    add("cuda:0", 24 * GIB)
    add("cuda:1", 40 * GIB, uuid=UUID, margin=10 * GIB)
    report = plan(large, device=("cuda:0", "GPU-6f85"), fit=True, margin=0)
    assert len(count) == 1
    assert [part.usable_bytes for part in report.devices[:2]] == [24 * GIB, 30 * GIB]


def test_no_memory_is_read_for_a_plan_that_need_not_fit(large, machine):
    """Neither plain plans nor those that are told the sizes read anything."""
    _, count = machine
    plan(large, device=TWO)
    plan(large, device=TWO, fit=True, memory=40 * GIB)
    assert count == []


def test_the_host_is_fitted_too(path, machine):
    """A small model has its whole context in the host's memory."""
    report = plan(path, fit=True)
    assert (report.context, report.device) == (tiny.CONTEXT, "cpu")
    assert report.devices[0].usable_bytes == 64 * GIB - 256 * MIB


def test_unknown_memory_is_no_memory(large, machine):
    """A device that does not tell what is free is not planned for, and no old number is used."""
    add, _ = machine
    add("cuda:0", None, note="NVML refuses")
    with pytest.raises(DeviceUnavailable, match=r"cuda:0 does not tell .*NVML refuses.*--memory"):
        plan(large, device="cuda:0", fit=True)
    with pytest.raises(DeviceUnavailable, match=r"there is no cuda:1 here .*--memory 24GiB"):
        plan(large, device="cuda:1", fit=True)


def test_one_device_by_two_names(large, machine):
    """Memory that two names stand for is not counted twice."""
    add, _ = machine
    add("cuda:0", 40 * GIB, uuid=UUID)
    with pytest.raises(InvalidArgument, match="devices cuda:0 and GPU-6f85 are one"):
        plan(large, device=("cuda:0", "GPU-6f85"), fit=True)


def test_memory_of_the_host_counts_once(large, machine):
    """A card that computes in the host's memory and the CPU have the same bytes."""
    add, _ = machine
    add("cuda:0", 64 * GIB, uuid=UUID, is_on_host=True)
    with pytest.raises(InvalidArgument, match="have one memory, the host's"):
        plan(large, device=("cuda:0", "cpu"), fit=True)
    plan(large, device=("cuda:0", "cpu"), fit=True, memory=[40 * GIB, 24 * GIB])


@pytest.mark.parametrize("name", ["GPU-6F85", "GPU-6f85ab3c0000", UUID])
def test_names_are_read_alike_everywhere(large, machine, name):
    """Capitals and missing dashes stand for the same card when it is fitted."""
    add, _ = machine
    add("cuda:0", 46 * GIB, uuid=UUID)
    assert plan(large, device=name, fit=True, margin=0).device == name


def test_one_device_by_two_names_without_a_fit(large, monkeypatch):
    """A card that is here is planned for once; cards that are elsewhere may be any."""
    cards = Visible((Gpu(UUID, "Card"), Gpu("GPU-7" + UUID[5:], "Card")))
    monkeypatch.setattr(targets, "machine_visible", lambda: cards)
    with pytest.raises(InvalidArgument, match="devices cuda:0 and GPU-6f85 are one"):
        plan(large, device=("cuda:0", "GPU-6f85"))
    assert plan(large, device=("cuda:1", "GPU-6f85")).device == "cuda:1,GPU-6f85"
    assert plan(large, device=("cuda:2", "GPU-ffff")).device == "cuda:2,GPU-ffff"


def test_a_plan_that_cannot_fit_says_what_is_missing(large):
    """The error has numbers and advice."""
    with pytest.raises(OutOfMemory, match="fewer bits a weight") as caught:
        plan(large, device="cuda:0", fit=True, memory=24 * GIB)
    assert caught.value.needed_bytes > 43 * GIB
    assert caught.value.available_bytes == 24 * GIB - 256 * MIB


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": []}, "device is .*; expected a name"),
        ({"device": ["cpu", None]}, "device is .*; expected a name"),
        ({"device": ("cpu", "auto")}, "device cpu is named twice"),
        ({"split": (1, 2)}, "split has 2 numbers, there are 1 devices"),
        ({"device": TWO, "split": (1, "2")}, r"split\[1\] is '2'; expected a number above 0"),
        ({"device": TWO, "split": (1, 0)}, r"split\[1\] is 0; expected a number above 0"),
        ({"device": TWO, "split": (1, float("nan"))}, r"split\[1\] is nan"),
        ({"device": TWO, "split": (1, True)}, r"split\[1\] is True"),
        ({"fit": 1}, "fit is 1; expected True or False"),
        ({"memory": 5}, "memory is given, which counts only with fit"),
        ({"fit": True, "memory": "24GiB"}, "memory is '24GiB'; expected an integer"),
        ({"fit": True, "memory": -1}, "memory is -1"),
        ({"fit": True, "memory": (1, 2, 3)}, "memory has 3 sizes, there are 1 devices"),
        ({"margin": None}, "margin is None"),
        ({"margin": -1}, "margin is -1"),
    ],
)
def test_wrong_settings_are_refused_before_the_model_is_looked_for(options, named):
    """A wrong setting never waits for a download."""
    with pytest.raises(InvalidArgument, match=named):
        plan("nowhere/none.gguf", **options)


def test_more_devices_than_layers(path):
    """A layer is not cut."""
    with pytest.raises(InvalidArgument, match="2 layers, which cannot be split over 3 devices"):
        plan(path, device=["cuda:0", "cuda:1", "cpu"], context=64)


def test_a_set_of_shards_is_planned_as_one_file(tmp_path):
    """Whichever shard is named, the weights of all of them count."""
    table = list(tiny.tensors().items())
    for number, part in enumerate((table[:5], table[5:])):
        keys = {
            "split.no": Value(ValueType.UINT16, number),
            "split.count": Value(ValueType.UINT16, 2),
            "split.tensors.count": Value(ValueType.INT32, len(table)),
        }
        own = tiny.keys() | tiny.vocabulary() if number == 0 else {}
        write_model(tmp_path / f"t-0000{number + 1}-of-00002.gguf", own | keys, dict(part))
    alone = plan(tiny.write(tmp_path / "alone.gguf"), context=64)
    for number in (1, 2):
        report = plan(tmp_path / f"t-0000{number}-of-00002.gguf", context=64)
        assert report.devices == alone.devices


PLAN = """
import sys
import corral
corral.plan(sys.argv[1], device=("cuda:0", "cuda:1"), fit=True, memory=24 << 30)
print(*sorted({name.split(".")[0] for name in sys.modules} & {"numpy", "llvmlite", "cuda"}))
"""


def test_planning_loads_no_driver_and_no_arrays(large):
    """A router may plan: neither NumPy nor the bindings of CUDA are loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PLAN, large],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == ""
