"""The host's half of an evaluation: inputs checked and copied to where the plan wants them.

What another device computed comes the same way where the host can write to a device's scratch.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import NOTHING_SENT, ModelBuffers, Sent
from corral.devices.host import array_at
from corral.errors import CapacityExceeded, InternalError
from corral.memory.choices import DRAWS, MOST_BIASES, choosing_rows
from corral.memory.plan import COUNTS, Plan
from corral.tensor.ops import Op
from corral.tensor.tensor import Extent, Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows of each extent one batch has."""

    rows: int
    outputs: int

    def of(self, tensor: Tensor) -> int:
        """Return how many rows of a tensor count."""
        match tensor.extent:
            case Extent.ROWS:
                return self.rows
            case Extent.OUTPUTS:
                return self.outputs
            case Extent.FIXED:
                return tensor.shape[0]


DRAW = np.dtype(
    [
        ("seed", np.uint64),
        ("position", np.uint64),
        ("top_p", np.float64),
        ("floor", np.float64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("tokens", np.int32, (MOST_BIASES,)),
        ("biases", np.float32, (MOST_BIASES,)),
    ]
)
"""How the token of a row of logits is chosen where a device does it; with top_k 1, the likeliest.

`position` is that of the token; `floor`, at most 0, is how far below the greatest logit min_p goes;
`tokens`, −1 behind the last, are those whose logits get a bias before anything else.
"""
_NO_TOKENS, _NO_BIASES = (-1,) * MOST_BIASES, (0.0,) * MOST_BIASES
LIKELIEST = (0, 0, 1.0, 0.0, 1.0, 1, _NO_TOKENS, _NO_BIASES)
"""The `DRAW` of a row whose token is the likeliest."""
_KNOWN_BIASES = 256
Biases = tuple[tuple[int, ...], tuple[float, ...]]


@functools.lru_cache(_KNOWN_BIASES)
def biases_of(pairs: tuple[tuple[int, float], ...]) -> Biases:
    """Return biases of tokens, at most MOST_BIASES, as the last two words of a `DRAW`."""
    tokens, biases = zip(*pairs, strict=True) if pairs else ((), ())
    return (*tokens, *_NO_TOKENS[len(pairs) :]), (*biases, *_NO_BIASES[len(pairs) :])


_ELEMENTS: dict[Op, Any] = {Op.INPUT: np.int32, Op.RECEIVED: np.float32}


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows that lie in host memory, for others to receive."""

    rows: NDArray[np.float32]

    def on_host(self) -> NDArray[np.float32]:
        """Return them."""
        return self.rows


class Staging:
    """The inputs of one flight of a plan as arrays on host memory; made when it is lowered."""

    def __init__(self, plan: Plan, buffers: ModelBuffers, flight: int = 0) -> None:
        self.address = base = buffers.staging.address + flight * plan.staging.inputs_bytes

        def address(tensor: Tensor) -> int:
            is_input = tensor.op is Op.INPUT
            return base + plan.staging.offsets[tensor.name] if is_input else received[tensor]

        leaves = () if plan.traits.has_own_memory else plan.graph.leaves(Op.RECEIVED)
        received = {tensor: buffers.address(plan, tensor) for tensor in leaves}
        self._received = [tensor.name for tensor in leaves]
        self._inputs = (*plan.graph.leaves(Op.INPUT), *leaves)
        self._arrays = {
            tensor.name: array_at(address(tensor), tensor.shape, _ELEMENTS[tensor.op])
            for tensor in self._inputs
        }
        self._counts = array_at(base + plan.staging.offsets[COUNTS], (2,), np.int64)
        choosing = choosing_rows(plan.graph, plan.traits)
        self._draws = (
            array_at(base + plan.staging.offsets[DRAWS], (choosing,), DRAW) if choosing else None
        )

    def write(
        self,
        inputs: Mapping[str, NDArray[Any]],
        outputs: int,
        received: Mapping[str, Sent] = NOTHING_SENT,
    ) -> Counts:
        """Copy the inputs of a batch and return its counts; inputs the graph lacks are ignored.

        What others sent is taken along where the host can write to the device's scratch. Where no
        draws are given, the device chooses the likeliest tokens, if any.

        Raises:
            CapacityExceeded: if an input is larger than the plan.
            InternalError: if one is missing or two disagree on the number of rows.
        """
        if self._received:
            inputs = {**inputs, **arrived(self._received, received)}
        counts = count(self._inputs, inputs, outputs)
        for name, array in self._arrays.items():
            given = inputs[name]
            array[tuple(slice(size) for size in given.shape)] = given
        self._counts[:] = counts.rows, counts.outputs
        if self._draws is not None:
            self._draws[:outputs] = inputs.get(DRAWS, LIKELIEST)
        return counts


def arrived(
    names: Iterable[str], received: Mapping[str, Sent]
) -> Mapping[str, NDArray[np.float32]]:
    """Return what others sent, in host memory.

    Raises:
        InternalError: if something is missing.
    """
    missing = [name for name in names if name not in received]
    if missing:
        raise InternalError(f"nobody sent {', '.join(missing)}; got {', '.join(received)}")
    return {name: received[name].on_host() for name in names}


def count(tensors: tuple[Tensor, ...], inputs: Mapping[str, NDArray[Any]], outputs: int) -> Counts:
    """Return the rows and outputs of a batch after checking every input against its tensor.

    Raises:
        CapacityExceeded: if an input is larger than its tensor.
        InternalError: if one is missing or two disagree on the number of rows.
    """
    lengths = {Extent.OUTPUTS: outputs}
    for tensor in tensors:
        given = inputs.get(tensor.name)
        if given is None:
            raise InternalError(f"input {tensor.name} is missing; got {', '.join(inputs)}")
        if given.ndim != len(tensor.shape) or any(
            size > limit for size, limit in zip(given.shape, tensor.shape, strict=True)
        ):
            raise CapacityExceeded(f"input {tensor.name} is {given.shape}, planned {tensor.shape}")
        if tensor.extent is not Extent.FIXED:
            expected = lengths.setdefault(tensor.extent, len(given))
            if len(given) != expected:
                raise InternalError(
                    f"input {tensor.name} has {len(given)} rows, the batch has {expected}"
                )
    return Counts(lengths.get(Extent.ROWS, 0), outputs)
