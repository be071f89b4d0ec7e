"""The backend on a played driver: what it launches, waits for, keeps and gives back."""

import ctypes
import math
from contextlib import closing

import numpy as np
import pytest

import adapters
import tiny
from corral.contract.sampling import SamplingParams
from corral.devices.cuda.traits import DECODE_BUCKETS
from corral.devices.staging import DRAW
from corral.engine.adapters import Adapters
from corral.engine.engine import Engine
from corral.engine.runner import Runner
from corral.errors import Closed, InternalError, OutOfMemory, StaleContext
from corral.gguf import open_model
from corral.memory.choices import DRAWS
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.models.footprint import Limits
from corral.quant.types import DType
from corral.sampling.sampler import Sampler
from fake_driver import CONTEXT_BYTES, FakeDriver
from loaded import load_model, prompt, sampler
from played_cards import cards

LIMITS = Limits(context=512, parallel=4, kv_type="f16", chunk=256, outputs=8)


@pytest.fixture
def driver():
    """Return a driver that must see nothing wrong; only the context may stay."""
    played = FakeDriver()
    yield played
    assert not played.violations
    assert played.used(0) in (0, CONTEXT_BYTES)


@pytest.fixture
def device(driver):
    """Return a device whose kernels need no compiler."""
    with cards(driver)[0] as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a small model's file."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return tiny.write(path, table=tiny.tensors(dtype=DType.Q8_0))


@pytest.fixture
def model(path, device):
    """Return a loaded model."""
    with closing(load_model(path, LIMITS, device, Ledger())) as loaded:
        yield loaded


def inputs(model, rows):
    """Return the inputs of a batch of one sequence each."""
    blocks = model.parts[0].program.plan.graph.shape_class.blocks
    numbers = np.arange(rows, dtype=np.int32)
    tables = np.zeros((min(rows, LIMITS.parallel), blocks), np.int32)
    return {
        "tokens": numbers,
        "positions": numbers,
        "sequences": numbers % LIMITS.parallel,
        "output_rows": numbers[:4],
        "tables": tables,
    }


def run(model, rows, **options):
    model.parts[0].backend.run(model.parts[0].program, inputs(model, rows), min(rows, 4), **options)


def read(model):
    program = model.parts[0].program
    return model.parts[0].backend.read(program, program.plan.graph.outputs[0], 1)


def test_a_step_is_one_graph(driver, model):
    """Its launches are those of the smallest bucket; a prompt's are launched one by one."""
    driver.calls.clear()
    driver.launches.clear()
    run(model, 3)
    read(model)
    assert driver.calls.count("launch_executable") == 1
    assert driver.calls.count("enqueue_to_device") == 0
    assert "take_inputs" in driver.launches[0].name
    assert "give_tokens" in driver.launches[-1].name
    assert not driver.launches[1].geometry.is_dependent
    driver.launches.clear()
    driver.calls.clear()
    run(model, 200)
    read(model)
    assert driver.calls.count("launch_executable") == 0
    assert any("attention" in launch.name for launch in driver.launches)
    assert not any("inputs" in launch.name for launch in driver.launches)
    first, *others = (launch.geometry.is_dependent for launch in driver.launches)
    assert not first
    assert all(others)


def test_buckets_up_to_the_sequences_are_captured(driver, model):
    """Steps in which every sequence goes on by a token, and no others."""
    captured = [each.bucket for each in model.parts[0].program.passes if each.graphs]
    assert captured == [bucket for bucket in DECODE_BUCKETS if bucket <= LIMITS.parallel]


def test_nothing_is_made_by_a_step(driver, model):
    """Neither memory nor records nor handles."""
    run(model, 1)
    read(model)
    made, records = len(driver._handles), model.parts[0].program.buffers.records.statistics()
    for rows in (1, 2, 4, 200, 1):
        run(model, rows)
        read(model)
    assert len(driver._handles) == made
    assert model.parts[0].program.buffers.records.statistics() == records


def test_the_record_pool_is_as_large_as_lowering_needs(model):
    """Not a record too few; the plan counts at most one for each launch."""
    statistics = model.parts[0].program.buffers.records.statistics()
    assert 0 < statistics.used <= statistics.capacity


