"""The loop when more is wanted than there is room for: turns, preemption, chunks, namespaces."""

import numpy as np
import pytest

from corral.contract.events import FinishReason
from corral.engine.scheduler import Budget, Candidate, Slice, preempted, schedule
from corral.errors import InvalidArgument
from engines import CONTEXT, SHORT, alone, finish, generated, is_empty, make, submit


@pytest.fixture(autouse=True, params=["in-turn", "ahead"])
def order(request, monkeypatch):
    """Evaluations in turn, or while the caller goes on."""
    monkeypatch.setattr("engines.TokenMemory.is_asynchronous", request.param == "ahead")


def test_prompts_are_small_beside_those_that_decode():
    """Alone a prompt takes the whole evaluation; beside an answer no more than it may."""
    engine, runner = make(chunk_beside=4)
    decoding = submit(engine, [1] * 16, 60)
    while not generated(decoding):
        engine.step()
    prompt = submit(engine, [2] * 64, 3)
    while prompt.num_computed < 32:
        engine.step()
    beside = runner.num_rows[1:]
    engine.cancel(decoding)
    finish(engine, prompt)
    assert runner.num_rows[0] == 16
    assert max(beside) == 5
    assert 16 in runner.num_rows[1 + len(beside) :]
    assert generated(prompt) == alone([2] * 64, 3, 1)


def test_prompts_must_get_on():
    """A chunk of nothing would be a prompt that never ends."""
    with pytest.raises(InvalidArgument, match="chunk_beside is 0"):
        make(chunk_beside=0)


def test_who_came_last_gives_way_and_comes_back_first():
    """With too few blocks the newest loses its own, is next again, and answers as if nothing."""
    engine, _ = make(SHORT, sequences=3)
    first, second = submit(engine, [1] * 40, 80), submit(engine, [2] * 40, 80, seed=2)
    while not second.num_preemptions:
        engine.step()
    later = submit(engine, [3] * 5, 3, seed=3)
    assert first.num_preemptions == 0
    answers = finish(engine, first, second, later)
    assert answers == [alone([1] * 40, 80, 1), alone([2] * 40, 80, 2), alone([3] * 5, 3, 3)]
    assert engine.statistics().preemptions >= 1
    assert second.num_cached == 0, "what is computed again was never a known prompt"
    assert second.admitted_at < later.admitted_at
    assert is_empty(engine, SHORT)


def test_a_preempted_sequence_can_be_cancelled():
    """It waits, and holds nothing."""
    engine, _ = make(SHORT, sequences=2)
    first, second = submit(engine, [1] * 40, 80), submit(engine, [2] * 40, 80)
    while not second.num_preemptions:
        engine.step()
    engine.cancel(second)
    assert second.finish_reason is FinishReason.CANCELLED
    assert finish(engine, first) == [alone([1] * 40, 80, 1)]
    assert is_empty(engine, SHORT)


def test_what_a_preempted_sequence_computed_is_found_again():
    """While nobody needed its blocks they are as good as before."""
    engine, runner = make(SHORT, sequences=2)
    first, second = submit(engine, [1] * 64, 30), submit(engine, [2] * 64, 2, seed=2)
    while not second.num_preemptions and second.finish_reason is None:
        engine.step()
    finish(engine, first, second)
    assert sum(runner.num_rows) <= 64 + 64 + 30 + 2 + 64


def test_namespaces_take_turns():
    """Whoever sends much waits behind whoever sends little, not the other way round."""
    engine, _ = make(sequences=1)
    many = [submit(engine, [1] * 3, 2, namespace="many") for _ in range(6)]
    few = [submit(engine, [2] * 3, 2, namespace=name) for name in ("few", "rare", "few")]
    finish(engine, *many, *few)
    order = sorted([*many, *few], key=lambda sequence: sequence.admitted_at)
    names = [sequence.namespace for sequence in order]
    assert names[:6] == ["many", "few", "rare", "many", "few", "many"]
    assert [s for s in order if s.namespace == "many"] == many
    assert [s for s in order if s.namespace == "few"] == [few[0], few[2]]


