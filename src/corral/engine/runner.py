"""Runs batches: sequences to input arrays, through every part of a model, to logits.

inputs ─┬─▶ part 0 ═▶ rows ═▶ part 1 ═▶ … ═▶ last part ─▶ logits, or tokens it chose
        └──────────────────────▶ ┘
"""

from collections import deque
from collections.abc import Sequence as List
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import Backend, Program, Sent
from corral.engine.batch import BatchArrays, Rows
from corral.errors import UnsupportedModel
from corral.kv.spec import GroupSpec
from corral.memory.choices import MOST_CANDIDATES, choosing_rows
from corral.sampling.sampler import Sampler
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


class Runner:
    """Owns the input arrays of a model's programs; everything else belongs to the model."""

    def __init__(self, parts: List[Link], groups: tuple[GroupSpec, ...]) -> None:
        *self._before, last = parts
        self._backend, self._program = last.backend, last.program
        self.shapes = self._program.plan.graph.shape_class
        self._arrays = BatchArrays(self.shapes, groups)
        self._outputs: deque[int] = deque()
        """Rows of logits of each batch that was started and not finished."""
        self._rows_read = 0
        plan = self._program.plan
        self._chooses = self.is_asynchronous and choosing_rows(plan.graph, plan.traits) > 0

    @property
    def is_asynchronous(self) -> bool:
        """Whether a batch that was started is computed while the caller goes on."""
        return self._backend.is_asynchronous

    @property
    def can_feed(self) -> bool:
        """Whether a token that one batch chooses can go into the next without the host."""
        return self.is_asynchronous and not self._before

    def can_choose(self, samplers: List[Sampler | None]) -> bool:
        """Whether the device can choose the tokens of a batch as these samplers would."""
        draws = [None if sampler is None else sampler.draw for sampler in samplers]
        most = MOST_CANDIDATES if self._chooses else 0
        return bool(draws) and all(draw is not None and draw.top_k <= most for draw in draws)

    def start(self, batch: List[Rows], *, chooses: bool = False) -> None:
        """Begin to compute a batch; it must be finished before the next is started.

        One that chooses may be followed by another that does, before `choices` is called, if the
        runner can feed it.
        """
        inputs = self._arrays.fill(batch)
        outputs = len(inputs["output_rows"])
        sent: dict[str, Sent] = {}
        for part in self._before:
            backend, program = part.backend, part.program
            backend.run(program, inputs, outputs, received=sent, sends=True)
            counts = {Extent.ROWS: len(inputs["tokens"]), Extent.OUTPUTS: outputs}
            for tensor in program.plan.graph.outputs:
                sent[tensor.name] = backend.send(program, tensor, counts[tensor.extent])
        self._backend.run(self._program, inputs, outputs, received=sent, chooses=chooses)
        self._outputs.append(outputs)

    def finish(self) -> NDArray[np.float32]:
        """Return the logits of the batch that was started: (outputs, vocabulary).

        They are valid until the next is started.
        """
        logits = self._program.plan.graph.outputs[0]
        self._rows_read = self._outputs.popleft()
        return self._backend.read(self._program, logits, self._rows_read)

    def vectors(self) -> NDArray[np.float32]:
        """Return the hidden states that the logits just read were made of: (outputs, width).

        Raises:
            UnsupportedModel: if the model was loaded without them.
        """
        outputs = self._program.plan.graph.outputs
        if len(outputs) < 2:
            raise UnsupportedModel(NO_EMBEDDINGS)
        return self._backend.read(self._program, outputs[1], self._rows_read)

    def choices(self) -> List[int]:
        """Return the tokens that the oldest batch chose; −1 where there is none."""
        chosen: list[int] = self._backend.choices(self._program, self._outputs.popleft()).tolist()
        return chosen

    def run(self, batch: List[Rows]) -> NDArray[np.float32]:
        """Compute a batch and return its logits."""
        self.start(batch)
        return self.finish()
