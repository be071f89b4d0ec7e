"""The loop, on a runner that keeps tokens where a model keeps keys and values and checks them."""

import pytest

import engines
from corral.contract.events import FinishReason
from corral.contract.sampling import SamplingParams
from corral.engine.engine import Engine
from corral.errors import ContextExceeded, DeviceFault, InternalError, InvalidArgument, ModelError
from corral.kv.spec import blocks_for
from corral.sampling.sampler import Sampler
from engines import (
    CONTEXT,
    FULL,
    LAYOUTS,
    ROWS,
    SEQUENCES,
    WINDOWED,
    alone,
    finish,
    generated,
    is_empty,
    make,
    sampler,
    submit,
)
from token_memory import VOCABULARY, TokenMemory


@pytest.fixture(autouse=True, params=["in-turn", "ahead", "fed", "drawn"])
def order(request, monkeypatch):
    """Evaluations in turn, while the caller goes on, or fed with tokens the device chose or drew.

    What keeps all candidates is for the host to draw.
    """
    monkeypatch.setattr(TokenMemory, "is_asynchronous", request.param != "in-turn")
    if request.param == "ahead":
        monkeypatch.setitem(engines.DEFAULTS, "top_k", 0)
    if request.param == "fed":
        monkeypatch.setitem(engines.DEFAULTS, "temperature", 0.0)
    return request.param


@LAYOUTS
def test_several_at_once_generate_what_each_does_alone(groups):
    """More prompts than slots, longer than a chunk: each answer is its own."""
    engine, _ = make(groups)
    prompts = [[seed % VOCABULARY] * (seed * 9 + 1) for seed in range(5)]
    sequences = [submit(engine, p, 9, seed=i) for i, p in enumerate(prompts)]
    assert finish(engine, *sequences) == [alone(p, 9, i) for i, p in enumerate(prompts)]
    assert is_empty(engine, groups)


def test_emissions_come_in_order_of_arrival():
    """A step gives at most one token a sequence, the oldest sequence first."""
    engine, _ = make()
    first, second = submit(engine, [1, 2]), submit(engine, [3])
    assert [e.sequence for e in engine.step()] == [first, second]
    assert [e.sequence for e in engine.step()] == [first, second]


def test_an_idle_engine_does_nothing():
    """Without sequences a step is empty and evaluates nothing."""
    engine, runner = make()
    assert engine.step() == []
    assert runner.num_rows == []


def test_waiting_and_running_are_counted():
    """A sequence waits until a slot is free."""
    engine, _ = make()
    sequences = [submit(engine, [1]) for _ in range(3)]
    assert (engine.statistics().waiting, engine.statistics().running) == (3, 0)
    engine.step()
    assert (engine.statistics().waiting, engine.statistics().running) == (1, 2)
    finish(engine, *sequences)


def test_long_prompts_do_not_stop_those_that_decode():
    """While a prompt of many chunks is computed, another sequence gets a token each step."""
    engine, _ = make()
    quick = submit(engine, [1], 20)
    engine.step()
    submit(engine, [2] * 100, 20)
    for _ in range(6):
        assert quick in [e.sequence for e in engine.step()]


def test_end_token_stops():
    """An end token is the last one of a sequence."""
    engine, _ = make()
    expected = alone([1, 2, 3], 30, 1)
    end = expected[4]
    sequence = submit(engine, [1, 2, 3], 30, end_tokens=frozenset({end}))
    (answer,) = finish(engine, sequence)
    assert sequence.finish_reason is FinishReason.STOP
    assert answer == expected[: expected.index(end) + 1]
    assert is_empty(engine)


def test_max_tokens_is_a_length():
    """A sequence ends after as many tokens as it may generate."""
    engine, _ = make()
    sequence = submit(engine, [1, 2, 3], 7)
    assert len(finish(engine, sequence)[0]) == 7
    assert sequence.finish_reason is FinishReason.LENGTH


