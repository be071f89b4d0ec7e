"""Every CUDA kernel that the tests compile, and what it may take.

What models of today run comes from lowering some of them; what they lack is listed by hand.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from types import SimpleNamespace

from corral.devices.base import ModelBuffers
from corral.devices.cuda import prefill_launch
from corral.devices.cuda.choice_rules import choose as choose_tokens
from corral.devices.cuda.input_rules import INSTANCES as INPUTS
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.kernel_sources import KERNELS
from corral.devices.cuda.lowering import lower_plan
from corral.devices.cuda.matmul_launch import WEIGHTS, Product, Result, half_rows
from corral.devices.cuda.matmul_tuning import choose, wants_half_rows
from corral.devices.cuda.prefill_launch import Chip, Finish, Heads, Mixed, Source
from corral.devices.cuda.traits import cuda_traits
from corral.devices.cuda.weight_rules import pack
from corral.memory.factors import Form
from corral.models.footprint import Limits, design_model
from corral.quant.packed import BY_NAME, LAYOUTS
from corral.quant.types import DType
from headers import Sizes

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
OLDEST, MOST_OF_ITS_OWN = "sm_80", "sm_90a"
H200 = Chip(132, has_wgmma=True, shared_bytes=227 << 10)
A100 = Chip(108, has_wgmma=False, shared_bytes=163 << 10)
LLAMA_8B, LLAMA_1B, SMOLLM2 = (
    Sizes(1, 4096, 14_336, 32, 8, 128_256),
    Sizes(1, 2048, 8192, 32, 8, 128_256),
    Sizes(1, 576, 1536, 9, 3, 49_152),
)
MODELS = (
    (LLAMA_8B, "f16", {}, H200, (1, 8, 16, 32, 64, 2048)),
    (LLAMA_1B, "bf16", {DType.Q4_K: DType.Q4_0}, A100, (1, 24, 2048)),
    (SMOLLM2, "q8_0", {DType.Q4_K: DType.Q8_0, DType.Q6_K: DType.Q8_0}, A100, (4, 48, 2048)),
)
"""Sizes, the cache's type, types that weights have instead of those of Q4_K_M, a card, buckets."""


@dataclass(frozen=True)
class Limit:
    """What a thread may use on any architecture."""

    registers: int
    stack_bytes: int = 0
    """Of arrays that are indexed by what is known only when running, and of spills."""
    spill_bytes: int = 0


_TILES = ("TilesF16", "TilesBF16", "TilesQ8_0")
_ASSEMBLER = Limit(104, stack_bytes=8, spill_bytes=16)
"""Of kernels that some architecture's assembler gives fewer registers than it may."""
_TWO_TILES = replace(_ASSEMBLER, registers=136)
LIMITS = {
    "": Limit(48),
    "choose_token": Limit(80),
    "lora_": Limit(128),
    "transpose_halves": Limit(64),
    "kv_shift": Limit(64),
    "matmul<": Limit(160),
    "matmul<corral::int4_half_offset, corral::XA8, 8": replace(_ASSEMBLER, registers=160),
    "matmul_stream": Limit(120),
    "matmul_tile<": Limit(168),
    "matmul_tile<corral::Int4UnsignedOffset, 0, 128": Limit(255),
    "matmul_tile<corral::Int6Signed16, 0, 128": Limit(255),
    "matmul_tiles": Limit(128),
    "matmul_wgmma": Limit(168),
    "matmul_packed_wgmma": Limit(168, stack_bytes=8, spill_bytes=32),
    "matmul_packed_pair": Limit(96, stack_bytes=8, spill_bytes=64),
    "matmul_packed_wgmma<corral::Int4UnsignedOffset, 16, 2, 2": Limit(
        96, stack_bytes=16, spill_bytes=84
    ),
    "matmul_packed_wgmma<corral::Int6Signed16, 128, 4": Limit(96, stack_bytes=24, spill_bytes=80),
    "attention<": Limit(255),
    **{f"attention_mma<corral::{kind}, 64": _TWO_TILES for kind in _TILES},
    **{f"attention_mma<corral::{kind}, 80": Limit(200) for kind in _TILES},
    **{f"attention_mma<corral::{kind}, 128": Limit(232) for kind in _TILES},
    **{f"attention_mma<corral::{kind}, 256": Limit(216) for kind in _TILES},
    "attention_mma<corral::TilesF16, 128, 4, false, false, 4, false": Limit(168),
    "attention_mma<corral::TilesQ8_0, 128": Limit(168),
    "attention_wgmma": Limit(168),
    "attention_tiles": Limit(255),
    "attention_tiles<64": Limit(232),
    "attention_tiles<128": Limit(255, stack_bytes=48, spill_bytes=192),
}
"""By how a name begins, without its namespace; the longest beginning counts."""


