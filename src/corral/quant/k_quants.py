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


def quantize_q4_k(values: Floats) -> Bytes:
    """Round to Q4_K over each part's range: (n, 256) → (n, 144).

    Plain rounding, without the search for better scales that ggml's quantizer makes.
    """
    parts = values.reshape(-1, 8, 32)
    minima = np.maximum(-parts.min(axis=2), np.float32(0))  # (n, 8)
    scales = (parts.max(axis=2) + minima).clip(0) / np.float32(15)
    scale, sub_scales = _share(scales, 63)
    minimum, sub_minima = _share(minima, 63)
    step = _stored(scale)[:, None] * sub_scales
    base = _stored(minimum)[:, None] * sub_minima
    exact = _divide(parts + base[..., None], step[..., None])
    codes = np.rint(exact).clip(0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    nibbles = (codes[:, :, 0] | codes[:, :, 1] << np.uint8(4)).reshape(-1, 128)
    packed = _pack_scales(sub_scales.astype(np.uint8), sub_minima.astype(np.uint8))
    return np.concatenate([half_bytes(scale), half_bytes(minimum), packed, nibbles], axis=1)


def quantize_q6_k(values: Floats) -> Bytes:
    """Round to Q6_K, symmetric in each part: (n, 256) → (n, 210).

    Plain rounding, without the search for better scales that ggml's quantizer makes.
    """
    parts = values.reshape(-1, 16, 16)
    scale, sub_scales = _share(np.abs(parts).max(axis=2) / np.float32(31), 127)
    step = _stored(scale)[:, None] * sub_scales
    exact = _divide(parts, step[..., None])
    codes = (np.rint(exact).clip(-32, 31) + np.float32(32)).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = codes[:, :, :2] & np.uint8(15) | (codes[:, :, 2:] & np.uint8(15)) << np.uint8(4)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(codes >> np.uint8(4) << shifts, axis=2)
    signed = sub_scales.astype(np.int8).view(np.uint8)
    flat = [low.reshape(-1, 128), high.reshape(-1, 64), signed, half_bytes(scale)]
    return np.concatenate(flat, axis=1)


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


def _pack_scales(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack (n, 8) and (n, 8) as `_with_minima` reads them: (n, 12)."""
    low, four = np.uint8(15), np.uint8(4)
    first = scales[:, :4] | scales[:, 4:] >> four << np.uint8(6)
    second = minima[:, :4] | minima[:, 4:] >> four << np.uint8(6)
    third = scales[:, 4:] & low | (minima[:, 4:] & low) << four
    return np.concatenate([first, second, third], axis=1)


def _share(scales: Floats, most: int) -> tuple[Floats, Floats]:
    """Split (n, parts) into one scale a block and whole numbers up to `most`."""
    scale = scales.max(axis=1) / np.float32(most)
    whole = np.rint(_divide(scales, _stored(scale)[:, None])).clip(0, most)
    return scale, whole.astype(np.float32)


def _stored(scale: Floats) -> Floats:
    """Return what remains of a scale once it is an F16."""
    return half(half_bytes(scale))


def _divide(values: Floats, by: Floats) -> Floats:
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)
