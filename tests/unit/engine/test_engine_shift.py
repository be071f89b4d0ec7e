"""Sequences that go on when their context is full, on a runner that checks all that is read."""

import sys

import pytest

import engines
from corral.contract.events import FinishReason
from corral.errors import DeviceFault, InternalError
from corral.kv.shift import shift_of
from corral.kv.spec import blocks_for
from engines import CONTEXT, FULL, SHORT, finish, is_empty, make, sampler, submit
from token_memory import TokenMemory, logits_after

LONG = 400


@pytest.fixture(autouse=True, params=["in-turn", "ahead", "fed", "drawn"])
def order(request, monkeypatch):
    """Evaluations in turn, while the caller goes on, or fed with tokens the device chose."""
    monkeypatch.setattr(TokenMemory, "is_asynchronous", request.param != "in-turn")
    if request.param == "ahead":
        monkeypatch.setitem(engines.DEFAULTS, "top_k", 0)
    if request.param == "fed":
        monkeypatch.setitem(engines.DEFAULTS, "temperature", 0.0)


def endless(tokens, count, seed=1, *, keep=0):
    """Return `count` tokens that follow on a machine of one's own, and what is held at the end."""
    held, chooser, answer = list(tokens), sampler(seed), []
    kept = min(keep, len(tokens))
    for position in range(len(tokens), len(tokens) + count):
        if len(held) == CONTEXT:
            del held[shift_of(CONTEXT, kept).dropped]
        answer.append(chooser.sample(logits_after(held), position))
        chooser.accept(answer[-1])
        held.append(answer[-1])
    return answer, held


def step_through(engine, *sequences):
    """Step until all have ended; return all tokens of each, and the most blocks in use."""
    answers, most = {sequence.id: [] for sequence in sequences}, 0
    total = engine.statistics().num_blocks[0]
    while any(sequence.finish_reason is None for sequence in sequences):
        for emission in engine.step():
            answers[emission.sequence.id].append(emission.token)
        most = max(most, total - engine.statistics().free_blocks[0])
    return [answers[sequence.id] for sequence in sequences], most


@pytest.mark.parametrize("keep", [0, 1, 32, 33, 1000])
@pytest.mark.parametrize("length", [3, 50])
def test_an_answer_goes_on(length, keep):
    """Many contexts long, it is what the tokens held give; the counts are of all of it."""
    engine, runner = make(keep=keep)
    sequence = submit(engine, [1] * length, LONG)
    (answer,), most = step_through(engine, sequence)
    assert (answer, sequence.tokens) == endless([1] * length, LONG, keep=keep)
    assert sequence.finish_reason is FinishReason.LENGTH
    assert (sequence.num_prompt, sequence.num_generated) == (length, LONG)
    assert sequence.num_dropped == length + LONG - len(sequence.tokens) > 2 * CONTEXT
    assert sequence.first_generated == min(length, 32 * blocks_for(min(keep, length)))
    assert len(runner.shifts) > 3
    assert most <= FULL[0].num_blocks // 2
    assert is_empty(engine)


def test_several_at_once_are_as_each_alone():
    """More sequences than slots, full at different steps, beside prompts that come and go."""
    engine, _ = make(keep=1)
    prompts = [[n] * (n * 13 + 1) for n in range(5)]
    long = [submit(engine, p, LONG, seed=n) for n, p in enumerate(prompts)]
    expected = [endless(p, LONG, n, keep=1)[0] for n, p in enumerate(prompts)]
    assert step_through(engine, *long)[0] == expected
    assert is_empty(engine)


def test_without_a_limit_an_answer_ends_when_it_is_told_to():
    """None is no limit; cancelling gives all back, as the end token does."""
    engine, _ = make(keep=0)
    endless_one = engine.submit([1], sampler=sampler(), max_tokens=None)
    assert endless_one.max_tokens == sys.maxsize
    while endless_one.num_dropped < 5 * CONTEXT:
        engine.step()
    engine.cancel(endless_one)
    assert endless_one.finish_reason is FinishReason.CANCELLED
    assert is_empty(engine)
    assert finish(engine, submit(engine, [2] * 9)) == [engines.alone([2] * 9, 5, 1)]


