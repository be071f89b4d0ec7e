"""Runs batches: sequences to input arrays, through every part of a model, to logits.

inputs ─┬─▶ part 0 ═▶ rows ═▶ part 1 ═▶ … ═▶ last part ─▶ logits, or tokens it chose
        └──────────────────────▶ ┘
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import Backend, Program, Sent
from corral.engine.batch import BatchArrays, Rows, can_draw
from corral.engine.cache import Move
from corral.errors import InternalError, UnsupportedModel
from corral.kv.spec import GroupSpec
from corral.memory.choices import choosing_rows
from corral.sampling.sampler import Sampler
from corral.tensor.attach import AdapterRoom
from corral.tensor.shift import FROM_BLOCKS, POSITIONS, SHIFT_ROWS, TO_BLOCKS
from corral.tensor.tensor import Extent

NO_EMBEDDINGS = (
    "the model is loaded to generate text and gives no embeddings: load it with embeddings"
)


class Link(Protocol):
    """A part of a model: a program and the backend that runs it."""

    @property
    def backend(self) -> Backend:
        """Who runs it."""
        ...

    @property
    def program(self) -> Program:
        """What is run."""
        ...


class OwnLink(Link, Protocol):
    """A part as the model was loaded, which owns keys and values."""

    @property
    def shift(self) -> Program | None:
        """What turns cached keys, if the model was loaded for that."""
        ...


class _Lane:
    """One way through a model: the programs of all its parts, the last of which gives logits."""

    def __init__(self, parts: List[Link]) -> None:
        *self.before, last = parts
        self.backend, self.program = last.backend, last.program
        plan = self.program.plan
        is_choosing = choosing_rows(plan.graph, plan.traits) > 0
        self.chooses = self.backend.is_asynchronous and is_choosing
        """Whether the device can choose tokens."""

    def start(self, inputs: Mapping[str, NDArray[Any]], *, chooses: bool) -> None:
        """Run every part; rows pass from each to the next."""
        outputs = len(inputs["output_rows"])
        sent: dict[str, Sent] = {}
        for part in self.before:
            backend, program = part.backend, part.program
            backend.run(program, inputs, outputs, received=sent, sends=True)
            counts = {Extent.ROWS: len(inputs["tokens"]), Extent.OUTPUTS: outputs}
            for tensor in program.plan.graph.outputs:
                sent[tensor.name] = backend.send(program, tensor, counts[tensor.extent])
        self.backend.run(self.program, inputs, outputs, received=sent, chooses=chooses)


class Runner:
    """Owns the input arrays of a model's programs; everything else belongs to the model."""

    def __init__(self, parts: List[OwnLink], groups: tuple[GroupSpec, ...]) -> None:
        self._parts = tuple(parts)
        self._plain = self._last = self._read = _Lane(parts)
        self._adapted: _Lane | None = None
        self.shapes = self._plain.program.plan.graph.shape_class
        self._arrays = BatchArrays(self.shapes, groups)
        self._started: deque[tuple[_Lane, int]] = deque()
        """The lane and the rows of logits of each batch that was started and not finished."""
        self._rows_read = 0

    def attach(self, parts: List[Link] | None, room: AdapterRoom | None = None) -> None:
        """Take other programs for batches of sequences with adapters; None is there are none.

        No batch may be under way.
        """
        self._adapted = None if parts is None else _Lane(parts)
        self._last = self._read = self._plain
        self._arrays.make_room(room)

    @property
    def is_asynchronous(self) -> bool:
        """Whether a batch that was started is computed while the caller goes on."""
        return self._plain.backend.is_asynchronous

    @property
    def can_feed(self) -> bool:
        """Whether a token that one batch chooses can go into the next without the host."""
        return self.is_asynchronous and not self._plain.before

    def can_choose(self, samplers: List[Sampler | None]) -> bool:
        """Whether the device can choose the tokens of a batch as these samplers would."""
        draws = [None if sampler is None else sampler.draw for sampler in samplers]
        return self._plain.chooses and bool(draws) and all(map(can_draw, draws))

    def start(self, batch: List[Rows], *, chooses: bool = False) -> None:
        """Begin to compute a batch; it must be finished before the next is started.

        One that chooses may be followed by another that does, before `choices` is called, if the
        runner can feed it.
        """
        lane = self._lane(batch)
        inputs = self._arrays.fill(batch)
        lane.start(inputs, chooses=chooses)
        self._started.append((lane, len(inputs["output_rows"])))
        self._last = lane

    def _lane(self, batch: List[Rows]) -> _Lane:
        """Return the programs for a batch: with adapters only where some sequence has one."""
        if any(rows.fed_by is not None for rows in batch):
            return self._last  # what feeds it lies there
        if self._adapted is not None and any(rows.sequence.adapters for rows in batch):
            return self._adapted
        return self._plain

    def finish(self) -> NDArray[np.float32]:
        """Return the logits of the batch that was started: (outputs, vocabulary).

        They are valid until the next is started.
        """
        self._read, self._rows_read = lane, rows = self._started.popleft()
        return lane.backend.read(lane.program, lane.program.plan.graph.outputs[0], rows)

    def vectors(self) -> NDArray[np.float32]:
        """Return the hidden states that the logits just read were made of: (outputs, width).

        Raises:
            UnsupportedModel: if the model was loaded without them.
        """
        program = self._read.program
        outputs = program.plan.graph.outputs
        if len(outputs) < 2:
            raise UnsupportedModel(NO_EMBEDDINGS)
        return self._read.backend.read(program, outputs[1], self._rows_read)

    def choices(self) -> List[int]:
        """Return the tokens that the oldest batch chose; −1 where there is none."""
        lane, rows = self._started.popleft()
        chosen: list[int] = lane.backend.choices(lane.program, rows).tolist()
        return chosen

    def shift(self, moves: List[Move], distance: int) -> None:
        """Turn the cached keys of some blocks to positions so much lower; waits until it is done.

        Nothing may be under way.
        """
        for first in range(0, len(moves), SHIFT_ROWS):
            some = moves[first : first + SHIFT_ROWS]
            inputs = {
                POSITIONS: np.full(len(some), -distance, np.int32),
                FROM_BLOCKS: np.array([move.source for move in some], np.int32),
                TO_BLOCKS: np.array([move.target for move in some], np.int32),
            }
            for part in self._parts:
                if part.shift is None:
                    raise InternalError("the model was loaded without context shift")
                part.backend.run(part.shift, inputs, 0)
            for part in self._parts:
                assert part.shift is not None
                part.backend.read(part.shift, part.shift.plan.graph.outputs[0], len(some))

    def run(self, batch: List[Rows]) -> NDArray[np.float32]:
        """Compute a batch and return its logits."""
        self.start(batch)
        return self.finish()
