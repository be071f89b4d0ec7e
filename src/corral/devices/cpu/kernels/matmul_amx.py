"""Full tiles by the tile unit (AMX): 16 tokens × 16 rows × 32 columns an instruction.

The dots of a group go through memory to the vector unit, which scales and adds them as everywhere
else, so results are the same bits. While it does, the tile unit works on the next group.
"""

from collections.abc import Sequence

from corral.devices.cpu.kernels.matmul_tiles import (
    Activations,
    Place,
    QuantizedProduct,
    finish,
    scaled,
    totals_of,
)
from corral.devices.cpu.kernels.matmul_weights import (
    CHUNK_BYTES,
    CHUNK_COLUMNS,
    CHUNKS,
    ROWS,
    load_group,
)
from corral.devices.cpu.simd import Kernel, Value, Variable, i32, i64, u8, u16
from corral.quant.packed import GROUP

_DOTS, _ACTIVATIONS, _WEIGHTS = 0, 4, 6
"""First tile register of each kind. Even and odd groups take turns, and so do halves of a group."""
_REGISTERS = 8
_DOTS_BYTES = 16 * 4 * ROWS
_CONFIGURATION_BYTES = 64


class AmxProduct(QuantizedProduct):
    """The arithmetic of one kernel where the processor has a tile unit."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes a thread needs: two groups of dots, and what the other paths need."""
        return super().scratch_bytes + 2 * self.shape.halves * _DOTS_BYTES

    def begin(self, k: Kernel) -> None:
        """Tell the tile unit the shapes of its registers."""
        columns = GROUP // self.shape.halves
        dots, activations = (self.tile_tokens, 4 * ROWS), (self.tile_tokens, columns)
        weights = (columns // CHUNK_COLUMNS, 4 * ROWS)
        at = k.stack(_CONFIGURATION_BYTES)
        k.store(at, k.constant(u8.x(_CONFIGURATION_BYTES), 0))
        k.store(at, k.constant(u8, 1))
        for register in range(_REGISTERS):
            rows, row_bytes = (
                dots if register < _ACTIVATIONS else activations if register < _WEIGHTS else weights
            )
            k.store(at + (16 + 2 * register), k.constant(u16, row_bytes))
            k.store(at + (48 + register), k.constant(u8, rows))
        k.intrinsic("llvm.x86.ldtilecfg", None, [k.pointer(at)])

    def end(self, k: Kernel) -> None:
        """Give the tile unit back, so that the system need not save its registers."""
        k.intrinsic("llvm.x86.tilerelease", None, [])

    def full_tile(self, k: Kernel, place: Place, block: Value) -> list[Value]:
        """Return the products of a full tile with the panel; `block` only helps to look ahead."""
        x, totals = self._activations(place), totals_of(k, self.tile_tokens)

        def step(number: Value, parity: int) -> None:
            self._multiply(k, place, x, number, parity)
            self._add(k, totals, place, x, number - 1, 1 - parity)
            self._keep(k, place, parity)

        first, last = k.constant(i64, 0), k.constant(i64, self.groups - 1)
        self._multiply(k, place, x, first, 0)
        self._keep(k, place, 0)
        with k.range(1, self.groups - 1, 2) as number:
            self._prefetch(k, block, number)
            step(number, 1)
            self._prefetch(k, block, number + 1)
            step(number + 1, 0)
        if self.groups % 2 == 0:
            step(last, 1)
        self._add(k, totals, place, x, last, (self.groups - 1) % 2)
        return [total.value for total in totals]

    def _dots_at(self, place: Place, parity: int) -> Value:
        """Return where the dots of an even or odd group are."""
        dots = self.panel_bytes + self.half_sums_bytes
        return place.scratch + (dots + parity * self.shape.halves * _DOTS_BYTES)

    def _multiply(
        self, k: Kernel, place: Place, x: Activations, number: Value, parity: int
    ) -> None:
        """Compute the dots of a group in tile registers."""
        halves = self.shape.halves
        weights = place.scratch + number * self.shape.panel_bytes
        for h in range(halves):
            turn = h if halves == 2 else parity
            a, b = f"i8 {_ACTIVATIONS + turn}", f"i8 {_WEIGHTS + turn}"
            c = f"i8 {_DOTS + 2 * parity + h}"
            chunks = h * CHUNKS // halves * CHUNK_BYTES
            _move(k, "tileloadd64", a, x.codes + number * GROUP + h * GROUP // halves, self.stride)
            _move(k, "tileloadd64", b, weights + chunks, CHUNK_BYTES)
            k.intrinsic("llvm.x86.tilezero", None, [c])
            k.intrinsic("llvm.x86.tdpbsud", None, [c, a, b])

    def _keep(self, k: Kernel, place: Place, parity: int) -> None:
        """Write the dots of a group to memory."""
        for h in range(self.shape.halves):
            at = self._dots_at(place, parity) + h * _DOTS_BYTES
            _move(k, "tilestored64", f"i8 {_DOTS + 2 * parity + h}", at, 4 * ROWS)

    def _add(
        self,
        k: Kernel,
        totals: Sequence[Variable],
        place: Place,
        x: Activations,
        number: Value,
        parity: int,
    ) -> None:
        """Scale the dots of a group and add them."""
        panel = place.scratch + number * self.shape.panel_bytes
        group = load_group(k, self.shape, panel, codes=False)
        at = self._dots_at(place, parity)
        for t, total in enumerate(totals):
            dots = [
                k.load(i32.x(ROWS), at + (h * _DOTS_BYTES + t * 4 * ROWS))
                for h in range(self.shape.halves)
            ]
            total.value = finish(
                total.value,
                scaled(dots, group.scales),
                x.scale(k, t, number),
                group.offsets,
                x.sums(k, t, number) if group.offsets else [],
            )


def _move(k: Kernel, name: str, register: str, address: Value, stride: int) -> None:
    k.intrinsic(f"llvm.x86.{name}", None, [register, k.pointer(address), f"i64 {stride}"])
