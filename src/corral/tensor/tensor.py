"""The tensor: a name, a type, a shape, and the operation that gives it.

A tensor knows no device and no bytes. Where its bytes lie is said by a plan (`memory/plan.py`), so
one graph can be planned for two devices at once.
"""

import enum
from dataclasses import dataclass

from corral.quant.types import DType
from corral.tensor.ops import Attributes, Op

_OWNERS = {Op.VIEW: 0, Op.KV_APPEND: 2, Op.KV_SHIFT: 0}
"""The source in whose bytes the result of an operation always lies."""


class Extent(enum.Enum):
    """What the first dimension counts; the shape holds its capacity."""

    FIXED = "always the whole of it"
    ROWS = "tokens of this batch"
    OUTPUTS = "rows of this batch whose logits are wanted"


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One value of a graph; two tensors are equal only if they are the same object."""

    name: str
    op: Op
    dtype: DType
    shape: tuple[int, ...]
    """Slowest dimension first; rows × columns for activations."""
    sources: tuple["Tensor", ...] = ()
    attributes: Attributes = None
    extent: Extent = Extent.FIXED
    layer: int | None = None

    @property
    def columns(self) -> int:
        """Elements of the fastest dimension."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Product of all dimensions but the fastest."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor at full capacity, rows contiguous."""
        return self.rows * self.dtype.row_bytes(self.columns)

    @property
    def base(self) -> "Tensor":
        """The tensor that owns the bytes: itself, unless this is a view or writes to a state."""
        tensor = self
        while (source := _OWNERS.get(tensor.op)) is not None:
            tensor = tensor.sources[source]
        return tensor

    @property
    def row_bytes(self) -> int:
        """Distance in bytes from a row to the next; a view has its source's."""
        base = self.base
        return base.dtype.row_bytes(base.shape[-1])

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return f"<{self.name} {self.op.name} {self.dtype.name} {shape}>"
