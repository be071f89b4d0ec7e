"""Full tiles by the tile unit (AMX): 16 tokens × 16 rows × 32 columns an instruction.

The dots of a group go through memory to the vector unit, which scales and adds them as everywhere
else, so results are the same bits. While it does, the tile unit works on the next group. (It holds
one of the two vector ports meanwhile; with two scales a group nothing would be won.)
"""

from collections.abc import Sequence

from corral.devices.cpu.kernels.matmul_dots import Activations, joined, scaled
from corral.devices.cpu.kernels.matmul_tiles import Place, QuantizedProduct, totals_of
from corral.devices.cpu.kernels.matmul_weights import (
    CHUNK_BYTES,
    CHUNKS,
    ROWS,
    each_group,
    load_group,
    store_group,
)
from corral.devices.cpu.simd import Kernel, Value, Variable, i32, i64, u8, u16
from corral.quant.packed import GROUP

_DOTS, _ACTIVATIONS, _WEIGHTS = 0, 4, 6
"""First tile register of each kind. Dots and weights of even and odd groups take turns."""
_REGISTERS = 8
_DOTS_BYTES = 16 * 4 * ROWS
_CONFIGURATION_BYTES = 64
_ROW_BYTES, _NUM_ROWS = 16, 48
"""Offsets in the configuration of each register's shape."""


class AmxProduct(QuantizedProduct):
    """The arithmetic of one kernel where the processor has a tile unit."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes a thread needs: the dots of two groups, and what the other paths need."""
        return super().scratch_bytes + 2 * self.planes * _DOTS_BYTES

    def begin(self, k: Kernel) -> None:
        """Tell the tile unit the shapes of its registers."""
        at = k.stack(_CONFIGURATION_BYTES)
        k.store(at, k.constant(u8.x(_CONFIGURATION_BYTES), 0))
        k.store(at, k.constant(u8, 1))
        shapes = {
            range(_DOTS, _ACTIVATIONS): (self.tile_tokens, 4 * ROWS),
            range(_ACTIVATIONS, _WEIGHTS): (self.tile_tokens, GROUP),
            range(_WEIGHTS, _REGISTERS): (CHUNKS, CHUNK_BYTES),
        }
        for registers, (rows, row_bytes) in shapes.items():
            for register in registers:
                k.store(at + (_ROW_BYTES + 2 * register), k.constant(u16, row_bytes))
                k.store(at + (_NUM_ROWS + register), k.constant(u8, rows))
        k.intrinsic("llvm.x86.ldtilecfg", None, [k.pointer(at)])

    def end(self, k: Kernel) -> None:
        """Give the tile unit back, so that the system need not save its registers."""
        k.intrinsic("llvm.x86.tilerelease", None, [])

    def begin_block(self, k: Kernel, block: Value, scratch: Value) -> None:
        """Unpack the row block at an address to the panel, codes signed if they have a zero."""
        with each_group(k, self.layout, block, self.columns) as (number, group):
            panel = scratch + number * self.shape.panel_bytes
            store_group(k, panel, group, minus=self.shape.zero)

    def full_tile(self, k: Kernel, place: Place, block: Value) -> list[Value]:
        """Return the products of a full tile with the panel; `block` only helps to look ahead."""
        x, totals = self.activations(k, place), totals_of(k, self.tile_tokens)

        def step(number: Value, parity: int) -> None:
            self._multiply(k, place, x, number, parity)
            self._add(k, totals, place, x, number - 1)
            self._keep(k, place, number, parity)

        first, last = k.constant(i64, 0), k.constant(i64, self.groups - 1)
        self._multiply(k, place, x, first, 0)
        self._keep(k, place, first, 0)
        with k.range(1, self.groups - 1, 2) as number:
            self._prefetch(k, block, number)
            step(number, 1)
            self._prefetch(k, block, number + 1)
            step(number + 1, 0)
        if self.groups % 2 == 0:
            step(last, 1)
        self._add(k, totals, place, x, last)
        return [total.value for total in totals]

    def _dots_at(self, place: Place, number: Value) -> Value:
        """Return where the dots of a group are: even and odd ones have a place each."""
        size = self.planes * _DOTS_BYTES
        return place.scratch + (number & 1) * size + super().scratch_bytes

    def _multiply(
        self, k: Kernel, place: Place, x: Activations, number: Value, parity: int
    ) -> None:
        """Compute the dots of a group in tile registers."""
        weights = f"i8 {_WEIGHTS + parity}"
        panel = place.scratch + number * self.shape.panel_bytes
        _move(k, "tileloadd64", weights, panel, CHUNK_BYTES)
        for plane in range(self.planes):
            dots = f"i8 {_DOTS + 2 * plane + parity}"
            turn = plane if self.planes > 1 else parity
            codes = f"i8 {_ACTIVATIONS + turn}"
            at = x.codes + number * GROUP + plane * self.columns
            _move(k, "tileloadd64", codes, at, self.stride)
            k.intrinsic("llvm.x86.tilezero", None, [dots])
            multiply = "tdpbssd" if self.shape.zero else "tdpbsud"
            k.intrinsic(f"llvm.x86.{multiply}", None, [dots, codes, weights])

    def _keep(self, k: Kernel, place: Place, number: Value, parity: int) -> None:
        """Write the dots of a group to memory."""
        for plane in range(self.planes):
            at = self._dots_at(place, number) + plane * _DOTS_BYTES
            _move(k, "tilestored64", f"i8 {_DOTS + 2 * plane + parity}", at, 4 * ROWS)

    def _add(
        self,
        k: Kernel,
        totals: Sequence[Variable],
        place: Place,
        x: Activations,
        number: Value,
    ) -> None:
        """Scale the dots of a group and add them."""
        panel = place.scratch + number * self.shape.panel_bytes
        group = load_group(k, self.shape, panel)
        at = self._dots_at(place, number)
        for t, total in enumerate(totals):
            planes = [
                k.load(i32.x(ROWS), at + (plane * _DOTS_BYTES + t * 4 * ROWS))
                for plane in range(self.planes)
            ]
            product = joined([scaled(dot, group.scales[0], lifted=False) for dot in planes])
            x.add(total, product, t, number)
            x.add_offsets(total, group.offsets, t, number)


def _move(k: Kernel, name: str, register: str, address: Value, stride: int) -> None:
    k.intrinsic(f"llvm.x86.{name}", None, [register, k.pointer(address), f"i64 {stride}"])
