"""Write a GGUF model of a real shape with random weights, for benchmarks and load tests.

    python tools/make_model.py OUT.gguf --shape llama-1b --type Q4_K_M

Weights are blocks quantized from normal values (root mean square 1/sqrt(columns), so that logits
stay finite) and drawn from a small pool, which is as fast as the disk. Which tensors are of which
type follows llama.cpp's quantizer.
The vocabulary is byte-level BPE with a handful of merges and unused tokens up to its size: any text
can be tokenized, none is short.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from corral.gguf import Metadata, TensorInfo, ValueType, Writer
from corral.models import mixture
from corral.models.mixture import MIXTURES, Mixture
from corral.quant.quantize import quantize
from corral.quant.types import DType

POOL_BLOCKS = 2048
CHUNK_BYTES = 16 << 20
SPECIAL = ("<|begin|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama-like model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    context: int
    tied: bool
    rope_base: float
    rope_factor: float | None = None
    """Scaling of Llama 3's long contexts, written as the tensor rope_freqs."""
    pre: str = "llama-bpe"


SHAPES = {
    "tiny": Shape(2, 256, 4, 2, 64, 512, 512, 1024, True, 10_000.0, pre="gpt-2"),
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 1536, 49_152, 8192, True, 100_000.0, pre="smollm"),
    "llama-1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256, 131_072, True, 500_000.0, 32.0),
    "llama-3b": Shape(28, 3072, 24, 8, 128, 8192, 128_256, 131_072, True, 500_000.0, 32.0),
    "llama-8b": Shape(32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, False, 500_000.0, 8.0),
    "llama-70b": Shape(80, 8192, 64, 8, 128, 28_672, 128_256, 131_072, False, 500_000.0, 8.0),
}


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes in the order converters write them."""
    s = shape
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    if s.rope_factor:
        yield "rope_freqs.weight", (s.head_dim // 2,)
    yield "token_embd.weight", (s.vocabulary, s.width)
    for layer in range(s.layers):
        for name, size in (
            ("attn_norm", (s.width,)),
            ("ffn_down", (s.width, s.ffn)),
            ("ffn_gate", (s.ffn, s.width)),
            ("ffn_up", (s.ffn, s.width)),
            ("ffn_norm", (s.width,)),
            ("attn_k", (kv, s.width)),
            ("attn_output", (s.width, q)),
            ("attn_q", (q, s.width)),
            ("attn_v", (kv, s.width)),
        ):
            yield f"blk.{layer}.{name}.weight", size
    yield "output_norm.weight", (s.width,)
    if not s.tied:
        yield "output.weight", (s.vocabulary, s.width)


def tensor_types(shape: Shape, to: Mixture) -> dict[str, DType]:
    """Return the types that llama.cpp's quantizer gives the tensors of such a model."""
    table = [TensorInfo(name, DType.F32, size, 0, 0) for name, size in tensors(shape)]
    return mixture.tensor_types(Metadata.of(sizes(shape)), table, to)


