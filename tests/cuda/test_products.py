"""Products of every type of weights, in every bucket of rows, on a card."""

import numpy as np
import pytest

from corral.quant.dequantize import dequantize
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.rewrite import fuse
from evaluation import Evaluation, encoded
from golden import nmse
from matmul_cases import file_bytes

SHAPE = ShapeClass(rows=512, outputs=1, sequences=1, blocks=1)
TABLE_ROWS = 512
BATCHES = (1, 2, 3, 8, 13, 16, 24, 31, 33, 48, 64, 65, 96, 127, 128, 129, 300, 512)
"""Rows: of each bucket at least one number, full and not."""
HIGHEST = {DType.F32: 1e-5, DType.F16: 1e-5, DType.BF16: 1e-4}
QUANTIZED = 5e-4
ROWS = (130, 47)
"""Of weights: neither is a number of whole row blocks."""


SHAPES = tuple(
    (dtype, columns)
    for dtype in LAYOUTS
    for columns in (576, 768, 2048)
    if columns % dtype.block_elements == 0
)
"""Columns are whole blocks, an odd number of groups where that may be."""


class Products:
    """x · wᵀ for two weights of one type, where the rows x are chosen from a table by token."""

    def __init__(self, device, dtype, columns):
        g, generator = GraphBuilder(SHAPE), np.random.default_rng()
        table = generator.normal(size=(TABLE_ROWS, columns)).astype(np.float32)
        x = g.embed(g.tokens, g.weight("table", DType.F32, table.shape))
        weights = {"table": encoded(table, DType.F32)}
        values, products = [], []
        for name, rows in zip("ab", ROWS, strict=True):
            data = file_bytes(generator, dtype, rows, columns)
            weights[name] = data.tobytes()
            values.append(dequantize(data, dtype, (rows, columns)).astype(np.float64))
            products.append(g.matmul(f"y{name}", x, g.weight(name, dtype, (rows, columns))))
        self.table = table.astype(np.float64)
        self.values = np.concatenate(values)
        graph = g.finish(*products)
        self.evaluation = Evaluation(device, fuse(graph, device.traits.fused), weights)

    def run(self, tokens):
        """Return (actual, expected) of rows."""
        actual = np.concatenate(self.evaluation.run(tokens=tokens), axis=1)
        return actual, self.table[tokens] @ self.values.T

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.evaluation.__exit__()


@pytest.mark.parametrize(("dtype", "columns"), SHAPES, ids=str)
def test_every_bucket(device, dtype, columns):
    """Each result is that of the formula, and of as many rows as were given."""
    generator = np.random.default_rng()
    with Products(device, dtype, columns) as products:
        for rows in BATCHES:
            actual, expected = products.run(generator.integers(0, TABLE_ROWS, rows))
            assert actual.shape == expected.shape
            assert nmse(actual, expected) <= HIGHEST.get(dtype, QUANTIZED), rows


@pytest.mark.parametrize("rows", [2, 7, 16, 23, 48, 100, 128, 400])
@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q6_K, DType.Q8_0, DType.F16], ids=str)
def test_neighbours_do_not_matter(device, dtype, rows):
    """Every other row is changed; the bits of those between are as before."""
    generator = np.random.default_rng()
    tokens, others = generator.integers(0, TABLE_ROWS, (2, rows))
    others[::2] = tokens[::2]
    with Products(device, dtype, 768) as products:
        first, _ = products.run(tokens)
        second, _ = products.run(others)
    assert np.array_equal(first[::2], second[::2])
    assert not np.array_equal(first[1::2], second[1::2])
