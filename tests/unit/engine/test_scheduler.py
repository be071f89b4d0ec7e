"""The scheduler: who runs next, whatever the sequences and whatever the budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.scheduler import Budget, Candidate, Slice, schedule


@st.composite
def moments(draw):
    """Draw a budget and candidates that it can have led to."""
    sequences = draw(st.integers(1, 6))
    budget = Budget(
        rows=draw(st.integers(sequences, 40)),
        outputs=draw(st.integers(sequences, 8)),
        sequences=sequences,
    )
    admitted = draw(st.integers(0, sequences))
    pending = st.one_of(st.just(1), st.integers(1, 100))
    flags = [True] * admitted + [False] * draw(st.integers(0, 6))
    candidates = [Candidate(i, draw(pending), flag) for i, flag in enumerate(flags)]
    return candidates, budget


def is_decoding(candidate):
    return candidate.is_admitted and candidate.num_pending == 1


@given(moments())
def test_budgets_are_kept(moment):
    """No evaluation has more rows, outputs or sequences than there is room for."""
    candidates, budget = moment
    slices = schedule(candidates, budget)
    admitted = {c.id for c in candidates if c.is_admitted}
    assert sum(part.num_tokens for part in slices) <= budget.rows
    assert sum(part.wants_logits for part in slices) <= budget.outputs
    assert len(admitted | {part.id for part in slices}) <= budget.sequences


@given(moments())
def test_slices_are_parts_of_what_is_pending(moment):
    """A slice has at least one token, at most what is pending, and logits only at its end."""
    candidates, budget = moment
    by_id = {c.id: c for c in candidates}
    for part in schedule(candidates, budget):
        assert 1 <= part.num_tokens <= by_id[part.id].num_pending
        assert part.wants_logits == (part.num_tokens == by_id[part.id].num_pending)


@given(moments())
def test_every_decoding_sequence_advances(moment):
    """Prompts never keep a sequence from its next token."""
    candidates, budget = moment
    decoding = {c.id for c in candidates if is_decoding(c)}
    assert decoding <= {part.id for part in schedule(candidates, budget) if part.wants_logits}


@given(moments())
def test_prompts_run_in_order_of_arrival(moment):
    """Of the prompts those that came first run; only the last of them may be cut short."""
    candidates, budget = moment
    slices = {part.id: part for part in schedule(candidates, budget)}
    free = budget.sequences - sum(c.is_admitted for c in candidates)
    prompts = []
    for c in candidates:
        if not is_decoding(c) and (c.is_admitted or free > 0):
            free -= not c.is_admitted
            prompts.append(c.id)
    ran = [number for number in prompts if number in slices]
    assert ran == prompts[: len(ran)]
    assert all(slices[number].wants_logits for number in ran[:-1])


@given(moments())
def test_slices_come_in_the_order_of_the_candidates(moment):
    """Batches are laid out in order of arrival."""
    candidates, budget = moment
    order = [part.id for part in schedule(candidates, budget)]
    assert order == sorted(order)


@given(moments())
def test_nothing_idles_while_there_is_work(moment):
    """If there are candidates, something runs."""
    candidates, budget = moment
    assert bool(schedule(candidates, budget)) == bool(candidates)


@given(moments(), st.data())
def test_nobody_starves(moment, data):
    """However long answers get and however many come later, every prompt is computed."""
    candidates, budget = moment
    waiting = {c.id for c in candidates if not is_decoding(c)}
    answers = {c.id: data.draw(st.integers(1, 4)) for c in candidates}
    most_rounds = sum(c.num_pending for c in candidates) + sum(answers.values())
    for _ in range(most_rounds):
        slices = {part.id: part for part in schedule(candidates, budget)}
        waiting -= {number for number, part in slices.items() if part.wants_logits}
        candidates = [after(c, slices.get(c.id), answers) for c in candidates]
        candidates = [c for c in candidates if answers[c.id] > 0]
        candidates.sort(key=lambda c: not c.is_admitted)
    assert not waiting


def after(candidate, part, answers):
    """Return a candidate after an evaluation; one that got logits has one token less to go."""
    if part is None:
        return candidate
    pending = candidate.num_pending - part.num_tokens
    answers[candidate.id] -= part.wants_logits
    return replace(candidate, num_pending=max(1, pending), is_admitted=True)


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        ([], ()),
        ([40], (Slice(0, 16, False),)),
        ([16], (Slice(0, 16, True),)),
        ([10, 10], (Slice(0, 10, True), Slice(1, 6, False))),
    ],
)
def test_prompts_are_cut_to_the_rows(pending, expected):
    """A prompt longer than an evaluation comes in chunks."""
    candidates = [Candidate(i, count, False) for i, count in enumerate(pending)]
    assert schedule(candidates, Budget(16, 4, 4)) == expected


def test_decoding_goes_before_an_older_prompt():
    """One row each for those that decode, the rest for the prompt."""
    candidates = [Candidate(0, 100, True), Candidate(1, 1, True), Candidate(2, 1, True)]
    expected = (Slice(0, 14, False), Slice(1, 1, True), Slice(2, 1, True))
    assert schedule(candidates, Budget(16, 4, 4)) == expected


def test_waiting_sequences_need_a_slot():
    """A sequence that waits runs only if fewer are admitted than there may be."""
    candidates = [Candidate(0, 1, True), Candidate(1, 5, False), Candidate(2, 5, False)]
    expected = (Slice(0, 1, True), Slice(1, 5, True))
    assert schedule(candidates, Budget(16, 4, 2)) == expected
