"""cuBLASLt on a card: results, residuals, biases, and the same bits each time."""

import numpy as np
import pytest

from corral.devices.cuda import cublas
from corral.devices.cuda.contexts import process_contexts
from corral.devices.cuda.cublas import WORKSPACE_BYTES, Places, Products, Shape
from corral.errors import CorralError
from corral.quant.types import DType
from factors import from_bf16, rounded, to_bf16
from golden import nmse

ROWS, COLUMNS, INNER = 300, 640, 576


class Card:
    """A context with a stream, and arrays in its memory."""

    def __init__(self, context, driver):
        self.context, self.driver, self._owned = context, driver, []
        self.stream = self._own("stream", driver.create_stream, driver.destroy_stream).handle

    def _own(self, kind, make, destroy):
        self._owned.append(self.context.own(kind, make, destroy))
        return self._owned[-1]

    def empty(self, size):
        make = lambda: self.driver.allocate(size)  # noqa: E731
        return self._own("memory", make, self.driver.free).handle

    def of(self, array):
        address = self.empty(array.nbytes)
        with self.context.current():
            self.driver.copy_to_device(address, array.ctypes.data, array.nbytes)
        return address

    def read(self, address, like):
        out = np.empty_like(like)
        with self.context.current():
            self.driver.synchronize_stream(self.stream)
            self.driver.copy_to_host(out.ctypes.data, address, out.nbytes)
        return out

    def close(self):
        for owned in reversed(self._owned):
            owned.close()


@pytest.fixture
def card():
    library = cublas.find()
    if library is None:
        pytest.skip("cuBLASLt is not installed")
    try:
        contexts = process_contexts()
    except CorralError as error:
        pytest.skip(str(error))
    card = Card(next(iter(contexts)), contexts.driver)
    card.products = Products(card.context, library)
    yield card
    card.products.close()
    card.close()


@pytest.mark.parametrize("out", [DType.F32, DType.BF16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
def test_products_follow_the_formula(card, out, has_bias, has_residual):
    if out is DType.BF16 and has_bias:
        pytest.skip("a bias of BF16 is nothing that corral has")
    generator = np.random.default_rng(0)
    x, weights = (generator.normal(size=(n, INNER)).astype(np.float32) for n in (ROWS, COLUMNS))
    residual = generator.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    bias = generator.normal(size=COLUMNS).astype(np.float32)
    expected = rounded(x).astype(np.float64) @ rounded(weights).T.astype(np.float64)
    expected += has_bias * bias
    expected += has_residual * (residual if out is DType.F32 else rounded(residual))
    stored = residual if out is DType.F32 else to_bf16(residual)
    stride = stored.strides[0]
    shape = Shape(
        ROWS, COLUMNS, INNER, stride, stride if has_residual else 0, out=out, has_bias=has_bias
    )
    result, add, workspace = card.of(stored), card.of(stored), card.empty(WORKSPACE_BYTES)
    places = Places(
        card.of(to_bf16(x)),
        card.of(to_bf16(weights)),
        result,
        add if has_residual else 0,
        card.of(bias) if has_bias else 0,
    )
    seen = []
    for _ in range(3):
        with card.context.current():
            card.products.prepare(shape)
            card.products.multiply(shape, places, workspace, card.stream)
        seen.append(card.read(result, stored))
    actual = seen[0] if out is DType.F32 else from_bf16(seen[0])
    assert nmse(actual, expected) <= (1e-10 if out is DType.F32 else 1e-5)
    for again in seen[1:]:
        np.testing.assert_array_equal(again, seen[0])