def test_a_namespace_finds_only_its_own():
    """The same prompt is known to those who sent it, and to nobody else."""
    engine, _ = make()
    for namespace, cached in [("a", 0), ("b", 0), ("", 0), ("a", 64), ("b", 64), ("", 64)]:
        sequence = submit(engine, [1] * 70, 2, namespace=namespace)
        finish(engine, sequence)
        assert sequence.num_cached == cached


def test_whatever_runs_beside_it_an_answer_is_the_same():
    """Random neighbours, chunks, pools and cancels change not one token."""
    random = np.random.RandomState(0)
    for trial in range(8):
        slots, beside = random.randint(1, 5), random.randint(1, 17)
        engine, _ = make(SHORT, sequences=slots, chunk_beside=beside)
        probe = submit(engine, [7] * 50, 40, seed=trial)
        others = []
        while probe.finish_reason is None:
            if random.rand() < 0.2:
                prompt = random.randint(0, 11, random.randint(1, 90)).tolist()
                others.append(submit(engine, prompt, random.randint(0, 30), namespace="others"))
            if others and random.rand() < 0.1:
                engine.cancel(others[random.randint(len(others))])
            engine.step()
        assert generated(probe) == alone([7] * 50, 40, trial)
        for other in others:
            engine.cancel(other)
        assert is_empty(engine, SHORT)


class TestBlocks:
    """The scheduler where blocks can run short: still a function over integers."""

    def budget(self, blocks, **changes):
        sizes = {"rows": 64, "outputs": 8, "sequences": 4, "sequence_blocks": CONTEXT // 32}
        return Budget(**(sizes | changes), blocks=blocks)

    def test_nobody_gives_way_while_there_are_blocks(self):
        """Two at the edge of a block need two."""
        candidates = [Candidate(0, 1, True, 32), Candidate(1, 1, True, 64)]
        assert preempted(candidates, self.budget(2)) is None
        assert preempted(candidates, self.budget(1)) == 1
        assert preempted(candidates, self.budget(None)) is None

    def test_a_prompt_gives_way_to_no_other_while_somebody_decodes(self):
        """It waits for blocks, and takes as many tokens as fit those that there are."""
        candidates = [Candidate(0, 1, True, 40), Candidate(1, 90, True, 30)]
        assert preempted(candidates, self.budget(0)) is None
        assert schedule(candidates, self.budget(0)) == (Slice(0, 1, True), Slice(1, 2, False))
        assert schedule(candidates, self.budget(1))[1] == Slice(1, 34, False)

    def test_of_prompts_alone_the_first_goes_on(self):
        """Prompts that block each other would wait for ever."""
        candidates = [Candidate(0, 50, True, 32), Candidate(1, 50, True, 32)]
        assert preempted(candidates, self.budget(0)) == 1

    def test_who_waits_needs_blocks_for_the_whole_prompt(self):
        """And those that run keep one each to go on with."""
        candidates = [Candidate(0, 1, True, 40), Candidate(1, 64, False)]
        assert [part.id for part in schedule(candidates, self.budget(3))] == [0, 1]
        assert [part.id for part in schedule(candidates, self.budget(2))] == [0]

    def test_idle_blocks_count_as_taken(self):
        """What is known and idle is free until somebody begins with it."""
        waiting = Candidate(1, 1, False, 64, num_idle=2)
        assert schedule([waiting], self.budget(3)) == (Slice(1, 1, True),)
        assert schedule([waiting], self.budget(2)) == ()

    def test_nobody_overtakes_who_is_next(self):
        """A short prompt behind a long one waits with it, or the long one waited for ever."""
        candidates = [Candidate(0, 1, True, 40), Candidate(1, 96, False), Candidate(2, 5, False)]
        assert [part.id for part in schedule(candidates, self.budget(3))] == [0]
