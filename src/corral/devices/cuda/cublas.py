"""Products of prefill by cuBLASLt, where it is installed; corral runs without it.

`find` looks for the library once; `Products` is a handle in one device context and, for each shape,
the descriptions and the algorithm that the library's heuristic names first. Its workspace is given
by the caller and has a fixed size, so that a plan can count it, and reductions that depend on the
order of blocks are excluded: a shape gives the same bits each time.

Everything here is row by row: y (rows × columns, F32 or BF16) = x (rows × inner) · weightsᵀ.
cuBLASLt speaks of columns, so it is told of yᵀ = weights · xᵀ.

Source: cuBLAS 12 and 13, chapter "Using the cublasLt API".
"""

import ctypes
import functools
import logging
from collections.abc import Callable
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

from corral.devices.cuda.context import DeviceContext
from corral.errors import InternalError, OutOfMemory
from corral.memory.factors import Form
from corral.quant.types import DType

WORKSPACE_BYTES = 32 << 20
"""What the library may use beside its sources and its result."""
WORKSPACE_ALIGNMENT = 256

_log = logging.getLogger(__name__)

_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll", "cublasLt64_12.dll")
_COMPUTE_F32 = 68
_TYPES = {DType.F32: 0, DType.F16: 2, DType.BF16: 14}
_TRANSPOSED = 1
_STATUS_NOT_ALLOCATED = 3
# Attributes of a product, and of the preferences for its algorithm.
_TRANSPOSE_A = 3
_EPILOGUE = 7
_BIAS_POINTER = 8
_ADD_BIAS = 4
_MOST_WORKSPACE = 1
_REDUCTIONS = 3
_REDUCE_IN_WORKSPACE = 2


class _Algorithm(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtDestroy": (c_void_p,),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(c_void_p,) * 7,
        c_int,
        POINTER(_Algorithm),
        POINTER(c_int),
    ),
    "cublasLtMatmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


class Library(Protocol):
    """The few functions of cuBLASLt that corral calls; each returns a status."""

    def __getattr__(self, name: str) -> Any:
        """Return the function of a name."""
        ...


@functools.cache
def find() -> Library | None:
    """Return cuBLASLt, or None if it is not installed; says so once."""
    loads: list[Callable[[], Any]] = [functools.partial(ctypes.CDLL, name) for name in _NAMES]
    for load in (_from_packages, *loads):
        try:
            library: Any = load()
        except (OSError, ImportError, RuntimeError):
            continue
        for name, signature in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = signature, c_int
        found: Library = library
        return found
    _log.info("cuBLASLt is not installed; products use corral's own kernels (extra: cublas)")
    return None


def _from_packages() -> ctypes.CDLL:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)


@dataclass(frozen=True, slots=True)
class Shape:
    """A product: what an algorithm is chosen for."""

    rows: int
    columns: int
    inner: int
    """Columns of the factors: those of all matrices of the form."""
    out_stride: int
    """Bytes of a row of the result."""
    residual_stride: int = 0
    """Bytes of a row of what is added; 0 is nothing."""
    out: DType = DType.F32
    has_bias: bool = False
    form: Form = Form.BF16

    def __post_init__(self) -> None:
        """Refuse what this module does not do."""
        if not serves(self.form):
            raise InternalError(f"cuBLASLt does not divide rows by scales, {self.form} needs it")


def serves(form: Form) -> bool:
    """Say whether products of a form can be left to cuBLASLt: the scales of rows cannot."""
    return form is not Form.F16


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a product lie on the device."""

    x: int
    weights: int
    out: int
    residual: int = 0
    bias: int = 0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The library's descriptions of one shape, and its choice."""

    product: c_void_p
    weights: c_void_p
    x: c_void_p
    residual: c_void_p
    out: c_void_p
    algorithm: _Algorithm


