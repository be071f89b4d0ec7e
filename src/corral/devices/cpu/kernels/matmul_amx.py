"""Full tiles by the tile unit (AMX): 16 tokens × 16 rows × 32 columns an instruction.

The dots of a group go through memory to the vector unit, which scales and adds them as everywhere
else, so results are the same bits. While it does, the tile unit works on the next group. (It holds
one of the two vector ports meanwhile; with two scales a group nothing would be won.)
"""

from collections.abc import Sequence

from corral.devices.cpu.kernels.matmul_dots import Activations, scaled
from corral.devices.cpu.kernels.matmul_tiles import (
    Place,
    QuantizedProduct,
    add_products,
    totals_of,
)
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

_DOTS, _ACTIVATIONS, _WEIGHTS = 0, 2, 4
"""First tile register of each kind; even and odd groups take turns."""
_DOTS_BYTES = 16 * 4 * ROWS
_CONFIGURATION_BYTES = 64
_ROW_BYTES, _NUM_ROWS = 16, 48
"""Offsets in the configuration of each register's shape."""


class AmxProduct(QuantizedProduct):
    """The arithmetic of one kernel where the processor has a tile unit."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes a thread needs: the dots of two groups, and what the other paths need."""
        return super().scratch_bytes + 2 * _DOTS_BYTES

    def begin(self, k: Kernel) -> None:
        """Tell the tile unit the shapes of its registers."""
        at = k.stack(_CONFIGURATION_BYTES)
        k.store(at, k.constant(u8.x(_CONFIGURATION_BYTES), 0))
        k.store(at, k.constant(u8, 1))
        shapes = {
            _DOTS: (self.tile_tokens, 4 * ROWS),
            _ACTIVATIONS: (self.tile_tokens, GROUP),
            _WEIGHTS: (CHUNKS, CHUNK_BYTES),
        }
        for first, (rows, row_bytes) in shapes.items():
            for register in (first, first + 1):
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
        x, totals = self.activations(place), totals_of(k, self.tile_tokens)

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
        return place.scratch + (number & 1) * _DOTS_BYTES + super().scratch_bytes

    def _multiply(
        self, k: Kernel, place: Place, x: Activations, number: Value, parity: int
    ) -> None:
        """Compute the dots of a group in tile registers."""
        dots, codes, weights = _registers(parity)
        panel = place.scratch + number * self.shape.panel_bytes
        _move(k, "tileloadd64", codes, x.codes + number * GROUP, self.stride)
        _move(k, "tileloadd64", weights, panel, CHUNK_BYTES)
        k.intrinsic("llvm.x86.tilezero", None, [dots])
        multiply = "tdpbssd" if self.shape.zero else "tdpbsud"
        k.intrinsic(f"llvm.x86.{multiply}", None, [dots, codes, weights])

    def _keep(self, k: Kernel, place: Place, number: Value, parity: int) -> None:
        """Write the dots of a group to memory."""
        dots, _, _ = _registers(parity)
        _move(k, "tilestored64", dots, self._dots_at(place, number), 4 * ROWS)

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
        group = load_group(k, self.shape, panel, codes=False)
        at = self._dots_at(place, number)
        for t, total in enumerate(totals):
            dot = k.load(i32.x(ROWS), at + t * 4 * ROWS)
            products = [scaled(dot, group.scales[0], lifted=False)]
            add_products(k, total, products, group, (x, t, number))


def _registers(parity: int) -> tuple[str, str, str]:
    """Return the registers of dots, activations and weights of an even or odd group."""
    return f"i8 {_DOTS + parity}", f"i8 {_ACTIVATIONS + parity}", f"i8 {_WEIGHTS + parity}"


def _move(k: Kernel, name: str, register: str, address: Value, stride: int) -> None:
    k.intrinsic(f"llvm.x86.{name}", None, [register, k.pointer(address), f"i64 {stride}"])