def test_no_tokens_compute_the_prompt_alone():
    """With max_tokens 0 a prompt is computed, and remembered, and nothing is sampled."""
    engine, runner = make()
    sequence = engine.submit([1] * 40, sampler=sampler(), max_tokens=0)
    assert engine.step() == engine.step() == []
    (emission,) = engine.step()
    assert (emission.sequence, emission.token, emission.error) == (sequence, None, None)
    assert sequence.finish_reason is FinishReason.LENGTH
    assert runner.num_rows == [16, 16, 8]
    assert is_empty(engine)
    assert engine.statistics().known_blocks == (2,)


@LAYOUTS
def test_full_context_ends_a_sequence(groups):
    """The last token that fits is generated, and not one more."""
    engine, _ = make(groups)
    sequence = submit(engine, [1] * 100, 1000)
    assert finish(engine, sequence) == [alone([1] * 100, 1000, 1)]
    assert len(sequence.tokens) == CONTEXT
    assert sequence.finish_reason is FinishReason.CONTEXT
    assert is_empty(engine, groups)


def test_prompts_need_room_for_an_answer():
    """A prompt as long as the context is refused; one token shorter gives one token."""
    engine, _ = make()
    with pytest.raises(ContextExceeded, match="128 tokens, the context holds 128"):
        submit(engine, [1] * CONTEXT)
    assert is_empty(engine)
    assert len(finish(engine, submit(engine, [1] * (CONTEXT - 1), 9))[0]) == 1


def test_empty_prompts_are_refused():
    """Without a token there is nothing to compute logits of."""
    engine, _ = make()
    with pytest.raises(InvalidArgument, match="no tokens"):
        submit(engine, [])
    assert is_empty(engine)


@LAYOUTS
@pytest.mark.parametrize("steps", range(12))
def test_cancel_at_any_step(groups, steps):
    """Cancelling gives all blocks back and leaves the neighbour's answer as it is."""
    engine, _ = make(groups)
    victim = submit(engine, [1] * 70, 4, seed=1)
    other = submit(engine, [2] * 30, 12, seed=2)
    for _ in range(steps):
        engine.step()
    had_ended = victim.finish_reason
    engine.cancel(victim)
    engine.cancel(victim)
    assert victim.finish_reason is (had_ended or FinishReason.CANCELLED)
    assert finish(engine, other) == [alone([2] * 30, 12, 2)]
    assert is_empty(engine, groups)


class Failing(Sampler):
    """A sampler that fails at a position; no device does its work, as it keeps all candidates."""

    def __init__(self, at, error):
        super().__init__(SamplingParams(seed=1, top_k=0), VOCABULARY)
        self._at, self._error = at, error

    def sample(self, logits, position):
        """Fail at the position, else choose."""
        if position == self._at:
            raise self._error
        return super().sample(logits, position)


@pytest.mark.parametrize(
    ("raised", "emitted"),
    [(ModelError("NaN"), ModelError), (ZeroDivisionError("oops"), InternalError)],
)
def test_a_failing_sampler_ends_its_sequence_only(raised, emitted):
    """Whatever one sequence's sampling raises, its neighbour's answer is as it would be."""
    engine, _ = make()
    lost = engine.submit([1] * 40, sampler=Failing(43, raised), max_tokens=9)
    other = submit(engine, [2] * 5, 9)
    errors = []
    while other.finish_reason is None:
        errors += [emission for emission in engine.step() if emission.error]
    (error,) = errors
    assert (error.sequence, error.token) == (lost, None)
    assert isinstance(error.error, emitted)
    assert lost.finish_reason is FinishReason.ERROR
    assert generated(other) == alone([2] * 5, 9, 1)
    assert is_empty(engine)


