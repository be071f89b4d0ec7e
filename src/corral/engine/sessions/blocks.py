"""Whole blocks of keys and values, out of and into the devices that have a model's layers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import Device
from corral.engine.load import Part
from corral.kv.spec import KVSpec, state_name
from corral.memory.buffer import Buffer

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    device: Device
    state: Buffer
    offset: int
    block_bytes: int


class Blocks:
    """Copies blocks of every layer; no evaluation may be under way meanwhile."""

    def __init__(self, parts: Iterable[Part], kv: KVSpec) -> None:
        sizes = {state_name(layer): kv.block_bytes(layer) for layer in range(len(kv.layers))}
        self._layers = [
            _Layer(part.device, part.buffers.state, offset, sizes[name])
            for part in parts
            for name, offset in part.buffers.state_layout.offsets.items()
        ]

    @property
    def layers(self) -> tuple[int, ...]:
        """Bytes of a block in each layer, in the order of the layers."""
        return tuple(layer.block_bytes for layer in self._layers)

    def read(self, blocks: Sequence[int]) -> Iterator[Bytes]:
        """Yield the bytes of some blocks, a layer at a time: (blocks, bytes of a block)."""
        for layer in self._layers:
            size = layer.block_bytes
            data = np.empty((len(blocks), size), np.uint8)
            for at, first, count in _runs(blocks):
                start = layer.offset + first * size
                found = layer.device.download(layer.state, start, count * size)
                data[at : at + count] = found.reshape(count, size)
            yield data

    def write(self, layer: int, blocks: Sequence[int], data: Bytes) -> None:
        """Write the bytes of some blocks in one layer: (blocks, bytes of a block)."""
        to = self._layers[layer]
        for at, first, count in _runs(blocks):
            values = np.ascontiguousarray(data[at : at + count]).reshape(-1)
            to.device.put(to.state, to.offset + first * to.block_bytes, values)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (place, first block, count) of blocks whose ids follow each other: one copy each."""
    at = 0
    while at < len(blocks):
        count = 1
        while at + count < len(blocks) and blocks[at + count] == blocks[at] + count:
            count += 1
        yield at, blocks[at], count
        at += count
