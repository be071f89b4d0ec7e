"""A CUDA device holds models to the byte and gives everything back, shown on a played driver."""

import os
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tiny
from corral.devices.context_cost import ContextCost
from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.opening import device_of
from corral.devices.nvml import MigSlice, NvmlMemory
from corral.devices.packing import pack_rows
from corral.devices.reading import Sources
from corral.engine.holding import held_by_driver
from corral.engine.load import hold_file
from corral.engine.sessions.blocks import Blocks
from corral.errors import Closed, DeviceUnavailable, OutOfMemory, StaleContext
from corral.gguf import open_model
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.memory.traits import HOST
from corral.models.footprint import Limits
from corral.quant.types import DType
from fake_driver import CONTEXT_BYTES, MIB, TOTAL_BYTES, FakeDriver, uuid_of
from fake_nvml import FakeNvml
from forked import in_child

LIMITS = Limits(64)
NVML_MEMORY = NvmlMemory(100, 10, 70, 20)


@pytest.fixture
def driver():
    """Return a driver that must see nothing wrong, and nothing left."""
    played = FakeDriver(2)
    yield played
    assert not played.violations
    assert [played.used(n) for n in range(2)] == [0, 0]


@pytest.fixture
def contexts(driver):
    """Return the contexts of a process."""
    return Contexts(driver)


def opened(contexts, name="cuda:0", **sources):
    base = Sources(host=lambda: (0, 0))
    cost = ContextCost(CONTEXT_BYTES, is_measured=True)
    return device_of(name, contexts, lambda: replace(base, **sources), cost=lambda card: cost)


class LiveNvml(FakeNvml):
    """Tells what the played driver shows."""

    def __init__(self, driver):
        super().__init__()
        self._driver = driver

    def memory(self, uuid):
        used = self._driver.used([uuid_of(0), uuid_of(1)].index(uuid))
        return NvmlMemory(TOTAL_BYTES, 0, TOTAL_BYTES - used, used)


@pytest.fixture
def device(contexts, driver):
    """Return the first device."""
    with opened(contexts, nvml=LiveNvml(driver)) as first:
        yield first


@pytest.fixture
def path(tmp_path):
    """Return a small model's file."""
    return tiny.write(tmp_path / "tiny.gguf", table=tiny.tensors(dtype=DType.Q8_0))


def held(path, device, ledger, limits=LIMITS):
    with open_model(path) as file:
        return hold_file(file, limits, device, ledger)


def test_buffers_are_whole_pieces_at_fixed_addresses(driver, device):
    """Sizes are rounded as the driver does, and the device counts what it gave."""
    one = device.allocate(1, Lifetime.SCRATCH)
    two = device.allocate(2 * MIB + 1, Lifetime.STATE)
    assert (one.size_bytes, two.size_bytes) == (2 * MIB, 4 * MIB)
    assert device.allocated_bytes == 6 * MIB == sum(driver.memory_of[0].values())
    assert driver.calls.count("fill") == 2
    address = one.address
    two.close()
    assert one.address == address
    one.close()
    assert device.allocated_bytes == 0
    with pytest.raises(Closed):
        _ = one.address


def test_the_device_is_not_awaited_under_the_lock(driver, device):
    """Filling new memory waits for the device; others may read and create meanwhile."""
    free = []

    def before(call):
        if call == "fill":
            thread = threading.Thread(target=lambda: free.append(device.context.statistics()))
            thread.start()
            thread.join(5)

    driver.before = before
    device.allocate(1, Lifetime.SCRATCH).close()
    assert len(free) == 1


def test_two_threads_may_close_one_buffer(driver, device):
    """One of them does, the other finds it done."""
    buffer = device.allocate(1, Lifetime.SCRATCH)
    driver.before = lambda call: buffer.close() if call == "free" else None
    buffer.close()
    driver.before = lambda call: None
    assert driver.calls.count("free") == 1


def test_staging_is_pinned_memory_of_its_own_device(driver, contexts):
    """It belongs to the named device, whatever else is there."""
    with opened(contexts, "cuda:1") as second:
        staging = second.allocate(100, Lifetime.STAGING)
        assert (driver.host_of[0], len(driver.host_of[1])) == ({}, 1)
        assert driver.users == [0, 1]
        staging.close()


