"""GGUF files: headers, metadata, shards, reading weights, writing. Free of NumPy."""

from corral.gguf.fingerprint import fingerprint
from corral.gguf.metadata import Metadata
from corral.gguf.reader import Header, TensorInfo, read_header
from corral.gguf.shards import ModelFile, open_model
from corral.gguf.values import Array, Value, ValueType
from corral.gguf.writer import Writer, write_model

__all__ = [
    "Array",
    "Header",
    "Metadata",
    "ModelFile",
    "TensorInfo",
    "Value",
    "ValueType",
    "Writer",
    "fingerprint",
    "open_model",
    "read_header",
    "write_model",
]
