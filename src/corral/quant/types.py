"""The one table of data types: what a block of each holds and how many bytes it takes.

Ids, block sizes and names are those of the GGUF format (ggml's `enum ggml_type`). The table knows
nothing of how values are decoded (`legacy.py`, `k_quants.py`, `i_quants.py`) nor of how devices
keep them (`packed.py`). It stays free of NumPy, because the router reads footprints through it.
"""

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """What one data type is: its GGUF id and the size of its block."""

    ggml_id: int | None
    """Number in GGUF files; None for types that only exist inside corral."""
    block_elements: int
    block_bytes: int


class DType(enum.Enum):
    """A data type; the value holds its traits."""

    __hash__ = object.__hash__  # as members are equal to themselves only; five times as quick

    F32 = Traits(0, 1, 4)
    F16 = Traits(1, 1, 2)
    Q4_0 = Traits(2, 32, 18)
    Q4_1 = Traits(3, 32, 20)
    Q5_0 = Traits(6, 32, 22)
    Q5_1 = Traits(7, 32, 24)
    Q8_0 = Traits(8, 32, 34)
    Q8_1 = Traits(9, 32, 36)
    Q2_K = Traits(10, 256, 84)
    Q3_K = Traits(11, 256, 110)
    Q4_K = Traits(12, 256, 144)
    Q5_K = Traits(13, 256, 176)
    Q6_K = Traits(14, 256, 210)
    Q8_K = Traits(15, 256, 292)
    IQ2_XXS = Traits(16, 256, 66)
    IQ2_XS = Traits(17, 256, 74)
    IQ3_XXS = Traits(18, 256, 98)
    IQ1_S = Traits(19, 256, 50)
    IQ4_NL = Traits(20, 32, 18)
    IQ3_S = Traits(21, 256, 110)
    IQ2_S = Traits(22, 256, 82)
    IQ4_XS = Traits(23, 256, 136)
    I8 = Traits(24, 1, 1)
    I16 = Traits(25, 1, 2)
    I32 = Traits(26, 1, 4)
    I64 = Traits(27, 1, 8)
    F64 = Traits(28, 1, 8)
    IQ1_M = Traits(29, 256, 56)
    BF16 = Traits(30, 1, 2)
    TQ1_0 = Traits(34, 256, 54)
    TQ2_0 = Traits(35, 256, 66)
    MXFP4 = Traits(39, 32, 17)
    A8 = Traits(None, 32, 40)
    """Activations: 32 int8 codes, an F32 scale and the F32 sum scale × Σ codes. Never in a file."""
    A16 = Traits(None, 32, 72)
    """Activations as A8 with 16-bit codes, in two planes of int8: code = 256 × high + low."""

    @property
    def is_activation(self) -> bool:
        """Whether only values of an evaluation have this type, to be multiplied as integers."""
        return self in (DType.A8, DType.A16)

    @property
    def block_elements(self) -> int:
        """Elements one block holds."""
        return self.value.block_elements

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes."""
        return self.value.block_bytes

    @property
    def is_quantized(self) -> bool:
        """Whether elements share a block, so that none can be addressed alone."""
        return self.value.block_elements > 1

    @property
    def bits_per_element(self) -> float:
        """Average bits one element takes, scales included."""
        return 8 * self.value.block_bytes / self.value.block_elements

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of `columns` elements.

        Raises:
            ValueError: if `columns` is not a whole number of blocks.
        """
        value = self._value_  # as `value`, at a third of the time: this is asked all the time
        blocks, rest = divmod(columns, value.block_elements)
        if rest:
            raise ValueError(
                f"{columns} columns are not whole blocks of {self.block_elements} ({self.name})"
            )
        return blocks * value.block_bytes


BY_GGML_ID: dict[int, DType] = {t.value.ggml_id: t for t in DType if t.value.ggml_id is not None}
"""The data type of each GGUF type number."""
