"""The types of the embedded language: scalars, and vectors of any lane count.

They know their LLVM spelling and their signedness, and nothing of instructions.
"""

import enum
import struct
from dataclasses import dataclass, replace


class Kind(enum.Enum):
    """What the bits of an element mean."""

    SIGNED = "i"
    UNSIGNED = "u"
    FLOAT = "f"
    HALF = "half"
    """F16: stored and converted only, never computed with."""
    BRAIN = "brain"
    """BF16: stored and converted only, never computed with."""
    BOOLEAN = "bool"


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar (`lanes` is 0) or a vector type."""

    kind: Kind
    bits: int
    lanes: int = 0

    def x(self, lanes: int) -> "Type":
        """Return the vector type of `lanes` elements of this type; 0 gives the scalar."""
        return replace(self, lanes=lanes)

    @property
    def element(self) -> "Type":
        """The scalar type of one lane."""
        return replace(self, lanes=0)

    @property
    def is_integer(self) -> bool:
        """Whether integer arithmetic applies."""
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_float(self) -> bool:
        """Whether floating-point arithmetic applies."""
        return self.kind is Kind.FLOAT

    @property
    def is_signed(self) -> bool:
        """Whether an integer is signed."""
        return self.kind is Kind.SIGNED

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.bits * max(self.lanes, 1) // 8

    @property
    def llvm_element(self) -> str:
        """LLVM's name of one lane. Halves and brain floats travel as integers."""
        if self.is_float:
            return "float" if self.bits == 32 else "double"
        return f"i{self.bits}"

    @property
    def llvm(self) -> str:
        """LLVM's name of the type."""
        return f"<{self.lanes} x {self.llvm_element}>" if self.lanes else self.llvm_element

    @property
    def mangled(self) -> str:
        """LLVM's suffix of intrinsics overloaded on the type."""
        element = f"f{self.bits}" if self.is_float else f"i{self.bits}"
        return f"v{self.lanes}{element}" if self.lanes else element

    def literal(self, value: float) -> str:
        """Return LLVM's spelling of `value` in one lane."""
        if self.is_float:
            rounded = struct.unpack("f", struct.pack("f", value))[0] if self.bits == 32 else value
            return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
        return str(int(value))

    def constant(self, values: float | list[float]) -> str:
        """Return LLVM's spelling of a constant; one number fills every lane."""
        if not self.lanes:
            assert not isinstance(values, list)
            return self.literal(values)
        numbers = values if isinstance(values, list) else [values] * self.lanes
        assert len(numbers) == self.lanes
        return f"<{', '.join(f'{self.llvm_element} {self.literal(n)}' for n in numbers)}>"

    def __str__(self) -> str:
        name = f"{self.kind.value}{self.bits}"
        return f"{name}.x({self.lanes})" if self.lanes else name


i8, i16, i32, i64 = (Type(Kind.SIGNED, bits) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (Type(Kind.UNSIGNED, bits) for bits in (8, 16, 32, 64))
f16, bf16 = Type(Kind.HALF, 16), Type(Kind.BRAIN, 16)
f32, f64 = Type(Kind.FLOAT, 32), Type(Kind.FLOAT, 64)
boolean = Type(Kind.BOOLEAN, 1)