def test_a_model_is_held_to_the_byte(driver, device, path):
    """Planned = allocated by lifetime = what the card shows, context included; then nothing."""
    ledger = Ledger()
    model = held(path, device, ledger)
    footprint = model.design.plan.footprint()
    entries = (*ledger.statistics(), *held_by_driver(device))
    planned = Counter()
    for entry in entries:
        planned[entry.lifetime] += entry.planned_bytes
    assert planned == footprint
    assert all(entry.planned_bytes == entry.allocated_bytes for entry in entries)
    on_host = {e.lifetime for e in entries if e.device == HOST}
    assert on_host == {Lifetime.STAGING, Lifetime.RECORDS}
    on_card = sum(size for life, size in footprint.items() if life not in on_host)
    assert driver.used(0) == on_card
    assert device.allocated_bytes == sum(footprint.values()) - CONTEXT_BYTES
    model.close()
    assert (driver.used(0), driver.users, ledger.statistics()) == (0, [0, 0], ())


def test_a_context_is_booked_to_the_device(driver, contexts, device, path):
    """Whichever of two models began it, it is booked once, as long as it lives."""
    ledger = Ledger()

    def booked():
        entries = (*ledger.statistics(), *held_by_driver(device))
        return sum(entry.allocated_bytes for entry in entries if entry.device == device.name)

    with opened(contexts) as again:
        first, second = held(path, device, ledger), held(path, again, ledger)
        assert booked() == driver.used(0)
        first.close()
        assert booked() == driver.used(0) > CONTEXT_BYTES
        second.close()
    assert booked() == driver.used(0) == 0


def test_a_kept_context_stays_booked(driver, device, path):
    """Work was launched: the context outlives the model, in the account as on the card."""
    model = held(path, device, Ledger())
    device.context.keep()
    model.close()
    assert sum(e.allocated_bytes for e in held_by_driver(device)) == driver.used(0) == CONTEXT_BYTES
    driver.reset(0)


def test_a_context_is_paid_by_who_begins_it(driver, device, path):
    """A model is admitted beside a context that is there, and refused where one is to come."""
    model = held(path, device, Ledger())
    need = driver.used(0)
    model.close()
    hold = device.hold()
    driver.foreign[0] = TOTAL_BYTES - need
    held(path, device, Ledger()).close()
    hold.close()
    held(path, device, Ledger()).close()
    driver.foreign[0] += 2 * MIB
    with pytest.raises(OutOfMemory, match="context 512"):
        held(path, device, Ledger())
    driver.foreign[0] = 0


def test_the_other_model_may_close_at_any_call(driver, contexts, device, path):
    """A load that was planned beside a model's context begins one itself if that model goes."""
    probe = held(path, device, Ledger())
    probe.close()
    calls = len(driver.calls)
    for number in range(0, calls, 7):
        other, ledger = held(path, device, Ledger()), Ledger()
        left = [number]

        def before(call, left=left, other=other):
            left[0] -= 1
            if left[0] < 0:
                driver.before = lambda call: None
                other.close()

        driver.before = before
        with opened(contexts, nvml=LiveNvml(driver)) as again:
            model = held(path, again, ledger)
            driver.before = lambda call: None
            other.close()
            entries = (*ledger.statistics(), *held_by_driver(again))
            on_card = [e for e in entries if e.device == again.name]
            assert sum(entry.allocated_bytes for entry in on_card) == driver.used(0)
            model.close()
        assert driver.used(0) == 0


def test_weights_are_packed_rows(device, path):
    """What the card holds of a matrix is what `pack_rows` makes of the file's bytes."""
    model = held(path, device, Ledger())
    with open_model(path) as file:
        slots = [s for s in model.buffers.weights_layout.slots.values() if s.form.layout]
        assert slots
        for slot in slots:
            tensor = slot.tensor
            rows = np.empty(tensor.rows * tensor.dtype.row_bytes(tensor.columns), np.uint8)
            file.read(tensor.name, memoryview(rows), 0)
            expected = pack_rows(rows, tensor.dtype, tensor.rows, tensor.columns)
            found = device.download(model.buffers.weights, slot.offset, slot.form.size_bytes)
            np.testing.assert_array_equal(found, expected)
    model.close()