def limit(instance):
    """Return what an instance may use."""
    name = instance.name.removeprefix("corral::")
    return LIMITS[max((start for start in LIMITS if name.startswith(start)), key=len)]


def _lowered():
    """Yield what some models run."""
    for sizes, kv_type, types, chip, buckets in MODELS:
        metadata, tensors = sizes.header
        tensors = {n: replace(t, dtype=types.get(t.dtype, t.dtype)) for n, t in tensors.items()}
        limits = Limits(8192, 128, kv_type, 2048, 128)
        design = design_model(metadata, tensors, limits, cuda_traits(0)).plan
        places = (SimpleNamespace(address=number << 44) for number in range(1, 6))
        buffers = ModelBuffers(*places, design.weights, design.state)
        for bucket in buckets:
            for launch in lower_plan(design.plans[0], buffers, bucket, chip):
                yield launch.instance


def _products():
    for number, layout in enumerate(WEIGHTS):
        batches = ((1, 24), (4, 48), (8, 64))[number % 3]
        planes = (1 if BY_NAME[layout].is_float else 1 + number % 2, 1)
        for each, batch in zip(planes, batches, strict=True):
            part = Product(layout, (4096,), 4096, batch, each)
            part = replace(part, planes=0) if wants_half_rows(part) else part
            yield choose(part, A100.multiprocessors, A100.shared_bytes)
    for batch, planes, result in ((4, 1, Result.GATED), (64, 0, Result.GATED_CODES)):
        gated = Product("int4_half", (9728, 9728), 2560, batch, planes, result, "gelu")
        yield choose(gated, H200.multiprocessors, H200.shared_bytes)
    yield half_rows(Product("int8_half", (4096,), 4096, 24, 2))


def _prefill():
    for form in Form:
        yield prefill_launch.prepare(Source.ROWS, form, 512, is_tiled=True)
        for chip in (H200, A100):
            yield prefill_launch.product(form, Finish.PLAIN, 2048, 4096, chip)
    for source in Source:
        yield prefill_launch.prepare(source, Form.BF16, 512, is_tiled=True)
    for finish, chip in product((Finish.GELU, Finish.SILU_ROWS), (H200, A100)):
        yield prefill_launch.product(Form.BF16, finish, 2048, 4096, chip)
    for dtype in LAYOUTS:
        yield prefill_launch.dequantize(dtype, 4096, 4096, is_tiled=True)
    for dim, group, dtype in ((128, 8, DType.Q8_0), (128, 1, DType.F32), (64, 4, DType.F16)):
        heads = Heads(8 * group, 8, dim, dtype, is_windowed=dim == 64, is_capped=dim == 64)
        yield prefill_launch.wgmma_attention(heads, 2048, to=Mixed.FLOATS)
    for dim, group in ((80, 1), (96, 1), (128, 8), (256, 2)):
        heads = Heads(4 * group, 4, dim, DType.F16, is_windowed=dim == 256)
        yield prefill_launch.mma_attention(heads, 2048, to=Mixed.TILES)


