"""Q2_K to Q6_K: 256 values in parts of 16 or 32, each with a small integer scale (and minimum).

Q2_K   scales and minima 16 B (4 + 4 bits)  codes 64 B  scale 2 B  minimum 2 B
Q3_K   tops 32 B  codes 64 B  scales 12 B (6 bits, minus 32)  scale 2 B
Q4_K   scale 2 B  minimum 2 B  scales and minima 12 B (6 + 6 bits)  codes 128 B
Q5_K   scale 2 B  minimum 2 B  scales and minima 12 B  tops 32 B  codes 128 B
Q6_K   low 128 B  high 64 B  scales 16 B (signed)  scale 2 B

value = (scale × part's scale) × (code − zero) − (minimum × part's minimum)
"""

import numpy as np

from corral.quant.blocks import Blocks, Bytes, Floats, half, half_bytes, planes
from corral.quant.search import (
    LEAST_MAGNITUDE,
    Candidates,
    fit_ranges,
    fit_refined,
    fit_scales,
    nearest,
)

_Q2_CANDIDATES = Candidates(most=3, first=-0.5, step=0.1, steps=15, is_linear=True)
_Q4_CANDIDATES = Candidates(most=15, first=-1.0, step=0.1, steps=20)
_Q5_CANDIDATES = Candidates(most=31, first=-0.5, step=0.1, steps=15)
_EACH_BIT = np.arange(8, dtype=np.uint8)[:, None]


def split_q2_k(data: Bytes) -> Blocks:
    """Take Q2_K blocks apart: (n, 84) bytes, parts of 16."""
    parts = data[:, :16]
    return Blocks(
        codes=planes(data[:, 16:80], 32, 2),
        scale=half(data[:, 80:82]),
        sub_scales=parts & np.uint8(15),
        offset=-half(data[:, 82:84]),
        sub_offsets=parts >> np.uint8(4),
    )


def split_q3_k(data: Bytes) -> Blocks:
    """Take Q3_K blocks apart: (n, 110) bytes, parts of 16; codes have zero 4."""
    tops = planes(data[:, :32], 32, 1)
    scales = planes(data[:, 96:104], 8, 4) | planes(data[:, 104:108], 4, 2) << np.uint8(4)
    return Blocks(
        codes=planes(data[:, 32:96], 32, 2) | tops << np.uint8(2),
        scale=half(data[:, 108:110]),
        sub_scales=scales.astype(np.int8) - np.int8(32),
    )


def split_q4_k(data: Bytes) -> Blocks:
    """Take Q4_K blocks apart: (n, 144) bytes, parts of 32."""
    return _with_minima(data, planes(data[:, 16:144], 32, 4))


def split_q5_k(data: Bytes) -> Blocks:
    """Take Q5_K blocks apart: (n, 176) bytes, parts of 32."""
    tops = planes(data[:, 16:48], 32, 1)
    return _with_minima(data, planes(data[:, 48:176], 32, 4) | tops << np.uint8(4))


def split_q6_k(data: Bytes) -> Blocks:
    """Take Q6_K blocks apart: (n, 210) bytes, parts of 16; codes have zero 32."""
    high = planes(data[:, 128:192], 32, 2)
    return Blocks(
        codes=planes(data[:, :128], 64, 4) | high << np.uint8(4),
        scale=half(data[:, 208:210]),
        sub_scales=data[:, 192:208].view(np.int8),
    )


def quantize_q2_k(values: Floats) -> Bytes:
    """Round to Q2_K as ggml does: (n, 256) → (n, 84)."""
    columns = _columns(values, 16)
    fit = fit_ranges(columns, np.abs(columns), _Q2_CANDIDATES)
    scale, sub_scales = _share(fit.scale.reshape(-1, 16), 15)
    minimum, sub_minima = _share(fit.minimum.reshape(-1, 16), 15)
    step = (_stored(scale)[:, None] * sub_scales).reshape(-1)
    base = (_stored(minimum)[:, None] * sub_minima).reshape(-1)
    rounded = _rounded(columns + base, step, (0, 3))
    codes = np.where(step == 0, fit.codes, rounded).T.reshape(-1, 256).astype(np.uint8)
    parts = sub_scales | sub_minima << np.uint8(4)
    halves = [half_bytes(scale), half_bytes(minimum)]
    return np.concatenate([parts, _pack_two_bits(codes), *halves], axis=1)


