"""The operations once more, slowly and in float64: loops over rows, no layout, no plan.

Written for the eye, from the definitions; nothing here comes from `corral.devices`.
"""

import math

import numpy as np


def rms_norm(x, weight, epsilon, group):
    out = np.empty_like(x)
    for row in range(len(x)):
        for start in range(0, x.shape[1], group):
            part = x[row, start : start + group]
            out[row, start : start + group] = (
                part / math.sqrt(sum(v * v for v in part) / group + epsilon) * weight
            )
    return out


def rotations(positions, frequencies, factors=None, magnitude=1.0):
    factors = np.ones(len(frequencies)) if factors is None else factors
    rows = []
    for p in positions:
        angles = [p * f / d for f, d in zip(frequencies, factors, strict=True)]
        rows.append([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
    return np.array(rows) * magnitude


def rope(x, turns, head_dim, pair_of):
    """Turn each pair as a complex number; pair_of(i, half) gives the two dimensions."""
    half = turns.shape[1] // 2
    out = x.copy()
    for row in range(len(x)):
        for head in range(0, x.shape[1], head_dim):
            for i in range(half):
                a, b = (head + d for d in pair_of(i, half))
                turned = complex(x[row, a], x[row, b]) * complex(
                    turns[row, i], turns[row, half + i]
                )
                out[row, a], out[row, b] = turned.real, turned.imag
    return out


def attention(q, history, attend):
    """Attend from row i to history[i] = (keys, values), each (positions, kv heads, dim)."""
    out = np.zeros_like(q)
    dim, shared = attend.head_dim, attend.heads // attend.kv_heads
    for row, (keys, values) in enumerate(history):
        for head in range(attend.heads):
            columns = slice(head * dim, (head + 1) * dim)
            first = 0 if attend.window is None else max(0, len(keys) - attend.window)
            scores = []
            for key in keys[first:, head // shared]:
                score = float(q[row, columns] @ key) * attend.scale
                if attend.softcap is not None:
                    score = attend.softcap * math.tanh(score / attend.softcap)
                scores.append(score)
            weights = [math.exp(s - max(scores)) for s in scores]
            for weight, value in zip(weights, values[first:, head // shared], strict=True):
                out[row, columns] += weight / sum(weights) * value
    return out


def silu(x):
    return np.array([[v / (1 + math.exp(-v)) for v in row] for row in x])


def gelu(x):
    def one(v):
        return v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    return np.array([[one(v) for v in row] for row in x])


def through_int8(x):
    """Return x as A8 keeps it: 32 columns share a scale of max|x|/127."""
    out = np.empty_like(x)
    for row in range(len(x)):
        for start in range(0, x.shape[1], 32):
            part = x[row, start : start + 32]
            scale = max(abs(part)) / 127
            codes = [round(v / scale) if scale else 0 for v in part]
            out[row, start : start + 32] = [scale * code for code in codes]
    return out
