"""Any order of submitting, stepping and cancelling, in turn and ahead: blocks add up."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.contract.events import FinishReason
from engines import (
    FULL,
    SEQUENCES,
    SHORT,
    WINDOWED,
    alone,
    finish,
    generated,
    is_empty,
    make,
    submit,
)


class Life(RuleBasedStateMachine):
    """Sequences come, run and go in any order; blocks add up and every answer is right."""

    groups = FULL
    is_ahead = False
    num_slots = SEQUENCES
    chunk_beside = None

    def __init__(self):
        super().__init__()
        self.engine, runner = make(
            self.groups, sequences=self.num_slots, chunk_beside=self.chunk_beside
        )
        runner.is_asynchronous = self.is_ahead
        self.sequences = []
        """Each with the answer it has alone."""

    @rule(
        beginning=st.sampled_from([[], [1] * 32, [1] * 40, [1] * 32 + [2] * 40]),
        rest=st.lists(st.integers(0, 3), min_size=1, max_size=40),
        max_tokens=st.integers(0, 40),
        seed=st.integers(0, 1),
        reuse=st.booleans(),
        options=st.sampled_from([{"temperature": 0.0}, {}, {"top_k": 0}]),
        namespace=st.sampled_from(["", "a"]),
    )
    def submit(self, beginning, rest, max_tokens, seed, reuse, options, namespace):
        """Queue a prompt that may begin like others."""
        prompt = beginning + rest
        options = {"seed": seed, **options}
        where = {"reuse": reuse, "namespace": namespace}
        sequence = submit(self.engine, prompt, max_tokens, **where, **options)
        self.sequences.append((sequence, alone(prompt, max_tokens, **options)))

    @rule(count=st.integers(1, 20))
    def step(self, count):
        """Run some evaluations."""
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def cancel(self, data):
        """Cancel any sequence, running or not."""
        sequence, _ = data.draw(st.sampled_from(self.sequences))
        self.engine.cancel(sequence)

    @invariant()
    def blocks_add_up(self):
        """A block is free, or in the table of a sequence that runs."""
        statistics = self.engine.statistics()
        running = [s for s, _ in self.sequences if s.finish_reason is None and s.tables]
        assert statistics.running == len(running) <= self.num_slots
        for index, group in enumerate(self.groups):
            used = set()
            for sequence in running:
                gone = sequence.tables[index]._num_gone
                used |= set(sequence.tables[index].blocks[gone:])
            assert statistics.free_blocks[index] == group.num_blocks - len(used)
            assert statistics.known_blocks[index] <= group.num_blocks

    @invariant()
    def answers_are_right(self):
        """What a sequence has generated so far is what it would generate alone."""
        for sequence, expected in self.sequences:
            answer = generated(sequence)
            assert answer == expected[: len(answer)]
            if sequence.finish_reason is None:
                assert len(answer) < max(1, len(expected))
            elif sequence.finish_reason is not FinishReason.CANCELLED:
                assert answer == expected

    def teardown(self):
        """Everything comes to an end, and nothing is left."""
        finish(self.engine, *(sequence for sequence, _ in self.sequences))
        self.answers_are_right()
        assert is_empty(self.engine, self.groups)


class WindowedLife(Life):
    """The same with windowed layers."""

    groups = WINDOWED


class LifeAhead(Life):
    """The same where the device computes while the caller goes on."""

    is_ahead = True


class WindowedLifeAhead(WindowedLife):
    """Both."""

    is_ahead = True


class CrowdedLife(Life):
    """The same with hardly more blocks than one sequence needs, and small chunks."""

    groups = SHORT
    num_slots = 4
    chunk_beside = 3


class CrowdedLifeAhead(CrowdedLife):
    """Both."""

    is_ahead = True


LIFE = settings(max_examples=25, stateful_step_count=20, deadline=None)
KINDS = (Life, WindowedLife, LifeAhead, WindowedLifeAhead, CrowdedLife, CrowdedLifeAhead)
for each in KINDS:
    each.TestCase.settings = LIFE
TestLife = Life.TestCase
TestWindowedLife = WindowedLife.TestCase
TestLifeAhead = LifeAhead.TestCase
TestWindowedLifeAhead = WindowedLifeAhead.TestCase
TestCrowdedLife = CrowdedLife.TestCase
TestCrowdedLifeAhead = CrowdedLifeAhead.TestCase