@pytest.mark.parametrize("steps", range(120, 150, 3))
def test_cancel_around_a_shift(steps):
    """At whatever step it is, the neighbour's answer stays what it is."""
    engine, _ = make(keep=0)
    victim, other = submit(engine, [1] * 3, LONG), submit(engine, [2] * 7, 200, seed=2)
    answer = []
    for step in range(LONG):
        if step == steps:
            engine.cancel(victim)
        answer += [e.token for e in engine.step() if e.sequence is other]
    assert answer == endless([2] * 7, 200, 2)[0]
    assert is_empty(engine)


class TestSharing:
    """Blocks that others use, or may find, are never turned under them."""

    def test_what_another_uses_is_copied(self):
        """Two that began alike: the first is shifted, the second sees what it always saw."""
        engine, runner = make(keep=0)
        one = submit(engine, [1] * 110, 60)
        while one.num_computed < 110:
            engine.step()
        two = submit(engine, [1] * 96 + [2], 20, seed=2)
        answers, _ = step_through(engine, one, two)
        assert two.num_cached == 96
        assert answers[1] == endless([1] * 96 + [2], 20, 2)[0]
        moves, distance = runner.shifts[0]
        assert distance == 64
        assert [move.source == move.target for move in moves] == [False, True]
        assert is_empty(engine)

    def test_what_moved_is_known_no_more(self):
        """Dropped and kept blocks may still be found, from the first token on; moved ones not."""
        engine, _ = make(keep=32)
        prompt = [place // 32 for place in range(120)]
        sequence = submit(engine, prompt, 40)
        step_through(engine, sequence)
        again = submit(engine, prompt, 1)
        finish(engine, again)
        assert again.num_cached == 64  # the kept block, and the one that was dropped
        held = submit(engine, sequence.tokens[:100], 1)
        finish(engine, held)
        assert held.num_cached == 32
        assert is_empty(engine)

    def test_too_few_blocks_for_copies(self):
        """Then what is left is computed again; the answer goes on."""
        engine, _ = make(SHORT, keep=0)
        one = submit(engine, [1] * 100, 120)
        while one.num_computed < 100:
            engine.step()
        two = submit(engine, [1] * 96 + [2], 31, seed=2)
        answers, _ = step_through(engine, one, two)
        assert one.num_preemptions > 0
        assert endless([1] * 100, 120)[0][-len(answers[0]) :] == answers[0]
        assert answers[1] == endless([1] * 96 + [2], 31, 2)[0]
        assert is_empty(engine, SHORT)


class FailingShift(TokenMemory):
    """A runner that cannot turn keys."""

    error = InternalError("a kernel failed")

    def shift(self, moves, distance):
        """Fail."""
        raise self.error


@pytest.mark.parametrize("raised", [InternalError("a kernel failed"), ZeroDivisionError("oops")])
def test_a_failed_shift_ends_its_sequence_only(monkeypatch, raised):
    """Its error comes with the next step; the neighbour goes on, and no block is lost."""
    engine, runner = make(keep=0)
    monkeypatch.setattr(runner, "shift", FailingShift.shift.__get__(runner))
    monkeypatch.setattr(runner, "error", raised, raising=False)
    lost, other = submit(engine, [1] * 100, LONG), submit(engine, [2] * 7, 60, seed=2)
    errors, answer = [], []
    while other.finish_reason is None:
        for emission in engine.step():
            errors += [emission] if emission.error else []
            answer += [emission.token] if emission.sequence is other else []
    (error,) = errors
    assert (error.sequence, type(error.error)) == (lost, InternalError)
    assert lost.finish_reason is FinishReason.ERROR
    assert answer == engines.alone([2] * 7, 60, 2)
    assert is_empty(engine)


def test_a_fault_of_the_device_is_raised(monkeypatch):
    """There is nothing to go on with."""
    engine, runner = make(keep=0)
    monkeypatch.setattr(runner, "shift", FailingShift.shift.__get__(runner))
    monkeypatch.setattr(runner, "error", DeviceFault("gone"), raising=False)
    with pytest.raises(DeviceFault):
        finish(engine, submit(engine, [1] * 100, LONG))


@pytest.mark.parametrize(("keep", "length"), [(65, 70), (1000, 97)])
def test_a_kept_prompt_that_leaves_too_little_ends(keep, length):
    """With fewer than 64 tokens to choose from nothing is dropped: it is the context that ends."""
    engine, runner = make(keep=keep)
    sequence = submit(engine, [1] * length, LONG)
    assert finish(engine, sequence) == [engines.alone([1] * length, LONG, 1)]
    assert sequence.finish_reason is FinishReason.CONTEXT
    assert runner.shifts == []
    assert is_empty(engine)
