"""Barriers stand exactly where one instruction must see another's bytes, or leave them alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.devices.cpu.hazards import Span, Touched, barriers_after


def touched(reads, writes):
    return Touched(
        tuple(Span(first, first + size) for first, size in reads),
        tuple(Span(first, first + size) for first, size in writes),
    )


def test_independent_products_run_side_by_side():
    """Three results from one source need no barrier between them."""
    source = [(0, 10)]
    parts = [touched(source, [(10 * n, 10)]) for n in (1, 2, 3)]
    assert barriers_after(parts) == (False, False, True)


def test_a_reader_waits_for_its_writer():
    """What reads a result waits for it."""
    parts = [touched([(0, 10)], [(10, 10)]), touched([(15, 2)], [(30, 1)])]
    assert barriers_after(parts) == (True, True)


def test_bytes_are_not_taken_over_before_they_are_read():
    """A result that is placed on another's dead source waits until it was read."""
    parts = [touched([(0, 10)], [(10, 10)]), touched([(20, 5)], [(0, 10)])]
    assert barriers_after(parts) == (True, True)


def test_a_barrier_serves_everything_before_it():
    """After a barrier, nothing waits again for what came before."""
    parts = [
        touched([(0, 1)], [(10, 1)]),
        touched([(0, 1)], [(20, 1)]),
        touched([(10, 1)], [(30, 1)]),
        touched([(20, 1)], [(40, 1)]),
    ]
    assert barriers_after(parts) == (False, True, False, True)


def test_no_instructions_need_no_barrier():
    """An empty program has none."""
    assert barriers_after([]) == ()


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=2)


@given(st.lists(st.tuples(spans, spans), min_size=1, max_size=8), st.randoms())
def test_any_order_between_barriers_gives_the_same_bytes(program, random):
    """Instructions between two barriers can run in any order."""
    instructions = [touched(reads, writes) for reads, writes in program]
    waits = barriers_after(instructions)

    def run(order):
        memory = np.arange(40, dtype=np.int64)
        for number in order:
            reads, writes = program[number]
            value = sum(int(memory[a : a + n].sum()) for a, n in reads) * 31 + number
            for a, n in writes:
                memory[a : a + n] = value
        return memory

    shuffled, group = [], []
    for number, wait in enumerate(waits):
        group.append(number)
        if wait:
            random.shuffle(group)
            shuffled += group
            group = []
    assert np.array_equal(run(shuffled), run(range(len(program))))
