"""Runs the CUDA kernels of `devices/cuda/kernels` on host memory, compiled as C++ by g++.

`emulate("norm", "corral::rms_norm<128>", grid, block, shared_bytes, fields)` runs one launch, or
raises `EmulationError` with what went wrong (`emulation.hpp` lists what is found). `Memory` holds
the buffers of a test between guard zones. `needs_emulator` marks tests that need a compiler.

An instance is compiled when it is first run, which takes g++ two seconds; `prepare_missing` needs
no longer for ten of one file, so tests say before what they will run.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import corral

HERE = Path(__file__).parent
KERNELS = Path(corral.__file__).parent / "devices/cuda/kernels"
_MESSAGE_BYTES = 1024
_FLAGS = (
    "-std=c++17",
    "-O1",  # -O2 takes twice as long to compile, and makes no test quicker
    "-fPIC",
    "-w",
    "-ffp-contract=fast",
    "-march=native",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-fno-strict-aliasing",
    "-fsanitize=alignment,bounds",
    "-DCORRAL_EMULATION",
)


class EmulationError(Exception):
    """What a launch did wrong."""


@cache
def cuda_headers():
    """Return the folder that holds cuda_fp16.h, or None."""
    candidates = [Path(p) for p in os.environ.get("CPATH", "").split(":") if p]
    spec = find_spec("nvidia")
    for base in spec.submodule_search_locations if spec else ():
        candidates += sorted(Path(base).glob("*/include"))
    candidates += [Path("/usr/local/cuda/include")]
    needed = ("cuda_fp16.h", "vector_functions.h", "crt/host_defines.h")
    found = (path for path in candidates if all((path / name).exists() for name in needed))
    return next(found, None)


def missing():
    """Return why nothing can be emulated here, or None."""
    if shutil.which("g++") is None:
        return "no g++ to compile kernels for the CPU"
    if cuda_headers() is None:
        return "no CUDA headers (cuda_fp16.h) to compile kernels with"
    return None


needs_emulator = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Library:
    """Instances of one kernel file, compiled together."""

    def __init__(self, stem, names, arch=900):
        self._names = {name: number for number, name in enumerate(names)}
        self._library = ctypes.CDLL(str(_compiled(stem, tuple(names), arch)))
        self._library.corral_emulate.restype = ctypes.c_int
        self._lock = threading.Lock()

    def run(self, name, grid, block, shared_bytes, fields):
        """Run one launch; `fields` are the words of the kernel's struct in order."""
        words = (ctypes.c_uint64 * len(fields))(*(int(word) & (1 << 64) - 1 for word in fields))
        sizes = (ctypes.c_uint * 6)(*_three(grid), *_three(block))
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        count = ctypes.c_size_t(len(fields))
        shared = ctypes.c_size_t(shared_bytes)
        number = self._names[name]
        with self._lock:  # one machine a library; several threads may upload
            is_well = self._library.corral_emulate(number, sizes, shared, words, count, message)
        if not is_well:
            raise EmulationError(f"{name}: {message.value.decode()}")


@cache
def library(stem, names, arch=900):
    """Return a library of instances; compiled once, kept for the process."""
    return Library(stem, names, arch)


def emulate(stem, name, grid, block, shared_bytes, fields, *, arch=900):
    """Run one launch of one instance; `stem` names the file (or is the path of one)."""
    among = _prepared.get((stem, name, arch)) or library(stem, (name,), arch)
    among.run(name, grid, block, shared_bytes, fields)


def emulate_kernel(kernel, fields, arch=900):
    """Run one launch of a `Kernel`; `fields` are its words in order."""
    stem, name = kernel.instance.stem, kernel.instance.name
    emulate(stem, name, kernel.grid, kernel.threads, kernel.shared_bytes, fields, arch=arch)


def _three(size):
    return (size, 1, 1) if isinstance(size, int) else (*size, 1, 1)[:3]


def _compiled(stem, names, arch):
    path = stem if isinstance(stem, Path) else KERNELS / f"{stem}.cu"
    source = _wrapper(path, names)
    flags = _flags(arch)
    files = (path, *sorted(KERNELS.rglob("*.cuh")), *sorted(HERE.glob("*.hpp")))
    target = _cache() / f"{path.stem}-{_digest((source, flags), *files)}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            _compile(source, Path(folder), (f"-I{_precompiled(flags)}", *flags), target)
    return target


def _flags(arch):
    return (*_FLAGS, f"-DCORRAL_ARCH={arch}", f"-I{cuda_headers()}", f"-I{KERNELS}")


