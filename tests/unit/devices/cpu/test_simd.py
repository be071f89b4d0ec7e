"""The embedded language computes what NumPy computes, on every target that can run here."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from corral.devices.cpu import simd
from corral.devices.cpu.compile import Code, object_code
from corral.devices.cpu.features import Target, runnable
from corral.devices.cpu.simd import Kernel, Value, f32, i8, i32, i64, u8

TARGETS = pytest.mark.parametrize("target", runnable(), ids=lambda t: t.path)
Body = Callable[[Kernel, Value, Value, Value], None]


def run(target: Target, body: Body, *arrays: np.ndarray) -> None:
    """Compile a kernel and run it on a record of the arrays' addresses."""
    code = Code()
    code.add(object_code(simd.build(target, "kernel", body), target))
    record = np.array([a.ctypes.data for a in arrays], np.int64)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    signature(code.address("kernel"))(record.ctypes.data, 0, 1)
    code.close()


def mapped(
    target: Target, function: Callable[[Value], Value], x: np.ndarray, lanes: int, out: np.ndarray
) -> np.ndarray:
    """Apply an F32 function to all elements, `lanes` at a time (0: one by one)."""
    step = max(lanes, 1)

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, ("x", "out"))
        with k.range(0, len(x), step) as n:
            value = function(k.load(f32.x(lanes), a.x + n * 4))
            k.store(a.out + n * out.itemsize, value)

    run(target, body, x, out)
    return out


@TARGETS
def test_exp_is_accurate_and_independent_of_lanes(target):
    """e^x is within 2 units of the last place, saturates, and is the same in every lane count."""
    x = np.linspace(-90, 90, 4096, dtype=np.float32)
    x[:6] = [0, -0.0, -np.inf, np.inf, np.nan, -87.31]
    by_lanes = [mapped(target, simd.exp, x, lanes, np.empty_like(x)) for lanes in (0, 4, 16)]
    assert all(np.array_equal(by_lanes[0], other, equal_nan=True) for other in by_lanes)
    got = by_lanes[0]
    assert got[2] == 0 and got[3] == np.inf and np.isnan(got[4]) and got[5] == 0
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.exp(x.astype(np.float64))
    normal = (x > -87.3) & (x < 88.72)
    error = np.abs(got[normal] - exact[normal]) / np.spacing(exact[normal].astype(np.float32))
    assert error.max() < 2


@TARGETS
@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_dot_is_exact(target, bits, lanes):
    """The dot product of unsigned and signed bytes is exact at the extremes too."""
    random = np.random.default_rng(bits)
    u = random.integers(0, 2**bits, (64, 4 * lanes)).astype(np.uint8)
    s = random.integers(-127, 128, (64, 4 * lanes)).astype(np.int8)
    u[0], s[0], u[1], s[1] = 2**bits - 1, 127, 2**bits - 1, -127
    out = np.zeros((64, lanes), np.int32)

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, ("u", "s", "out"))
        with k.range(0, 64) as n:
            left = k.load(u8.x(4 * lanes), a.u + n * (4 * lanes))
            right = k.load(i8.x(4 * lanes), a.s + n * (4 * lanes))
            start = k.constant(i32.x(lanes), 1)
            k.store(a.out + n * (4 * lanes), simd.dot_u8_i8(start, left, right, bits))

    run(target, body, u, s, out)
    expected = 1 + (u.astype(np.int32) * s).reshape(64, lanes, 4).sum(2)
    assert np.array_equal(out, expected)