def test_bytes_of_a_buffer_come_back_as_they_went(driver, device, path):
    """Put and download reach any part of a buffer, and the copy is over when `put` returns."""
    model = held(path, device, Ledger())
    state = model.buffers.state
    before = device.download(state, 0, state.size_bytes)
    data = np.random.RandomState(1).randint(0, 256, 100).astype(np.uint8)
    device.put(state, 12, data)
    assert driver.calls[-3:] == ["copy_to_device", "synchronize", "pop"]
    np.testing.assert_array_equal(device.download(state, 12, 100), data)
    before[12:112] = data
    np.testing.assert_array_equal(device.download(state, 0, state.size_bytes), before)
    model.close()
    for use in (lambda: device.put(state, 0, data), lambda: device.download(state, 0, 1)):
        with pytest.raises(Closed):
            use()


def test_blocks_of_the_cache_go_out_and_come_in(driver, device, path):
    """Whatever their ids, each block is copied whole in every layer, and no other is touched."""
    model = held(path, device, Ledger(), Limits(128))
    blocks = Blocks([SimpleNamespace(device=device, buffers=model.buffers)], model.design.kv)
    state, chance = model.buffers.state, np.random.RandomState(1)
    device.put(state, 0, chance.randint(0, 256, state.size_bytes).astype(np.uint8))
    before = device.download(state, 0, state.size_bytes)
    chosen = [3, 1, 2, 0]
    found = [layer.copy() for layer in blocks.read(chosen)]
    assert [layer.shape for layer in found] == [(4, size) for size in blocks.layers]
    first = model.buffers.state_layout.offsets["kv.0"]
    size = blocks.layers[0]
    np.testing.assert_array_equal(found[0][1], before[first + size : first + 2 * size])
    driver.calls.clear()
    for number, layer in enumerate(found):
        blocks.write(number, chosen, np.zeros_like(layer))
    # Blocks 1 and 2 follow each other: one copy.
    assert driver.calls.count("copy_to_device") == 3 * len(found)
    for number, layer in enumerate(found):
        blocks.write(number, chosen, layer)
    np.testing.assert_array_equal(device.download(state, 0, state.size_bytes), before)
    model.close()


def test_any_call_of_the_driver_may_fail(driver, device, path):
    """Whichever allocation or copy fails, nothing is left and the next load works."""
    for call in ("allocate", "allocate_host", "fill", "copy_to_device"):
        for number in range(4):
            driver.failures[call] = [""] * number + ["out of memory"]
            ledger = Ledger()
            try:
                model = held(path, device, ledger)
            except OutOfMemory:
                assert (driver.used(0), ledger.statistics()) == (0, ())
            else:  # a load makes fewer such calls
                model.close()
            driver.failures.clear()
    assert driver.users == [0, 0]


def interrupted_at(number, deed):
    """Do something with a Ctrl-C at the n-th call of a function that owns; return how many are."""
    names = ("context.py", "device.py", "life_lock.py", "load.py", "ledger.py", "buffer.py")
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if event == "call" and Path(frame.f_code.co_filename).name in names:
            count += 1
            if count == number:
                signal.raise_signal(signal.SIGINT)

    sys.settrace(trace)
    try:
        deed()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("closing", [False, True])
def test_ctrl_c_at_any_moment_leaves_nothing(driver, contexts, device, path, closing):
    """While a model is loaded or closed: it is whole or gone, and so is its account."""
    ledger, models = Ledger(), []

    def load():
        models.append(held(path, device, ledger))

    def close():
        models[-1].close()

    deed, number, total = (close if closing else load), 0, 1
    while number <= total:
        if closing:
            load()
        with suppress(KeyboardInterrupt):
            count = interrupted_at(number, deed)
            total = total if number else count
        while models:
            models.pop().close()
        assert (driver.used(0), driver.users, ledger.statistics()) == (0, [0, 0], ()), number
        assert driver.host_of == [{}, {}]
        assert driver._stack() == []
        assert device.allocated_bytes == 0
        number += 1 if total < 150 else 2
    assert total > 50


def test_what_does_not_fit_is_refused_before_anything_exists(driver, device, path):
    """The refusal names needs and what is free; the driver was asked for nothing."""
    driver.foreign[0] = TOTAL_BYTES - CONTEXT_BYTES - 3 * MIB
    with pytest.raises(OutOfMemory, match=r"needs .* on cuda:0 \(.*context 512\.0 MiB\)"):
        held(path, device, Ledger())
    assert "allocate" not in driver.calls
    driver.foreign[0] = 0


