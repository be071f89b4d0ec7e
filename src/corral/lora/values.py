"""The values of an adapter: read from its file, and refused where they are no finite numbers."""

import numpy as np
from numpy.typing import NDArray

from corral.errors import InvalidAdapter
from corral.gguf import ModelFile, TensorInfo
from corral.lora.adapter import Adapter, Pair
from corral.quant.dequantize import dequantize

Matrix = NDArray[np.float32]


def read_pair(file: ModelFile, pair: Pair) -> tuple[Matrix, Matrix]:
    """Return A and B of a matrix: (rank, columns) and (rows, rank).

    Raises:
        InvalidAdapter: if a value is NaN or infinite.
        InvalidModelFile: if the file became shorter or cannot be read.
        UnsupportedModel: if corral does not know the type.
    """
    return _read(file, pair.a), _read(file, pair.b)


def require_finite(file: ModelFile, adapter: Adapter) -> None:
    """Read every value once; raises as `read_pair` does."""
    for pair in adapter.pairs.values():
        read_pair(file, pair)


def _read(file: ModelFile, tensor: TensorInfo) -> Matrix:
    data = bytearray(tensor.size_bytes)
    file.read(tensor.name, data)
    values = np.asarray(dequantize(data, tensor.dtype, tensor.shape), np.float32)
    if not np.isfinite(values).all():
        raise InvalidAdapter(
            f"{file.path.name}: tensor {tensor.name} holds a value that is no finite number: the "
            "file is damaged, or its training went wrong"
        )
    return values
