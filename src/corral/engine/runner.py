"""Runs batches: shape class to program, sequences to logits."""

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
        self._outputs = 0

    @property
    def is_asynchronous(self) -> bool:
        """Whether a batch that was started is computed while the caller goes on."""
        return self._backend.is_asynchronous

    def start(self, batch: List[Rows]) -> None:
        """Begin to compute a batch; `finish` must be called before the next is started."""
        inputs = self._arrays.fill(batch)
        self._outputs = len(inputs["output_rows"])
        self._backend.run(self._program, inputs, self._outputs)

    def finish(self) -> NDArray[np.float32]:
        """Return the logits of the batch that was started: (outputs, vocabulary).

        They are valid until the next is started.
        """
        logits = self._program.plan.graph.outputs[0]
        return self._backend.read(self._program, logits, self._outputs)

    def run(self, batch: List[Rows]) -> NDArray[np.float32]:
        """Compute a batch and return its logits."""
        self.start(batch)
        return self.finish()