def test_two_that_choose_may_be_under_way(driver, model):
    """Each with inputs of its own, so that the second does not write over the first's."""
    program = model.parts[0].program
    run(model, 1, chooses=True)
    run(model, 2, chooses=True)
    first, second = (staging._arrays["tokens"] for staging in program.stagings)
    assert (len(first), first[:1].tolist()) == (len(second), [0])
    assert first.ctypes.data != second.ctypes.data
    with pytest.raises(InternalError, match="read one first"):
        run(model, 1, chooses=True)
    assert model.parts[0].backend.choices(program, 1).shape == (1,)
    assert model.parts[0].backend.choices(program, 2).shape == (2,)


def test_what_is_copied_back_is_what_was_asked_for(driver, model):
    """Chosen tokens only, which a graph writes itself, or rows of logits."""
    backend, program = model.parts[0].backend, model.parts[0].program
    for rows, copies in ((2, 0), (200, 1)):
        driver.calls.clear()
        run(model, rows, chooses=True)
        backend.choices(program, 2)
        assert driver.calls.count("enqueue_to_host") == copies
    for rows in (2, 200):
        driver.calls.clear()
        run(model, rows)
        read(model)
        assert driver.calls.count("enqueue_to_host") == 1


def cross(driver, launch):
    """Play the kernels at both ends of a graph: inputs come from staging, a token goes there."""
    if "take_inputs" in launch.name:
        source, target, *pieces = launch.fields
        for first, count in zip(pieces[::2], pieces[1::2], strict=True):
            arrived = ctypes.string_at(source + 16 * first, 16 * count)
            driver._touch("cross", target + 16 * first, 16 * count)[:] = arrived
    if "give_tokens" in launch.name:
        tokens, _count, staging = launch.fields
        ctypes.memmove(staging, bytes(driver._touch("cross", tokens, 4)), 4)


def test_tokens_that_the_device_chose_come_out(driver, model, monkeypatch):
    """The engine takes them as they are, and feeds the next evaluation before it has them."""
    program, groups = model.parts[0].program, model.design.kv.groups
    chosen = program.buffers.choices_address(program.plan)

    def play(launch):
        if "choose_token" in launch.name:
            driver._touch("play", chosen, 4)[:] = (7).to_bytes(4, "little")
        cross(driver, launch)

    driver.executes = play
    engine = Engine(Runner(model.parts, groups), groups, context=LIMITS.context)
    greedy = sampler(temperature=0.0)
    sequence = engine.submit(prompt(5), sampler=greedy, max_tokens=6)
    while sequence.finish_reason is None:
        engine.step()
    assert sequence.tokens[5:] == [7] * 6
    given = [staging._arrays["tokens"][0] for staging in program.stagings]
    assert -1 in given


def test_each_token_is_drawn_by_its_own_position(driver, model):
    """Draws reach the card with the inputs, also those of tokens whose context is not known yet."""
    program, groups = model.parts[0].program, model.design.kv.groups
    plan, buffers = program.plan, program.buffers
    draws = buffers.inputs_address(plan) + plan.staging.offsets[DRAWS]
    seen = []

    def play(launch):
        if "choose_token" in launch.name:
            (draw,) = np.frombuffer(driver._touch("play", draws, DRAW.itemsize), DRAW).tolist()
            seen.append(tuple(np.asarray(word).tolist() for word in draw))
            token = draw[1] + 1
            driver._touch("play", buffers.choices_address(plan), 4)[:] = token.to_bytes(4, "little")
        cross(driver, launch)

    driver.executes = play
    engine = Engine(Runner(model.parts, groups), groups, context=LIMITS.context)
    params = SamplingParams(seed=3, temperature=0.5, top_k=20, top_p=0.75, min_p=1.0).banning({9})
    chooser = Sampler(params, tiny.VOCABULARY)
    sequence = engine.submit(prompt(5), sampler=chooser, max_tokens=6)
    while sequence.finish_reason is None:
        engine.step()
    assert sequence.tokens[5:] == [6, 7, 8, 9, 10, 11]
    banned = ([9, -1, -1, -1], [-math.inf, 0.0, 0.0, 0.0])
    assert seen == [(3, position, 0.75, 0.0, 0.5, 20, *banned) for position in range(5, 11)]


