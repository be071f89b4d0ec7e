"""Kernels are compiled once, kept privately and loaded from what can be trusted only."""

import ctypes
import errno
import subprocess
import sys
import threading

import numpy as np
import pytest

from corral.devices.cpu.compile import Code, Compiler, KernelSpec, assembly, kernel_key
from corral.devices.cpu.compile_pool import _Helper
from corral.devices.cpu.features import Dot, Target, host, runnable
from corral.devices.cpu.kernels.matmul import matmul
from corral.devices.cpu.simd import Kernel, Value
from corral.devices.object_cache import ObjectCache
from corral.errors import CompileError, ResourceError
from number_kernel import store_number

SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def only_here(k: Kernel, record: Value, thread: Value, threads: Value, number: int = 0) -> None:
    store_number(k, record, thread, threads, number)


only_here.__module__ = "a_module_of_nobody"


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
        counts.append([done for _, done, _ in seen])
        compiler.close()
    assert counts == [[*range(7)], []]


def test_helper_processes_make_the_code():
    """With no cache and no thread of its own to help, code still comes: the helpers made it."""
    helper = _Helper(host())
    spec = specs(3)[2]
    code = Code()
    code.add(helper.compile((spec, "kernel")))
    assert call(code.address("kernel")) == 2
    code.close()
    helper.close()


def test_helpers_leave_what_they_cannot_do():
    """A module that only this process knows is no error: the kernel is compiled here."""
    helper = _Helper(host())
    assert helper.compile((KernelSpec.of(only_here), "kernel")) is None
    helper.close()
    compiler = Compiler(host(), processes=2)
    wanted = [KernelSpec.of(only_here, number=n) for n in range(6)]
    addresses = compiler.request(wanted)
    assert [call(addresses[spec]) for spec in wanted] == list(range(6))
    compiler.close()


FAR_APART = """
import ctypes, mmap, sys
from pathlib import Path
sys.path[:] = {path!r}
from corral.devices.cpu.compile import Compiler, KernelSpec
from corral.devices.cpu.features import host
from corral.devices.cpu.kernels.matmul import matmul

PAGE = mmap.PAGESIZE
unmap = ctypes.CDLL(None).munmap
unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def mapped(size):
    memory = mmap.mmap(-1, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    kept.append(memory)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

kept = [Compiler(host(), Path({cache!r})) for _ in range(2)]
wanted = KernelSpec.of(matmul, layout="int4_half_offset", columns=64)
kept[0].request([wanted])  # whatever this imports and allocates is there now
below = mapped(3 << 30)  # no hole is as large: it lies below everything
above = []
while not above or above[-1] > below:  # until every hole of two pages is filled
    above.append(mapped(2 * PAGE))
for address in above[::2]:
    unmap(address, PAGE)  # holes of one page: enough for constants, not for code
kept[1].request([wanted])
print("loaded", flush=True)
__import__("os")._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's way of choosing addresses")
def test_code_loads_into_a_full_address_space(tmp_path):
    """Holes that fit constants only, far from where code fits, are no trap."""
    cache = str(tmp_path / "kernels")
    compiler = Compiler(host(), tmp_path / "kernels")
    compiler.request([KernelSpec.of(matmul, layout="int4_half_offset", columns=64)])
    compiler.close()
    script = FAR_APART.format(path=sys.path, cache=cache)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr


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


def test_a_missing_directory_that_cannot_be_made_is_told_once(tmp_path, monkeypatch, caplog):
    """On a read-only disk kernels are compiled and not kept, with one warning that says so."""

    def refuse(*arguments, **keywords):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with caplog.at_level("WARNING"):
        cache = ObjectCache(tmp_path / "kernels")
        cache.store("a", b"code")
        cache.store("b", b"code")
    assert cache.load("a") is None
    assert list(tmp_path.iterdir()) == []
    [record] = caplog.records
    assert "cannot be kept in" in record.getMessage()
    assert "(Read-only file system)" in record.getMessage()


def test_a_directory_that_becomes_unwritable_is_told_once(tmp_path, monkeypatch, caplog):
    """What cannot be stored is told at the first kernel only; what is kept is still loaded."""
    cache = ObjectCache(tmp_path)
    cache.store("a", b"code")

    def refuse(*arguments, **keywords):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with caplog.at_level("WARNING"):
        cache.store("b", b"code")
        cache.store("c", b"code")
    assert len(caplog.records) == 1
    assert cache.load("a") == b"code"
