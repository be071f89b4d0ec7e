"""Values of the embedded language: Python operators that append one LLVM instruction each.

Both operands have one type; a Python number takes the type of the other operand, and a scalar
beside a vector is splat. Nothing is converted silently.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from corral.devices.cpu.simd.types import Kind, Type, boolean, i64

if TYPE_CHECKING:
    from corral.devices.cpu.features import Target


class Emitter(Protocol):
    """What values need of the function that they are part of."""

    @property
    def target(self) -> "Target":
        """The processor that code is emitted for."""

    def emit(self, result: Type, instruction: str) -> "Value":
        """Append an instruction and return its result."""

    def intrinsic(
        self, name: str, result: Type | None, arguments: Sequence["Value | str"]
    ) -> "Value":
        """Append a call of an LLVM intrinsic; strings are immediate arguments (`i32 3`)."""


class Value:
    """A value in a register: the result of an instruction, an argument or a constant."""

    __slots__ = ("addends", "kernel", "text", "type")

    def __init__(self, kernel: Emitter, of: Type, text: str) -> None:
        self.kernel, self.type, self.text = kernel, of, text
        self.addends: tuple[Value, ...] = (self,)
        """What was added up to it, so that addresses can be written as base and offsets."""

    def __repr__(self) -> str:
        return f"<{self.type} {self.text}>"

    def __bool__(self) -> bool:
        raise TypeError(
            "a value exists only when the kernel runs: use when(), branch() or select()"
        )

    @property
    def typed(self) -> str:
        """The value as LLVM writes an operand."""
        return f"{self.type.llvm} {self.text}"

    def like(self, other: "Value | float") -> "Value":
        """Return `other` in the type of this value: a number as constant, a scalar splat."""
        if not isinstance(other, Value):
            return Value(self.kernel, self.type, self.type.constant(other))
        if other.type.lanes == 0 and self.type.lanes:
            other = splat(other, self.type.lanes)
        if other.type != self.type:
            raise TypeError(f"operands are {self.type} and {other.type}: convert one of them")
        return other

    def _pair(self, other: "Value | float") -> tuple["Value", "Value"]:
        if isinstance(other, Value) and other.type.lanes and not self.type.lanes:
            return other.like(self), other
        return self, self.like(other)

    def _binary(self, other: "Value | float", integer: str, floating: str) -> "Value":
        a, b = self._pair(other)
        if a.type.kind in (Kind.HALF, Kind.BRAIN) or (a.type.is_float and not floating):
            raise TypeError(f"{a.type} cannot be computed with: convert it first")
        operation = floating if a.type.is_float else integer
        if not operation:
            raise TypeError(f"no such operation on {a.type}")
        return a.kernel.emit(a.type, f"{operation} {a.typed}, {b.text}")

    def __add__(self, other: "Value | float") -> "Value":
        result = self._binary(other, "add", "fadd")
        if result.type == i64:
            result.addends = (*self.addends, self.like(other))
        return result

    def __sub__(self, other: "Value | float") -> "Value":
        return self._binary(other, "sub", "fsub")

    def __mul__(self, other: "Value | float") -> "Value":
        return self._binary(other, "mul", "fmul")

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> "Value":
        return self.like(other) - self

    def __truediv__(self, other: "Value | float") -> "Value":
        return self._binary(other, "", "fdiv")

    def __rtruediv__(self, other: float) -> "Value":
        return self.like(other) / self

    def __floordiv__(self, other: "Value | float") -> "Value":
        """Integer division that rounds towards zero, as processors do."""
        return self._binary(other, "sdiv" if self.type.is_signed else "udiv", "")

    def __mod__(self, other: "Value | float") -> "Value":
        """Remainder with the sign of the dividend, as processors do."""
        return self._binary(other, "srem" if self.type.is_signed else "urem", "")

    def __and__(self, other: "Value | float") -> "Value":
        return self._binary(other, "and", "")

    def __or__(self, other: "Value | float") -> "Value":
        return self._binary(other, "or", "")

    def __xor__(self, other: "Value | float") -> "Value":
        return self._binary(other, "xor", "")

    def __lshift__(self, other: "Value | float") -> "Value":
        return self._binary(other, "shl", "")

    def __rshift__(self, other: "Value | float") -> "Value":
        """Shift right; signed types keep their sign."""
        return self._binary(other, "ashr" if self.type.is_signed else "lshr", "")

    def __invert__(self) -> "Value":
        return self ^ (1 if self.type.kind is Kind.BOOLEAN else -1)

    def __neg__(self) -> "Value":
        if self.type.is_float:
            return self.kernel.emit(self.type, f"fneg {self.typed}")
        return self.like(0) - self

    def _compare(self, other: "Value | float", integer: str, floating: str) -> "Value":
        a, b = self._pair(other)
        if a.type.is_float:
            operation = f"fcmp {floating}"
        else:
            sign = "" if integer in ("eq", "ne") else "s" if a.type.is_signed else "u"
            operation = f"icmp {sign}{integer}"
        return a.kernel.emit(boolean.x(a.type.lanes), f"{operation} {a.typed}, {b.text}")

    def __lt__(self, other: "Value | float") -> "Value":
        return self._compare(other, "lt", "olt")

    def __le__(self, other: "Value | float") -> "Value":
        return self._compare(other, "le", "ole")

    def __gt__(self, other: "Value | float") -> "Value":
        return self._compare(other, "gt", "ogt")

    def __ge__(self, other: "Value | float") -> "Value":
        return self._compare(other, "ge", "oge")

    def equals(self, other: "Value | float") -> "Value":
        """Compare lane by lane (`==` is left to Python)."""
        return self._compare(other, "eq", "oeq")

    def differs(self, other: "Value | float") -> "Value":
        """Compare lane by lane; a NaN differs from everything."""
        return self._compare(other, "ne", "une")

    def bits(self, of: Type) -> "Value":
        """Reinterpret the same bits as the type `of`."""
        if self.type.bytes != of.bytes:
            raise TypeError(f"{self.type} and {of} differ in size")
        if self.type.llvm == of.llvm:
            return Value(self.kernel, of, self.text)
        return self.kernel.emit(of, f"bitcast {self.typed} to {of.llvm}")

    def __getitem__(self, lane: "int | Value") -> "Value":
        """Return one lane as a scalar."""
        index = lane.typed if isinstance(lane, Value) else f"i64 {lane}"
        return self.kernel.emit(self.type.element, f"extractelement {self.typed}, {index}")

    def replace(self, lane: int, value: "Value | float") -> "Value":
        """Return the vector with one lane replaced by a scalar."""
        scalar = Value(self.kernel, self.type.element, "").like(value)
        return self.kernel.emit(
            self.type, f"insertelement {self.typed}, {scalar.typed}, i64 {lane}"
        )


def splat(value: Value, lanes: int) -> Value:
    """Return a vector with the scalar in every lane."""
    vector = value.type.x(lanes)
    first = value.kernel.emit(vector, f"insertelement {vector.llvm} poison, {value.typed}, i64 0")
    return shuffle(first, [0] * lanes)


def shuffle(a: Value, lanes: list[int], b: Value | None = None) -> Value:
    """Return the chosen lanes; numbers from `len(a)` on choose from `b`."""
    other = b.text if b is not None else "poison"
    if b is not None and b.type != a.type:
        raise TypeError(f"operands are {a.type} and {b.type}")
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    return a.kernel.emit(
        a.type.x(len(lanes)),
        f"shufflevector {a.typed}, {a.type.llvm} {other}, <{len(lanes)} x i32> <{mask}>",
    )


def concatenate(a: Value, b: Value) -> Value:
    """Return the lanes of `a`, then those of `b`."""
    return shuffle(a, list(range(a.type.lanes + b.type.lanes)), b)


def part(value: Value, first: int, lanes: int) -> Value:
    """Return `lanes` lanes from `first` on."""
    return shuffle(value, list(range(first, first + lanes)))
