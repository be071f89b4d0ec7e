"""Packed weights on warpgroups multiply as they should: every layout, cut and kind of result."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from corral.devices.cuda.matmul_launch import WEIGHTS, Product, Result
from corral.devices.cuda.packed_launch import PackedTuning, packed, paired, tile_bytes
from corral.memory.factors import TILE_COLUMNS
from corral.quant.packed import BY_NAME
from emulation import address, needs_emulator, prepare_missing
from matmul_cases import Case

pytestmark = needs_emulator
PROCESSORS = 3
"""So few that blocks of threads take several units each."""
BF16 = 1e-5
"""The NMSE of weights that are rounded to 8 bits."""
LAYOUTS = [layout for layout in WEIGHTS if not BY_NAME[layout].is_float]
OTHER = "int6_signed16"
WIDE, DEEP = PackedTuning(4, 1, 1, 4), PackedTuning(1, 4, 1, 4)
TUNINGS = {
    16: (DEEP, PackedTuning(2, 2, 1, 4)),
    32: (
        WIDE,
        DEEP,
        PackedTuning(2, 2, 1, 2),
        PackedTuning(1, 2, 1, 4),
        PackedTuning(2, 1, 1, 2, 2),
    ),
    64: (PackedTuning(4, 1, 1, 2), PackedTuning(1, 2, 1, 4), PackedTuning(2, 1, 1, 2)),
    96: (PackedTuning(1, 2, 1, 2),),
    128: (PackedTuning(4, 1, 1, 2), PackedTuning(1, 2, 1, 2)),
}
GATED = {
    16: (PackedTuning(2, 2, 1, 4),),
    32: (PackedTuning(2, 1, 1, 4), PackedTuning(1, 2, 1, 2)),
    64: (PackedTuning(2, 1, 1, 4),),
    128: (PackedTuning(2, 1, 1, 2),),
}


def bf16(values):
    """Return values rounded to BF16, and their bits."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32), bits