def quantize_q3_k(values: Floats) -> Bytes:
    """Round to Q3_K as ggml does: (n, 256) → (n, 110)."""
    columns = _columns(values, 16)
    fit = fit_refined(columns, 4)
    scales = fit.scale.reshape(-1, 16)
    at = np.abs(scales).argmax(axis=1)[:, None]
    widest = np.take_along_axis(scales, at, axis=1)
    none, is_zero = np.float32(0), widest == 0
    inverse = np.where(is_zero, none, np.float32(-32) / widest)
    scale = np.where(is_zero, none, np.float32(1) / inverse)[:, 0]
    whole = nearest(inverse * scales).astype(np.int8).clip(-32, 31)
    sub_scales = np.where(is_zero, np.int8(-32), whole)
    step = (_stored(scale)[:, None] * sub_scales).reshape(-1)
    rounded = _rounded(columns, step, (-4, 3)) + np.float32(4)
    codes = np.where(step == 0, fit.codes, rounded).T.reshape(-1, 256).astype(np.uint8)
    tops = np.bitwise_or.reduce(codes.reshape(-1, 8, 32) >> np.uint8(2) << _EACH_BIT, axis=1)
    low = _pack_two_bits(codes & np.uint8(3))
    packed = _pack_signed_scales((sub_scales + np.int8(32)).view(np.uint8))
    return np.concatenate([tops, low, packed, half_bytes(scale)], axis=1)


def quantize_q4_k(values: Floats) -> Bytes:
    """Round to Q4_K as ggml does: (n, 256) → (n, 144)."""
    return _quantize_with_minima(values, _Q4_CANDIDATES)


def quantize_q5_k(values: Floats) -> Bytes:
    """Round to Q5_K as ggml does: (n, 256) → (n, 176)."""
    return _quantize_with_minima(values, _Q5_CANDIDATES)


def quantize_q6_k(values: Floats) -> Bytes:
    """Round to Q6_K as ggml does: (n, 256) → (n, 210)."""
    columns = _columns(values, 16)
    fit = fit_scales(columns, 32)
    scales = fit.scale.reshape(-1, 16)
    at = np.abs(scales).argmax(axis=1)[:, None]
    widest = np.take_along_axis(scales, at, axis=1)
    is_zero = np.abs(widest) < LEAST_MAGNITUDE
    none = np.float32(0)
    inverse = np.where(is_zero, none, np.float32(-128) / widest)
    scale = np.where(is_zero, none, np.float32(1) / inverse)[:, 0]
    sub_scales = np.minimum(nearest(inverse * scales), 127).astype(np.int8)
    step = (_stored(scale)[:, None] * sub_scales).reshape(-1)
    codes = _rounded(columns, step, (-32, 31)) + np.float32(32)
    codes = np.where(step == 0, fit.codes, codes).T.reshape(-1, 256)
    packed = _pack_six_bits(np.where(is_zero, none, codes).astype(np.uint8))
    return np.concatenate([*packed, sub_scales.view(np.uint8), half_bytes(scale)], axis=1)


def _with_minima(data: Bytes, codes: Bytes) -> Blocks:
    """Take the head of Q4_K and Q5_K apart: eight 6-bit scales and eight 6-bit minima.

    Bytes 0–3 hold scales 0–3, bytes 4–7 minima 0–3; their top two bits are those of numbers 4–7,
    whose low halves are in bytes 8–11, scale below minimum.
    """
    first, second, third = data[:, 4:8], data[:, 8:12], data[:, 12:16]
    low, top = np.uint8(63), np.uint8(48)
    scales = [first & low, third & np.uint8(15) | first >> np.uint8(2) & top]
    minima = [second & low, third >> np.uint8(4) | second >> np.uint8(2) & top]
    return Blocks(
        codes=codes,
        scale=half(data[:, :2]),
        sub_scales=np.concatenate(scales, axis=1),
        offset=-half(data[:, 2:4]),
        sub_offsets=np.concatenate(minima, axis=1),
    )


