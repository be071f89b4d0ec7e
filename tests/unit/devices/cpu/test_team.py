"""A team executes every row on all threads, in order, and sleeps when there is nothing to do."""

import threading
import time
import warnings

import numpy as np
import pytest

from corral.devices.cpu.compile import Compiler, KernelSpec
from corral.devices.cpu.features import host
from corral.devices.cpu.kernels.team import NO_BARRIER
from corral.devices.cpu.simd import Kernel, Value, i64
from corral.devices.cpu.team import ThreadTeam, _Shared
from corral.errors import Closed

ROW_WORDS = 4


def add_all(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """own[thread] = 1 + sum of the threads' words of the array before."""
    a = k.fields(record, ("before", "own"))
    total = k.variable(i64, 1)
    with k.range(0, threads) as n:
        total.value = total.value + k.load(i64, a.before + n * 64)
    k.store(a.own + thread * 64, total.value)


@pytest.fixture(scope="module")
def compiler():
    compiler = Compiler(host())
    yield compiler
    compiler.close()


def chain(compiler: Compiler, threads: int, length: int, flags: int = 0):
    """A program whose row n sums what all threads wrote in row n-1."""
    address = compiler.request([KernelSpec.of(add_all)])[KernelSpec.of(add_all)]
    values = np.zeros((length + 1, threads, 8), np.int64)
    records = np.zeros((length, 2), np.int64)
    program = np.zeros((length, ROW_WORDS), np.int64)
    for n in range(length):
        records[n] = values[n].ctypes.data, values[n + 1].ctypes.data
        program[n, :3] = address, records[n].ctypes.data, flags
    return program, records, values


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_see_all_that_earlier_rows_wrote(compiler, threads):
    """After a barrier every thread sees the words of all threads."""
    length = 12
    with ThreadTeam(compiler, threads, row_bytes=8 * ROW_WORDS) as team:
        for _ in range(50):
            program, records, values = chain(compiler, threads, length)
            team.run(program.ctypes.data, length)
            expected = 0
            for n in range(1, length + 1):
                expected = 1 + threads * expected
                assert (values[n, :, 0] == expected).all()
        assert len(records) == length


def test_sleeping_workers_are_woken(compiler):
    """A program runs whole after any pause, short or long."""
    with ThreadTeam(compiler, 3, row_bytes=8 * ROW_WORDS) as team:
        for pause in (0, 0.0015, 0.002, 0.0021, 0.0025, 0.02) * 5:
            program, _records, values = chain(compiler, 3, 2)
            team.run(program.ctypes.data, 2)
            assert (values[2, :, 0] == 4).all()
            time.sleep(pause)


def test_rows_without_barrier_are_all_executed(compiler):
    """NO_BARRIER leaves out the waiting and nothing else; the last row waits."""
    with ThreadTeam(compiler, 2, row_bytes=8 * ROW_WORDS) as team:
        program, _records, values = chain(compiler, 2, 5, NO_BARRIER)
        program[-1, 2] = 0
        team.run(program.ctypes.data, 5)
        assert (values[1:, :, 0] > 0).all()


def test_idle_teams_use_no_processor(compiler):
    """Workers sleep soon after a program."""
    with ThreadTeam(compiler, 3, row_bytes=8 * ROW_WORDS) as team:
        program, _records, _values = chain(compiler, 3, 1)
        team.run(program.ctypes.data, 1)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.02


def test_close_ends_all_threads(compiler):
    """Closing twice is fine, whether the workers sleep or spin; running afterwards is refused."""
    before = threading.active_count()
    for pause in (0, 0.02):
        team = ThreadTeam(compiler, 4, row_bytes=8 * ROW_WORDS)
        program, _records, _values = chain(compiler, 4, 1)
        team.run(program.ctypes.data, 1)
        time.sleep(pause)
        team.close()
        team.close()
        assert threading.active_count() == before
    with pytest.raises(Closed):
        team.run(0, 0)


def test_a_forgotten_team_warns(compiler):
    """A team that is dropped without close() says so."""
    team = ThreadTeam(compiler, 2)
    shared, workers = team._shared, team._workers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del team
    assert [w.category for w in caught] == [ResourceWarning]
    shared.stop()
    for worker in workers:
        worker.join()


def test_nobody_waits_for_a_thread_that_does_not_come(compiler):
    """Shares of threads that get no processor are done by the others, each once."""
    team = ThreadTeam(compiler, 1)
    functions = team._shared._functions
    team.close()
    shared = _Shared(4, 8 * ROW_WORDS, functions)  # four shares, and only the caller to do them
    for _ in range(3):
        program, _records, values = chain(compiler, 4, 6)
        program[2, 2] = program[3, 2] = NO_BARRIER
        shared.start(program.ctypes.data, 6)
        shared.take_part()
        assert (values[3, :, 0] == 1 + 4 * values[2, 0, 0]).all()
        assert (values[1:, :, 0] > 0).all()


def test_an_interrupted_caller_leaves_nothing_undone(compiler):
    """If the caller does not take part in a program, it is finished before the next one."""
    with ThreadTeam(compiler, 2, row_bytes=8 * ROW_WORDS) as team:
        for length in (3, 7, 2):
            program, _records, values = chain(compiler, 2, length)
            team._shared.start(program.ctypes.data, length)
            after, _more, results = chain(compiler, 2, 2)
            team.run(after.ctypes.data, 2)
            assert (values[1:, :, 0] > 0).all()
            assert (results[2, :, 0] == 3).all()