def test_a_reset_behind_our_back_is_noticed(driver, contexts, path):
    """Buffers are stale, not used; closing and loading anew both work."""
    nvml = FakeNvml()
    nvml.memory_of[uuid_of(0)] = NvmlMemory(TOTAL_BYTES, 0, TOTAL_BYTES, 0)
    device = opened(contexts, nvml=nvml)
    model = held(path, device, Ledger())
    driver.reset(0)
    with pytest.raises(StaleContext):
        device.download(model.buffers.weights, 0, 16)
    with pytest.raises(StaleContext):
        _ = model.buffers.weights.address
    model.close()
    held(path, device, Ledger()).close()
    device.close()


@pytest.mark.parametrize("name", ["cuda:1", uuid_of(1), uuid_of(1)[:12], "MIG-00000001"])
def test_devices_are_found_by_number_and_uuid(contexts, name):
    """Their own name is the number; without NVML a slice is known by its digits alone."""
    with opened(contexts, name) as found:
        assert (found.name, found.context.facts.uuid) == ("cuda:1", uuid_of(1))


def test_slices_go_by_the_names_that_nvml_gives_them(driver, contexts):
    """The driver calls a slice GPU-; its memory and its cost are asked for by its own name."""
    part = MigSlice("MIG-" + uuid_of(1)[4:], "Played card MIG 1g", (7, 0))
    nvml, costs = FakeNvml(), []
    nvml.memory_of[part.uuid] = NVML_MEMORY

    def cost(card):
        costs.append(card)
        return ContextCost(CONTEXT_BYTES, is_measured=True)

    sources = Sources(host=lambda: None, nvml=nvml)
    with device_of("MIG-0000", contexts, lambda: sources, cost=cost, cards=(part,)) as device:
        assert (device.name, device.memory().source) == ("cuda:1", "NVML, of the slice")
        assert (nvml.asked, costs) == ([part.uuid], [part])


@pytest.mark.parametrize("name", ["cuda:2", "GPU-ffff", "GPU-0"])
def test_devices_that_are_not_here(contexts, name):
    """The refusal names those that are."""
    with pytest.raises(DeviceUnavailable, match=rf"{name}.* is no .*cuda:0 \(GPU-.*cuda:1"):
        opened(contexts, name)


def test_memory_is_read_through_nvml_first(contexts, driver):
    """A reading by NVML makes no call of the driver."""
    nvml = FakeNvml()
    nvml.memory_of[uuid_of(0)] = NVML_MEMORY
    with opened(contexts, nvml=nvml) as device:
        driver.calls.clear()
        reading = device.memory()
        assert (reading.free_bytes, reading.source) == (70, "NVML")
        assert driver.calls == []


def test_memory_that_only_the_driver_tells(contexts, driver):
    """Read in this process while that leaves nothing; then unknown, without a probe.

    A context that is begun for the reading is not counted as used.
    """
    with opened(contexts) as device:
        assert device.memory().free_bytes == TOTAL_BYTES
        with device.hold():
            assert device.memory().free_bytes == TOTAL_BYTES - CONTEXT_BYTES
        assert device.memory().free_bytes is None
    assert driver.users == [0, 0]


def test_what_may_not_be_there_is_not_loaded_into(contexts, driver):
    """Behind Windows a part of what NVML calls free may not be had, and no model gets it."""
    nvml = LiveNvml(driver)
    with opened(contexts, nvml=nvml, is_shared_out=True) as device:
        assert device.memory().free_bytes == TOTAL_BYTES - (2 << 30)


def test_a_device_at_fault_still_tells_what_it_holds(driver, device):
    """Asking a model for its memory raises nothing when the device fails."""
    with device.hold():
        driver.failures["context_id"] = ["illegal address"]
        assert device.context_bytes == CONTEXT_BYTES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_closing_in_a_forked_child_does_nothing(driver, device, path):
    """What the child closes is its parent's, who goes on."""
    model = held(path, device, Ledger())
    assert in_child(lambda: model.close() is None and device.close() is None) == 0
    assert driver.memory_of[0]
    model.close()
