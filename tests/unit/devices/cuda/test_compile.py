"""Cubins are compiled once, kept privately, and found again without a compiler."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from corral.devices.cuda import compile as compile_module
from corral.devices.cuda.compile import Compiler, Cubin, Usage, architecture
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.kernel_sources import KernelSources
from corral.devices.cuda.nvrtc import Compiled, nvrtc_version
from corral.devices.cuda.toolchain import Toolchain, find_toolchain, machine_toolchain
from corral.errors import CompileError, DeviceUnavailable, ResourceError

ARCH = "sm_90a"
NEW = Toolchain("13.5.37")
ONE, TWO = Instance.of("add", "add", 1), Instance.of("add", "add", 2)
LOG = """add.cu(3): warning #177-D: variable "unused" was declared but never referenced

ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_other' for 'sm_90a'
ptxas info    : Function properties for _other
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 99 registers, used 0 barriers
ptxas info    : Compiling entry function '_add' for 'sm_90a'
ptxas info    : Function properties for _add
ptxas         .     16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Function properties for _helper
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compile time = 1.094 ms
"""
SOURCE = """#include "include/sum.cuh"
#include "include/number.cuh"
#include <cuda_bf16.h>
namespace corral {
template <int N> __global__ void add(float* x) {
  __shared__ float y[32];
  y[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[0] = plus<N>(y[threadIdx.x ^ 1]) + __bfloat162float(__nv_bfloat16(1.0f));
}
}
"""
HEADERS = {
    "number.cuh": "template <int N> constexpr float number = N;",
    "sum.cuh": '#include "number.cuh"\n'
    "template <int N> float plus(float x) { return x + number<N>; }",
}


class PlayedNvrtc:
    """Compiles nothing, and remembers what it was asked for."""

    version, release = "13.5", (13, 5)

    def __init__(self, toolchain, header_directory):
        self.header_directory = header_directory
        PlayedNvrtc.last = self

    def compile(self, unit):
        PlayedNvrtc.units.append(unit)
        if "broken" in unit.expression:
            raise CompileError("no")
        if "slow" in unit.expression:
            time.sleep(0.05)
        return Compiled(b"\x7fELF\n" + unit.expression.encode(), "_add", LOG)


@pytest.fixture
def played(monkeypatch):
    """Return the units that a played compiler was given."""
    PlayedNvrtc.units = []
    monkeypatch.setattr(compile_module, "Nvrtc", PlayedNvrtc)
    return PlayedNvrtc.units


@pytest.fixture
def directory(tmp_path):
    """Return a directory of kernels."""
    kernels = tmp_path / "sources"
    (kernels / "include").mkdir(parents=True)
    (kernels / "add.cu").write_text(SOURCE)
    (kernels / "other.cu").write_text("int x;")
    for name, text in HEADERS.items():
        (kernels / "include" / name).write_text(f"#pragma once\n{text}")
    return kernels


def compiler_of(tmp_path, directory, toolchain=NEW):
    return Compiler(tmp_path / "kept", sources=KernelSources(directory), toolchain=toolchain)


@pytest.fixture
def real():
    """Skip where NVRTC is not installed."""
    try:
        nvrtc_version()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))


def test_kernels_are_compiled_once(tmp_path, directory, played):
    """A second compiler finds all of it, and nothing to do."""
    steps = []
    for _ in range(2):
        compiler = compiler_of(tmp_path, directory)
        cubins = compiler.request([ONE, TWO, ONE], ARCH, lambda *step: steps.append(step))
        assert list(cubins) == [ONE, TWO]
        assert cubins[TWO].code == b"\x7fELF\ncorral::add<2>"
    assert len(played) == 2
    assert steps == [("compile", 0, 2), ("compile", 1, 2), ("compile", 2, 2)]


def test_only_what_is_missing_is_compiled(tmp_path, directory, played):
    """Each kernel and each architecture is kept by itself."""
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    compiler_of(tmp_path, directory).request([ONE, TWO], ARCH)
    compiler_of(tmp_path, directory).request([ONE], "sm_80")
    asked = [(unit.expression, unit.arch) for unit in played]
    assert asked == [
        ("corral::add<1>", ARCH),
        ("corral::add<2>", ARCH),
        ("corral::add<1>", "sm_80"),
    ]


def test_the_account_is_kept_with_the_code(tmp_path, directory, played):
    """Registers and spills are the kernel's own, its functions' too; the same when found again."""
    first = compiler_of(tmp_path, directory).request([ONE], ARCH)[ONE]
    assert first.usage == Usage(40, 24, 24, 32, 2048)
    assert first.warnings == "\n".join([LOG.splitlines()[0], LOG.splitlines()[-2]])
    assert compiler_of(tmp_path, directory).request([ONE], ARCH) == {ONE: first}


def test_logs_of_other_compilers_are_no_error():
    """What a newer assembler may not say is 0."""
    cubin = compile_module._cubin(Compiled(b"code", "_add", "all is well"))
    assert cubin == Cubin("_add", Usage(), "all is well", b"code")


@pytest.mark.parametrize("damage", [b"", b"corral object 1\n" + bytes(100)])
def test_damaged_files_are_compiled_again(tmp_path, directory, played, damage):
    """A file that is cut or altered counts as absent, and is replaced."""
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    [path] = (tmp_path / "kept").glob("*.cubin")
    whole = path.read_bytes()
    path.write_bytes(damage)
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    assert len(played) == 2
    assert path.read_bytes() == whole


def test_what_others_may_write_is_not_loaded(tmp_path, directory, played):
    """A file that is open to others is ignored, a directory refused."""
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    [path] = (tmp_path / "kept").glob("*.cubin")
    path.chmod(0o666)
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    assert len(played) == 2
    (tmp_path / "kept").chmod(0o777)
    with pytest.raises(ResourceError, match="chmod 700"):
        compiler_of(tmp_path, directory)


def test_what_belongs_to_others_is_not_loaded(tmp_path, directory, played, monkeypatch):
    """The owner counts, not only the mode."""
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    monkeypatch.setattr(os, "getuid", lambda: -1)
    with pytest.raises(ResourceError, match="another user"):
        compiler_of(tmp_path, directory)


def test_without_a_cache_nothing_is_kept(tmp_path, directory, played):
    """Headers are unpacked to a place that is gone afterwards."""
    compiler = Compiler(sources=KernelSources(directory), toolchain=NEW)
    compiler.request([ONE], ARCH)
    compiler.request([ONE], ARCH)
    assert len(played) == 2
    assert not PlayedNvrtc.last.header_directory.exists()


def test_headers_are_private(tmp_path, directory, played):
    """They are compiled into code, so they lie where only the user can write."""
    compiler_of(tmp_path, directory).request([ONE], ARCH)
    unpacked = tmp_path / "kept" / "headers-13.5.37"
    assert PlayedNvrtc.last.header_directory == unpacked
    assert unpacked.stat().st_mode & 0o777 == 0o700


def test_code_of_an_unexpected_compiler_is_not_kept(tmp_path, directory, played):
    """If another NVRTC was in the process already, its code is not filed under the installed."""
    older = Toolchain("13.4.1")
    compiler_of(tmp_path, directory, older).request([ONE], ARCH)
    assert not list((tmp_path / "kept").glob("*.cubin"))


def key(directory, instance=ONE, arch=ARCH, toolchain=NEW):
    return Compiler(sources=KernelSources(directory)).key(instance, arch, toolchain)


def test_keys_change_with_everything_that_decides(directory):
    """Source, our headers, architecture, compiler, CUDA's headers, arguments."""
    keys = {key(directory)}
    keys |= {
        key(directory, TWO),
        key(directory, arch="sm_90"),
        key(directory, Instance.of("other", "other")),
    }
    keys |= {key(directory, toolchain=Toolchain("13.5.38"))}
    keys |= {key(directory, toolchain=Toolchain("13.0", Path("/x"), digest)) for digest in "ab"}
    for changed in ("add.cu", "include/sum.cuh"):
        path = directory / changed
        path.write_text(path.read_text() + "// changed")
        keys.add(key(directory))
    (directory / "include" / "new.cuh").write_text("")
    keys.add(key(directory))
    assert len(keys) == 10


def test_keys_stay_where_only_others_change(directory):
    """Neither another file of kernels, nor where headers lie, makes anything new."""
    assert key(directory) == key(directory)
    before = key(directory)
    (directory / "other.cu").write_text("int y;")
    assert key(directory) == before
    places = [Toolchain("13.0", Path(place), "digest") for place in ("/a", "/b")]
    assert len({key(directory, toolchain=place) for place in places}) == 1


def test_instances_are_named_as_cpp_does():
    """Truth values are lower case; a file may hold several kernels."""
    instance = Instance.of("attention", "combine", 128, True, "Layout::INT4")
    assert instance.name == "corral::combine<128, true, corral::Layout::INT4>"
    assert instance.stem == "attention"
    assert Instance.of("copy", "copy").name == "corral::copy"


def test_architectures():
    """Hopper's own instructions need its own architecture; what is too old is refused."""
    names = [architecture(pair) for pair in ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0), (12, 1))]
    assert names == ["sm_80", "sm_86", "sm_90a", "sm_100", "sm_120", "sm_121"]
    with pytest.raises(DeviceUnavailable, match=r"capability 7\.5.*8\.0"):
        architecture((7, 5))


