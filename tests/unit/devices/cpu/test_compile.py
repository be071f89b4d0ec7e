"""Kernels are compiled once, kept privately and loaded from what can be trusted only."""

import ctypes
import threading

import numpy as np
import pytest

from corral.devices.cpu.compile import Compiler, KernelSpec, assembly, kernel_key
from corral.devices.cpu.features import Dot, Target, host, runnable
from corral.devices.cpu.kernels.matmul import matmul
from corral.devices.cpu.object_cache import ObjectCache
from corral.devices.cpu.simd import Kernel, Value, i64
from corral.errors import Closed, CompileError, ResourceError

SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def store_number(k: Kernel, record: Value, thread: Value, threads: Value, number: int) -> None:
    k.store(record, k.constant(i64, number))


def broken(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    k.append("this is no instruction")


def call(address: int) -> int:
    out = np.zeros(1, np.int64)
    SIGNATURE(address)(out.ctypes.data, 0, 1)
    return int(out[0])


def specs(count: int) -> list[KernelSpec]:
    return [KernelSpec.of(store_number, number=n) for n in range(count)]


@pytest.mark.parametrize("processes", [1, 2])
def test_kernels_run_and_are_compiled_once(tmp_path, processes):
    """Every spec gets its own code; a second compiler finds all of it kept."""
    counts = []
    for _ in range(2):
        compiler = Compiler(host(), tmp_path / "kernels", processes=processes)
        seen: list[tuple[str, int, int]] = []
        addresses = compiler.request(specs(6), lambda *step, seen=seen: seen.append(step))
        assert [call(addresses[spec]) for spec in specs(6)] == list(range(6))
        counts.append(len(seen))
        compiler.close()
    assert counts == [6, 0]


def test_later_requests_keep_addresses(tmp_path):
    """Code that is loaded stays where it is when more is requested."""
    compiler = Compiler(host(), tmp_path)
    first = compiler.request(specs(1))
    both = compiler.request(specs(2))
    assert both[specs(1)[0]] == first[specs(1)[0]]
    assert call(both[specs(2)[1]]) == 1
    compiler.close()
    compiler.close()
    with pytest.raises(Closed):
        compiler.request(specs(3))


@pytest.mark.parametrize("damage", [b"", b"short", b"corral object 1\n" + bytes(100)])
def test_damaged_files_are_compiled_again(tmp_path, damage):
    """A file that is cut, foreign or altered is replaced."""
    spec = specs(1)[0]
    compiler = Compiler(host(), tmp_path)
    compiler.request([spec])
    compiler.close()
    path = tmp_path / f"{kernel_key(spec, host())}.o"
    whole = path.read_bytes()
    path.write_bytes(damage)
    compiler = Compiler(host(), tmp_path)
    assert call(compiler.request([spec])[spec]) == 0
    compiler.close()
    assert path.read_bytes() == whole


def test_one_flipped_bit_is_noticed(tmp_path):
    """The checksum covers the code."""
    cache = ObjectCache(tmp_path)
    cache.store("k", b"code" * 100)
    assert cache.load("k") == b"code" * 100
    path = tmp_path / "k.o"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert cache.load("k") is None


def test_what_others_may_write_is_not_trusted(tmp_path):
    """A directory open to others is refused, a file open to others is ignored."""
    cache = ObjectCache(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    cache.store("k", b"code")
    (tmp_path / "own" / "k.o").chmod(0o666)
    assert cache.load("k") is None
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ResourceError, match="chmod 700"):
        ObjectCache(shared)


def test_unwritable_cache_is_no_error(tmp_path, monkeypatch):
    """Kernels run although they cannot be kept."""

    def refuse(*arguments, **keywords):
        raise OSError("disk full")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    compiler = Compiler(host(), tmp_path)
    assert call(compiler.request(specs(1))[specs(1)[0]]) == 0
    compiler.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [1, 5])
def test_errors_keep_the_text(count):
    """A kernel that LLVM rejects raises CompileError with its text, wherever it was compiled."""
    compiler = Compiler(host(), processes=2)
    before = threading.active_count()
    with pytest.raises(CompileError) as caught:
        compiler.request([KernelSpec.of(broken), *specs(count - 1)])
    assert "this is no instruction" in caught.value.ir
    compiler.close()
    assert threading.active_count() == before


def test_keys_tell_kernels_and_targets_apart():
    """The key changes with parameters and with the target."""
    keys = {kernel_key(spec, target) for spec in specs(3) for target in runnable()}
    assert len(keys) == 3 * len(runnable())


def test_helpers_that_die_cost_only_time(monkeypatch):
    """Jobs of a dead helper are compiled in this process."""
    monkeypatch.setattr("corral.devices.cpu.compile_pool._START", "raise SystemExit")
    compiler = Compiler(host(), processes=3)
    addresses = compiler.request(specs(6))
    assert [call(addresses[spec]) for spec in specs(6)] == list(range(6))
    compiler.close()


def test_no_pickle_and_no_leftovers(tmp_path):
    """The cache holds object files under their keys and nothing else."""
    compiler = Compiler(host(), tmp_path)
    compiler.request(specs(2))
    compiler.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(f"{kernel_key(spec, host())}.o" for spec in specs(2))


def test_code_for_other_processors():
    """64-bit Arm gets its dot product, although it cannot run here."""
    features = "+neon,+dotprod"
    target = Target(
        "neon", "aarch64-unknown-linux-gnu", "neoverse-n1", features, 128, Dot.NEON, True, True
    )
    spec = KernelSpec.of(matmul, layout="int4_half_offset", columns=64)
    lines = assembly(spec.text(target, "kernel"), target).splitlines()
    assert any("sdot" in line for line in lines)
    called = {line.split()[-1] for line in lines if line.split()[:1] == ["bl"]}
    assert all(name.startswith(("tile", "full")) for name in called)  # nothing of any library