def _digest(what, *files):
    digest = hashlib.sha256(repr(what).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


@cache
def _precompiled(flags):
    """Return a folder with the emulator's headers, the main one precompiled."""
    headers = sorted(HERE.glob("*.hpp"))
    target = _cache() / f"headers-{_digest(flags, *headers)}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as temporary:
            folder = Path(temporary) / "headers"
            folder.mkdir()
            for header in headers:
                shutil.copy(header, folder)
            _run_compiler(folder, *flags, "-x", "c++-header", "emulation.hpp")
            with suppress(OSError):  # another process was quicker
                folder.rename(target)
    return target


def _cache():
    folder = Path(os.environ.get("CORRAL_EMULATION_CACHE", tempfile.gettempdir()))
    folder /= f"corral-emulation-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    assert folder.stat().st_uid == os.getuid()
    return folder


def _compile(source, folder, flags, target):
    (folder / "all.cpp").write_text(source, "utf-8")
    _run_compiler(folder, *flags, "-c", "all.cpp", "-o", "all.o")
    _run_compiler(folder, "-shared", "all.o", "-o", "all.so")  # apart: no sanitizer's library
    (folder / "all.so").rename(target)


def _run_compiler(folder, *arguments):
    done = subprocess.run(("g++", *arguments), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise EmulationError("\n".join(done.stderr.splitlines()[:60]))


def _wrapper(path, names):
    lines = [
        '#include "emulation.hpp"',
        f'#include "{path}"',
        "using corral::emulation::run;",
        'extern "C" __attribute__((visibility("default"))) int corral_emulate(int number,',
        "    const unsigned* sizes, size_t shared, const void* words, size_t count,",
        "    char* message) {",
        "  const dim3 grid(sizes[0], sizes[1], sizes[2]), block(sizes[3], sizes[4], sizes[5]);",
        "  bool is_well = false;",
        "  switch (number) {",
        *(
            f"    case {number}: is_well = run(&{name}, grid, block, shared, words, count); break;"
            for number, name in enumerate(names)
        ),
        "  }",
        f'  std::snprintf(message, {_MESSAGE_BYTES}, "%s",',
        "                corral::emulation::machine().message.c_str());",
        "  return is_well;",
        "}",
    ]
    return "\n".join(lines) + "\n"


class Memory:
    """The buffers of one test, each between guard zones that nobody may write.

    Guards are filled with 0xFF, so that floats read from them are NaN.
    """

    GUARD = 1024

    def __init__(self):
        self._buffers = []

    def empty(self, shape, dtype=np.float32):
        """Return an array whose bytes are all 0xFF: NaN for floats, -1 for integers."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.full(size + 2 * self.GUARD + 256, 0xFF, np.uint8)
        start = self.GUARD + -(raw.ctypes.data + self.GUARD) % 256
        self._buffers.append((raw, start, size))
        return raw[start : start + size].view(dtype).reshape(shape)

    def of(self, values):
        """Return a copy of an array."""
        values = np.asarray(values)
        copy = self.empty(values.shape, values.dtype)
        copy[...] = values
        return copy

    def check(self):
        """Assert that nothing was written outside of the buffers."""
        for raw, start, size in self._buffers:
            assert (raw[:start] == 0xFF).all(), "written before a buffer"
            assert (raw[start + size :] == 0xFF).all(), "written past a buffer"


def address(array):
    """Return where an array lies, as a field."""
    return array.ctypes.data


_prepared = {}
_TOGETHER = 6
"""Instances of one file that are worth another library, if a processor is free for it."""


def prepare_missing(instances, arch=900):
    """Compile those of the instances that were not prepared: together what is of one file."""
    missing = {}
    for instance in instances:
        if (instance.stem, instance.name, arch) not in _prepared:
            missing.setdefault(instance.stem, {})[instance.name] = None
    parts = []
    for stem, names in missing.items():
        number = min(max(1, len(names) // _TOGETHER), len(os.sched_getaffinity(0)))
        parts += [(stem, tuple(names)[first::number]) for first in range(number)]
    if parts:
        _precompiled(_flags(arch))  # by one thread, the others will want it
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            made = pool.map(lambda part: library(*part, arch), parts)
            for (stem, names), one in zip(parts, made, strict=True):
                _prepared.update({(stem, name, arch): one for name in names})


@cache
def members(stem, name):
    """Return the members of the struct that a kernel takes, as its source names them."""
    text = "".join(path.read_text("utf-8") for path in sorted(KERNELS.rglob("*.cuh")))
    text = (KERNELS / f"{stem}.cu").read_text("utf-8") + text
    function = re.match(r"corral::(\w+)", name)[1]
    kind = re.search(
        rf"\b{function}\(\s*(?:__grid_constant__ const|const __grid_constant__) (\w+) f\)", text
    )[1]
    return _members_of(kind, text)


def _members_of(kind, text):
    """Return the members of a struct; those of an array of structs are numbered."""
    body = re.search(rf"struct {kind} {{(.*?)\n}};", text, re.S)[1]
    found = []
    for line in re.findall(r"^ +([^/;]+);", body, re.M):
        array = re.fullmatch(r"(\w+) \w+\[(\w+)\]", line)
        if array:
            parts = range(int(re.search(rf"constexpr int {array[2]} = (\d+)", text)[1]))
            inner = _members_of(array[1], text)
            found += [f"{member}{part}" for part in parts for member in inner]
        else:
            found += [part.split()[-1].strip("*") for part in line.split(",")]
    return found


def run(launch):
    """Run a `Launch`; its instance is compiled unless it was prepared."""
    stem, name = launch.instance.stem, launch.instance.name
    assert list(launch.fields) == members(stem, name), f"fields of {name}"
    emulate(stem, name, launch.grid, launch.block, launch.shared_bytes, launch.words)
