"""Functions made of arithmetic: e^x and tanh in F32, cosine and sine in F64.

As all arithmetic here, they give the same in every lane and for every number of lanes.
"""

from corral.devices.cpu.simd.arithmetic import absolute, exp, fma, select
from corral.devices.cpu.simd.types import u32, u64
from corral.devices.cpu.simd.value import Value


def _polynomial(coefficients: tuple[float, ...], x: Value) -> Value:
    result = fma(x, coefficients[0], coefficients[1])
    for coefficient in coefficients[2:]:
        result = fma(result, x, coefficient)
    return result


_ROUND_F32 = 1.5 * 2.0**23
_LOG2_E, _LN2 = 1.44269504088896341, 0.69314718055994531
_EXP_LEAST = -87.3
# (e^r − 1 − r) / r² in powers of r, the highest first: fitted on |r| ≤ ln 2 / 2.
_EXP = (0.00139336439, 0.00836317521, 0.0416664667, 0.166665763, 0.5, 1.0, 1.0)


def exp_non_positive(x: Value) -> Value:
    """Return e^x for F32 x ≤ 0, within a relative error of 1.5e-7 + 1e-8 · |x|.

    Where a multiply-add rounds twice, the last number is 6e-8. The result is exactly 1 at 0 and
    about 1e-38 from x = −87.3 down; NaN stays NaN.
    """
    lanes = x.type.lanes
    clamped = select(x < _EXP_LEAST, _EXP_LEAST, x)
    shifted = fma(clamped, _LOG2_E, _ROUND_F32)
    rest = fma(shifted - _ROUND_F32, -_LN2, clamped)
    power = _polynomial(_EXP, rest)
    return (power.bits(u32.x(lanes)) + (shifted.bits(u32.x(lanes)) << 23)).bits(x.type)


# (tanh x / x − 1) / x² in powers of x², the highest first: fitted on |x| ≤ 0.625.
_TANH = (-0.0061049480, 0.0210036412, -0.0538524985, 0.1333278269, -0.3333332837)
_TANH_SMALL = 0.625


def tanh(x: Value) -> Value:
    """Return tanh x for F32 within 4 units of the last place."""
    magnitude, square = absolute(x), x * x
    small = fma(x * square, _polynomial(_TANH, square), x)
    large = 1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0)
    bits = u32.x(x.type.lanes)
    signed = (large.bits(bits) | (x.bits(bits) & 0x80000000)).bits(x.type)
    return select(magnitude < _TANH_SMALL, small, signed)


_ROUND = 1.5 * 2.0**52
_TWO_OVER_PI = 0.63661977236758134308
_HALF_PI_HIGH = 1.57079632679489655800
_HALF_PI_LOW = 6.12323399573676603587e-17
# Taylor's series on |r| ≤ π/4, highest power first: of sin r / r and of cos r, in powers of r².
_SINE = (-1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0)
_COSINE = (1 / 479001600, -1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -0.5, 1.0)


def cosine_and_sine(angle: Value) -> tuple[Value, Value]:
    """Return cosine and sine of F64 angles below 2^31 in magnitude, within 1e-6 of 2^-31 × angle.

    For angles up to 1e6 the error is below 1e-9.
    """
    shifted = fma(angle, _TWO_OVER_PI, _ROUND)
    quarters = shifted - _ROUND
    rest = fma(quarters, -_HALF_PI_LOW, fma(quarters, -_HALF_PI_HIGH, angle))
    square = rest * rest
    sine, cosine = _polynomial(_SINE, square) * rest, _polynomial(_COSINE, square)
    quarter = shifted.bits(u64.x(angle.type.lanes))
    is_odd = (quarter & 1).differs(0)
    turned_sine = select(is_odd, cosine, sine)
    turned_cosine = select(is_odd, sine, cosine)
    return _with_sign(turned_cosine, quarter + 1), _with_sign(turned_sine, quarter)


def _with_sign(value: Value, quarter: Value) -> Value:
    """Negate in the lower half of the circle: where bit 1 of the quarter is set."""
    sign = (quarter & 2) << 62
    return (value.bits(sign.type) ^ sign).bits(value.type)
