"""Instances of the plain kernels that most tests use, to be compiled together."""

from itertools import product

from corral.devices.cuda.instance import Instance
from corral.quant.packed import LAYOUTS
from emulation import prepare_missing

_BOTH = (False, True)
_ACTIVATIONS = ("SILU", "GELU")
_BINARY = ("Add", "Mul", *(f"Gated<corral::{name}>" for name in _ACTIVATIONS))
_UNARY = ("Softcap", *(f"Activate<corral::{name}>" for name in _ACTIVATIONS))


def _matmul():
    for dtype, layout in LAYOUTS.items():
        for kind in ("X32", "XA8", "XA16") if dtype.is_quantized else ("X32",):
            yield Instance.of("matmul", "matmul", layout.name, kind, 8)


def _elementwise():
    def instance(function, *arguments):
        return Instance.of("elementwise", function, *arguments)

    yield from (instance("binary", *both) for both in product(_BINARY, _BOTH))
    yield from (instance("unary", *both) for both in product(_UNARY, _BOTH))
    yield from (instance("quantize", *both) for both in product((1, 2), _BOTH))
    yield from (instance("gated_quantize", a, *b) for a, *b in product(_ACTIVATIONS, (1, 2), _BOTH))
    yield from (instance("select_rows", is_aligned) for is_aligned in _BOTH)


def _pack():
    for dtype in LAYOUTS:
        if dtype.is_quantized:
            yield Instance.of("pack", "pack", dtype.name)
    for word in ("unsigned int", "unsigned short"):
        yield Instance("pack", f"corral::pack_floats<{word}>")


def _embed():
    return (Instance.of("embed", "embed", layout.name) for layout in LAYOUTS.values())


_BY_STEM = {"matmul": _matmul, "elementwise": _elementwise, "pack": _pack, "embed": _embed}


def prepare_common(*stems):
    """Compile what tests of these files need."""
    for stem in stems:
        prepare_missing(_BY_STEM[stem]())
