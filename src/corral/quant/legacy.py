"""Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: 32 values with one F16 scale and perhaps one F16 offset.

    Q4_0   scale 2 B                        codes 16 B    value = scale × (code − 8)
    Q4_1   scale 2 B  offset 2 B            codes 16 B    value = scale × code + offset
    Q5_0   scale 2 B              tops 4 B  codes 16 B    value = scale × (code − 16)
    Q5_1   scale 2 B  offset 2 B  tops 4 B  codes 16 B    value = scale × code + offset
    Q8_0   scale 2 B                        codes 32 B    value = scale × code, signed

A byte of 4-bit codes holds column j in its low and column 16 + j in its high half; bit c of the
tops is the fifth bit of column c.
"""

import numpy as np

from corral.quant.blocks import Blocks, Bytes, Floats, half, half_bytes, planes


def split_q4_0(data: Bytes) -> Blocks:
    """Take Q4_0 blocks apart: (n, 18) bytes."""
    return Blocks(planes(data[:, 2:], 16, 4), half(data[:, :2]))


def split_q4_1(data: Bytes) -> Blocks:
    """Take Q4_1 blocks apart: (n, 20) bytes."""
    return Blocks(planes(data[:, 4:], 16, 4), half(data[:, :2]), offset=half(data[:, 2:4]))


def split_q5_0(data: Bytes) -> Blocks:
    """Take Q5_0 blocks apart: (n, 22) bytes."""
    return Blocks(_five_bits(data[:, 2:6], data[:, 6:]), half(data[:, :2]))


def split_q5_1(data: Bytes) -> Blocks:
    """Take Q5_1 blocks apart: (n, 24) bytes."""
    codes = _five_bits(data[:, 4:8], data[:, 8:])
    return Blocks(codes, half(data[:, :2]), offset=half(data[:, 2:4]))


def split_q8_0(data: Bytes) -> Blocks:
    """Take Q8_0 blocks apart: (n, 34) bytes; codes become unsigned with zero 128."""
    return Blocks(data[:, 2:] ^ np.uint8(128), half(data[:, :2]))


def quantize_q4_0(values: Floats) -> Bytes:
    """Round to Q4_0: (n, 32) → (n, 18). The value of largest magnitude becomes code 0."""
    scale, codes = _symmetric(values, 8)
    return np.concatenate([half_bytes(scale), _pack_nibbles(codes)], axis=1)


def quantize_q4_1(values: Floats) -> Bytes:
    """Round to Q4_1: (n, 32) → (n, 20), over the range from the least to the largest value."""
    scale, least, codes = _over_range(values, 15)
    return np.concatenate([half_bytes(scale), half_bytes(least), _pack_nibbles(codes)], axis=1)


def quantize_q5_0(values: Floats) -> Bytes:
    """Round to Q5_0: (n, 32) → (n, 22). The value of largest magnitude becomes code 0."""
    scale, codes = _symmetric(values, 16)
    return np.concatenate([half_bytes(scale), *_pack_five_bits(codes)], axis=1)


def quantize_q5_1(values: Floats) -> Bytes:
    """Round to Q5_1: (n, 32) → (n, 24), over the range from the least to the largest value."""
    scale, least, codes = _over_range(values, 31)
    return np.concatenate([half_bytes(scale), half_bytes(least), *_pack_five_bits(codes)], axis=1)


def quantize_q8_0(values: Floats) -> Bytes:
    """Round to Q8_0, halves away from zero: (n, 32) → (n, 34)."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    inverse = _inverse(scale)
    exact = values * np.where(np.isfinite(inverse), inverse, np.float32(0))
    whole = np.trunc(exact)
    # Not trunc(x + 0.5): the sum rounds 0.49999997 up.
    away = np.copysign(np.abs(exact - whole) >= np.float32(0.5), exact)
    codes = (whole + away).astype(np.int8)
    return np.concatenate([half_bytes(scale[:, 0]), codes.view(np.uint8)], axis=1)


def _five_bits(tops: Bytes, low: Bytes) -> Bytes:
    bits = np.unpackbits(tops, axis=1, bitorder="little")
    return planes(low, 16, 4) | bits << np.uint8(4)


def _symmetric(values: Floats, zero: int) -> tuple[Floats, Bytes]:
    """Return scales (n,) and codes (n, 32) up to 2 × zero − 1."""
    widest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scale = (widest + np.float32(0)) / np.float32(-zero)  # not of −0, whose sign would show
    return scale[:, 0], _round_down(values, scale, zero + 0.5, 2 * zero - 1)


def _over_range(values: Floats, most: int) -> tuple[Floats, Floats, Bytes]:
    """Return scales and least values (n,) and codes (n, 32) up to `most`."""
    # Of 0 and −0 the first counts, as in ggml; min() and max() take either.
    least = np.take_along_axis(values, values.argmin(axis=1, keepdims=True), axis=1)
    greatest = np.take_along_axis(values, values.argmax(axis=1, keepdims=True), axis=1)
    scale = (greatest - least) / np.float32(most)
    return scale[:, 0], least[:, 0], _round_down(values - least, scale, 0.5, most)


def _round_down(values: Floats, scale: Floats, more: float, most: int) -> Bytes:
    """Return the whole parts of value / scale + more; all 0 where 1 / scale is beyond F32."""
    inverse = _inverse(scale)
    codes = (values * inverse + np.float32(more)).clip(0, most)
    return np.where(np.isfinite(inverse), codes, np.float32(0)).astype(np.uint8)


def _inverse(scale: Floats) -> Floats:
    """Return 1 / scale: 0 for 0, infinite where the scale is too small."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _pack_nibbles(codes: Bytes) -> Bytes:
    return codes[:, :16] | codes[:, 16:] << np.uint8(4)


def _pack_five_bits(codes: Bytes) -> tuple[Bytes, Bytes]:
    """Pack (n, 32) as `_five_bits` reads them: the tops (n, 4) and the low halves (n, 16)."""
    tops = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return tops, _pack_nibbles(codes & np.uint8(15))
