"""Conversions between types by value, exact or rounded half to even on every processor."""

from corral.devices.cpu.simd.arithmetic import select
from corral.devices.cpu.simd.types import Kind, Type, f32, u16, u32
from corral.devices.cpu.simd.value import Value


def convert(value: Value, element: Type) -> Value:
    """Return `value` converted lane by lane to `element`.

    Integers widen by their own signedness and narrow by dropping bits; floats become integers
    towards zero. F16 and BF16 convert to and from F32 only.
    """
    source, result = value.type, element.x(value.type.lanes)
    if source == result:
        return value
    if Kind.HALF in (source.kind, element.kind):
        return _to_half(value) if element.kind is Kind.HALF else _from_half(value)
    if Kind.BRAIN in (source.kind, element.kind):
        return _to_brain(value) if element.kind is Kind.BRAIN else _from_brain(value)
    return value.kernel.emit(
        result, f"{_operation(source, element)} {value.typed} to {result.llvm}"
    )


def _operation(source: Type, element: Type) -> str:
    if source.is_float:
        if element.is_float:
            return "fptrunc" if element.bits < source.bits else "fpext"
        return "fptosi" if element.is_signed else "fptoui"
    if element.is_float:
        return "sitofp" if source.is_signed else "uitofp"
    if element.bits == source.bits:
        raise TypeError(f"{source} to {element} changes no bits: use bits()")
    if element.bits < source.bits:
        return "trunc"
    return "sext" if source.is_signed else "zext"


def _only_f32(of: Type) -> None:
    if of.element != f32:
        raise TypeError(f"F16 and BF16 convert to and from f32 only, not {of}")


def _llvm_half(lanes: int) -> str:
    return f"<{lanes} x half>" if lanes else "half"


def _from_half(value: Value) -> Value:
    k, lanes = value.kernel, value.type.lanes
    if k.target.half:
        half = k.emit(value.type, f"bitcast {value.typed} to {_llvm_half(lanes)}")
        return k.emit(f32.x(lanes), f"fpext {_llvm_half(lanes)} {half.text} to {f32.x(lanes).llvm}")
    wide = convert(value.bits(u16.x(lanes)), u32)
    magnitude = ((wide & 0x7FFF) << 13).bits(f32.x(lanes)) * 2.0**112
    special = (wide & 0x7C00).equals(0x7C00)
    bits = magnitude.bits(u32.x(lanes))
    bits = select(special, bits | 0x7F800000, bits) | ((wide & 0x8000) << 16)
    return bits.bits(f32.x(lanes))


def _to_half(value: Value) -> Value:
    _only_f32(value.type)
    k, lanes, half = value.kernel, value.type.lanes, Type(Kind.HALF, 16, value.type.lanes)
    if k.target.half:
        rounded = k.emit(half, f"fptrunc {value.typed} to {_llvm_half(lanes)}")
        return k.emit(half, f"bitcast {_llvm_half(lanes)} {rounded.text} to {half.llvm}")
    bits = value.bits(u32.x(lanes))
    sign, magnitude = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    # Normal halves: rebias the exponent, then round by adding half a unit less the even tie.
    normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    # Subnormal halves: adding 0.5 leaves the rounded units of 2^-24 in the low bits.
    small = (magnitude.bits(f32.x(lanes)) + 0.5).bits(u32.x(lanes)) - 0x3F000000
    result = select(magnitude < 0x38800000, small, normal)
    result = select(magnitude >= 0x47800000, sign * 0 + 0x7C00, result)
    nan = ((magnitude >> 13) & 0x3FF) | 0x7E00
    result = select(magnitude > 0x7F800000, nan, result)
    return convert(result | sign, u16).bits(half)


def _from_brain(value: Value) -> Value:
    lanes = value.type.lanes
    return (convert(value.bits(u16.x(lanes)), u32) << 16).bits(f32.x(lanes))


def _to_brain(value: Value) -> Value:
    _only_f32(value.type)
    lanes = value.type.lanes
    bits = value.bits(u32.x(lanes))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits >> 16) | 0x40
    result = select((bits & 0x7FFFFFFF) > 0x7F800000, nan, rounded)
    return convert(result, u16).bits(Type(Kind.BRAIN, 16, lanes))