@TARGETS
@pytest.mark.parametrize("bits", [1, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("terms", [1, 7, 8, 9, 40])
def test_a_running_dot_is_exact_however_long(target, bits, terms):
    """Sums that are kept in 16 bits for a while never overflow them, whatever the codes."""
    lanes, cases = 16, 5
    random = np.random.default_rng(bits)
    u = random.integers(0, 2**bits, (cases, terms, 4 * lanes)).astype(np.uint8)
    s = random.integers(-128, 128, (cases, terms, 4 * lanes)).astype(np.int8)
    u[:2], s[0], s[1] = 2**bits - 1, 127, -128
    out = np.zeros((cases, lanes), np.int32)

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, ("u", "s", "out"))
        with k.range(0, cases) as n:
            dot = simd.RunningDot(k.constant(i32.x(lanes), -3), bits)
            for term in range(terms):
                at = (n * terms + term) * (4 * lanes)
                dot.add(k.load(u8.x(4 * lanes), a.u + at), k.load(i8.x(4 * lanes), a.s + at))
            k.store(a.out + n * (4 * lanes), dot.total())

    run(target, body, u, s, out)
    products = u.astype(np.int32) * s
    expected = products.reshape(cases, terms, lanes, 4).sum((1, 3)) - 3
    assert np.array_equal(out, expected)


@TARGETS
@pytest.mark.parametrize("lanes", [0, 8])
def test_half_conversions_are_numpys(target, lanes):
    """F32 to F16 and back rounds half to even, through subnormals, infinities and NaN."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        between = np.nextafter(every.astype(np.float32), np.float32(np.inf))
    for x in (every.astype(np.float32), bits.view(np.float32), between):
        got = mapped(
            target, lambda v: simd.convert(v, simd.f16), x, lanes, np.empty(len(x), np.float16)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            assert np.array_equal(got, x.astype(np.float16), equal_nan=True)
    got = mapped(
        target,
        lambda v: simd.convert(simd.convert(v, simd.f16), f32),
        every.astype(np.float32),
        lanes,
        np.empty(1 << 16, np.float32),
    )
    assert np.array_equal(got, every.astype(np.float32), equal_nan=True)


@TARGETS
def test_brain_floats_round_half_to_even(target):
    """F32 to BF16 rounds half to even and keeps NaN a NaN."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
    bits[:4] = [0x3F808000, 0x3F818000, 0x7F800001, 0x7F7FFFFF]
    out = np.empty(4096, np.uint16)
    mapped(target, lambda v: simd.convert(v, simd.bf16), bits.view(np.float32), 16, out)
    wide = bits.astype(np.uint64)
    expected = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    number = ~np.isnan(bits.view(np.float32))
    assert np.array_equal(out[number], expected[number])
    assert np.isnan((out[~number].astype(np.uint32) << 16).view(np.float32)).all()


@TARGETS
def test_rounding_is_half_to_even(target):
    """Ties round to the even neighbour."""
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 126.5] * 2, np.float32)
    got = mapped(target, simd.round_half_even, x, 16, np.empty_like(x))
    assert np.array_equal(got, np.rint(x))


@TARGETS
@pytest.mark.parametrize("count", [0, 1, 5, 16, 40])
def test_masked_accesses_touch_nothing_else(target, count):
    """Only the first lanes are loaded and stored; a count beyond the lanes means all."""
    x, out = np.arange(16, dtype=np.float32), np.full(16, -1, np.float32)

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, ("x", "out"))
        k.store_first(
            a.out,
            k.load_first(f32.x(16), a.x, k.constant(i64, count)) + 1.0,
            k.constant(i64, count),
        )

    run(target, body, x, out)
    expected = np.full(16, -1, np.float32)
    expected[:count] = x[:count] + 1
    assert np.array_equal(out, expected)


def test_control_flow_and_subroutines():
    """Loops carry variables, branches choose, subroutines return."""
    x, out = np.arange(10, dtype=np.int64), np.zeros(3, np.int64)

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, ("x", "out"))
        triple = k.subroutine("triple", (i64,), i64, lambda k, v: v * 3)
        even, odd, n = k.variable(i64), k.variable(i64), k.variable(i64, 10)
        with k.range(0, 10) as i:
            v = k.load(i64, a.x + i * 8)
            with k.branch((v % 2).equals(0)) as (yes, no):
                with yes:
                    even.value = even.value + triple(k, v)
                with no:
                    odd.value = odd.value + v
        with k.repeat_while(lambda: n.value > 3):
            n.value = n.value - 2
        k.store(a.out, even.value)
        k.store(a.out + 8, odd.value)
        with k.when(n.value.equals(2)):
            k.store(a.out + 16, n.value)

    run(runnable()[0], body, x, out)
    assert out.tolist() == [60, 25, 2]


def test_types_are_never_mixed_silently():
    """Operands of different types, and truth of a run-time value, are refused."""

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        with pytest.raises(TypeError, match="convert"):
            record + k.constant(i32, 1)
        with pytest.raises(TypeError, match="only when the kernel runs"):
            bool(record > 0)
        with pytest.raises(TypeError, match="convert it first"):
            k.constant(simd.f16, 0) + 1

    simd.build(runnable()[0], "kernel", body)


@TARGETS
def test_reductions_have_a_fixed_order(target):
    """Lanes are added in halves, pairwise."""
    x = np.random.default_rng(3).standard_normal(16).astype(np.float32)
    out = np.zeros(2, np.float32)

    def body(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
        a = k.fields(record, ("x", "out"))
        v = k.load(f32.x(16), a.x)
        k.store(a.out, simd.reduce_add(v))
        k.store(a.out + 4, simd.reduce_maximum(v))

    run(target, body, x, out)
    total = x.copy()
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    assert out[0] == total[0] and out[1] == x.max()