def _quantize_with_minima(values: Floats, candidates: Candidates) -> Bytes:
    """Round to Q4_K or Q5_K: a value weighs as much as it and its part are large."""
    columns = _columns(values, 32)
    mean = np.sqrt(np.add.reduce(columns * columns, axis=0) / np.float32(32))
    fit = fit_ranges(columns, mean + np.abs(columns), candidates)
    scale, sub_scales = _share(fit.scale.reshape(-1, 8), 63)
    minimum, sub_minima = _share(fit.minimum.reshape(-1, 8), 63)
    step = (_stored(scale)[:, None] * sub_scales).reshape(-1)
    base = (_stored(minimum)[:, None] * sub_minima).reshape(-1)
    rounded = _rounded(columns + base, step, (0, candidates.most))
    codes = np.where(step == 0, fit.codes, rounded).T.reshape(-1, 8, 32).astype(np.uint8)
    low = codes & np.uint8(15)
    nibbles = (low[:, ::2] | low[:, 1::2] << np.uint8(4)).reshape(-1, 128)
    parts = [half_bytes(scale), half_bytes(minimum), _pack_scales(sub_scales, sub_minima)]
    if candidates.most > 15:
        parts.append(np.bitwise_or.reduce(codes >> np.uint8(4) << _EACH_BIT, axis=1))
    return np.concatenate([*parts, nibbles], axis=1)


def _columns(values: Floats, count: int) -> Floats:
    """Return the parts of blocks as the searches take them: (count, parts)."""
    return np.ascontiguousarray(values.reshape(-1, count).T)


def _share(scales: Floats, limit: int) -> tuple[Floats, Bytes]:
    """Split (n, parts) into one scale a block and whole numbers up to a limit."""
    most = np.float32(limit)
    greatest = np.maximum(scales.max(axis=1), np.float32(0))
    inverse = np.where(greatest > 0, most / greatest, np.float32(0))
    whole = nearest(inverse[:, None] * scales).astype(np.uint8)
    return greatest / most, np.minimum(whole, np.uint8(limit))


def _rounded(values: Floats, step: Floats, between: tuple[int, int]) -> Floats:
    """Return the nearest multiples of each part's step, in steps."""
    return nearest(values / step).clip(*between).astype(np.float32)


def _pack_two_bits(codes: Bytes) -> Bytes:
    """Pack (n, 256) codes of two bits as Q2_K and Q3_K have them: (n, 64)."""
    runs = codes.reshape(-1, 2, 4, 32)
    packed: Bytes = np.bitwise_or.reduce(runs << _EACH_BIT[:4] * 2, axis=2)
    return packed.reshape(-1, 64)


def _pack_signed_scales(scales: Bytes) -> Bytes:
    """Pack (n, 16) of six bits as Q3_K has them: low halves (n, 8), then tops (n, 4)."""
    low = scales[:, :8] & np.uint8(15) | (scales[:, 8:] & np.uint8(15)) << np.uint8(4)
    tops = scales.reshape(-1, 4, 4) >> np.uint8(4) << _EACH_BIT[:4] * 2
    return np.concatenate([low, np.bitwise_or.reduce(tops, axis=1)], axis=1)


def _pack_six_bits(codes: Bytes) -> tuple[Bytes, Bytes]:
    """Pack (n, 256) as Q6_K has them: the low halves (n, 128) and the tops (n, 64)."""
    runs = codes.reshape(-1, 2, 4, 32)
    low = runs & np.uint8(15)
    low = low[:, :, :2] | low[:, :, 2:] << np.uint8(4)
    high = np.bitwise_or.reduce(runs >> np.uint8(4) << _EACH_BIT[:4] * 2, axis=2)
    return low.reshape(-1, 128), high.reshape(-1, 64)


def _pack_scales(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack (n, 8) and (n, 8) as `_with_minima` reads them: (n, 12)."""
    low, four = np.uint8(15), np.uint8(4)
    first = scales[:, :4] | scales[:, 4:] >> four << np.uint8(6)
    second = minima[:, :4] | minima[:, 4:] >> four << np.uint8(6)
    third = scales[:, 4:] & low | (minima[:, 4:] & low) << four
    return np.concatenate([first, second, third], axis=1)


def _stored(scale: Floats) -> Floats:
    """Return what remains of a scale once it is an F16."""
    return half(half_bytes(scale))
