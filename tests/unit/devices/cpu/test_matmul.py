"""The matrix kernel computes what NumPy computes, and the same bits however the work is cut."""

import ctypes
import functools

import numpy as np
import pytest

from corral.devices.cpu.compile import Compiler, KernelSpec
from corral.devices.cpu.features import Target, runnable
from corral.devices.cpu.kernels.matmul import FIELDS, matmul, scratch_bytes
from corral.devices.cpu.traits import CPU_TRAITS
from corral.devices.packing import pack_rows
from corral.quant.dequantize import dequantize
from corral.quant.packed import LAYOUTS, SPAN
from corral.quant.types import DType
from unit.devices.cpu import a8
from unit.devices.cpu.packing import random_bytes

SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
TARGETS = pytest.mark.parametrize("target", runnable(), ids=lambda t: t.path)
DTYPES = pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda t: t.name)
SIXTEEN_BITS = (DType.Q4_1, DType.Q8_0, DType.Q6_K, DType.Q2_K)
POISON = np.float32(-7.25)


@functools.cache
def compiler(target: Target) -> Compiler:
    return Compiler(target)


def columns_of(dtype: DType) -> int:
    """An odd number of the least columns of a type."""
    return 3 * SPAN if LAYOUTS[dtype].has_spans else 37 if LAYOUTS[dtype].is_float else 480


