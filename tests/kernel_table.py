"""Every CUDA kernel that the tests compile, and what it may take; one line makes one more."""

from dataclasses import dataclass

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.kernel_sources import KERNELS

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
ALWAYS = ("sm_80", "sm_90a")
"""The oldest that is supported, and the one with the most code of its own."""


@dataclass(frozen=True)
class Row:
    """A kernel, and at most what a thread of it may use on any architecture."""

    instance: Instance
    registers: int = 255
    stack_bytes: int = 0
    """Of arrays that are indexed by what is known only when running, and of spills."""
    spill_bytes: int = 0


def _rope_append(*arguments):
    return Row(Instance.of("rope_append", "rope_append", *arguments), registers=48)


TABLE: tuple[Row, ...] = (
    _rope_append("CacheF16", 128, 128, True, False),
    _rope_append("CacheF16", 80, 32, False, False),
    _rope_append("CacheBF16", 256, 256, False, True),
    _rope_append("CacheQ8_0", 128, 128, False, True),
)


def rows(is_complete=False):
    """Return (row, architecture) of all there are, or of a part that has each kernel thrice and
    leaves no architecture out."""
    rest = [arch for arch in ARCHITECTURES if arch not in ALWAYS]
    for number, row in enumerate(TABLE):
        for arch in ARCHITECTURES if is_complete else (*ALWAYS, rest[number % len(rest)]):
            yield row, arch


def source_names():
    """Return every file of kernels."""
    return sorted(path.stem for path in KERNELS.glob("*.cu"))