def places(rows, columns):
    """Return where the elements of rows lie in tiles, counted in elements."""
    row, column = np.indices((rows, columns))
    chunk = (column % TILE_COLUMNS // 8) ^ (row % 8)
    return column // TILE_COLUMNS * (tile_bytes(rows) // 2) + row * 64 + chunk * 8 + column % 8


def elements(rows, columns):
    """Return how many elements such tiles have."""
    return -(-columns // TILE_COLUMNS) * tile_bytes(rows) // 2


class TiledCase(Case):
    """A product whose rows are the tiles of a left factor, and so is a gated result."""

    def _activations(self, generator):
        product = self.product
        shape = (product.batch, product.columns)
        values, bits = bf16(generator.normal(size=shape))
        self.rows = self.memory.empty((elements(*shape),), np.uint16)
        self.rows[places(*shape)] = bits
        self.values |= {"x": address(self.rows)}
        return values.astype(np.float64)

    def _gate(self, gate, up):
        super()._gate(gate, up)
        size = elements(self.product.batch, self.product.rows[0])
        self.tiles = self.memory.empty((size,), np.uint16)
        self.values |= {"out0": address(self.tiles)}

    def error(self):
        if self.product.result is Result.PLAIN:
            return super().error()
        shape = (self.product.batch, self.product.rows[0])
        bits = self.tiles[places(*shape)].astype(np.uint32) << 16
        found, wanted = bits.view(np.float32)[: self.count], self.expected[0][: self.count]
        return ((found - wanted) ** 2).sum() / (wanted**2).sum()


class PairedCase(TiledCase):
    """The same; the last part has scales of half groups."""

    def _part(self, generator, part, rows):
        common = self.product
        if part == len(common.rows) - 1:
            self.product = replace(common, layout=OTHER)
        super()._part(generator, part, rows)
        self.product = common


@dataclass(frozen=True)
class Trial:
    """A product, how it is cut up, and the rows of a batch."""

    product: Product
    tuning: PackedTuning
    count: int
    has_extras: bool = False

    @property
    def kernel(self):
        return packed(self.product, PROCESSORS, self.tuning)

    def case(self):
        """Return the buffers of this product."""
        return TiledCase(self.product, self.count, self.has_extras)

    def error(self):
        case = self.case()
        case.run(self.kernel)
        return case.error()


def columns_of(layout):
    """Return columns of several chunks, the last not whole where that may be."""
    return 1280 if BY_NAME[layout].has_spans else 1344


EVERY = {
    layout: Trial(Product(layout, (100, 33, 16), columns_of(layout), 24, 0), DEEP, 21, True)
    for layout in LAYOUTS
}
CUTS = {
    (batch, tuning): Trial(
        Product("int4_unsigned_offset", (300, 65), 4096, batch, 0), tuning, batch
    )
    for batch, tunings in TUNINGS.items()
    for tuning in tunings
}
SIXES = {
    batch: Trial(Product("int6_signed16", (200,), 2048, batch, 0), TUNINGS[batch][0], batch - 1)
    for batch in (16, 32, 128)
}
ACTIVE = {
    (batch, tuning, gating): Trial(
        Product("int4_unsigned_offset", (288, 288), 2048, batch, 0, Result.GATED_CODES, gating),
        tuning,
        batch - 3,
    )
    for (batch, tunings), gating in zip(
        GATED.items(), ("silu", "silu", "gelu", "silu"), strict=True
    )
    for tuning in tunings
}
PAIRED = {
    tuning: (
        product := Product("int4_unsigned_offset", (130, 70, 200), 2048, 16, 0),
        paired(
            replace(product, rows=product.rows[:-1]),
            replace(product, rows=product.rows[-1:], layout=OTHER),
            sum(-(-rows // (64 * tuning.row_groups)) for rows in product.rows),
            tuning,
        ),
    )
    for tuning in (DEEP, PackedTuning(2, 1, 1, 2, 2))
}
ALL = (*EVERY.values(), *CUTS.values(), *SIXES.values(), *ACTIVE.values())


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    pairs = [kernel.instance for _, kernel in PAIRED.values()]
    prepare_missing([*pairs, *(trial.kernel.instance for trial in ALL)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    """Several parts with bias and residual, rows that fill no row block."""
    assert EVERY[layout].error() < BF16


@pytest.mark.parametrize(("batch", "tuning"), CUTS, ids=repr)
def test_cuts(batch, tuning):
    """Rings go round several times, blocks take several units, warpgroups take turns."""
    assert CUTS[batch, tuning].error() < BF16


@pytest.mark.parametrize("batch", SIXES)
def test_scales_of_half_groups(batch):
    """16 columns have a scale, in the largest and the smallest batch."""
    assert SIXES[batch].error() < BF16


@pytest.mark.parametrize(("batch", "tuning", "gating"), ACTIVE, ids=repr)
def test_gated_results(batch, tuning, gating):
    """Gate and up meet in a lane; what comes out is the left factor of the next product."""
    assert ACTIVE[batch, tuning, gating].error() < 2 * BF16


@pytest.mark.parametrize("tuning", PAIRED, ids=repr)
def test_two_layouts_side_by_side(tuning):
    """Two parts of one layout and a last one of another, each by blocks of its own."""
    product, kernel = PAIRED[tuning]
    case = PairedCase(product, 13, has_extras=True)
    case.run(kernel)
    assert case.error() < BF16


def test_a_row_does_not_depend_on_its_neighbours():
    """The same bits come out when all other rows of the batch are different."""
    trial, results = CUTS[32, DEEP], []
    for seed in (1, 2):
        case = trial.case()
        others = places(32, 4096)[1:]
        case.rows[others] = bf16(np.random.default_rng(seed).normal(size=others.shape))[1]
        case.run(trial.kernel)
        results.append(case.outs[0])
    assert np.array_equal(results[0][0], results[1][0])
    assert not np.array_equal(results[0][1], results[1][1])