def _attention():
    shapes = ((64, 8, True, 8), (80, 1, False, 8), (128, 8, False, 4), (256, 2, True, 4))
    for kind in _TILES:
        for dim, heads, is_bent, warps in shapes:
            if dim % 32 == 0 or kind != "TilesQ8_0":
                is_ahead = dim <= 128 and kind != "TilesQ8_0"
                yield _of("attention_mma", kind, dim, heads, is_bent, is_bent, warps, is_ahead)
    yield _of("attention_mma", "TilesF16", 128, 4, False, False, 4, False)
    for dim, heads, is_bent in ((64, 8, True), (128, 4, False), (256, 2, True)):
        yield _of("attention", "CacheF32", dim, heads, is_bent, is_bent)


def _cache():
    yield _of("rope_append", "CacheF16", 80, 32, False, False)
    yield _of("rope_append", "CacheF16", 128, 128, True, True)
    yield _of("rope_append", "CacheBF16", 256, 256, False, True)
    yield _of("rope_append", "CacheF32", 64, 64, True, False)
    yield _of("rope_append", "CacheQ8_0", 128, 128, False, True)
    for kind in ("CacheF32", "CacheF16", "CacheBF16"):
        yield _of("kv_append", kind, 512)
        yield _of("kv_shift", kind, 128, 128, kind == "CacheF32")
    yield Instance.of("kv_append", "kv_append_q8_0", 512)
    yield _of("kv_shift", "CacheQ8_0", 256, 64, True)


def _lora():
    for tile in (1, 4):
        yield Instance.of("lora", "lora_down", tile)
        yield Instance.of("lora", "lora_up", tile)


def _rows():
    for layout in LAYOUTS.values():
        yield _of("embed", layout.name)
    yield Instance.of("norm", "rms_norm", 1024, 2, True)
    yield Instance.of("norm", "group_norm", 128)
    yield Instance.of("rope", "rope", 512, 512, True)
    yield Instance.of("rope", "rotations", True)
    for kind in ("Add", "Gated<corral::GELU>"):
        yield Instance.of("elementwise", "binary", kind, False)
    yield Instance.of("elementwise", "unary", "Softcap", True)
    yield Instance.of("elementwise", "unary", "Activate<corral::SILU>", False)
    for planes, is_aligned in ((1, True), (2, False)):
        yield Instance.of("elementwise", "quantize", planes, is_aligned)
        yield Instance.of("elementwise", "gated_quantize", "GELU", planes, is_aligned)
    for vocabulary in (128_256, 32_001):
        yield from choose_tokens(0, 0, 1, vocabulary, draws=0, scratch=0, tokens=0)
    yield from INPUTS


def _plain():
    for dtype, layout in LAYOUTS.items():
        yield _of("matmul", layout.name, "XA8" if dtype.is_quantized else "X32", 8)
    yield _of("matmul", "int6_signed16", "XA16", 1)
    yield _of("matmul", LAYOUTS[DType.Q2_K].name, "X32", 4)


def _of(name, *arguments):
    return Instance.of(name, name, *arguments)


@cache
def instances():
    """Return every instance that is compiled, once."""
    parts = (_lowered, _products, _prefill, _attention, _cache, _rows, _plain, _lora)
    found = (one for part in parts for one in part())
    packs = (pack(dtype, 0, 0, 16, 256) for dtype in LAYOUTS)
    return tuple(dict.fromkeys(getattr(one, "instance", one) for one in (*found, *packs)))


def rows(is_complete=False):
    """Return (instance, architecture) of all there are, or of a part that has each instance for
    Hopper and for one more, every other time the oldest, and leaves no architecture out."""
    rest = [arch for arch in ARCHITECTURES if arch not in (OLDEST, MOST_OF_ITS_OWN)]
    for number, instance in enumerate(instances()):
        other = rest[number // 2 % len(rest)] if number % 2 else OLDEST
        for arch in ARCHITECTURES if is_complete else (MOST_OF_ITS_OWN, other):
            yield instance, arch


def source_names():
    """Return every file of kernels."""
    return sorted(path.stem for path in KERNELS.glob("*.cu"))