def quantized(x: np.ndarray, planes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of F32 as A8 or A16, and the values they stand for."""
    if planes == 1:
        rows = a8.empty(*x.shape)
        for part, values in zip(a8.parts(rows), a8.expected_parts(x), strict=True):
            part[:] = values
        return rows, a8.decoded(rows).astype(np.float64)
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(-1) / np.float32(127 * 256)
    codes = np.rint(groups / scale[..., None]).astype(np.int32)
    high = (codes + 128) >> 8
    sums = scale * codes.sum(-1).astype(np.float32)
    both = [part.reshape(x.shape).astype(np.int8) for part in (high, codes - 256 * high)]
    rows = np.concatenate([part.view(np.uint8) for part in (*both, scale, sums)], axis=1)
    return rows, (codes * scale[..., None].astype(np.float64)).reshape(x.shape)


class Case:
    """One matrix with activations for it."""

    def __init__(self, dtype: DType, rows: int, columns: int, tokens: int, planes: int = 1) -> None:
        random, self.planes = np.random.default_rng(rows + tokens), planes
        self.dtype, self.rows, self.columns, self.tokens = dtype, rows, columns, tokens
        self.layout = LAYOUTS[dtype]
        data = random_bytes(random, dtype, rows, columns)
        self.packed = pack_rows(data, dtype, rows, columns)
        self.weights = dequantize(data, dtype, (rows, columns)).astype(np.float64)
        values = random.standard_normal((tokens, columns)).astype(np.float32)
        self.x, self.values = values, values.astype(np.float64)
        if not self.layout.is_float:
            self.x, self.values = quantized(values, planes)
        self.bias = random.standard_normal(rows).astype(np.float32)
        self.residual = random.standard_normal((tokens, rows)).astype(np.float32)

    def run(
        self,
        target: Target,
        *,
        threads: int = 1,
        tokens: slice = slice(None),
        bias: bool = False,
        residual: bool = False,
    ) -> np.ndarray:
        """Run the kernel on some of the tokens; the result has a poisoned margin."""
        parameters = {"layout": self.layout.name, "columns": self.columns, "planes": self.planes}
        spec = KernelSpec.of(matmul, **parameters)
        kernel = SIGNATURE(compiler(target).request([spec])[spec])
        x = np.ascontiguousarray(self.x[tokens])
        out = np.full((len(x) + 1, self.rows + 5), POISON)
        count = np.array([len(x)])
        stride = scratch_bytes(target, **parameters)
        scratch = np.full(max(threads * stride, 1), 0xFF, np.uint8)
        given = np.ascontiguousarray(self.residual[tokens])
        words = {
            "x": x.ctypes.data,
            "weights": self.packed.ctypes.data,
            "out": out.ctypes.data,
            "out_stride": out.strides[0],
            "bias": self.bias.ctypes.data if bias else 0,
            "residual": given.ctypes.data if residual else 0,
            "residual_stride": given.strides[0],
            "rows": self.rows,
            "num_tokens": count.ctypes.data,
            "scratch": scratch.ctypes.data,
            "scratch_stride": stride,
        }
        record = np.array([words[name] for name in FIELDS], np.int64)
        for thread in range(threads):
            kernel(record.ctypes.data, thread, threads)
        assert (out[len(x)] == POISON).all() and (out[:, self.rows :] == POISON).all()
        return out[: len(x), : self.rows]

    def check(self, got: np.ndarray, extra: np.ndarray | float = 0) -> None:
        """Compare with float64, relative to what was added up."""
        exact = self.values @ self.weights.T + extra
        terms = np.abs(self.values) @ np.abs(self.weights).T + np.abs(extra)
        # Minima add and subtract what the weights do not contain.
        tolerance = 2e-5 if self.layout.has_offset else 2e-6
        assert (np.abs(got - exact) <= tolerance * terms).all()


@TARGETS
@DTYPES
def test_every_layout(target, dtype):
    """Each layout gives the products of the dequantized weights, on every instruction set."""
    case = Case(dtype, 17, columns_of(dtype), 21)
    case.check(case.run(target))


@TARGETS
@DTYPES
def test_results_do_not_depend_on_how_work_is_cut(target, dtype):
    """The bits are the same for any number of threads and for tokens alone or together."""
    case = Case(dtype, 33, columns_of(dtype), 33)
    together = case.run(target)
    for threads in (2, 3, 7):
        assert np.array_equal(case.run(target, threads=threads), together)
    for size in (1, 3, 8, 15, 16, 20):
        parts = [case.run(target, threads=2, tokens=slice(n, n + size)) for n in range(0, 33, size)]
        assert np.array_equal(np.concatenate(parts), together)


@TARGETS
@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=lambda t: t.name)
def test_two_planes_of_codes(target, dtype):
    """A16 activations are exact to 16 bits, and cut in any way give the same bits."""
    case = Case(dtype, 17, columns_of(dtype), 21, planes=2)
    together = case.run(target, threads=2)
    case.check(together)
    parts = [case.run(target, tokens=slice(n, n + 5)) for n in range(0, 21, 5)]
    assert np.array_equal(np.concatenate(parts), together)


@DTYPES
@pytest.mark.parametrize("planes", [1, 2])
def test_instruction_sets_agree(dtype, planes):
    """All processors that fuse multiplication and addition give the same bits."""
    case = Case(dtype, 40, columns_of(dtype), 19, planes)
    results = [case.run(target) for target in runnable() if target.fused]
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [DType.Q4_1, DType.Q6_K, DType.F16], ids=lambda t: t.name)
@pytest.mark.parametrize("rows", [1, 16, 31, 192])
@pytest.mark.parametrize("tokens", [1, 7, 16, 29])
def test_bias_and_residual(dtype, rows, tokens):
    """Bias and residual are added once each; nothing is written beyond the rows."""
    case = Case(dtype, rows, columns_of(dtype), tokens)
    target = runnable()[0]
    plain = case.run(target)
    case.check(plain)
    assert np.array_equal(case.run(target, bias=True), plain + case.bias)
    assert np.array_equal(case.run(target, residual=True), plain + case.residual)
    both = case.run(target, threads=2, bias=True, residual=True)
    assert np.array_equal(both, (plain + case.bias) + case.residual)


def test_no_tokens_is_no_work():
    """With no tokens nothing is touched."""
    case = Case(DType.Q4_1, 16, 64, 3)
    assert case.run(runnable()[0], tokens=slice(0, 0)).size == 0


@pytest.mark.parametrize("columns", [32, 4096])
def test_chunks_of_tokens(columns):
    """Many tokens pass in chunks; each gets the bits it gets alone."""
    case = Case(DType.Q8_0, 20, columns, 300)
    together = case.run(runnable()[0], threads=2)
    case.check(together)
    for token in (0, 63, 64, 127, 128, 299):
        alone = case.run(runnable()[0], tokens=slice(token, token + 1))
        assert np.array_equal(alone[0], together[token])


@pytest.mark.parametrize("columns", [256, 2048, 14336, 53248])
@pytest.mark.parametrize("planes", [1, 2])
def test_scratch_is_what_the_planner_gives(columns, planes):
    """A thread needs no more scratch than the device traits promise."""
    limit = CPU_TRAITS.workspace_bytes + columns * CPU_TRAITS.workspace_bytes_per_column
    for target in runnable():
        for layout in LAYOUTS.values():
            assert scratch_bytes(target, layout.name, columns, planes) <= limit


def test_inner_loops_hold_everything_in_registers():
    """On AVX-512 VNNI, dots read activations as broadcast operands and nothing is spilled."""
    from corral.devices.cpu.compile import assembly

    best = runnable()[0]
    if best.path not in ("amx", "avx512vnni"):
        pytest.skip("no AVX-512 VNNI here")
    text = KernelSpec.of(matmul, layout="int4_half_offset", columns=576).text(best, "kernel")
    lines = assembly(text, best).splitlines()
    dots = [line for line in lines if "vpdpbusd" in line]
    assert dots
    assert all("{1to16}" in line for line in dots)
    spills = [line for line in lines if "zmm" in line and "(%rsp)" in line]
    assert len(spills) <= 4
