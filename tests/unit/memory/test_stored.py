"""The form of a weight on a device, and its bytes there."""

import pytest

from corral.devices.reference.device import reference_traits
from corral.errors import UnsupportedModel
from corral.memory.stored import place_weights, stored_form
from corral.memory.traits import DeviceTraits
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from corral.tensor.ops import Constant, Op
from corral.tensor.tensor import Tensor

PLAIN = reference_traits()
PACKED = DeviceTraits("packed", 64, 4096, 16, frozenset(), 8)


def weight(dtype, *shape, name="w"):
    return Tensor(name, Op.WEIGHT, dtype, shape)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_a_device_that_packs_nothing_keeps_f32(dtype):
    """Four bytes an element, whatever the file has."""
    form = stored_form(weight(dtype, 3, 256), PLAIN)
    assert (form.layout, form.dtype, form.size_bytes) == (None, DType.F32, 3 * 256 * 4)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_matrices_are_packed(dtype):
    """Whole row blocks of the type's layout."""
    form = stored_form(weight(dtype, 17, 256), PACKED)
    assert form.layout is LAYOUTS[dtype]
    assert form.dtype is dtype
    assert form.size_bytes == 2 * LAYOUTS[dtype].row_block_bytes(256, 16)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_packed_weights_take_no_more_than_the_file(dtype):
    """Within 5 % of the file's bits where a code needs the bits it has there."""
    form = stored_form(weight(dtype, 160, 2048), PACKED)
    ratio = form.size_bytes / weight(dtype, 160, 2048).size_bytes
    widened = {DType.Q2_K: 1.96, DType.Q3_K: 1.35}  # to 4 bits: no kernel for fewer
    assert ratio <= widened.get(dtype, 1.05)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_vectors_become_f32(dtype):
    """Norm weights and biases are read whole by every kernel."""
    form = stored_form(weight(dtype, 100), PACKED)
    assert (form.layout, form.dtype, form.size_bytes) == (None, DType.F32, 400)


@pytest.mark.parametrize("traits", [PLAIN, PACKED], ids=["plain", "packed"])
def test_constants_stay_as_they_are(traits):
    """Frequencies keep their 64 bits."""
    constant = Tensor("c", Op.CONSTANT, DType.F64, (3,), attributes=Constant((1.0, 2.0, 3.0)))
    form = stored_form(constant, traits)
    assert (form.layout, form.dtype, form.size_bytes) == (None, DType.F64, 24)


@pytest.mark.parametrize("traits", [PLAIN, PACKED], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", [DType.IQ1_S, DType.TQ2_0, DType.I32])
def test_types_without_a_layout_are_refused(dtype, traits):
    """The refusal names the tensor, its type and the types that would do."""
    with pytest.raises(UnsupportedModel, match=f"tensor w has type {dtype.name}.*Q4_K"):
        stored_form(weight(dtype, 2, 256), traits)


def test_columns_that_do_not_fit_the_layout_are_refused():
    """A row must be whole spans."""
    with pytest.raises(UnsupportedModel, match="288 columns, Q4_K needs a multiple of 256"):
        stored_form(weight(DType.Q4_K, 2, 288), PACKED)


def test_slots_lie_apart_and_aligned():
    """Weights follow each other in the order given."""
    tensors = [weight(DType.F32, 3, 5, name=str(n)) for n in range(3)]
    layout = place_weights(tensors, PLAIN)
    assert [slot.offset for slot in layout.slots.values()] == [0, 64, 128]
    assert layout.size_bytes == 192


def test_a_name_has_one_slot():
    """Graphs of one model share their weights."""
    layout = place_weights([weight(DType.F32, 4, 4), weight(DType.F32, 4, 4)], PLAIN)
    assert len(layout.slots) == 1
    assert layout.size_bytes == 64
