"""What the planner must know of a CUDA device; importable where CUDA is not."""

from corral.memory.traits import DeviceTraits
from corral.quant.packed import CPU_INTERLEAVE
from corral.tensor.ops import Op

LEAST_CAPABILITY = (8, 0)
"""Of cards that the kernels run on: Ampere and newer."""
GRANULARITY = 2 << 20
"""What the driver rounds every allocation up to, as measured (decision 6)."""
_RECORD_BYTES = 256
DECODE_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of batches in which sequences go on by a token each."""
NARROW_ROWS = DECODE_BUCKETS[-1]
"""Batches of more rows are multiplied sooner through factors than by packed weights."""
_PREFILL_BUCKETS = (256, 512, 1024, 2048, 4096)
ADAPTER_PART_COLUMNS = 512
"""Columns of an adapter's A that a thread block reads: enough blocks to be fast with one row."""
SEGMENTS = 264
"""Parts of attention that keep a card busy: two for each multiprocessor of an H100 or H200."""


def cuda_traits(context_bytes: int) -> DeviceTraits:
    """Return the traits of a CUDA device whose context takes so many bytes."""
    return DeviceTraits(
        kind="cuda",
        alignment=256,
        granularity=GRANULARITY,
        interleave=CPU_INTERLEAVE,
        fused=frozenset(
            {Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD}
        ),
        record_bytes=_RECORD_BYTES,
        segments=SEGMENTS,
        segment_bytes=8,
        two_records=frozenset({Op.ATTENTION}),
        narrow_rows=NARROW_ROWS,
        buckets=DECODE_BUCKETS + _PREFILL_BUCKETS,
        flights=2,
        chunk_tokens=2048,
        chunk_beside_tokens=512,
        loading_bytes=64 << 20,
        readers=8,
        context_bytes=context_bytes,
        has_own_memory=True,
        attaches=True,
        adapter_part_columns=ADAPTER_PART_COLUMNS,
    )
