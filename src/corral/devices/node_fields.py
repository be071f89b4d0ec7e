"""What kernels are given for a node where both compiled backends give the same, in one order.

A backend takes these fields by their names, adds its own, and knows which kernel they are for.
"""

from corral.devices.binding import BoundPlan, float_word
from corral.tensor.ops import Rope, Rotation
from corral.tensor.tensor import Tensor

Fields = dict[str, int]


def row_fields(at: BoundPlan, node: Tensor) -> Fields:
    """Return the fields of a kernel that maps rows of one source to rows of the result."""
    x = node.sources[0]
    return {
        "x": at.address(x),
        "count": at.count(node),
        "out": at.address(node),
        "x_stride": x.row_bytes,
        "out_stride": node.row_bytes,
    }


def rope_fields(at: BoundPlan, node: Tensor) -> Fields:
    """Return the fields of ROPE."""
    rotations = node.sources[1]
    assert isinstance(node.attributes, Rope)
    return row_fields(at, node) | {
        "rotations": at.address(rotations),
        "rotations_stride": rotations.row_bytes,
        "heads": node.columns // node.attributes.head_dim,
    }


def rotation_fields(at: BoundPlan, node: Tensor) -> Fields:
    """Return the fields of ROTATIONS; `factors` is 0 where there are none."""
    positions, frequencies, *factors = node.sources
    assert isinstance(node.attributes, Rotation)
    return {
        "positions": at.address(positions),
        "count": at.count(node),
        "frequencies": at.address(frequencies),
        "factors": at.address(factors[0]) if factors else 0,
        "out": at.address(node),
        "out_stride": node.row_bytes,
        "pairs": frequencies.columns,
        "magnitude": float_word(node.attributes.magnitude),
    }


def append_fields(at: BoundPlan, node: Tensor) -> Fields:
    """Return the fields of KV_APPEND."""
    k, v, state, positions, sequences, tables = node.sources
    return {
        "k": at.address(k),
        "v": at.address(v),
        "state": at.address(state),
        "count": at.count(k),
        "positions": at.address(positions),
        "sequences": at.address(sequences),
        "tables": at.address(tables),
        "k_stride": k.row_bytes,
        "v_stride": v.row_bytes,
        "tables_stride": tables.row_bytes,
        "kv_heads": state.shape[2],
    }


def shift_fields(at: BoundPlan, node: Tensor) -> Fields:
    """Return the fields of KV_SHIFT."""
    state, rotations, from_blocks, to_blocks = node.sources
    return {
        "state": at.address(state),
        "count": at.count(rotations),
        "rotations": at.address(rotations),
        "from_blocks": at.address(from_blocks),
        "to_blocks": at.address(to_blocks),
        "rotations_stride": rotations.row_bytes,
        "kv_heads": state.shape[2],
    }
