"""Sequences to input arrays: flat rows, each with its token, position and block table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.staging import DRAW, LIKELIEST, Biases, biases_of
from corral.engine.adapter_use import Uses, spans
from corral.engine.sequence import Sequence
from corral.kv.spec import GroupSpec
from corral.memory.choices import DRAWS, MOST_BIASES, MOST_CANDIDATES
from corral.sampling.chain import Draw
from corral.tensor.attach import SPAN_WORDS, SPANS, AdapterRoom
from corral.tensor.graph import ShapeClass
from corral.tensor.tensor import Extent

_Draw = tuple[int, int, float, float, float, int, *Biases]
"""The words of a `DRAW`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive tokens of one sequence in a batch, and how many of the last want logits."""

    sequence: Sequence
    num_tokens: int
    num_outputs: int
    ahead: int = 0
    """Tokens before these that are still being computed."""
    fed_by: int | None = None
    """Row of the outputs of the evaluation before, whose chosen token this one is."""


def can_draw(draw: Draw | None) -> bool:
    """Whether a device that chooses tokens can do so as this says."""
    if draw is None:
        return False
    return draw.top_k <= MOST_CANDIDATES and len(draw.biases) <= MOST_BIASES


def _draw(rows: Rows) -> _Draw:
    """Return how a device chooses the token behind rows; where it cannot, the likeliest for now."""
    sampler = rows.sequence.sampler
    draw = sampler.draw if sampler is not None else None
    if sampler is None or draw is None or not can_draw(draw):
        return LIKELIEST
    sequence = rows.sequence
    position = sequence.num_dropped + sequence.num_computed + rows.ahead + rows.num_tokens
    words = (sampler.seed, position, draw.top_p, draw.floor, draw.temperature, draw.top_k)
    return (*words, *biases_of(draw.biases))


class BatchArrays:
    """The input arrays of one shape class, made once and filled for each evaluation."""

    def __init__(self, shapes: ShapeClass, groups: tuple[GroupSpec, ...]) -> None:
        self._tokens = np.zeros(shapes.rows, np.int32)
        self._positions = np.zeros(shapes.rows, np.int32)
        self._sequences = np.zeros(shapes.rows, np.int32)
        self._output_rows = np.zeros(shapes.outputs, np.int32)
        self._draws = np.zeros(shapes.outputs, DRAW)
        self._tables = [np.zeros((shapes.sequences, shapes.blocks), np.int32) for _ in groups]
        self._names = [group.tables_name for group in groups]
        self._spans: dict[Extent, NDArray[np.int32]] = {}

    def make_room(self, room: AdapterRoom | None) -> None:
        """Have arrays for the spans of adapters, or none any more."""
        shape = (0, 0) if room is None else (1 + room.spans, SPAN_WORDS)
        extents = () if room is None else tuple(SPANS)
        self._spans = {extent: np.zeros(shape, np.int32) for extent in extents}

    def fill(self, batch: Iterable[Rows]) -> Mapping[str, NDArray[Any]]:
        """Return the inputs of a batch; they are valid until the next call."""
        row = number = 0
        outputs, draws = list[int](), list[_Draw]()
        used: dict[Extent, list[tuple[int, int, Uses]]] = {extent: [] for extent in self._spans}
        for number, rows in enumerate(batch, 1):
            end = row + rows.num_tokens
            self._fill_rows(rows, number - 1, row, end)
            if used:
                uses = rows.sequence.adapters
                used[Extent.ROWS].append((row, end, uses))
                before = len(outputs)
                used[Extent.OUTPUTS].append((before, before + rows.num_outputs, uses))
            for last in range(end - rows.num_outputs, end):
                outputs.append(last)
                draws.append(_draw(rows))
            row = end
        self._fill_outputs(outputs, draws)
        tables = {
            name: table[:number] for name, table in zip(self._names, self._tables, strict=True)
        }
        return {
            "tokens": self._tokens[:row],
            "positions": self._positions[:row],
            "sequences": self._sequences[:row],
            "output_rows": self._output_rows[: len(outputs)],
            DRAWS: self._draws[: len(outputs)],
            **tables,
            **{SPANS[extent]: self._fill_spans(extent, found) for extent, found in used.items()},
        }

    def _fill_outputs(self, rows: list[int], draws: list[_Draw]) -> None:
        """Write a word of all draws at once: one draw after the other takes ten times as long."""
        self._output_rows[: len(rows)] = rows
        for name, column in zip(DRAW.names or (), zip(*draws, strict=True), strict=False):
            self._draws[name][: len(draws)] = column

    def _fill_spans(self, extent: Extent, used: list[tuple[int, int, Uses]]) -> NDArray[np.int32]:
        found, array = spans(used), self._spans[extent]
        array[0, 0] = len(found)
        for place, span in enumerate(found, 1):
            array[place] = span
        return array[: 1 + len(found)]

    def _fill_rows(self, rows: Rows, number: int, row: int, end: int) -> None:
        sequence = rows.sequence
        first = sequence.num_computed + rows.ahead
        if rows.num_tokens == 1:
            fed = rows.fed_by
            self._tokens[row] = sequence.tokens[first] if fed is None else -1 - fed
            self._positions[row] = first
        else:
            self._tokens[row:end] = sequence.tokens[first : first + rows.num_tokens]
            self._positions[row:end] = np.arange(first, first + rows.num_tokens)
        self._sequences[row:end] = number
        for array, table in zip(self._tables, sequence.tables, strict=True):
            array[number, : len(table.blocks)] = table.blocks