def test_what_a_lost_sequence_computed_is_not_reused():
    """Keys and values that may be wrong are never anybody else's."""
    engine, _ = make()
    lost = engine.submit([1] * 70, sampler=Failing(70, ModelError("NaN")), max_tokens=9)
    finish(engine, lost)
    assert engine.statistics().known_blocks == (0,)
    again = submit(engine, [1] * 70)
    assert finish(engine, again) == [alone([1] * 70, 5, 1)]
    assert again.num_cached == 0


class FailingMemory(TokenMemory):
    """A runner that fails at one evaluation."""

    error = InternalError("a kernel failed")

    def start(self, batch, **options):
        """Fail, or run."""
        self.count = getattr(self, "count", 0) + 1
        if self.count == 3:
            raise self.error
        super().start(batch, **options)


def failing(error):
    runner = FailingMemory(FULL, rows=ROWS, sequences=SEQUENCES, context=CONTEXT)
    runner.error = error
    return Engine(runner, FULL, context=CONTEXT)


@pytest.mark.parametrize("raised", [InternalError("a kernel failed"), ZeroDivisionError("oops")])
def test_a_failed_evaluation_ends_the_sequences_in_it(raised):
    """Whoever was not in it goes on, what it computed is not reused, and no block is lost."""
    engine = failing(raised)
    lost = submit(engine, [1] * 60)
    later = [submit(engine, [1] * 60), submit(engine, [2] * 60)]
    emissions = []
    while lost.finish_reason is None:
        emissions += engine.step()
    (emission,) = [one for one in emissions if one.error]
    assert (emission.sequence, type(emission.error)) == (lost, InternalError)
    assert lost.finish_reason is FinishReason.ERROR
    assert finish(engine, *later) == [alone([1] * 60, 5, 1), alone([2] * 60, 5, 1)]
    assert later[0].num_cached == 0
    assert is_empty(engine)


def test_a_fault_of_the_device_is_raised():
    """There is nothing to go on with, so whoever drives the engine must know."""
    engine = failing(DeviceFault("gone"))
    sequence = submit(engine, [1] * 60)
    with pytest.raises(DeviceFault):
        finish(engine, sequence)
    engine.cancel(sequence)
    assert is_empty(engine)


def test_windowed_layers_hold_no_more_than_their_window():
    """However long a sequence gets, the windowed group uses a window's blocks."""
    engine, _ = make(WINDOWED)
    sequence = submit(engine, [1] * 90, 1000)
    windowed, full = (group.num_blocks for group in WINDOWED)
    most = [0, 0]
    while sequence.finish_reason is None:
        engine.step()
        free = engine.statistics().free_blocks
        most = [max(most[0], windowed - free[0]), max(most[1], full - free[1])]
    assert most == [2, blocks_for(CONTEXT)]


