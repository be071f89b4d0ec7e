"""What the planner must know of a CUDA device; importable where CUDA is not."""

from corral.memory.traits import DeviceTraits
from corral.quant.packed import CPU_INTERLEAVE
from corral.tensor.ops import Op

GRANULARITY = 2 << 20
"""What the driver rounds every allocation up to, as measured (decision 6)."""
_RECORD_BYTES = 256


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
        context_bytes=context_bytes,
        has_own_memory=True,
    )
