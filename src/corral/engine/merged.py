"""Adapters merged into the weights of a loaded model, and taken out again by reading the file.

    rows of the file ─▶ values ─▶ + scale · B·A ─▶ the weight's own type ─▶ its place on the device
    rows of the file ──────────────────────────────────────────────────────▶ undone, to the byte

Nothing is ever subtracted. What is in memory is A and B and a piece of one weight; the device
allocates nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from corral.engine.load import Part
from corral.engine.merging import Merge, plan_merge
from corral.errors import InvalidArgument, InvalidModelFile
from corral.gguf import ModelFile, TensorInfo, open_model
from corral.interrupts import deferred
from corral.memory.stored import StoredSlot
from corral.quant.blocks import Bytes
from corral.quant.dequantize import dequantize
from corral.quant.quantize import quantize

_PIECE_ELEMENTS = 1 << 20
_Change = Callable[[str, int, Bytes], Bytes]
"""Gives the bytes that a device gets for rows of a weight: its name, the first row, the file's."""


@dataclass(slots=True, eq=False)
class MergedAdapters:
    """What was merged into the weights of one loaded model."""

    parts: Sequence[Part]
    path: Path
    """Of the model's first file."""
    tensors: dict[str, TensorInfo]
    """As they were when the model was loaded."""
    changed: set[str] = field(default_factory=set)
    """Weights that are not as the file has them."""

    def merge(self, adapters: Sequence[tuple[Path, float]]) -> None:
        """Merge adapters into the weights; if anything fails, all are as the file has them.

        No evaluation may be under way, and what is cached of earlier ones is worth nothing.

        Raises:
            InvalidArgument: if adapters are merged already, or a scale is no number.
            ModelError: if an adapter is at fault or not one of this model, or the file changed.
        """
        if self.changed:
            raise InvalidArgument("adapters are merged already: take them out first (unmerge)")
        with self._file() as file:
            what = plan_merge(file, adapters)
            try:
                self._store(file, what.deltas, lambda *rows: _merged(file, what, *rows))
            except BaseException:
                with deferred:
                    self._restore(file)
                raise

    def unmerge(self) -> None:
        """Read the weights that were changed anew; with none, nothing is done.

        Raises:
            InvalidModelFile: if the file changed or cannot be read.
        """
        if self.changed:
            with self._file() as file:
                self._restore(file)

    def _restore(self, file: ModelFile) -> None:
        self._store(file, tuple(self.changed), lambda _name, _row, data: data)
        self.changed.clear()

    def _file(self) -> ModelFile:
        file = open_model(self.path)
        if dict(file.tensors) != self.tensors:
            file.close()
            raise InvalidModelFile(
                f"{self.path.name}: the file is not the one that was loaded: load the model anew"
            )
        return file

    def _store(self, file: ModelFile, names: Iterable[str], change: _Change) -> None:
        """Store weights anew, piece by piece, on every device that has them."""
        for name in names:
            for part in self.parts:
                slot = part.plan.weights.slots.get(name)
                if slot is None:
                    continue
                self.changed.add(name)
                for first, data in _rows(file, slot, max(1, part.plan.traits.interleave)):
                    stored = np.ascontiguousarray(change(name, first, data)).reshape(-1)
                    weights = part.buffers.weights
                    part.device.upload(slot, weights, first, memoryview(stored.data))


def _rows(file: ModelFile, slot: StoredSlot, step: int) -> Iterator[tuple[int, Bytes]]:
    """Yield the first row and the bytes of each piece of a weight, in whole blocks of rows."""
    tensor = slot.tensor
    size = tensor.dtype.row_bytes(tensor.columns)
    count = max(step, _PIECE_ELEMENTS // tensor.columns // step * step)
    for first in range(0, tensor.rows, count):
        data = np.empty((min(count, tensor.rows - first), size), np.uint8)
        file.read(tensor.name, data.data, first * size)
        yield first, data


def _merged(file: ModelFile, what: Merge, name: str, first: int, data: Bytes) -> Bytes:
    info = file.tensors[name]
    values = dequantize(data, info.dtype, (len(data), info.shape[-1]))
    return quantize(what.alter(name, first, values), info.dtype)
