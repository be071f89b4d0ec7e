"""The native side of a team of threads: run a program, wait for the next one.

Three kernels share one block of memory, the team's state. They know nothing of what programs do. A
program is a run of rows; a row begins with the words of ROW and has one share for each thread. Rows
are numbered from 1 over the life of the team.

    START (state, program, count)      publish a program and claim the threads that sleep
    RUN   (state, thread, threads)     take part in the published program
    WORK  (state, thread, threads)     take part in programs; return when idle for long, or stopped

Nobody waits for a thread, only for shares. A thread takes its own share of each row, by raising the
number in its line from the row before to this one. Where a row's results are needed (its flags do
not say NO_BARRIER) it waits until as many shares are done as all rows so far have, and if that
takes long, it takes shares that their own threads have not begun. So a thread that the system gives
no processor holds nobody up unless it was stopped in the middle of a share.

A late thread walks through rows that are done without touching them, in memory that is the team's.

Sleeping without missing a program: a worker that found none for long raises its `asleep` word,
then looks once more. START publishes, then lowers each raised word. Whoever lowers it decides:
START wakes that worker through its semaphore, or the worker goes on by itself.
"""

from dataclasses import dataclass

from corral.devices.cpu.simd import Kernel, Value, convert, i8, i32, i64, u64

ROW = ("kernel", "record", "flags")
"""The words a row of a program begins with; `flags` may hold NO_BARRIER."""
NO_BARRIER = 1

DONE, EPOCH = 0, 64
"""Offsets of shared counters, each alone in its cache line: shares done since the team began, and
twice the programs published (odd: one is being written)."""
PROGRAM, COUNT, FIRST, FLAGS = 128, 136, 144, 152
"""The published program: its address, rows, the number of its first row, and a copy of the flags of
its rows, a byte each."""
ROW_BYTES, STOP, YIELD, NUM_THREADS, SLEEPERS = 192, 200, 208, 216, 224
STEAL_TICKS, POLITE_TICKS, IDLE_TICKS = 232, 240, 248
"""How long a thread waits before it takes shares of others, before it lets others have the
processor, and before it sleeps."""
THREADS = 256
"""Offset of the threads' own lines."""
LINE = 64
TAKEN, FINISHED, ASLEEP, WAKE, SEEN = 0, 8, 16, 24, 32
"""Offsets in a thread's line: the last rows whose share was taken and was finished; asleep by its
own word; to be woken; the last epoch it took part in."""


def state_bytes(threads: int) -> int:
    """Return the size of the state of a team."""
    return THREADS + LINE * threads


def start(k: Kernel, state: Value, program: Value, count: Value) -> None:
    """Publish a program; SLEEPERS then counts the threads whose WAKE word is raised.

    A program whose caller was interrupted before it took part is finished first.
    """
    execute = k.subroutine("execute", (i64, i64, i64), None, run)
    one, zero = k.constant(i64, 1), k.constant(i64, 0)
    threads = k.load(i64, state + NUM_THREADS)
    first = k.load(i64, state + FIRST) + k.load(i64, state + COUNT)
    with k.when(k.load_acquire(i64, state + DONE) < (first - 1) * threads):
        execute(k, state, zero, threads)
    k.atomic_add(state + EPOCH, one)
    k.store_release(state + PROGRAM, program)
    k.store_release(state + FIRST, first)
    k.store_release(state + COUNT, count)
    flags, row_bytes = k.load(i64, state + FLAGS), k.load(i64, state + ROW_BYTES)
    with k.range(0, count) as number:
        words = k.fields(program + number * row_bytes, ROW)
        k.store(flags + number, convert(words.flags, i8))
    with k.when(count > 0):  # whoever runs a program needs its results
        k.store(flags + (count - 1), k.constant(i8, 0))
    k.atomic_add(state + EPOCH, one)
    sleepers = k.variable(i64)
    with k.range(1, threads) as thread:
        line = state + THREADS + thread * LINE
        claimed = k.atomic_exchange(line + ASLEEP, zero)
        with k.when(claimed.differs(0)):
            k.store(line + WAKE, one)
            sleepers.value = sleepers.value + 1
    k.store(state + SLEEPERS, sleepers.value)


