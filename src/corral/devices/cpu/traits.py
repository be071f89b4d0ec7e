"""What the planner must know of this device; importable where LLVM is not."""

import mmap
import os
from dataclasses import replace

from corral.config import settings
from corral.memory.traits import DeviceTraits
from corral.quant.packed import CPU_INTERLEAVE
from corral.tensor.ops import Op

RECORD_WORDS = 32
"""64-bit words of a record: a program row, then the fields of the widest kernel."""
WORD_BYTES = 8
SEGMENT_BLOCKS = 8
"""KV blocks of a segment of attention: what one thread computes and another may fold."""
SEGMENT_BYTES = 64
"""Of a segment, before its sums: its greatest score and its sum of weights."""

CPU_TRAITS = DeviceTraits(
    kind="cpu",
    alignment=64,
    granularity=mmap.PAGESIZE,
    interleave=CPU_INTERLEAVE,
    fused=frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD}),
    record_bytes=RECORD_WORDS * WORD_BYTES,
    workspace_bytes=128 << 10,
    workspace_bytes_per_column=32,
    segment_blocks=SEGMENT_BLOCKS,
    segment_bytes=SEGMENT_BYTES,
    two_records=frozenset({Op.ATTENTION}),
    attaches=True,
    chunk_beside_tokens=64,  # nine tenths of the speed of the largest chunks, at a tenth the pause
)
"""The CPU: 16 rows of packed weights side by side, A8 activations, one record a node."""


def usable_processors() -> int:
    """Return how many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_traits(threads: int | None = None) -> DeviceTraits:
    """Return the traits for a number of threads; by default CORRAL_THREADS, else all there are."""
    return replace(CPU_TRAITS, workers=threads or settings().threads or usable_processors())