@dataclass
class RandomBlocks:
    """A source of random weights of any type."""

    generator: np.random.Generator
    pools: dict[tuple[DType, int], np.ndarray] = field(default_factory=dict)

    def pool(self, dtype: DType, columns: int) -> np.ndarray:
        """Return the blocks (n, block bytes) that weights with `columns` inputs are drawn from."""
        key = (dtype, columns)
        if key not in self.pools:
            elements = max(dtype.block_elements, 32)  # floats are drawn 32 at a time
            values = self.generator.standard_normal((POOL_BLOCKS, elements), dtype=np.float32)
            self.pools[key] = quantize(values / np.float32(math.sqrt(columns)), dtype)
        return self.pools[key]

    def matrix(self, dtype: DType, size: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield the bytes of a matrix in pieces."""
        pool = self.pool(dtype, size[-1])
        left = math.prod(size[:-1]) * dtype.row_bytes(size[-1]) // pool.shape[1]
        while left:
            count = min(left, CHUNK_BYTES // pool.shape[1])
            picks = self.generator.integers(0, POOL_BLOCKS, count, dtype=np.uint16)
            yield pool.take(picks, axis=0)
            left -= count


def rope_freqs(shape: Shape) -> np.ndarray:
    """Return the divisors of Llama 3's rotary frequencies: 1 for short waves, more for long."""
    half = shape.head_dim // 2
    waves = 2 * math.pi * shape.rope_base ** (np.arange(half) / half)
    low, high, original = 1.0, 4.0, 8192
    smooth = ((original / waves - low) / (high - low)).clip(0, 1)
    return (1 / ((1 - smooth) / (shape.rope_factor or 1.0) + smooth)).astype(np.float32)


def vector(name: str, size: tuple[int, ...], shape: Shape) -> np.ndarray:
    """Return a one-dimensional tensor: norms are ones."""
    return rope_freqs(shape) if name == "rope_freqs.weight" else np.ones(size, dtype=np.float32)


def byte_symbols() -> list[str]:
    """Return the printable stand-ins of byte-level BPE, in byte order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def add_tokenizer(writer: Writer, shape: Shape) -> None:
    """Add a byte-level vocabulary of the right size; the last tokens are the special ones."""
    merges = ["Ġ t", "h e", "i n", "r e", "Ġ a", "o n", "Ġt he", "e r", "n d", "Ġ s"]
    tokens = byte_symbols() + [merge.replace(" ", "") for merge in merges]
    unused = shape.vocabulary - len(tokens) - len(SPECIAL)
    tokens += [f"<|unused_{i}|>" for i in range(unused)]
    types = [1] * len(tokens) + [3] * len(SPECIAL)  # normal, control
    tokens += SPECIAL
    writer.add("tokenizer.ggml.model", "gpt2")
    writer.add("tokenizer.ggml.pre", shape.pre)
    writer.add("tokenizer.ggml.tokens", tokens)
    writer.add("tokenizer.ggml.token_type", types, ValueType.INT32)
    writer.add("tokenizer.ggml.merges", merges)
    writer.add("tokenizer.ggml.bos_token_id", tokens.index("<|begin|>"))
    writer.add("tokenizer.ggml.eos_token_id", tokens.index("<|im_end|>"))
    writer.add("tokenizer.ggml.padding_token_id", tokens.index("<|im_end|>"))
    writer.add("tokenizer.ggml.add_bos_token", False)
    writer.add("tokenizer.chat_template", CHAT_TEMPLATE)


def sizes(shape: Shape) -> dict[str, str | int | float]:
    """Return what the metadata says of a shape."""
    own = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn,
        "vocab_size": shape.vocabulary,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": shape.rope_base,
    }
    return {"general.architecture": "llama"} | {f"llama.{key}": own[key] for key in own}


def add_metadata(writer: Writer, name: str, shape: Shape, to: Mixture) -> None:
    """Add what converters write for a model of this shape."""
    own = sizes(shape)
    writer.add("general.architecture", own.pop("general.architecture"))
    writer.add("general.type", "model")
    writer.add("general.name", f"random weights, shape of {name}")
    writer.add("general.file_type", to.file_type)
    writer.add("general.quantization_version", 2)
    for key, value in own.items():
        writer.add(key, value)


def write(path: Path, shape_name: str, type_name: str, seed: int = 0) -> None:
    """Write the model; the same seed gives the same file."""
    shape, to = SHAPES[shape_name], MIXTURES[type_name]
    source = RandomBlocks(np.random.default_rng(seed))
    types = tensor_types(shape, to)
    table = [(name, size, types[name]) for name, size in tensors(shape)]
    with Writer(path) as writer:
        add_metadata(writer, shape_name, shape, to)
        add_tokenizer(writer, shape)
        for name, size, dtype in table:
            writer.declare(name, dtype, size)
        for name, size, dtype in table:
            if len(size) == 1:
                writer.write(name, vector(name, size, shape))
                continue
            for piece in source.matrix(dtype, size):
                writer.write(name, piece)


def main() -> None:
    """Parse the command line and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--type", choices=MIXTURES, default="Q4_K_M")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    write(args.out, args.shape, args.type, args.seed)
    size = args.out.stat().st_size
    print(f"{args.out}: {size / 1e9:.2f} GB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