class Products:
    """cuBLASLt in one device context. One thread at a time."""

    def __init__(self, context: DeviceContext, library: Library) -> None:
        """Make the library's handle, which takes host memory and little of the device."""
        self._library = library
        self._prepared: dict[Shape, _Prepared] = {}
        self._one, self._zero = c_float(1), c_float(0)
        self._handle = context.own("cuBLASLt handle", self._create, self._destroy)

    def _create(self) -> int:
        handle = c_void_p()
        self._call("cublasLtCreate", byref(handle))
        return int(handle.value or 0)

    def _destroy(self, handle: int) -> None:
        self._call("cublasLtDestroy", handle)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status == _STATUS_NOT_ALLOCATED:
            raise OutOfMemory(f"{name} could not allocate what it needs")
        if status:
            raise InternalError(f"cuBLASLt refused a call: {name} said {status}")

    def prepare(self, shape: Shape) -> None:
        """Choose the algorithm of a shape. Needs the context current; not while capturing."""
        if shape in self._prepared:
            return
        product = self._new("cublasLtMatmulDescCreate", _COMPUTE_F32, _TYPES[DType.F32])
        self._set(product, _TRANSPOSE_A, _TRANSPOSED)
        if shape.has_bias:
            self._set(product, _EPILOGUE, _ADD_BIAS)
        element = DType.F16 if shape.form is Form.F16 else DType.BF16
        out_size = 4 if shape.out is DType.F32 else 2
        out_stride = shape.out_stride // out_size
        residual_stride = shape.residual_stride // out_size or out_stride
        weights = self._layout(element, shape.inner, shape.columns, shape.inner)
        x = self._layout(element, shape.inner, shape.rows, shape.inner)
        residual = self._layout(shape.out, shape.columns, shape.rows, residual_stride)
        out = self._layout(shape.out, shape.columns, shape.rows, out_stride)
        algorithm = self._algorithm((product, weights, x, residual, out), shape)
        self._prepared[shape] = _Prepared(product, weights, x, residual, out, algorithm)

    def _algorithm(self, descriptions: tuple[c_void_p, ...], shape: Shape) -> _Algorithm:
        preference = self._new("cublasLtMatmulPreferenceCreate")
        set_one = "cublasLtMatmulPreferenceSetAttribute"
        try:
            most, reductions = c_uint64(WORKSPACE_BYTES), c_int32(_REDUCE_IN_WORKSPACE)
            self._call(set_one, preference, _MOST_WORKSPACE, byref(most), ctypes.sizeof(most))
            size = ctypes.sizeof(reductions)
            self._call(set_one, preference, _REDUCTIONS, byref(reductions), size)
            result, count = _Algorithm(), c_int()
            self._call(
                "cublasLtMatmulAlgoGetHeuristic",
                self._handle.handle,
                *descriptions,
                preference,
                1,
                byref(result),
                byref(count),
            )
        finally:
            self._call("cublasLtMatmulPreferenceDestroy", preference)
        if not count.value or result.state:
            raise InternalError(f"cuBLASLt has no algorithm for {shape}")
        return result

    def _new(self, name: str, *arguments: int) -> c_void_p:
        made = c_void_p()
        self._call(name, byref(made), *arguments)
        return made

    def _layout(self, dtype: DType, rows: int, columns: int, stride: int) -> c_void_p:
        """Describe a matrix in the library's words: columns contiguous, `stride` elements apart."""
        return self._new("cublasLtMatrixLayoutCreate", _TYPES[dtype], rows, columns, stride)

    def _set(self, product: c_void_p, attribute: int, value: int) -> None:
        word = c_int32(value)
        set_one = "cublasLtMatmulDescSetAttribute"
        self._call(set_one, product, attribute, byref(word), ctypes.sizeof(word))

    def multiply(self, shape: Shape, places: Places, workspace: int, stream: int) -> None:
        """Start a product in a stream; `prepare` must have seen its shape.

        `workspace` is the address of WORKSPACE_BYTES that nobody else uses meanwhile.
        """
        prepared = self._prepared[shape]
        if shape.has_bias:
            bias = c_uint64(places.bias)
            self._call(
                "cublasLtMatmulDescSetAttribute",
                prepared.product,
                _BIAS_POINTER,
                byref(bias),
                ctypes.sizeof(bias),
            )
        self._call(
            "cublasLtMatmul",
            self._handle.handle,
            prepared.product,
            byref(self._one),
            places.weights,
            prepared.weights,
            places.x,
            prepared.x,
            byref(self._one if places.residual else self._zero),
            places.residual or places.out,
            prepared.residual if places.residual else prepared.out,
            places.out,
            prepared.out,
            byref(prepared.algorithm),
            workspace,
            WORKSPACE_BYTES,
            stream,
        )

    def close(self) -> None:
        """End the handle and every description; a second call does nothing."""
        for prepared in self._prepared.values():
            self._call("cublasLtMatmulDescDestroy", prepared.product)
            for layout in (prepared.weights, prepared.x, prepared.residual, prepared.out):
                self._call("cublasLtMatrixLayoutDestroy", layout)
        self._prepared.clear()
        self._handle.close()
