"""From a file to a model on a device: plan, reserve, allocate, read; undone whole on failure."""

from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from corral.devices.base import Backend, Device, ModelBuffers, Program, Progress
from corral.devices.host import bytes_at
from corral.errors import InvalidModelFile, OutOfMemory
from corral.gguf import ModelFile
from corral.interrupts import deferred
from corral.memory.buffer import Buffer
from corral.memory.ledger import Ledger, LedgerEntry, Reservation
from corral.memory.lifetime import Lifetime
from corral.memory.records import RecordPool
from corral.memory.stored import StoredSlot
from corral.memory.traits import HOST
from corral.models.fit import is_elsewhere
from corral.models.footprint import Limits, ModelDesign, design_model
from corral.tensor.ops import Constant, Op

LEAST_SHARE = 2 << 20
"""Bytes of the loading buffer that a reader has at least: enough for 16 rows of any matrix."""
Store = Callable[[StoredSlot, Buffer, int, memoryview, int], None]
"""`Backend.upload`, or as it."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model whose weights are on a device and whose programs are ready."""

    design: ModelDesign
    backend: Backend
    programs: tuple[Program, ...]
    closing: ExitStack

    def close(self) -> None:
        """Give everything back, in reverse; a second call does nothing."""
        with deferred:
            self.closing.close()


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows of one weight that fit a reader's share of the loading buffer."""

    slot: StoredSlot
    first_row: int
    num_rows: int


