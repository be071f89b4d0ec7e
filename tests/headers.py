"""Headers of large models without their weights, in memory and as files with a hole."""

import os
from dataclasses import dataclass
from struct import pack

from corral.gguf import Metadata, TensorInfo
from corral.gguf.values import encode_value, make_value
from corral.quant.types import DType

F32, Q4_K, Q6_K = DType.F32, DType.Q4_K, DType.Q6_K


@dataclass(frozen=True)
class Sizes:
    """A llama by its sizes, all of them multiples of 256."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int = 131_072

    @property
    def head_dim(self):
        return self.width // self.heads

    @property
    def keys(self):
        return {
            "general.architecture": "llama",
            "llama.block_count": self.layers,
            "llama.embedding_length": self.width,
            "llama.feed_forward_length": self.ffn,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.context_length": self.context,
            "llama.vocab_size": self.vocabulary,
        }

    @property
    def tensors(self):
        """(type, shape) by name, with Q4_K_M's mixture simplified: v and down are Q6_K."""
        kv = self.kv_heads * self.head_dim
        table = {
            "token_embd.weight": (Q4_K, (self.vocabulary, self.width)),
            "output_norm.weight": (F32, (self.width,)),
            "output.weight": (Q6_K, (self.vocabulary, self.width)),
        }
        for i in range(self.layers):
            for name, dtype, shape in (
                ("attn_norm", F32, (self.width,)),
                ("attn_q", Q4_K, (self.width, self.width)),
                ("attn_k", Q4_K, (kv, self.width)),
                ("attn_v", Q6_K, (kv, self.width)),
                ("attn_output", Q4_K, (self.width, self.width)),
                ("ffn_norm", F32, (self.width,)),
                ("ffn_gate", Q4_K, (self.ffn, self.width)),
                ("ffn_up", Q4_K, (self.ffn, self.width)),
                ("ffn_down", Q6_K, (self.width, self.ffn)),
            ):
                table[f"blk.{i}.{name}.weight"] = (dtype, shape)
        return table

    @property
    def header(self):
        infos = {n: TensorInfo(n, d, s, 0, 0) for n, (d, s) in self.tensors.items()}
        return Metadata.of(self.keys), infos


LLAMA_70B = Sizes(80, 8192, 28_672, 64, 8, 128_256)
LLAMA_8B = Sizes(32, 4096, 14_336, 32, 8, 128_256)


def write_sparse(path, sizes):
    """Write the header of a model, and a hole where its data would be."""
    keys, entries, end = b"", b"", 0
    for key, value in sizes.keys.items():
        keys += pack("<Q", len(key)) + key.encode() + encode_value(make_value(value))
    for name, (dtype, shape) in sizes.tensors.items():
        dimensions = pack(f"<{len(shape)}Q", *reversed(shape))
        entries += pack("<Q", len(name)) + name.encode() + pack("<I", len(shape)) + dimensions
        entries += pack("<IQ", dtype.value.ggml_id, end)
        end += -(-dtype.row_bytes(shape[-1]) * (shape[0] if shape[1:] else 1) // 32) * 32
    head = b"GGUF" + pack("<IQQ", 3, len(sizes.tensors), len(sizes.keys)) + keys + entries
    path.write_bytes(head)
    os.truncate(path, len(head) + 32 + end)
