"""What the planner must know of this device; importable where LLVM is not."""

import mmap

from corral.memory.traits import DeviceTraits
from corral.quant.packed import CPU_INTERLEAVE
from corral.tensor.ops import Op

RECORD_WORDS = 32
"""64-bit words of a record: a program row, then the fields of the widest kernel."""
WORD_BYTES = 8

CPU_TRAITS = DeviceTraits(
    kind="cpu",
    alignment=64,
    granularity=mmap.PAGESIZE,
    interleave=CPU_INTERLEAVE,
    fused=frozenset(
        {Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD}
    ),
    record_bytes=RECORD_WORDS * WORD_BYTES,
)
"""The CPU: 16 rows of packed weights side by side, A8 activations, one record a node."""