def load_file(
    file: ModelFile,
    limits: Limits,
    device: Device,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model from an open file, which may be closed afterwards; all of it or nothing.

    Raises:
        ModelError: if the file is at fault.
        OutOfMemory: if it does not fit; nothing was allocated.
    """
    with _undone_on_failure() as closing:
        design = design_model(file.metadata, file.tensors, limits, device.traits)
        with deferred:  # nothing is made that nobody owns
            backend = device.backend()  # before anything is allocated: a device may have none
            closing.callback(backend.close)
            buffers = _allocate(design, file.path.name, device, ledger, closing)
            closing.callback(backend.close)  # before its buffers; the second call does nothing
        # Lowering comes first: it compiles the kernels that reading needs to pack weights, too.
        programs = tuple(
            backend.lower(plan, buffers, progress=progress) for plan in design.plan.plans
        )
        # Nothing is evaluated yet: what is read may land in the arena.
        landing = buffers.scratch if device.traits.has_own_memory else None
        with _loading(design, file.path.name, device, ledger, landing) as loading:
            _read_weights(file, design, buffers.weights, loading, backend.upload, progress=progress)
        return LoadedModel(design, backend, programs, closing)


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """A model whose weights are on a device, with room for its state and nothing to run it."""

    design: ModelDesign
    buffers: ModelBuffers
    closing: ExitStack

    def close(self) -> None:
        """Give everything back, in reverse; a second call does nothing."""
        with deferred:
            self.closing.close()


def hold_file(
    file: ModelFile,
    limits: Limits,
    device: Device,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
) -> HeldModel:
    """Put a model on a device without an executor; raises as `load_file` does."""
    with _undone_on_failure() as closing:
        design = design_model(file.metadata, file.tensors, limits, device.traits)
        with deferred:
            buffers = _allocate(design, file.path.name, device, ledger, closing)

        def store(
            slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview, through: int
        ) -> None:
            device.upload(slot, weights, first_row, data)

        with _loading(design, file.path.name, device, ledger, None) as loading:
            _read_weights(file, design, buffers.weights, loading, store, progress=progress)
        return HeldModel(design, buffers, closing)


@contextmanager
def _undone_on_failure() -> Iterator[ExitStack]:
    """Give a stack of what is to be closed, and close it at once if anything fails."""
    closing = ExitStack()
    try:
        yield closing
    except BaseException:
        with deferred:
            closing.close()
        raise


def _allocate(
    design: ModelDesign, owner: str, device: Device, ledger: Ledger, closing: ExitStack
) -> ModelBuffers:
    reserved = _reserve(design, owner, device, ledger, closing)
    closing.enter_context(device.hold())
    ledger.hand_over(reserved[Lifetime.CONTEXT], Lifetime.CONTEXT)
    made: dict[Lifetime, Buffer] = {}
    for lifetime, size in design.plan.footprint().items():
        if lifetime is not Lifetime.CONTEXT:
            made[lifetime] = device.allocate(size, lifetime)
            closing.callback(made[lifetime].close)
            ledger.commit(reserved[lifetime], lifetime, made[lifetime].size_bytes)
    capacity = sum(plan.num_records for plan in design.plan.plans)
    return ModelBuffers(
        weights=made[Lifetime.WEIGHTS],
        state=made[Lifetime.STATE],
        scratch=made[Lifetime.SCRATCH],
        staging=made[Lifetime.STAGING],
        records=RecordPool(
            made[Lifetime.RECORDS],
            record_bytes=device.traits.record_bytes,
            capacity=capacity,
        ),
        weights_layout=design.plan.weights,
        state_layout=design.plan.state,
    )


def _reserve(
    design: ModelDesign, owner: str, device: Device, ledger: Ledger, closing: ExitStack
) -> dict[Lifetime, Reservation]:
    """Write down what a model will hold, the context it begins included, or refuse it."""
    reading = device.memory()
    if reading.free_bytes is None:
        raise OutOfMemory(
            f"{device.name} does not tell how much memory is free ({reading.source}), so nothing "
            "is loaded on it: use another device"
        )
    reserved: dict[Lifetime, Reservation] = {}
    for place, footprint in _by_place(design, device).items():
        free = reading.free_bytes if place == device.name else None
        reservation = ledger.reserve(owner, place, footprint, free_bytes=free)
        closing.callback(ledger.release, reservation)
        reserved |= dict.fromkeys(footprint, reservation)
    return reserved


def _by_place(design: ModelDesign, device: Device) -> dict[str, dict[Lifetime, int]]:
    """Return what is still to be paid for a model: on the device, and on the host beside it."""
    places: dict[str, dict[Lifetime, int]] = {device.name: {}}
    for lifetime, size in design.plan.footprint().items():
        place = HOST if is_elsewhere(lifetime, device.traits) else device.name
        is_paid = lifetime is Lifetime.CONTEXT and device.context_bytes
        places.setdefault(place, {})[lifetime] = 0 if is_paid else size
    return places


def held_by_driver(device: Device) -> tuple[LedgerEntry, ...]:
    """Return the entry of a device's context, which belongs to no model; none without a context."""
    size = device.context_bytes
    return (LedgerEntry(device.name, device.name, Lifetime.CONTEXT, size, size),) if size else ()


@dataclass(frozen=True, slots=True)
class Share:
    """What one reader has of the loading buffers."""

    data: memoryview
    """Host memory."""
    through: int
    """Address of as much memory of a device that has its own; else 0."""


@contextmanager
def _loading(
    design: ModelDesign, owner: str, device: Device, ledger: Ledger, landing: Buffer | None
) -> Iterator[tuple[Share, ...]]:
    """Hold the staging through which weights pass, in the ledger too, until they are read."""
    size, traits = design.plan.loading_bytes, device.traits
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


def _read_weights(
    file: ModelFile,
    design: ModelDesign,
    weights: Buffer,
    shares: tuple[Share, ...],
    store: Store,
    *,
    progress: Progress | None,
) -> None:
    free: SimpleQueue[Share] = SimpleQueue()
    for share in shares:
        free.put(share)
    pieces = list(_pieces(design, len(shares[0].data)))
    done, total = 0, sum(map(_file_bytes, pieces))

    def read(piece: Piece) -> int:
        share = free.get()
        try:
            data = _read(file, piece, share.data)
            store(piece.slot, weights, piece.first_row, data, share.through)
            return len(data)
        finally:
            free.put(share)

    readers = ThreadPoolExecutor(len(shares))
    try:
        for count in readers.map(read, pieces):
            done += count
            if progress is not None:
                progress("read", done, total)
    finally:
        with deferred:  # a second Ctrl-C must not free what a reader still fills
            readers.shutdown(cancel_futures=True)


def _pieces(design: ModelDesign, share: int) -> Iterator[Piece]:
    step = max(1, design.plan.traits.interleave)
    for slot in design.plan.weights.slots.values():
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
