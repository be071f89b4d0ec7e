"""A model file just large enough to be described."""

from array import array

from corral.gguf import write_model
from corral.quant.types import DType


def write_small_file(path, *, vocabulary=2000):
    """Write a file with one tensor of 64 F32 elements, a long array and awkward metadata."""
    metadata = {
        "general.architecture": "llama",
        "general.name": "Small \x1b[31mred",
        "llama.context_length": 8192,
        "llama.rope.freq_base": 10000.5,
        "llama.layers": [1, 2, 3],
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(vocabulary)],
        "tokenizer.chat_template": "line one\n" + "x" * 500,
        "odd": float("inf"),
    }
    data = array("f", range(64))
    write_model(path, metadata, {"w": (DType.F32, (8, 8), data)})
    return path
