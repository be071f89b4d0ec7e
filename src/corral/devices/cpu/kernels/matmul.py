"""out = x · weightsᵀ (+ bias) (+ residual): the kernel in which nearly all time is spent.

Work is cut in row blocks of 16 rows × tiles of tokens, and threads take equal shares of those. Full
tiles use a row block that was unpacked once; the tokens that are left, and all of a small batch,
read packed weights as a stream. However an element is computed, its columns are added in the same
order (`matmul_dots.py`): results depend neither on the number of tokens nor on that of threads.
"""

from collections.abc import Callable

from corral.devices.cpu.features import Target
from corral.devices.cpu.kernels.matmul_amx import AmxProduct
from corral.devices.cpu.kernels.matmul_floats import FloatProduct
from corral.devices.cpu.kernels.matmul_tiles import Place, QuantizedProduct
from corral.devices.cpu.kernels.matmul_weights import ROWS, shape_of
from corral.devices.cpu.simd import Fields, Kernel, Value, f32, i64, maximum, minimum
from corral.quant.packed import BY_NAME, PackedLayout

FIELDS = (
    "x",
    "weights",
    "out",
    "out_stride",
    "bias",
    "residual",
    "residual_stride",
    "rows",
    "num_tokens",
    "scratch",
    "scratch_stride",
)
"""Addresses, and strides in bytes. `num_tokens` is the address of an i64.

`x` holds rows without gaps: A8 or A16 if the weights are quantized, else F32. `bias` and `residual`
(F32) may be 0; `out` may be `residual`. Thread n uses `scratch_bytes` from `scratch` + n × stride.
"""

_ALIGNMENT = 64
"""Of what is kept in scratch: a cache line."""
Product = QuantizedProduct | FloatProduct
Subroutine = Callable[..., Value]


def product_of(layout: PackedLayout, columns: int, planes: int, target: Target) -> Product:
    """Return the arithmetic for a layout and as many planes of activation codes."""
    if layout.is_float:
        return FloatProduct(layout, columns, target)
    by_tile_unit = target.amx and shape_of(layout).halves == 1
    return (AmxProduct if by_tile_unit else QuantizedProduct)(layout, columns, planes, target)


def scratch_bytes(target: Target, layout: str, columns: int, planes: int = 1) -> int:
    """Return the bytes of scratch each thread needs."""
    return product_of(BY_NAME[layout], columns, planes, target).scratch_bytes + _ALIGNMENT - 1


def matmul(
    k: Kernel,
    record: Value,
    thread: Value,
    threads: Value,
    *,
    layout: str,
    columns: int,
    planes: int = 1,
) -> None:
    """Emit the kernel for one layout, one number of columns and one kind of activations.

    With quantized weights `x` is A8 if there is one plane, A16 if there are two.
    """
    a = k.fields(record, FIELDS)
    product = product_of(BY_NAME[layout], columns, planes, k.target)
    scratch = (a.scratch + thread * a.scratch_stride + (_ALIGNMENT - 1)) & -_ALIGNMENT
    parts = _Parts(k, product, BY_NAME[layout].row_block_bytes(columns), record, scratch)
    tokens, blocks = k.load(i64, a.num_tokens), (a.rows + (ROWS - 1)) // ROWS
    has_full_tiles = tokens >= product.tile_tokens
    with k.when(has_full_tiles):
        product.begin(k)
    with k.range(0, tokens, product.chunk_tokens) as first:
        count = minimum(tokens - first, product.chunk_tokens)
        product.begin_chunk(k, Place(a.x, scratch, first, first), count)
        _chunk(k, parts, blocks, (thread, threads), first, count)
    with k.when(has_full_tiles):
        product.end(k)


def _chunk(
    k: Kernel,
    parts: "_Parts",
    blocks: Value,
    team: tuple[Value, Value],
    first_token: Value,
    count: Value,
) -> None:
    """Multiply a chunk of tokens with the thread's share of row blocks × tiles."""
    tile = parts.product.tile_tokens
    full, rest = count // tile, count % tile
    items = full + minimum(rest, 1)
    first, last = k.split(blocks * items, *team)
    with k.branch(full.equals(0) & (rest & (rest - 1)).equals(0)) as (stream, mixed):
        with stream:  # a small tile of one size: all row blocks in one run
            parts.small_tiles(first_token, first_token, rest, first, last)
        with mixed, k.range(first // items, (last + items - 1) // items) as block:
            begin, end = maximum(first - block * items, 0), minimum(last - block * items, items)
            with k.when(begin < minimum(end, full)):
                parts.full_tiles(first_token, block, begin, minimum(end, full))
            with k.when(end > full):
                parts.small_tiles(first_token, first_token + full * tile, rest, block, block + 1)


class _Parts:
    """The subroutines of one kernel, each compiled by itself."""

    def __init__(
        self, k: Kernel, product: Product, block_bytes: int, record: Value, scratch: Value
    ) -> None:
        self._k, self.product, self._block_bytes = k, product, block_bytes
        self._record, self._scratch = record, scratch
        words = (i64,) * 6
        self._full = k.subroutine("full_tiles", words, None, self._emit_full)
        self._small = {
            size: k.subroutine(f"tile_of_{size}", words, None, self._emit_small(size))
            for size in product.small_tiles
        }

    def full_tiles(self, chunk: Value, block: Value, begin: Value, end: Value) -> None:
        """Call the full tiles `begin` up to `end` of the chunk of tokens for one row block."""
        self._full(self._k, self._record, self._scratch, chunk, block, begin, end)

    def small_tiles(
        self, chunk: Value, token: Value, count: Value, first: Value, last: Value
    ) -> None:
        """Call the small tiles of `count` tokens for row blocks `first` up to `last`."""
        for size, call in self._small.items():
            with self._k.when((count & size).differs(0)):
                at = token + (count & -2 * size)
                call(self._k, self._record, self._scratch, chunk, at, first, last)

    def _emit_full(self, k: Kernel, record: Value, *words: Value) -> None:
        scratch, chunk, block, begin, end = words
        a, product = k.fields(record, FIELDS), self.product
        address = a.weights + block * self._block_bytes
        product.begin_block(k, address, scratch)
        with k.range(begin, end) as tile:
            token = chunk + tile * product.tile_tokens
            totals = product.full_tile(k, Place(a.x, scratch, chunk, token), address)
            _store(k, a, token, block, totals)

    def _emit_small(self, size: int) -> Callable[..., None]:
        def emit(k: Kernel, record: Value, *words: Value) -> None:
            scratch, chunk, token, first, last = words
            a = k.fields(record, FIELDS)
            with k.range(first, last) as block:
                address = a.weights + block * self._block_bytes
                place = Place(a.x, scratch, chunk, token)
                _store(k, a, token, block, self.product.small_tile(k, size, place, address))

        return emit


def _store(k: Kernel, a: Fields, token: Value, block: Value, totals: list[Value]) -> None:
    """Add bias and residual and store; rows beyond the matrix are left alone."""
    count, column = a.rows - block * ROWS, block * (4 * ROWS)
    results = [k.variable(f32.x(ROWS), total) for total in totals]
    with k.when(a.bias.differs(0)):
        bias = k.load_first(f32.x(ROWS), a.bias + column, count)
        for result in results:
            result.value = result.value + bias
    with k.when(a.residual.differs(0)):
        for t, result in enumerate(results):
            at = a.residual + (token + t) * a.residual_stride + column
            result.value = result.value + k.load_first(f32.x(ROWS), at, count)
    for t, result in enumerate(results):
        k.store_first(a.out + (token + t) * a.out_stride + column, result.value, count)
