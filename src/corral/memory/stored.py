"""How a weight of the file is kept on a device: its form there and its bytes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from corral.errors import UnsupportedModel
from corral.memory.planner import align
from corral.memory.traits import DeviceTraits
from corral.quant.packed import LAYOUTS, PackedLayout
from corral.quant.types import DType
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The form a weight takes on a device."""

    layout: PackedLayout | None
    """None: plain row-major values of `dtype`."""
    dtype: DType
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A weight's place in the weights buffer."""

    tensor: Tensor
    form: StoredForm
    offset: int


@dataclass(frozen=True, slots=True)
class WeightsLayout:
    """Every weight's place, by name, and the bytes of them all."""

    slots: dict[str, StoredSlot]
    size_bytes: int


def stored_form(tensor: Tensor, traits: DeviceTraits) -> StoredForm:
    """Return how a device with these traits keeps a weight or a constant.

    Matrices are packed; vectors become F32; a device that packs nothing keeps F32 only.

    Raises:
        UnsupportedModel: if no packed layout exists for the data type.
    """
    if tensor.op is Op.CONSTANT:
        return StoredForm(None, tensor.dtype, tensor.size_bytes)
    if tensor.dtype not in LAYOUTS:
        raise UnsupportedModel(
            f"tensor {tensor.name} has type {tensor.dtype.name}, which corral does not run; "
            f"convert the model to one of {', '.join(t.name for t in LAYOUTS)}"
        )
    elements = tensor.rows * tensor.columns
    if traits.interleave == 0 or len(tensor.shape) == 1:
        return StoredForm(None, DType.F32, elements * DType.F32.block_bytes)
    layout = LAYOUTS[tensor.dtype]
    if tensor.columns % layout.granularity:
        raise UnsupportedModel(
            f"tensor {tensor.name} has {tensor.columns} columns, "
            f"{tensor.dtype.name} needs a multiple of {layout.granularity}"
        )
    size = layout.size_bytes(tensor.rows, tensor.columns, traits.interleave)
    return StoredForm(layout, tensor.dtype, size)


def place_weights(weights: Iterable[Tensor], traits: DeviceTraits) -> WeightsLayout:
    """Give each weight its place in one buffer, in the given order, each name once."""
    slots: dict[str, StoredSlot] = {}
    offset = 0
    for tensor in weights:
        if tensor.name not in slots:
            form = stored_form(tensor, traits)
            slots[tensor.name] = StoredSlot(tensor, form, offset)
            offset += align(form.size_bytes, traits.alignment)
    return WeightsLayout(slots, offset)
