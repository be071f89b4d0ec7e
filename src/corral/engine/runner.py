"""Runs batches: shape class to program, sequences to logits."""

from collections import deque
from collections.abc import Sequence as List

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import Backend, Program
from corral.engine.batch import BatchArrays, Rows
from corral.kv.spec import GroupSpec


class Runner:
    """Owns the input arrays of one program; the backend and the program belong to the model."""

    def __init__(self, backend: Backend, program: Program, groups: tuple[GroupSpec, ...]) -> None:
        self._backend = backend
        self._program = program
        self.shapes = program.plan.graph.shape_class
        self._arrays = BatchArrays(self.shapes, groups)
        self._outputs: deque[int] = deque()
        """Rows of logits of each batch that was started and not finished."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether a batch that was started is computed while the caller goes on."""
        return self._backend.is_asynchronous

    def start(self, batch: List[Rows], *, chooses: bool = False) -> None:
        """Begin to compute a batch; it must be finished before the next is started.

        One that chooses may be followed by another that does, before `choices` is called.
        """
        inputs = self._arrays.fill(batch)
        outputs = len(inputs["output_rows"])
        self._backend.run(self._program, inputs, outputs, chooses=chooses)
        self._outputs.append(outputs)

    def finish(self) -> NDArray[np.float32]:
        """Return the logits of the batch that was started: (outputs, vocabulary).

        They are valid until the next is started.
        """
        logits = self._program.plan.graph.outputs[0]
        return self._backend.read(self._program, logits, self._outputs.popleft())

    def choices(self) -> List[int]:
        """Return the likeliest tokens of the oldest batch that chose; −1 where there is none."""
        chosen: list[int] = self._backend.choices(self._program, self._outputs.popleft()).tolist()
        return chosen

    def run(self, batch: List[Rows]) -> NDArray[np.float32]:
        """Compute a batch and return its logits."""
        self.start(batch)
        return self.finish()
