"""Products of factors in tiles: mma.sync on the emulator, wgmma, too, where there is a device."""

import numpy as np
import pytest

import emulation
import formulas
from corral.devices.cuda import prefill_launch
from corral.devices.cuda.prefill_launch import Chip, Finish
from corral.memory import factors as prefill_factors
from corral.memory.factors import Form
from emulation import Memory, address, emulate_kernel, needs_emulator, prepare_missing
from factors import elements, from_tiles, left_factor, right_factor, to_tiles
from golden import nmse

pytestmark = needs_emulator

IS_DEVICE = getattr(emulation, "IS_DEVICE", False)
VARIANTS = ("mma", *(("wgmma-256", "wgmma-128") if IS_DEVICE else ()))
TOLERANCES = {Form.BF16: 1e-5, Form.F16: 1e-6, Form.SPLIT: 1e-9}


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    pairs = [(form, Finish.PLAIN) for form in Form] + [(Form.BF16, finish) for finish in Finish]
    prepare_missing(prefill_launch.mma_product(*pair, 128, 128).instance for pair in pairs)


class Case:
    """A product, and what it needs in memory."""

    def __init__(self, variant, form, capacity, rows, columns, inner, finish=Finish.PLAIN):
        generator = np.random.default_rng(rows + columns + inner)
        self.form, self.capacity, self.rows, self.columns = form, capacity, rows, columns
        self.variant, self.finish = variant, finish
        self.x = generator.normal(size=(rows, inner)).astype(np.float32)
        self.weights = generator.normal(size=(columns, inner)).astype(np.float32)
        self.weights /= np.float32(np.sqrt(inner))
        if form is Form.F16:
            self.weights = self.weights.astype(np.float16).astype(np.float32)
            self.x *= np.exp2(generator.integers(-30, 30, (rows, 1))).astype(np.float32)
        self.memory = memory = Memory()
        factor, scales = left_factor(self.x, form)
        self.tiles = prefill_factors.factor_tiles(inner, form)
        left = np.full((-(-capacity // 128) * 128, factor.shape[1]), 0xFFFF, np.uint16)
        left[:rows] = factor  # rows beyond the count are NaN: nobody may be disturbed by them
        self.left = memory.of(to_tiles(left))
        right = np.full((-(-columns // 256) * 256, self.tiles * 64), 0xFFFF, np.uint16)
        right[:columns] = right_factor(self.weights, form)
        self.right = memory.of(to_tiles(right))
        self.count = memory.of(np.array([rows], np.int64))
        self.scales = memory.of(scales)

    def run(self, out, out_stride, **more):
        kernel = self.kernel()
        fields = dict.fromkeys(prefill_launch.PRODUCT_FIELDS, 0) | {
            "x": address(self.left),
            "weights": address(self.right),
            "count": address(self.count),
            "tiles": self.tiles,
            "columns": self.columns,
            "columns_1": self.columns,
            "columns_2": self.columns,
            "out": address(out),
            "out_stride": out_stride,
            "scales": address(self.scales) if self.form is Form.F16 else 0,
        }
        words = [(fields | more)[name] for name in prefill_launch.PRODUCT_FIELDS]
        emulate_kernel(kernel, words)
        self.memory.check()

    def kernel(self):
        shape = (self.form, self.finish, self.capacity, self.columns)
        if self.variant == "mma":
            return prefill_launch.mma_product(*shape)
        width = int(self.variant.split("-")[1])
        return prefill_launch.wgmma_product(*shape, width, Chip(4, True))

    @property
    def product(self):
        return self.x.astype(np.float64) @ self.weights.T.astype(np.float64)

    def empty(self, columns=None):
        return self.memory.empty((self.capacity, columns or self.columns))


def by_row(actual, expected):
    """Return the NMSE of rows that each count the same."""
    size = np.sqrt((expected**2).mean(axis=1, keepdims=True))
    return nmse(actual / size, expected / size)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    "capacity, rows, columns, inner", [(130, 129, 136, 96), (70, 3, 576, 64), (400, 390, 640, 256)]
)
def test_products_of_odd_shapes(variant, form, capacity, rows, columns, inner):
    if not IS_DEVICE and capacity > 200:
        pytest.skip("takes long on the emulator")
    case = Case(variant, form, capacity, rows, columns, inner)
    out = case.empty()
    case.run(out, out.strides[0])
    assert by_row(out[:rows], case.product) <= TOLERANCES[form]
    assert np.isnan(out[rows:]).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_bias_residual_and_three_places(variant):
    case = Case(variant, Form.BF16, 20, 17, 200, 192)
    generator = np.random.default_rng(0)
    bias = case.memory.of(generator.normal(size=200).astype(np.float32))
    q, k, v = case.empty(136), case.empty(40), case.empty(24)
    case.run(
        q,
        q.strides[0],
        bias=address(bias),
        columns_1=136,
        columns_2=176,
        out_1=address(k),
        out_2=address(v),
        out_stride_1=k.strides[0],
        out_stride_2=v.strides[0],
    )
    actual = np.concatenate([q, k, v], axis=1)
    assert nmse(actual[:17], case.product + bias) <= 1e-5
    out = case.memory.of(generator.normal(size=(20, 200)).astype(np.float32))
    before = out.copy()
    case.run(out, out.strides[0], residual=address(out), residual_stride=out.strides[0])
    assert nmse(out[:17], case.product + before[:17]) <= 1e-5
    np.testing.assert_array_equal(out[17:], before[17:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_odd_number_of_columns(variant):
    case = Case(variant, Form.BF16, 20, 20, 131, 64)
    out = case.empty()
    case.run(out, out.strides[0])
    assert nmse(out, case.product) <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("finish", [f for f in Finish if f is not Finish.PLAIN])
def test_gate_and_up_in_turns_give_the_factor_of_the_next_product(variant, finish):
    columns = 2 * 72
    case = Case(variant, Form.BF16, 20, 17, columns, 64, finish)
    is_tiled = finish in (Finish.SILU, Finish.GELU)
    out = case.memory.empty((128, 128) if is_tiled else (20, 72), np.uint16)
    case.run(out, 2 if is_tiled else 144)
    turns = case.product.reshape(17, -1, 2, 8)
    gate, up = (turns[:, :, i].reshape(17, -1) for i in (0, 1))
    is_silu = finish in (Finish.SILU, Finish.SILU_ROWS)
    formula = formulas.silu if is_silu else formulas.gelu
    actual = elements(from_tiles(out, 128) if is_tiled else out, Form.BF16)
    assert nmse(actual[:17, :72], formula(gate) * up) <= 1e-4
    assert np.isnan(actual[17:]).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_do_not_depend_on_their_neighbours(variant):
    many, few = (
        Case(variant, Form.BF16, 130, 130, 64, 64),
        Case(variant, Form.BF16, 130, 130, 64, 64),
    )
    few.count[0] = 3
    outs = []
    for case in (many, few):
        outs.append(case.empty())
        case.run(outs[-1], outs[-1].strides[0])
    np.testing.assert_array_equal(outs[0][:3], outs[1][:3])


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_rows_are_no_work(variant):
    case = Case(variant, Form.BF16, 20, 1, 64, 64)
    case.count[0] = 0
    out = case.empty()
    case.run(out, out.strides[0])
    assert np.isnan(out).all()
