"""Tiny random models of every family: as metadata and tensor table, and as GGUF files.

The vocabulary is byte-level, so any text can be tokenized; the weights are random but the same on
every run.
"""

import zlib

import numpy as np

from corral.gguf import Metadata, TensorInfo, write_model
from corral.quant.quantize import quantize
from corral.quant.types import DType

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT = 64, 4, 2, 16, 96, 256
LAYERS = {"llama": 2, "qwen2": 2, "qwen3": 2, "gemma3": 6}
FAMILIES = tuple(LAYERS)
WINDOW = 20
SPECIAL = ("<|im_start|>", "<|im_end|>")
WORDS = ("th",)
VOCABULARY = 256 + len(WORDS) + len(SPECIAL)
END = VOCABULARY - 1
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def keys(family="llama", **changes):
    """Return the metadata of a tiny model; `changes` are keys without the family's prefix.

    A change to None leaves the key out.
    """
    sizes = {
        "block_count": LAYERS[family],
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCABULARY,
    }
    if family == "gemma3":
        sizes["attention.sliding_window"] = WINDOW
    sizes |= changes
    own = {f"{family}.{key}": value for key, value in sizes.items() if value is not None}
    return {"general.architecture": family} | own


def vocabulary():
    """Return a byte-level vocabulary with two control tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    symbols = [chr(b) if b in printable else chr(next(others)) for b in range(256)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*symbols, *WORDS, *SPECIAL],
        "tokenizer.ggml.token_type": [1] * (256 + len(WORDS)) + [3] * len(SPECIAL),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": VOCABULARY - 2,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def shapes(family="llama", layers=None):
    """Return the shape of every tensor by name, slowest dimension first."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer = {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (q, WIDTH),
        "attn_k.weight": (kv, WIDTH),
        "attn_v.weight": (kv, WIDTH),
        "attn_output.weight": (WIDTH, q),
        "ffn_norm.weight": (WIDTH,),
        "ffn_gate.weight": (FFN, WIDTH),
        "ffn_up.weight": (FFN, WIDTH),
        "ffn_down.weight": (WIDTH, FFN),
    }
    if family == "qwen2":
        layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if family in ("qwen3", "gemma3"):
        layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    if family == "gemma3":
        layer |= {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
    found = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    if family != "gemma3":
        found["output.weight"] = (VOCABULARY, WIDTH)
    for i in range(LAYERS[family] if layers is None else layers):
        found |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return found


def header(family="llama", dtype=DType.F32, **changes):
    """Return metadata and tensor table, as if read from a file."""
    infos = {
        name: TensorInfo(name, dtype if len(shape) > 1 else DType.F32, shape, 0, 0)
        for name, shape in shapes(family).items()
    }
    return Metadata.of(keys(family, **changes)), infos


def values(name, shape):
    """Return the random values of one tensor."""
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if "norm" in name:
        normal = 1 + 0.3 * normal
    elif len(shape) > 1 and not name.startswith("token_embd"):
        normal *= 1.6 / np.sqrt(shape[-1])
    return normal.astype(np.float32)


def tensors(family="llama", layers=None, dtype=DType.F32):
    """Return (type, shape, bytes) of every tensor by name; `dtype` is that of matrices."""
    table = {}
    for name, shape in shapes(family, layers).items():
        kind = dtype if len(shape) > 1 else DType.F32
        data = values(name, shape)
        table[name] = (kind, shape, data if kind is DType.F32 else quantize(data, kind))
    return table


def write(path, family="llama", *, table=None, **changes):
    """Write a tiny model and return its path."""
    table = tensors(family) if table is None else table
    write_model(path, keys(family, **changes) | vocabulary(), table)
    return path
