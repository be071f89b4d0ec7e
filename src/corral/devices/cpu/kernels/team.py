"""The native side of a team of threads: run a program, wait for the next one.

Three kernels share one block of memory, the team's state. They know nothing of what programs do.
A program is a run of rows; a row begins with the words of ROW. All threads execute every row, each
its own share, and wait for each other after a row unless its flags say NO_BARRIER.

    START (state, program, count)      publish a program and claim the threads that sleep
    RUN   (state, thread, threads)     take part in the published program
    WORK  (state, thread, threads)     take part in programs; return when idle for long, or stopped

Sleeping without missing a program: a worker that found none for long raises its `asleep` word,
then looks once more. START publishes, then lowers each raised word. Whoever lowers it decides:
START wakes that worker through its semaphore, or the worker goes on by itself.
"""

from corral.devices.cpu.simd import Kernel, Value, i32, i64, u64

ROW = ("kernel", "record", "flags")
"""The words a row of a program begins with; `flags` may hold NO_BARRIER."""
NO_BARRIER = 1

ARRIVED, GENERATION, EPOCH = 0, 64, 128
"""Offsets of shared counters, each alone in its cache line."""
PROGRAM, COUNT, ROW_BYTES, STOP = 192, 200, 208, 216
YIELD, POLITE_TICKS, IDLE_TICKS, NUM_THREADS, SLEEPERS = 224, 232, 240, 248, 256
THREADS = 320
"""Offset of the threads' own lines.

POLITE_TICKS is how long a thread spins before it lets others have the processor, IDLE_TICKS how
long a worker waits for a program before it sleeps."""
LINE = 64
ASLEEP, WAKE, SEEN = 0, 8, 16
"""Offsets in a thread's line: asleep by its own word; to be woken; the last program it took."""


def state_bytes(threads: int) -> int:
    """Return the size of the state of a team."""
    return THREADS + LINE * threads


def start(k: Kernel, state: Value, program: Value, count: Value) -> None:
    """Publish a program; SLEEPERS then counts the threads whose WAKE word is raised."""
    k.store(state + PROGRAM, program)
    k.store(state + COUNT, count)
    one, zero = k.constant(i64, 1), k.constant(i64, 0)
    k.atomic_add(state + EPOCH, one)
    sleepers = k.variable(i64)
    with k.range(1, k.load(i64, state + NUM_THREADS)) as thread:
        line = state + THREADS + thread * LINE
        claimed = k.atomic_exchange(line + ASLEEP, zero)
        with k.when(claimed.differs(0)):
            k.store(line + WAKE, one)
            sleepers.value = sleepers.value + 1
    k.store(state + SLEEPERS, sleepers.value)


def run(k: Kernel, state: Value, thread: Value, threads: Value) -> None:
    """Execute the published program."""
    row = k.variable(i64, k.load(i64, state + PROGRAM))
    row_bytes = k.load(i64, state + ROW_BYTES)
    with k.range(0, k.load(i64, state + COUNT)):
        words = k.fields(row.value, ROW)
        k.call_address(words.kernel, [words.record, thread, threads])
        with k.when((words.flags & NO_BARRIER).equals(0)), k.when(threads > 1):
            _barrier(k, state, threads)
        row.value = row.value + row_bytes


def work(k: Kernel, state: Value, thread: Value, threads: Value) -> None:
    """Execute programs as they are published."""
    execute = k.subroutine("execute", (i64, i64, i64), None, run)
    line = state + THREADS + thread * LINE
    active = k.variable(i64, 1)
    with k.repeat_while(lambda: active.value.differs(0)):
        seen = k.load(i64, line + SEEN)
        with k.branch(_published(k, state, seen)) as (yes, no):
            with yes:
                k.store(line + SEEN, seen + 1)
                with k.branch(k.load(i64, state + STOP).equals(0)) as (run_it, stop):
                    with run_it:
                        execute(k, state, thread, threads)
                    with stop:
                        active.value = 0
            with no:
                active.value = _fall_asleep(k, state, line, seen)


def _published(k: Kernel, state: Value, seen: Value) -> Value:
    """Wait for a program for a while and return whether there is one."""
    begin, idle = k.ticks(), k.load(u64, state + IDLE_TICKS)

    def waiting() -> Value:
        nothing = k.load_acquire(i64, state + EPOCH).equals(seen)
        return nothing & (k.ticks() - begin < idle)

    with k.repeat_while(waiting):
        _pause(k, state, begin)
    return k.load_acquire(i64, state + EPOCH).differs(seen)


def _fall_asleep(k: Kernel, state: Value, line: Value, seen: Value) -> Value:
    """Raise the thread's word and return whether to go on: 0 is to sleep now."""
    k.atomic_exchange(line + ASLEEP, k.constant(i64, 1))
    go_on = k.variable(i64, 0)
    with k.when(k.load_acquire(i64, state + EPOCH).differs(seen)):
        go_on.value = k.atomic_exchange(line + ASLEEP, k.constant(i64, 0))
    return go_on.value


def _barrier(k: Kernel, state: Value, threads: Value) -> None:
    """Wait until all threads are here; the last to come opens."""
    generation = k.load_acquire(i64, state + GENERATION)
    arrived = k.atomic_add(state + ARRIVED, k.constant(i64, 1))
    with k.branch(arrived.equals(threads - 1)) as (last, others):
        with last:
            k.store(state + ARRIVED, k.constant(i64, 0))
            k.store_release(state + GENERATION, generation + 1)
        with others:
            begin = k.ticks()

            def closed() -> Value:
                return k.load_acquire(i64, state + GENERATION).equals(generation)

            with k.repeat_while(closed):
                _pause(k, state, begin)


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
