"""Write a LoRA adapter with random values for a GGUF model, for tests and benchmarks.

    python tools/make_lora.py MODEL.gguf OUT.gguf --rank 16 --targets attn_q attn_v

A is normal with root mean square 1/sqrt(columns), B normal times `--strength`, so that alpha/rank ·
B·A changes a product by that much of its own size. Only the model's header is read.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from corral.gguf import TensorInfo, open_model, write_model
from corral.quant.quantize import quantize
from corral.quant.types import DType

TARGETS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def adapted(tensors: Mapping[str, TensorInfo], targets: Iterable[str]) -> list[TensorInfo]:
    """Return the matrices of a model whose names end with one of the targets."""
    endings = tuple(f"{target}.weight" for target in targets)
    return [t for t in tensors.values() if t.name.endswith(endings) and len(t.shape) == 2]


def write(
    model: Path,
    out: Path,
    *,
    rank: int = 16,
    alpha: float = 16.0,
    targets: Sequence[str] = TARGETS,
    dtype: DType = DType.F16,
    strength: float = 0.1,
    seed: int = 0,
) -> None:
    """Write the adapter; the same arguments give the same file."""
    generator = np.random.default_rng(seed)
    table = {}
    with open_model(model, skip_arrays=True) as file:
        for tensor in adapted(file.tensors, targets):
            rows, columns = tensor.shape
            a = generator.standard_normal((rank, columns), dtype=np.float32) / math.sqrt(columns)
            b = generator.standard_normal((rows, rank), dtype=np.float32)
            b *= np.float32(strength * math.sqrt(rank) / max(alpha, 1.0))
            for suffix, values in (("lora_a", a), ("lora_b", b)):
                kind = dtype if values.shape[-1] % dtype.block_elements == 0 else DType.F16
                table[f"{tensor.name}.{suffix}"] = kind, values.shape, quantize(values, kind)
        metadata = {
            "general.type": "adapter",
            "general.architecture": file.metadata.architecture,
            "general.name": f"random adapter of rank {rank}",
            "adapter.type": "lora",
            "adapter.lora.alpha": float(alpha),
        }
    write_model(out, metadata, table)


def main() -> None:
    """Parse the command line and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="NAME")
    parser.add_argument("--type", choices=("F32", "F16", "BF16", "Q8_0"), default="F16")
    parser.add_argument("--strength", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(
        args.model,
        args.out,
        rank=args.rank,
        alpha=args.alpha,
        targets=args.targets,
        dtype=DType[args.type],
        strength=args.strength,
        seed=args.seed,
    )
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
