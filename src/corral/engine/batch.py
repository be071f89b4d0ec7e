"""Sequences to input arrays: flat rows, each with its token, position and block table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.staging import DRAW, LIKELIEST
from corral.engine.adapter_use import Uses, spans
from corral.engine.sequence import Sequence
from corral.kv.spec import GroupSpec
from corral.memory.choices import DRAWS
from corral.tensor.attach import SPAN_WORDS, SPANS, AdapterRoom
from corral.tensor.graph import ShapeClass
from corral.tensor.tensor import Extent


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


def _draw(rows: Rows) -> tuple[int, int, float, float, float, int]:
    """Return how a device chooses the token behind rows; where it cannot, the likeliest for now."""
    sampler = rows.sequence.sampler
    draw = sampler.draw if sampler is not None else None
    if sampler is None or draw is None:
        return LIKELIEST
    sequence = rows.sequence
    position = sequence.num_dropped + sequence.num_computed + rows.ahead + rows.num_tokens
    return (sampler.seed, position, draw.top_p, draw.floor, draw.temperature, draw.top_k)


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
        row = output = number = 0
        used: dict[Extent, list[tuple[int, int, Uses]]] = {extent: [] for extent in self._spans}
        for number, rows in enumerate(batch, 1):
            end = row + rows.num_tokens
            self._fill_rows(rows, number - 1, row, end)
            if used:
                uses = rows.sequence.adapters
                used[Extent.ROWS].append((row, end, uses))
                used[Extent.OUTPUTS].append((output, output + rows.num_outputs, uses))
            for last in range(end - rows.num_outputs, end):
                self._output_rows[output] = last
                self._draws[output] = _draw(rows)
                output += 1
            row = end
        tables = {
            name: table[:number] for name, table in zip(self._names, self._tables, strict=True)
        }
        return {
            "tokens": self._tokens[:row],
            "positions": self._positions[:row],
            "sequences": self._sequences[:row],
            "output_rows": self._output_rows[:output],
            DRAWS: self._draws[:output],
            **tables,
            **{SPANS[extent]: self._fill_spans(extent, found) for extent, found in used.items()},
        }

    def _fill_spans(self, extent: Extent, used: list[tuple[int, int, Uses]]) -> NDArray[np.int32]:
        found, array = spans(used), self._spans[extent]
        array[0, 0] = len(found)
        for place, span in enumerate(found, 1):
            array[place] = span
        return array[: 1 + len(found)]

    def _fill_rows(self, rows: Rows, number: int, row: int, end: int) -> None:
        sequence = rows.sequence
        first = sequence.num_computed + rows.ahead
        if rows.fed_by is not None:
            self._tokens[row] = -1 - rows.fed_by
        else:
            self._tokens[row:end] = sequence.tokens[first : first + rows.num_tokens]
        self._positions[row:end] = np.arange(first, first + rows.num_tokens)
        self._sequences[row:end] = number
        for array, table in zip(self._tables, sequence.tables, strict=True):
            array[number, : len(table.blocks)] = table.blocks
