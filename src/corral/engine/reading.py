"""Weights on their way from a file to a device: readers, each with a share of a buffer."""

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from corral.devices.base import Device, Store
from corral.devices.host import bytes_at
from corral.errors import InvalidModelFile
from corral.gguf import ModelFile
from corral.interrupts import deferred
from corral.memory.buffer import Buffer
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime, is_elsewhere
from corral.memory.plan import ModelPlan
from corral.memory.stored import StoredSlot
from corral.memory.traits import HOST
from corral.tensor.ops import Constant, Op

LEAST_SHARE = 2 << 20
"""Bytes of the loading buffer that a reader has at least: enough for 16 rows of any matrix."""
_TELLING_S = 0.05
"""How long progress waits to be told."""
Storing = Callable[[int], AbstractContextManager[Store]]
"""`Backend.storing`, or as it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows of one weight that fit a reader's share of the loading buffer."""

    slot: StoredSlot
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one reader has of the loading buffers."""

    data: memoryview
    """Host memory."""
    through: int
    """Address of as much memory of a device that has its own; else 0."""


@contextmanager
def loading(
    plan: ModelPlan, owner: str, device: Device, ledger: Ledger, landing: Buffer | None
) -> Iterator[tuple[Share, ...]]:
    """Hold the staging through which weights pass, in the ledger too, until they are read."""
    size, traits = plan.loading_bytes, device.traits
    place = HOST if is_elsewhere(Lifetime.STAGING, traits) else device.name
    stack = ExitStack()
    try:
        with deferred:
            need = {Lifetime.STAGING: size}
            reserved = ledger.reserve(f"{owner} (loading)", place, need, free_bytes=None)
            stack.callback(ledger.release, reserved)
            staging = device.allocate(size, Lifetime.STAGING)
            stack.callback(staging.close)
            ledger.commit(reserved, Lifetime.STAGING, staging.size_bytes)
        yield _shares(staging, landing, min(traits.readers, max(1, size // LEAST_SHARE)))
    finally:
        with deferred:
            stack.close()


def _shares(staging: Buffer, landing: Buffer | None, count: int) -> tuple[Share, ...]:
    step = staging.size_bytes // count
    return tuple(
        Share(
            bytes_at(staging.address + first, step),
            landing.address + first if landing is not None else 0,
        )
        for first in range(0, step * count, step)
    )


def read_weights(
    file: ModelFile,
    plan: ModelPlan,
    weights: Buffer,
    shares: tuple[Share, ...],
    storing: Storing,
    *,
    advance: Callable[[int], None],
) -> None:
    """Read every weight of a plan from the file and store it; `advance` is told bytes as they come.

    Raises:
        InvalidModelFile: if a row does not fit a share.
    """
    left = deque(_pieces(plan, len(shares[0].data)))
    done: deque[int] = deque()
    """Bytes of each piece that was stored, until they are told."""

    def read(share: Share) -> None:
        try:
            with storing(share.through) as store:
                while piece := _next(left):
                    data = _read(file, piece, share.data)
                    store(piece.slot, weights, piece.first_row, data)
                    done.append(len(data))
        except BaseException:
            left.clear()  # the others need not go on
            raise

    readers = ThreadPoolExecutor(len(shares))
    try:
        reading = [readers.submit(read, share) for share in shares]
        busy: set[Future[None]] = set(reading)
        while busy:
            # Not at each piece: readers who wait for the interpreter wait for this thread, too.
            busy = wait(busy, _TELLING_S).not_done
            while done:
                advance(done.popleft())
        for each in reading:
            each.result()
    finally:
        with deferred:  # a second Ctrl-C must not free what a reader still fills
            left.clear()
            readers.shutdown(cancel_futures=True)


def as_device_does(device: Device) -> Storing:
    """Return how readers store where nothing executes: one like the other, by the device."""
    return lambda _through: nullcontext(device.upload)


def _next(left: "deque[Piece]") -> Piece | None:
    """Return the next piece; None when there is none. Threads may share what is left."""
    try:
        return left.popleft()
    except IndexError:
        return None


def _pieces(plan: ModelPlan, share: int) -> Iterator[Piece]:
    step = max(1, plan.traits.interleave)
    for slot in plan.weights.slots.values():
        tensor = slot.tensor
        row_bytes = tensor.dtype.row_bytes(tensor.columns)
        rows = share // row_bytes // step * step
        if rows == 0:
            raise InvalidModelFile(
                f"a row of {tensor.name} takes {row_bytes} bytes, which is absurd"
            )
        for first in range(0, tensor.rows, rows):
            yield Piece(slot, first, min(rows, tensor.rows - first))


def _file_bytes(piece: Piece) -> int:
    tensor = piece.slot.tensor
    return piece.num_rows * tensor.dtype.row_bytes(tensor.columns)


def file_bytes(plan: ModelPlan) -> int:
    """Return how many bytes of a file the weights of a plan are."""
    tensors = (slot.tensor for slot in plan.weights.slots.values())
    return sum(tensor.rows * tensor.dtype.row_bytes(tensor.columns) for tensor in tensors)


def _read(file: ModelFile, piece: Piece, share: memoryview) -> memoryview:
    """Return the rows of a piece as the file has them, in a reader's share."""
    tensor = piece.slot.tensor
    into = share[: _file_bytes(piece)]
    if tensor.op is Op.CONSTANT:
        assert isinstance(tensor.attributes, Constant)
        into.cast("d")[:] = memoryview(array("d", tensor.attributes.values))
    else:
        file.read(tensor.name, into, piece.first_row * tensor.dtype.row_bytes(tensor.columns))
    return into
