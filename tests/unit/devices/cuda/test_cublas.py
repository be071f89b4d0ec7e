"""What corral asks of cuBLASLt, with a library that is played; `tests/cuda` has the real one."""

import ctypes

import pytest

from corral.devices.cuda import cublas
from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.cublas import Places, Products, Shape
from corral.errors import InternalError, OutOfMemory
from corral.memory.factors import Form
from corral.quant.types import DType
from fake_driver import FakeDriver

SHAPE = Shape(rows=300, columns=640, inner=512, out_stride=4 * 640)
PLACES = Places(x=1 << 40, weights=2 << 40, out=3 << 40)
NOT_ALLOCATED, INVALID = 3, 7


class PlayedLibrary:
    """Gives out handles, and keeps what it was asked."""

    def __init__(self):
        self.calls, self.alive, self.fails = [], set(), {}
        self.choices = 1

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            if name in self.fails:
                return self.fails[name]
            if name.endswith("Create"):
                handle = len(self.calls)
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_void_p))[0] = handle
                self.alive.add(handle)
            if name.endswith("Destroy"):
                handle = arguments[0]
                self.alive.remove(getattr(handle, "value", handle))
            if name.endswith("GetHeuristic"):
                ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_int))[0] = self.choices
            return 0

        return call

    def named(self, name):
        """Return the arguments of each call of a function."""
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def library():
    return PlayedLibrary()


@pytest.fixture
def context():
    return next(iter(Contexts(FakeDriver(1))))


def layouts(library):
    return [
        tuple(arguments[1:])  # type, rows, columns, stride, in the library's words
        for arguments in library.named("cublasLtMatrixLayoutCreate")
    ]


def test_rows_are_told_as_columns(library, context):
    """yᵀ = weights · xᵀ: weights transposed, the result with as many rows as y has columns."""
    products = Products(context, library)
    products.prepare(SHAPE)
    bf16, f32 = 14, 0
    assert layouts(library) == [
        (bf16, 512, 640, 512),
        (bf16, 512, 300, 512),
        (f32, 640, 300, 640),
        (f32, 640, 300, 640),
    ]
    products.close()


def test_an_algorithm_is_chosen_once_a_shape(library, context):
    products = Products(context, library)
    for _ in range(3):
        products.prepare(SHAPE)
    assert len(library.named("cublasLtMatmulAlgoGetHeuristic")) == 1
    products.close()


def test_the_workspace_is_the_callers_and_has_the_planned_size(library, context):
    products = Products(context, library)
    products.prepare(SHAPE)
    products.multiply(SHAPE, PLACES, workspace=5 << 40, stream=9)
    (arguments,) = library.named("cublasLtMatmul")
    assert arguments[-3:] == (5 << 40, cublas.WORKSPACE_BYTES, 9)
    assert (arguments[3], arguments[5], arguments[10]) == (2 << 40, 1 << 40, 3 << 40)
    products.close()


def test_a_residual_is_added_with_its_own_stride(library, context):
    shape = Shape(300, 640, 512, 4 * 640, residual_stride=4 * 700, out=DType.F32)
    products = Products(context, library)
    products.prepare(shape)
    assert [stride for *_, stride in layouts(library)[2:]] == [700, 640]
    products.multiply(shape, Places(1, 2, 3, residual=4), workspace=5, stream=9)
    (arguments,) = library.named("cublasLtMatmul")
    assert arguments[8] == 4
    products.close()


def test_closing_leaves_no_handle(library, context):
    products = Products(context, library)
    products.prepare(SHAPE)
    assert library.alive
    products.close()
    products.close()
    assert not library.alive
    assert not context.statistics().owned


def test_failures_become_errors_of_ours(library, context):
    library.fails["cublasLtCreate"] = NOT_ALLOCATED
    with pytest.raises(OutOfMemory):
        Products(context, library)
    library.fails.clear()
    products = Products(context, library)
    library.choices = 0
    with pytest.raises(InternalError, match="no algorithm"):
        products.prepare(SHAPE)
    library.choices = 1
    products.prepare(SHAPE)
    library.fails["cublasLtMatmul"] = INVALID
    with pytest.raises(InternalError, match="cublasLtMatmul"):
        products.multiply(SHAPE, PLACES, 0, 0)
    library.fails.clear()
    products.close()


def test_rows_with_scales_are_not_for_it():
    assert not cublas.serves(Form.F16)
    with pytest.raises(InternalError):
        Shape(1, 1, 1, 4, form=Form.F16)


def test_without_the_library_there_is_none(monkeypatch):
    """It is an extra: finding nothing is no error."""

    def missing(*_):
        raise OSError

    monkeypatch.setattr(cublas, "_from_packages", missing)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    cublas.find.cache_clear()
    assert cublas.find() is None
    cublas.find.cache_clear()
