"""A model over played cards: rows go from one to the next on events, the host waits for none."""

from contextlib import ExitStack

import numpy as np
import pytest

import tiny
from corral.devices import registry
from corral.devices.host import array_at
from corral.engine.engine import Engine
from corral.engine.runner import Runner
from corral.errors import OutOfMemory
from corral.memory.ledger import Ledger
from corral.models.footprint import Limits
from corral.quant.types import DType
from fake_driver import CONTEXT_BYTES, FakeDriver
from loaded import load_parts, prompt, sampler
from played_cards import cards

LIMITS = Limits(context=256, parallel=2, kv_type="f16", chunk=64, outputs=4)
LAYERS = 3
BETWEEN = ("enqueue_copy_between", "enqueue_copy")


@pytest.fixture
def driver():
    """Return a driver with two cards that must see nothing wrong."""
    played = FakeDriver(2)
    yield played
    assert not played.violations
    assert {played.used(0), played.used(1)} <= {0, CONTEXT_BYTES}


@pytest.fixture
def devices(driver):
    """Return both cards, and the CPU behind them."""
    with ExitStack() as stack:
        cpu = stack.enter_context(registry.open("cpu", threads=1))
        yield [*(stack.enter_context(card) for card in cards(driver)), cpu]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a model of three layers."""
    table = tiny.tensors(layers=LAYERS, dtype=DType.Q8_0)
    folder = tmp_path_factory.mktemp("models")
    return tiny.write(folder / "tiny.gguf", table=table, block_count=LAYERS)


@pytest.fixture
def load(path, devices):
    """Return a function that loads the model on devices by number, a layer or two on each."""
    with ExitStack() as stack:

        def load_on(*numbers):
            ends = [range(n, n + 1) for n in range(len(numbers) - 1)]
            layers = [*ends, range(len(ends), LAYERS)]
            on = [devices[number] for number in numbers]
            loaded = load_parts(path, LIMITS, on, layers, Ledger())
            stack.callback(loaded.close)
            groups = loaded.design.kv.groups
            return loaded, Engine(Runner(loaded.parts, groups), groups, context=LIMITS.context)

        yield load_on


def answer(engine, tokens=5, max_tokens=3):
    """Make an answer to its end; what it says is of no interest."""
    sequence = engine.submit(prompt(tokens), sampler=sampler(), max_tokens=max_tokens)
    while sequence.finish_reason is None:
        engine.step()


def test_rows_go_from_card_to_card_on_events(driver, load):
    """One copy a step; the receiver waits for the sender, the sender for the last reader."""
    loaded, engine = load(0, 1)
    answer(engine, max_tokens=1)
    (first, second), calls = loaded.parts, driver.calls
    calls.clear()
    answer(engine, max_tokens=1)
    assert [call for call in calls if call in BETWEEN] == ["enqueue_copy_between"]
    assert calls.count("wait_event") == 2
    assert calls.count("synchronize_event") == 1
    assert calls.count("enqueue_to_host") == 1, "only logits reach the host"
    assert first.program.received == ()
    assert [tensor.name for tensor in second.program.received] == [
        tensor.name for tensor in first.program.plan.graph.outputs
    ]


def test_two_backends_on_one_card(driver, load):
    """In one context rows are copied like any others."""
    _loaded, engine = load(1, 1)
    driver.calls.clear()
    answer(engine, max_tokens=1)
    assert [call for call in driver.calls if call in BETWEEN] == ["enqueue_copy"]


def test_the_rows_are_those_that_were_sent(driver, load):
    """Bytes of the sender's output, for the rows of the batch, in the receiver's scratch."""
    loaded, engine = load(0, 1)
    (first, second), rows = loaded.parts, 7
    (sent,), (received,) = first.program.plan.graph.outputs, second.program.received
    source = first.buffers.address(first.program.plan, sent)
    to = second.buffers.address(second.program.plan, received)
    values = np.arange(rows * sent.columns, dtype=np.float32)

    def play(launch):
        ordinal = driver._current("play")
        if ordinal == 0:
            driver._touch("play", source, values.nbytes)[:] = values.tobytes()
        else:
            found.append(bytes(driver._touch("play", to, values.nbytes)))

    found = []
    driver.executes = play
    answer(engine, rows, max_tokens=1)
    assert found[0] == values.tobytes()


@pytest.mark.parametrize("order", [(2, 0), (0, 2), (0, 2, 1)], ids=str)
def test_what_the_cpu_computes_goes_through_staging(driver, load, order):
    """In either direction; then the host has to wait."""
    loaded, engine = load(*order)
    for part in loaded.parts:
        if part.device.traits.has_own_memory:
            staging, layout = part.buffers.staging, part.program.plan.staging
            names = [t.name for t in (*part.program.received, *part.program.plan.graph.outputs)]
            assert all(layout.offsets[name] < staging.size_bytes for name in names)
    answer(engine, 40)
    assert not [call for call in driver.calls if call in BETWEEN]


def test_staged_rows_reach_the_card(driver, load):
    """What the CPU gives is what lies in the card's scratch when its launches begin."""
    loaded, engine = load(2, 0)
    first, second = loaded.parts
    (sent,), (received,) = first.program.plan.graph.outputs, second.program.received
    to = second.buffers.address(second.program.plan, received)
    found, rows = [], 5

    def play(launch):
        found.append(bytes(driver._touch("play", to, rows * received.row_bytes)))

    driver.executes = play
    answer(engine, rows, max_tokens=1)
    address = first.buffers.address(first.program.plan, sent)
    assert found[0] == array_at(address, (rows, sent.columns), np.float32).tobytes()


def test_nothing_is_made_by_a_step(driver, load):
    """Neither memory nor handles, on any card."""
    _loaded, engine = load(0, 1)
    answer(engine)
    made, held = len(driver._handles), [driver.used(0), driver.used(1)]
    for tokens in (1, 100, 3):
        answer(engine, tokens)
    assert (len(driver._handles), [driver.used(0), driver.used(1)]) == (made, held)


def test_everything_goes_in_the_end(driver, devices, load):
    """Both contexts stay, since both launched; nothing else does."""
    loaded, engine = load(0, 1)
    answer(engine)
    loaded.close()
    assert [device.allocated_bytes for device in devices] == [0, 0, 0]
    assert (driver.used(0), driver.used(1)) == (CONTEXT_BYTES, CONTEXT_BYTES)
    assert [device.context.statistics().owned for device in devices[:2]] == [{}, {}]


@pytest.mark.parametrize("call", ["create_event", "load_module", "instantiate", "prepare"])
def test_a_part_may_fail_while_another_is_ready(driver, devices, path, call):
    """The whole load is undone; the next one works."""
    count = _calls_of_one_load(driver, devices, path).count(call)
    driver.failures[call] = [*[""] * (count - 1), "out of memory"]
    ledger = Ledger()
    with pytest.raises(OutOfMemory):
        load_parts(path, LIMITS, devices[:2], (range(1), range(1, 3)), ledger)
    assert ([device.allocated_bytes for device in devices], ledger.statistics()) == ([0] * 3, ())
    assert [device.context.statistics().owned for device in devices[:2]] == [{}, {}]
    _calls_of_one_load(driver, devices, path)


def _calls_of_one_load(driver, devices, path):
    driver.calls.clear()
    load_parts(path, LIMITS, devices[:2], (range(1), range(1, 3)), Ledger()).close()
    return list(driver.calls)
