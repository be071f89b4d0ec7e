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
    def is_arm(self) -> bool:
        """Whether NEON intrinsics exist."""
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def is_x86(self) -> bool:
        """Whether x86 intrinsics exist."""
        return self.triple.startswith("x86_64")


_REQUEST_TILE_REGISTERS = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) on x86-64."""

_AVX2 = "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe"
_AVX512 = "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd," + _AVX2
_LESSER = {
    "avx512": ("x86-64-v3", _AVX512, 512, Dot.MADD_512),
    "avxvnni": ("x86-64-v3", "+avxvnni," + _AVX2, 256, Dot.VNNI_256),
    "avx2": ("x86-64-v3", _AVX2, 256, Dot.MADD_256),
    "portable": ("x86-64", "", 128, Dot.PORTABLE),
}
"""Instruction sets of x86-64 below the host's own: processor, features, vector bits, dot."""


@functools.cache
def runnable() -> tuple[Target, ...]:
    """Return every target whose code this machine can run, the best first."""
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    features = llvm.get_host_cpu_features()
    present = {name for name, is_present in features.items() if is_present}
    if not triple.startswith("x86_64"):
        return (_other(triple, cpu, present, features.flatten()),)
    own: tuple[Target, ...] = ()
    if _names(_AVX512) | {"avx512vnni"} <= present:
        best = Target(
            "avx512vnni", triple, cpu, features.flatten(), 512, Dot.VNNI_512, fused=True, half=True
        )
        own = (best,)
        if {"amx-tile", "amx-int8"} <= present and _tile_registers_allowed():
            own = (replace(best, path="amx", amx=True), best)
    return own + tuple(
        Target(path, triple, base, flags, bits, dot, fused=bits > 128, half=bits > 128)
        for path, (base, flags, bits, dot) in _LESSER.items()
        if _names(flags) <= present
    )


def _names(flags: str) -> set[str]:
    return {flag[1:] for flag in flags.split(",") if flag}


def _other(triple: str, cpu: str, present: set[str], features: str) -> Target:
    arm = triple.startswith(("aarch64", "arm64"))
    # macOS does not tell features; all of its 64-bit processors but the first few have the dot.
    dots = arm and ("dotprod" in present or cpu.startswith("apple-m"))
    if dots and "dotprod" not in present:
        features = ",".join(filter(None, (features, "+dotprod")))
    dot = Dot.NEON if dots else Dot.PORTABLE
    return Target("neon" if arm else "portable", triple, cpu, features, 128, dot, arm, arm)


def _tile_registers_allowed() -> bool:
    """Ask the system for the tile unit's registers, for all threads of this process."""
    if not sys.platform.startswith("linux"):
        return False
    request = [ctypes.c_long(number) for number in _REQUEST_TILE_REGISTERS]
    return bool(ctypes.CDLL(None).syscall(*request) == 0)


def host() -> Target:
    """Return the best target this machine can run."""
    return runnable()[0]
