"""How kernels walk over rows of F32: 16 columns at a time, and how threads share columns.

Knows addresses and counts, not what is computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corral.devices.cpu.simd import Kernel, Value, f32, maximum, minimum

LANES = 16
VECTOR = f32.x(LANES)


@dataclass(frozen=True, slots=True)
class Columns:
    """Up to 16 columns of a row."""

    kernel: Kernel
    first: Value
    rest: Value | None = None
    """How many of the 16 there are; None is all."""

    def load(self, row: Value) -> Value:
        """Load from the row at an address; columns that are not there are 0."""
        at = row + self.first * 4
        if self.rest is None:
            return self.kernel.load(VECTOR, at)
        return self.kernel.load_first(VECTOR, at, self.rest)

    def store(self, row: Value, value: Value) -> None:
        """Store to the row at an address."""
        at = row + self.first * 4
        if self.rest is None:
            self.kernel.store(at, value)
        else:
            self.kernel.store_first(at, value, self.rest)


def each_vector(
    k: Kernel, first: Value | int, last: Value, body: Callable[[Columns], None]
) -> None:
    """Emit `body` for the columns from `first` up to `last`: whole vectors, then the rest."""
    whole = last - ((last - first) & (LANES - 1))
    with k.range(first, whole, LANES) as column:
        body(Columns(k, column))
    with k.when(whole < last):
        body(Columns(k, whole, last - whole))


@contextmanager
def own_runs(
    k: Kernel, rows: Value, runs: Value, thread: Value, threads: Value
) -> Iterator[tuple[Value, Value, Value]]:
    """Run the body for every row with a thread's own columns: (row, first run, last run + 1).

    These are the columns that the same thread computed in the matrix product before, so they are
    still in its own cache.
    """
    first, last = k.split(runs, thread, threads)
    with k.range(0, rows) as row:
        yield row, first, last


@contextmanager
def shared_runs(
    k: Kernel, rows: Value, runs: Value, thread: Value, threads: Value
) -> Iterator[tuple[Value, Value, Value]]:
    """Run the body for each row that a thread has a part of: (row, first run, last run + 1).

    Every row consists of `runs` runs of columns that can be computed apart, so threads share
    them even if there is one row only.
    """
    first, last = k.split(rows * runs, thread, threads)
    with k.range(first // runs, (last + runs - 1) // runs) as row:
        start = row * runs
        yield row, maximum(first - start, 0), minimum(last - start, runs)