@dataclass(frozen=True, slots=True)
class _Program:
    """A program as one thread sees it."""

    k: Kernel
    state: Value
    threads: Value
    program: Value
    first: Value

    def take(self, share: Value, row: Value) -> None:
        """Execute a share of a row if it is the share's turn and nobody has taken it.

        Shares of a number are executed one at a time, since they use the same scratch.
        """
        k, line = self.k, self.state + THREADS + share * LINE
        turn = k.load_acquire(i64, line + FINISHED).equals(row - 1)
        with k.when(turn), k.when(k.compare_exchange(line + TAKEN, row - 1, row)):
            at = (row - self.first) * k.load(i64, self.state + ROW_BYTES)
            words = k.fields(self.program + at, ROW)
            k.call_address(words.kernel, [words.record, share, self.threads])
            k.store_release(line + FINISHED, row)
            k.atomic_add(self.state + DONE, k.constant(i64, 1))

    def take_left_over(self, last: Value) -> None:
        """Execute the shares of rows up to `last` that nobody has taken."""
        k = self.k
        with k.range(0, self.threads) as share:
            line = self.state + THREADS + share * LINE
            with k.range(k.load_acquire(i64, line + TAKEN) + 1, last + 1) as row:
                self.take(share, row)

    def wait(self, row: Value) -> None:
        """Wait until all shares of rows up to this one are done."""
        k = self.k

        def unfinished() -> Value:
            return k.load_acquire(i64, self.state + DONE) < row * self.threads

        with k.when(unfinished()):
            begin = k.ticks()
            with k.repeat_while(unfinished):
                with k.when(k.ticks() - begin > k.load(u64, self.state + STEAL_TICKS)):
                    self.take_left_over(row)
                _pause(k, self.state, begin)


def run(k: Kernel, state: Value, thread: Value, threads: Value) -> None:
    """Take part in the published program."""
    epoch = k.load_acquire(i64, state + EPOCH)
    program, first, count = (k.load_acquire(i64, state + at) for at in (PROGRAM, FIRST, COUNT))
    flags = k.load_acquire(i64, state + FLAGS)
    whole = k.load_acquire(i64, state + EPOCH).equals(epoch) & (epoch & 1).equals(0)
    part = _Program(k, state, threads, program, first)
    with k.when(whole), k.range(first, first + count) as row:
        part.take(thread, row)
        flag = k.load(i8, flags + (row - first))
        with k.when((flag & NO_BARRIER).equals(0)):
            part.wait(row)


def work(k: Kernel, state: Value, thread: Value, threads: Value) -> None:
    """Take part in programs as they are published."""
    execute = k.subroutine("execute", (i64, i64, i64), None, run)
    line = state + THREADS + thread * LINE
    active = k.variable(i64, 1)
    with k.repeat_while(lambda: active.value.differs(0)):
        seen = k.load(i64, line + SEEN)
        epoch = _next_epoch(k, state, seen)
        with k.branch(epoch.differs(seen)) as (yes, no):
            with yes:
                k.store(line + SEEN, epoch)
                with k.branch(k.load_acquire(i64, state + STOP).equals(0)) as (go_on, stop):
                    with go_on:
                        execute(k, state, thread, threads)
                    with stop:
                        active.value = 0
            with no:
                active.value = _fall_asleep(k, state, line, seen)


def _next_epoch(k: Kernel, state: Value, seen: Value) -> Value:
    """Wait for a program for a while; return `seen` if there was none."""
    begin, idle = k.ticks(), k.load(u64, state + IDLE_TICKS)

    def waiting() -> Value:
        nothing = _published(k, state).equals(seen)
        return nothing & (k.ticks() - begin < idle)

    with k.repeat_while(waiting):
        _pause(k, state, begin)
    return _published(k, state)


def _published(k: Kernel, state: Value) -> Value:
    """Return the epoch of the last program that is whole."""
    return k.load_acquire(i64, state + EPOCH) & -2


def _fall_asleep(k: Kernel, state: Value, line: Value, seen: Value) -> Value:
    """Raise the thread's word and return whether to go on: 0 is to sleep now."""
    k.atomic_exchange(line + ASLEEP, k.constant(i64, 1))
    go_on = k.variable(i64, 0)
    with k.when(_published(k, state).differs(seen)):
        go_on.value = k.atomic_exchange(line + ASLEEP, k.constant(i64, 0))
    return go_on.value


def _pause(k: Kernel, state: Value, begin: Value) -> None:
    """Spin, or once that took long, let others have the processor."""
    polite = k.ticks() - begin > k.load(u64, state + POLITE_TICKS)
    with k.branch(polite) as (yes, no):
        with yes:
            k.call_address(k.load(i64, state + YIELD), [], i32)
        with no:
            k.pause()


def ticks(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Store the counter that waits are measured with."""
    k.store(record, k.ticks())
