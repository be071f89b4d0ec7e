"""IQ4_NL, IQ4_XS, MXFP4: 4-bit codes that choose among sixteen values.

    IQ4_NL  scale 2 B  codes 16 B                                            32 values
    IQ4_XS  scale 2 B  scale tops 2 B  scale lows 4 B (6 bits, minus 32)     256 values, codes 128 B
    MXFP4   exponent 1 B  codes 16 B                                         32 values

The sixteen values are in `packed.py`. MXFP4's are doubled there, so its scale is half the power of
two that the exponent stands for.
"""

import numpy as np

from corral.quant.blocks import Blocks, Bytes, half, planes


def split_iq4_nl(data: Bytes) -> Blocks:
    """Take IQ4_NL blocks apart: (n, 18) bytes."""
    return Blocks(planes(data[:, 2:], 16, 4), half(data[:, :2]))


def split_iq4_xs(data: Bytes) -> Blocks:
    """Take IQ4_XS blocks apart: (n, 136) bytes, parts of 32."""
    scales = planes(data[:, 4:8], 1, 4) | planes(data[:, 2:4], 1, 2) << np.uint8(4)
    return Blocks(
        codes=planes(data[:, 8:], 16, 4),
        scale=half(data[:, :2]),
        sub_scales=scales.astype(np.int8) - np.int8(32),
    )


def split_mxfp4(data: Bytes) -> Blocks:
    """Take MXFP4 blocks apart: (n, 17) bytes."""
    exponents = data[:, 0].astype(np.int32)
    scale = np.ldexp(np.float32(1), exponents - 128).astype(np.float32)
    return Blocks(planes(data[:, 1:], 16, 4), scale)
