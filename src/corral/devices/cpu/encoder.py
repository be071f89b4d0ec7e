"""Values to bytes of a type, as `quant/quantize.py` does it, by kernels.

Any number of threads may use one encoder at a time. It knows no file and no tensor.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from corral.devices.cpu.compile import Compiler, KernelSpec, Progress
from corral.devices.cpu.kernels.encode import GREATEST, encode, encode_record
from corral.devices.cpu.native import call
from corral.quant.blocks import Bytes, Floats
from corral.quant.quantize import quantize
from corral.quant.types import DType

_HALVES: Final = {
    DType.Q2_K: slice(80, 84),
    DType.Q3_K: slice(108, 110),
    DType.Q4_K: slice(0, 4),
    DType.Q5_K: slice(0, 4),
    DType.Q6_K: slice(208, 210),
}
"""Where the F16 numbers of a block are, where values do not tell whether they are finite."""


class Encoder:
    """Encodes with the kernels of some types; other types go through NumPy."""

    def __init__(
        self, compiler: Compiler, dtypes: Iterable[DType], progress: Progress | None = None
    ) -> None:
        """Compile what the types need. The compiler must outlive the encoder."""
        specs = {t: KernelSpec.of(encode, dtype=t.name) for t in dtypes if t in GREATEST}
        kernels = compiler.request(specs.values(), progress)
        self._kernels = {dtype: kernels[spec] for dtype, spec in specs.items()}

    def __call__(self, values: npt.ArrayLike, dtype: DType) -> Bytes:
        """Encode finite values: (…, columns) → (…, row bytes), the bytes of `quantize`.

        Raises:
            InvalidArgument: as `quantize` does.
        """
        array = np.ascontiguousarray(values, dtype=np.float32)
        if dtype in self._kernels and _is_usual(array, dtype):
            data = self._encoded(array, dtype)
            if _has_finite_scales(data, dtype):
                return data
        return quantize(array, dtype)  # which also says what is wrong

    def _encoded(self, array: Floats, dtype: DType) -> Bytes:
        data = np.empty((*array.shape[:-1], dtype.row_bytes(array.shape[-1])), np.uint8)
        blocks = array.size // dtype.block_elements
        record = encode_record(array.ctypes.data, data.ctypes.data, blocks=blocks)
        call(self._kernels[dtype], record)
        return data


def _is_usual(array: Floats, dtype: DType) -> bool:
    """Whether there are whole blocks, of values that a kernel can do."""
    if not array.size or array.shape[-1] % dtype.block_elements:
        return False
    return bool(max(array.max(), -array.min()) <= GREATEST[dtype])  # a NaN is not


def _has_finite_scales(data: Bytes, dtype: DType) -> bool:
    if dtype not in _HALVES:
        return True  # the values were small enough
    halves = np.ascontiguousarray(data.reshape(-1, dtype.block_bytes)[:, _HALVES[dtype]])
    return bool(np.isfinite(halves.view("<f2")).all())