class TestReuse:
    """A prompt that begins like an earlier one computes only what is new."""

    def test_the_next_turn_computes_only_what_is_new(self):
        """A conversation's history is there already, its answer included."""
        engine, runner = make()
        (answer,) = finish(engine, submit(engine, [1] * 50, 30))
        history = [1] * 50 + answer
        runner.num_rows.clear()
        turn = submit(engine, [*history, 2, 3], 4)
        assert finish(engine, turn) == [alone([*history, 2, 3], 4, 1)]
        # 79 tokens were computed, and all are known: the block they end in is taken over.
        assert turn.num_cached == 79
        assert sum(runner.num_rows) == (82 - 79) + 3

    def test_two_that_go_on_from_one_end_write_to_blocks_of_their_own(self):
        """The first takes the part-filled block over, the second computes those tokens again."""
        engine, _ = make()
        (answer,) = finish(engine, submit(engine, [1] * 50, 20))
        history = [1] * 50 + answer
        one = submit(engine, [*history, 2], 30)
        two = submit(engine, [*history, 3, 4], 30, seed=2)
        expected = [alone([*history, 2], 30, 1), alone([*history, 3, 4], 30, 2)]
        assert finish(engine, one, two) == expected
        assert (one.num_cached, two.num_cached) == (69, 64)
        assert is_empty(engine)

    def test_a_tail_of_another_answer_is_left_alone(self):
        """An answer wanted again begins where the prompt's full blocks end."""
        engine, _ = make()
        (answer,) = finish(engine, submit(engine, [1] * 50, 10))
        again = submit(engine, [1] * 50, 10, seed=2)
        finish(engine, again)
        assert again.num_cached == 32
        onward = submit(engine, [1] * 50 + answer + [2], 3)
        finish(engine, onward)
        assert onward.num_cached == 59

    def test_without_reuse_everything_is_computed(self):
        """A sequence may be told to neither find nor leave anything."""
        engine, runner = make()
        finish(engine, submit(engine, [1] * 70, 3))
        runner.num_rows.clear()
        fresh = submit(engine, [1] * 70, 3, reuse=False)
        assert finish(engine, fresh) == [alone([1] * 70, 3, 1)]
        assert fresh.num_cached == 0
        assert sum(runner.num_rows) == 72
        finish(engine, submit(engine, [5] * 70, 3, reuse=False))
        assert submit(engine, [5] * 70).num_cached == 0
        assert engine.statistics().known_blocks == (3,)

    @pytest.mark.parametrize(("length", "cached"), [(31, 0), (32, 0), (33, 32), (64, 32), (65, 64)])
    def test_the_last_prompt_token_is_always_computed(self, length, cached):
        """Its logits are needed, so a known block that holds it is not used."""
        engine, _ = make()
        finish(engine, submit(engine, [1] * 100, 1))
        again = submit(engine, [1] * length, 3)
        assert finish(engine, again) == [alone([1] * length, 3, 1)]
        assert again.num_cached == cached

    def test_a_running_sequence_shares_its_beginning(self):
        """Blocks are shared while both sequences run, and end with the second."""
        engine, _ = make()
        one = submit(engine, [1] * 70, 20)
        while one.num_computed < 70:
            engine.step()
        two = submit(engine, [1] * 64 + [2] * 6, 20, seed=2)
        engine.step()
        assert two.tables[0].blocks[:2] == one.tables[0].blocks[:2]
        assert engine.statistics().free_blocks == (FULL[0].num_blocks - 4,)
        engine.cancel(one)
        assert finish(engine, two) == [alone([1] * 64 + [2] * 6, 20, 2)]
        assert is_empty(engine)

    def test_a_cancelled_sequence_leaves_what_it_computed(self):
        """An answer that was broken off is history too."""
        engine, _ = make()
        one = submit(engine, [1] * 100, 20)
        for _ in range(4):
            engine.step()
        engine.cancel(one)
        two = submit(engine, [1] * 100, 3)
        assert finish(engine, two) == [alone([1] * 100, 3, 1)]
        assert two.num_cached == 64

    def test_admission_forgets_no_block_it_counted_on(self):
        """Two prompts start at once on a full pool: what one will reuse the other does not take."""
        engine, _ = make()
        for token in range(4):  # fills the pool with idle blocks: 8 of 8
            finish(engine, submit(engine, [token] * 64, 0))
        assert engine.statistics().known_blocks == (8,)
        new = submit(engine, [9] * 8, 100)
        old = submit(engine, [0] * 64 + [1], 60)
        assert finish(engine, new, old) == [
            alone([9] * 8, 100, 1),
            alone([0] * 64 + [1], 60, 1),
        ]
        assert old.num_cached == 64
        assert is_empty(engine)

    def test_windowed_models_keep_no_beginnings(self):
        """What lies behind a window is gone, so nothing is reused."""
        engine, _ = make(WINDOWED)
        finish(engine, submit(engine, [1] * 70, 3))
        again = submit(engine, [1] * 70, 3)
        assert finish(engine, again) == [alone([1] * 70, 3, 1)]
        assert again.num_cached == 0
        assert engine.statistics().known_blocks == (0, 0)
