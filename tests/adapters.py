"""Small random adapters for tiny models, as files that tests may spoil before they are written."""

import zlib

import numpy as np

import tiny
from corral.gguf import write_model
from corral.quant.quantize import quantize
from corral.quant.types import DType

LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""What an adapter usually changes."""


def metadata(family="llama", *, alpha=8.0, **changes):
    """Return the metadata of an adapter; a change to None leaves a key out."""
    found = {
        "general.type": "adapter",
        "general.architecture": family,
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    return {key: value for key, value in (found | changes).items() if value is not None}


def halves(seed=0, *, rank=4, targets=LAYER, family="llama", strength=0.5):
    """Return A and B of each matrix of a tiny model that an adapter changes: F32 arrays."""
    found = {}
    for name, shape in tiny.shapes(family).items():
        if len(shape) == 2 and name.removesuffix(".weight").split(".")[-1] in targets:
            random = np.random.RandomState(zlib.crc32(f"{seed} {name}".encode()))
            a = random.standard_normal((rank, shape[1])) / np.sqrt(shape[1])
            b = random.standard_normal((shape[0], rank)) * strength / np.sqrt(rank)
            found[name] = a.astype(np.float32), b.astype(np.float32)
    return found


def table(pairs, dtype=DType.F32):
    """Return (type, shape, bytes) of the tensors of an adapter by name."""
    found = {}
    for name, (a, b) in pairs.items():
        for suffix, values in (("lora_a", a), ("lora_b", b)):
            found[f"{name}.{suffix}"] = dtype, values.shape, quantize(values, dtype)
    return found


def write(path, seed=0, *, dtype=DType.F32, alpha=8.0, family="llama", **options):
    """Write an adapter for a tiny model and return its path."""
    pairs = halves(seed, family=family, **options)
    write_model(path, metadata(family, alpha=alpha), table(pairs, dtype))
    return path


def merged(seed=0, *, scale=1.0, alpha=8.0, rank=4, family="llama", **options):
    """Return the tensors of the tiny model with an adapter merged in F32, for `tiny.write`."""
    found = tiny.tensors(family)
    for name, (a, b) in halves(seed, rank=rank, family=family, **options).items():
        kind, shape, data = found[name]
        delta = b.astype(np.float64) @ a.astype(np.float64)
        found[name] = kind, shape, (data + scale * alpha / rank * delta).astype(np.float32)
    return found