def test_a_kept_context_is_all_that_stays(driver, device, path):
    """Graphs, modules, streams, events and memory end with the model."""
    ledger = Ledger()
    model = load_model(path, LIMITS, device, ledger)
    assert device.allocated_bytes == sum(e.allocated_bytes for e in ledger.statistics())
    model.close()
    model.close()
    assert driver.used(0) == CONTEXT_BYTES
    assert device.context.statistics().owned == {}
    assert (device.allocated_bytes, ledger.statistics()) == (0, ())
    with pytest.raises(Closed):
        run(model, 1)


def test_weights_are_packed_on_the_card(driver, device, path):
    """Matrices go over as the file has them, into the arena, and a kernel packs them."""
    sources = set()
    driver.executes = lambda launch: (
        sources.add(launch.fields[0]) if "::pack<" in launch.name else None
    )
    with closing(load_model(path, LIMITS, device, Ledger())) as model:
        scratch = model.parts[0].program.buffers.scratch
        assert sources
        assert all(0 <= at - scratch.address < scratch.size_bytes for at in sources)


@pytest.mark.parametrize(
    "call",
    ["create_stream", "create_event", "load_module", "function", "instantiate", "prepare"],
)
def test_any_call_of_a_load_may_fail(driver, device, path, call):
    """Nothing but the context is left, and the next load works."""
    driver.failures[call] = ["out of memory"]
    ledger = Ledger()
    with pytest.raises(OutOfMemory):
        load_model(path, LIMITS, device, ledger)
    assert driver.used(0) in (0, CONTEXT_BYTES)
    assert (device.allocated_bytes, ledger.statistics()) == (0, ())
    assert device.context.statistics().owned == {}
    load_model(path, LIMITS, device, ledger).close()


def test_a_reset_by_others_is_noticed(driver, device, path):
    """Nothing is launched in a context that is gone; a new model begins a new one."""
    model = load_model(path, LIMITS, device, Ledger())
    driver.reset(0)
    with pytest.raises(StaleContext):
        run(model, 1)
    model.close()
    load_model(path, LIMITS, device, Ledger()).close()


def test_staging_holds_inputs_of_each_flight_and_results(model):
    """They lie one behind the other, in pinned memory of the model."""
    plan, buffers = model.parts[0].program.plan, model.parts[0].program.buffers
    layout = plan.staging
    logits = plan.graph.outputs[0]
    assert layout.offsets[logits.name] == 2 * layout.inputs_bytes
    assert layout.choices(1) + layout.choices_bytes == layout.size_bytes
    assert layout.size_bytes <= buffers.staging.size_bytes
    assert buffers.staging.lifetime is Lifetime.STAGING


def test_adapters_come_and_go_with_their_graphs(driver, model, path, tmp_path):
    """Programs with adapters are captured, and every graph and byte of them is given back.

    The modules of their kernels stay loaded, once.
    """
    part, ledger = model.parts[0], Ledger()
    with open_model(path) as file:
        tensors = file.tensors
    owner = Adapters(model, Runner(model.parts, model.design.kv.groups), ledger, "tiny", tensors)

    def owned():
        return dict(part.device.context.statistics().owned)

    kept, size = owned(), part.device.allocated_bytes
    given = [adapters.write(tmp_path / f"{n}.gguf", n, rank=8 * n + 4) for n in range(2)]
    for _ in range(2):
        loaded = [owner.add(owner.prepare(one)) for one in given]
        assert owned()["graph"] > kept["graph"]
        entries = ledger.statistics()
        assert all(entry.planned_bytes == entry.allocated_bytes for entry in entries)
        on_card = sum(e.allocated_bytes for e in entries if e.device == part.device.name)
        assert part.device.allocated_bytes >= size + on_card
        for one in loaded:
            owner.remove(one.id)
        kept["module"] = modules = owned()["module"]
        assert (owned(), part.device.allocated_bytes) == (kept, size)
        assert ledger.statistics() == ()
    assert owned()["module"] == modules