def test_the_first_error_ends_it(tmp_path, directory, played):
    """What has not begun is not begun, and no thread is left."""
    compiler = Compiler(
        tmp_path / "kept", sources=KernelSources(directory), toolchain=NEW, threads=1
    )
    before = threading.active_count()
    slow = [Instance.of("add", "slow", n) for n in range(40)]
    with pytest.raises(CompileError):
        compiler.request([Instance.of("add", "broken"), *slow], ARCH)
    assert threading.active_count() == before
    assert len(played) < 40


def test_a_missing_source_is_told(tmp_path, directory, played):
    """With its path."""
    with pytest.raises(CompileError, match=r"nowhere\.cu cannot be read"):
        compiler_of(tmp_path, directory).request([Instance.of("nowhere", "add")], ARCH)


def test_a_wheel_tells_the_version(tmp_path):
    """Nothing is loaded for it; where there is no wheel, NVRTC is asked."""
    (tmp_path / "nvidia_cuda_nvrtc_cu12-12.9.86.dist-info").mkdir()
    assert find_toolchain(lambda: "13.4", [str(tmp_path)]) == Toolchain("13.4")
    (tmp_path / "nvidia_cuda_nvrtc-13.5.37.dist-info").mkdir()
    found = find_toolchain(pytest.fail, ["/nowhere", str(tmp_path)])
    assert (found.release, found.include) == ((13, 5), None)


