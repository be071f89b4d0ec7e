"""Products for the tuned matrix kernels: buffers, fields, and what must come out."""

from dataclasses import dataclass, field

import numpy as np

from corral.devices.cuda.instance import Kernel
from corral.devices.cuda.matmul_launch import (
    HALF_ROWS_FIELDS,
    Product,
    Result,
    half_row_bytes,
    half_rows,
    words,
)
from corral.devices.packing import pack_rows, unpack_rows
from corral.devices.reference import activations
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from emulation import Memory, address, emulate_kernel

DTYPES = {layout.name: dtype for dtype, layout in LAYOUTS.items()}
_HALVES = {
    DType.Q4_0: (0,),
    DType.Q4_1: (0, 2),
    DType.Q5_0: (0,),
    DType.Q5_1: (0, 2),
    DType.Q8_0: (0,),
    DType.Q2_K: (80, 82),
    DType.Q3_K: (108,),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
    DType.IQ4_NL: (0,),
    DType.IQ4_XS: (0,),
}
"""Where the blocks of a file keep their F16 scales: random bytes would make some of them NaN."""
_GREATEST = {
    DType.Q4_0: 8,
    DType.Q4_1: 15,
    DType.Q5_0: 16,
    DType.Q5_1: 31,
    DType.Q8_0: 127,
    DType.Q2_K: 3 * 15,
    DType.Q3_K: 4 * 32,
    DType.Q4_K: 15 * 63,
    DType.Q5_K: 31 * 63,
    DType.Q6_K: 32 * 127,
    DType.IQ4_NL: 127,
    DType.IQ4_XS: 127 * 32,
}
"""The greatest code times the greatest small scale."""
_SCALE = 2.0
"""Of products: so small that no activation overflows."""


def file_bytes(generator, dtype, rows, columns):
    """Return weights as a file has them, with every code and scale there may be."""
    if dtype.is_quantized:
        blocks = rows * columns // dtype.block_elements
        raw = generator.integers(0, 256, (blocks, dtype.block_bytes), dtype=np.uint8)
        for at in _HALVES.get(dtype, ()):
            size = _SCALE / (np.sqrt(columns) * _GREATEST[dtype])
            scales = (generator.normal(size=(blocks, 1)) * size).astype(np.float16)
            raw[:, at : at + 2] = scales.view(np.uint8)
        if dtype is DType.MXFP4:
            raw[:, 0] = generator.integers(118, 122, blocks)  # powers of two
    else:
        values = generator.normal(size=(rows, columns)).astype(np.float32)
        if dtype is DType.BF16:
            raw = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            raw = values.astype(np.float16) if dtype is DType.F16 else values
    return np.ascontiguousarray(raw).view(np.uint8).reshape(-1)


def random_matrix(generator, dtype, rows, columns):
    """Return packed weights, and their values."""
    packed = pack_rows(file_bytes(generator, dtype, rows, columns), dtype, rows, columns)
    return packed, unpack_rows(packed, dtype, rows, columns).astype(np.float64)


@dataclass
class Case:
    """One product with its buffers; `run` leaves the results in `outs`."""

    product: Product
    count: int
    has_extras: bool = False
    """Whether there are a bias and a residual; the first part's residual lies in its result."""
    seed: int = 0
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self):
        product, memory = self.product, self.memory
        generator = np.random.default_rng(self.seed)
        self.values = {"capacity": product.batch}
        self.x = self._activations(generator)
        self.outs, self.expected = [], []
        self.values["count"] = address(memory.of(np.array([self.count], np.int64)))
        for part, rows in enumerate(product.rows):
            self._part(generator, part, rows)
        if product.result is not Result.PLAIN:
            self._gate(*self.expected)

    def _activations(self, generator):
        product = self.product
        x = generator.normal(size=(product.batch, product.columns)).astype(np.float32)
        if product.packed.is_float:
            stored, values = x, x
        else:
            dtype = DType.A8 if product.planes == 1 else DType.A16
            row_bytes = product.columns * (4 * product.planes + 1) // 4
            stored = np.empty((product.batch, row_bytes), np.uint8)
            activations.quantize(x, stored, dtype)
            values = activations.decoded(stored, dtype)
        self.rows = self.memory.of(stored)
        self.values |= {"x": address(self.rows), "x_stride": self.rows.strides[0]}
        return values.astype(np.float64)

    def _part(self, generator, part, rows):
        product, memory = self.product, self.memory
        packed, weight = random_matrix(generator, DTYPES[product.layout], rows, product.columns)
        expected, out = self.x @ weight.T, memory.empty((product.batch, rows))
        values = {"weights": address(memory.of(packed)), "out": address(out), "rows": rows}
        values["out_stride"] = out.strides[0]
        if self.has_extras:
            bias = memory.of(generator.normal(size=rows).astype(np.float32))
            added = generator.normal(size=out.shape).astype(np.float32)
            residual = out if part == 0 else memory.of(added)
            residual[: self.count] = added[: self.count]
            values |= {"bias": address(bias), "residual": address(residual)}
            values["residual_stride"] = residual.strides[0]
            expected = expected + bias + added
        self.values |= {f"{name}{part}": value for name, value in values.items()}
        self.outs.append(out)
        self.expected.append(expected)

    def _gate(self, gate, up):
        if self.product.gating == "silu":
            active = gate / (1 + np.exp(-gate))
        else:
            active = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        self.expected, self.outs = [active * up], self.outs[:1]
        if self.product.result is Result.GATED_CODES:
            columns = self.product.rows[0]
            out = self.memory.empty((self.product.batch, columns * 5 // 4), np.uint8)
            self.values |= {"out0": address(out), "out_stride0": out.strides[0]}
            self.outs = [out]

    def make_half(self, arch=900):
        """Make the activations F16; the launch that follows has 0 planes."""
        product = self.product
        kernel = half_rows(product)
        self.rows = self.memory.empty((product.batch, half_row_bytes(product.columns)), np.uint8)
        out = {"out": address(self.rows), "out_stride": self.rows.strides[0]}
        values = self.values | out | {"columns": product.columns}
        emulate_kernel(kernel, words(values, HALF_ROWS_FIELDS), arch)
        self.values |= {"x": address(self.rows), "x_stride": self.rows.strides[0]}

    def run(self, kernel: Kernel, arch=900):
        """Run one launch on the emulator."""
        emulate_kernel(kernel, words(self.values), arch)
        self.memory.check()

    def error(self):
        """Return the greatest NMSE of a part; rows past the count must be untouched."""
        errors = []
        for out, expected in zip(self.outs, self.expected, strict=True):
            found, rest = out[: self.count], out[self.count :]
            assert (rest.view(np.uint8) == 0xFF).all(), "a row past the count was written"
            if self.product.result is Result.GATED_CODES:
                found = self._same_sums(found)
            assert np.isfinite(found).all(), "an element was not written"
            wanted = expected[: self.count]
            errors.append(((found - wanted) ** 2).sum() / (wanted**2).sum())
        return max(errors)

    def _same_sums(self, rows):
        parts = activations.parts(rows)
        groups = parts.codes.reshape(*parts.scales.shape, -1)
        assert np.array_equal(parts.sums, parts.scales * groups.sum(axis=-1, dtype=np.float32))
        return activations.decoded(rows)
