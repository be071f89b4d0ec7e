"""Which instructions kernels may use: the host's own, or those of a lesser processor for tests.

A `Target` is passed to whoever emits or compiles code; nothing here knows a kernel.
"""

import ctypes
import enum
import functools
import sys
from dataclasses import dataclass, replace

import llvmlite.binding as llvm


class Dot(enum.Enum):
    """How four unsigned by four signed bytes are multiplied and summed into 32 bits."""

    VNNI_512 = "vpdpbusd on 512 bits"
    VNNI_256 = "vpdpbusd on 256 bits"
    MADD_512 = "vpmaddubsw and vpmaddwd on 512 bits"
    MADD_256 = "vpmaddubsw and vpmaddwd on 256 bits"
    NEON = "sdot, for codes of up to 7 bits; usdot for 8"
    PORTABLE = "plain multiplications"


@dataclass(frozen=True, slots=True)
class Target:
    """A processor to emit code for."""

    path: str
    """Short name of the instruction set, for humans and tests."""
    triple: str
    cpu: str
    features: str
    """In LLVM's form: `+avx2,-avx512f`."""
    vector_bits: int
    dot: Dot
    fused: bool
    """Whether a fused multiply-add is one instruction; otherwise it is rounded twice."""
    half: bool
    """Whether F16 converts by instruction."""
    amx: bool = False
    """Whether int8 tiles are multiplied by the tile unit."""

    @property
    def is_x86(self) -> bool:
        """Whether x86 intrinsics exist."""
        return self.triple.startswith("x86_64")


_REQUEST_TILE_REGISTERS = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) on x86-64."""

_LESSER = {
    "avx512": ("skylake-avx512", 512, Dot.MADD_512),
    "avxvnni": ("alderlake", 256, Dot.VNNI_256),
    "avx2": ("haswell", 256, Dot.MADD_256),
    "portable": ("x86-64", 128, Dot.PORTABLE),
}
_NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c", "bmi2"},
    "avxvnni": {"avx2", "avxvnni", "fma", "f16c", "bmi2"},
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "portable": set[str](),
}
_AVX2_FEATURES = "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe"
_FEATURES = {
    "avx512": "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd," + _AVX2_FEATURES,
    "avxvnni": "+avxvnni," + _AVX2_FEATURES,
    "avx2": _AVX2_FEATURES,
    "portable": "",
}


def _present(features: dict[str, bool]) -> set[str]:
    return {name for name, present in features.items() if present}


def _x86_target(triple: str, path: str) -> Target:
    cpu, bits, dot = _LESSER[path]
    simd = path != "portable"
    base = "x86-64-v3" if simd else cpu
    return Target(path, triple, base, _FEATURES[path], bits, dot, fused=simd, half=simd)


def _host_x86(triple: str, present: set[str], features: str) -> Target | None:
    needed = _NEEDED["avx512"] | {"avx512vnni"}
    if not needed <= present:
        return None
    cpu = llvm.get_host_cpu_name()
    return Target("avx512vnni", triple, cpu, features, 512, Dot.VNNI_512, True, True)


@functools.cache
def runnable() -> tuple[Target, ...]:
    """Return every target whose code this machine can run, the best first."""
    triple = llvm.get_process_triple()
    host_features = llvm.get_host_cpu_features()
    present, features = _present(host_features), host_features.flatten()
    if not triple.startswith("x86_64"):
        neon = triple.startswith(("aarch64", "arm64"))
        dot = Dot.NEON if neon and "dotprod" in present else Dot.PORTABLE
        cpu = llvm.get_host_cpu_name()
        return (Target("host", triple, cpu, features, 128, dot, fused=neon, half=neon),)
    best = _host_x86(triple, present, features)
    lesser = tuple(_x86_target(triple, path) for path in _LESSER if _NEEDED[path] <= present)
    if best and {"amx-tile", "amx-int8"} <= present and _tile_registers_allowed():
        return (replace(best, path="amx", amx=True), best, *lesser)
    return (best, *lesser) if best else lesser


def _tile_registers_allowed() -> bool:
    """Ask the system for the tile unit's registers, for all threads of this process."""
    if not sys.platform.startswith("linux"):
        return False
    request = [ctypes.c_long(number) for number in _REQUEST_TILE_REGISTERS]
    return bool(ctypes.CDLL(None).syscall(*request) == 0)


def host() -> Target:
    """Return the best target this machine can run."""
    return runnable()[0]