def test_older_compilers_need_the_headers_of_cuda(tmp_path):
    """What is in them counts, not where they are; without any, the message says what to install."""
    found = []
    for place, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "cuda_fp16.h").write_text(content)
        found.append(find_toolchain(lambda: "13.0", [], lambda place=place: tmp_path / place))
    assert found[0].include == tmp_path / "a"
    assert found[0].identity == found[1].identity != found[2].identity
    with pytest.raises(DeviceUnavailable, match=r"nvidia-cuda-nvrtc>=13\.3"):
        find_toolchain(lambda: "13.0", [], lambda: None)


def test_bindings_that_are_not_installed(monkeypatch):
    """The message is how to get them."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(DeviceUnavailable, match=r"corral\[cuda\]"):
        nvrtc_version()


def test_a_library_that_is_not_installed(real, monkeypatch):
    """The bindings raise where they find none."""
    from cuda.bindings import nvrtc

    def missing():
        raise RuntimeError("no libnvrtc")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(DeviceUnavailable, match=r"NVRTC.*corral\[cuda\]"):
        nvrtc_version()


def test_nvrtc_compiles(tmp_path, directory, real):
    """Our headers and CUDA's are found; the account is what the assembler says."""
    compiler = compiler_of(tmp_path, directory, machine_toolchain())
    cubins = compiler.request([ONE, TWO], ARCH)
    assert all(cubin.code.startswith(b"\x7fELF") for cubin in cubins.values())
    assert cubins[ONE].symbol.encode() in cubins[ONE].code
    assert cubins[ONE].symbol != cubins[TWO].symbol
    assert cubins[ONE].usage.registers > 0
    assert cubins[ONE].usage.shared_bytes == 128
    assert not cubins[ONE].warnings


def test_nvrtc_rejects(tmp_path, directory, real):
    """The message begins with what and where, and the error keeps the source."""
    (directory / "add.cu").write_text(SOURCE.replace("plus<N>", "minus<N>"))
    with pytest.raises(CompileError) as caught:
        compiler_of(tmp_path, directory, machine_toolchain()).request([ONE], ARCH)
    text = str(caught.value)
    assert text.startswith("corral::add<1> of add.cu for sm_90a does not compile: add.cu(9): error")
    assert 'identifier "minus" is undefined' in text
    assert "minus<N>" in caught.value.ir


def test_instances_that_do_not_exist(tmp_path, directory, real):
    """A kernel that its file lacks is told as one."""
    with pytest.raises(CompileError, match=r"corral::subtract<1> of add\.cu"):
        compiler_of(tmp_path, directory, machine_toolchain()).request(
            [Instance.of("add", "subtract", 1)], ARCH
        )


def test_devices_that_nvrtc_does_not_know(tmp_path, directory, real):
    """A newer compiler is the way out."""
    with pytest.raises(DeviceUnavailable, match="does not know sm_999"):
        compiler_of(tmp_path, directory, machine_toolchain()).request([ONE], "sm_999")


def test_headers_that_cannot_be_unpacked(tmp_path, directory, real):
    """The cache is at fault, not the kernel."""
    toolchain = machine_toolchain()
    if toolchain.include is not None:
        pytest.skip(f"NVRTC {toolchain.version} brings no headers")
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    (kept / f"headers-{toolchain.version}").mkdir()
    (kept / f"headers-{toolchain.version}" / ".nvrtc_install.lock").mkdir()
    with pytest.raises(ResourceError, match="CORRAL_CACHE"):
        compiler_of(tmp_path, directory, toolchain).request([ONE], ARCH)


WARM = """
import sys
sys.path[:] = {path!r}
from pathlib import Path
from corral.devices.cuda.compile import Compiler
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.kernel_sources import KernelSources
compiler = Compiler(Path({kept!r}), sources=KernelSources(Path({directory!r})))
compiler.request([Instance.of("add", "add", 1)], "sm_90a")
print(sorted(name for name in sys.modules if name.split(".")[0] in ("cuda", "concurrent")))
"""


def test_a_warm_start_loads_no_compiler(tmp_path, directory, real):
    """Neither the bindings nor NVRTC: files are read and that is all."""
    if machine_toolchain().include is not None or "." not in machine_toolchain().version[3:]:
        pytest.skip("NVRTC did not come as a wheel that brings its headers")
    compiler_of(tmp_path, directory, machine_toolchain()).request([ONE], ARCH)
    script = WARM.format(path=sys.path, kept=str(tmp_path / "kept"), directory=str(directory))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
