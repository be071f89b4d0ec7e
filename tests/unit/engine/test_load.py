"""Loading: whatever fails, wherever, nothing of a model is left and the next one loads."""

import gc
import os
import shutil
import threading
from dataclasses import replace

import pytest

import tiny
from corral.devices.base import MemoryReading
from corral.devices.null.device import NullDevice
from corral.devices.reference.backend import ReferenceBackend
from corral.devices.reference.device import ReferenceDevice, reference_traits
from corral.errors import (
    DeviceFault,
    InternalError,
    InvalidModelFile,
    LedgerMismatch,
    ModelNotFound,
    OutOfMemory,
)
from corral.gguf import open_model
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.models.footprint import Limits, design_model
from loaded import load_model

LIMITS = Limits(64)


class Watched(ReferenceDevice):
    """A device that does something else at its k-th call of some kind, and keeps accounts."""

    def __init__(self, ledger, *, kind=None, number=0, action=None, **traits):
        super().__init__()
        self.traits = replace(self.traits, **traits)
        self.ledger = ledger
        self.counts = {}
        self._trigger = (kind, number)
        self._action = action
        self._lock = threading.Lock()

    def _called(self, kind):
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            is_now = (kind, self.counts[kind]) == self._trigger
        if is_now:
            self._action()

    def allocate(self, size_bytes, lifetime):
        """Allocate, unless it is the turn."""
        self._called("allocate")
        reserved = [e for e in self.ledger.statistics() if e.allocated_bytes == 0]
        assert any(e.lifetime is lifetime and e.planned_bytes == size_bytes for e in reserved)
        assert committed(self.ledger) == self.allocated_bytes
        return super().allocate(size_bytes, lifetime)

    def upload(self, *arguments):
        """Upload, unless it is the turn."""
        self._called("upload")
        assert committed(self.ledger) == self.allocated_bytes
        super().upload(*arguments)

    def backend(self):
        """Make a backend, unless it is the turn."""
        self._called("backend")
        made = super().backend()
        lower = made.lower

        def watched(*arguments, **options):
            self._called("lower")
            return lower(*arguments, **options)

        made.lower = watched
        return made


def committed(ledger):
    """Return the bytes that the ledger says exist."""
    return sum(entry.allocated_bytes for entry in ledger.statistics())


def loads_afterwards(path, device, ledger):
    """Check that nothing is left, and that the device still takes a model."""
    assert device.allocated_bytes == 0
    assert ledger.statistics() == ()
    loaded = load_model(path, LIMITS, device, ledger)
    assert device.allocated_bytes == committed(ledger) > 0
    loaded.close()
    assert device.allocated_bytes == 0
    assert ledger.statistics() == ()


def calls(path):
    """Return how often each kind of call happens while a model is loaded."""
    ledger = Ledger()
    with Watched(ledger) as device:
        load_model(path, LIMITS, device, ledger).close()
        return device.counts


@pytest.mark.parametrize("kind", ["allocate", "upload", "backend", "lower"])
@pytest.mark.parametrize("error", [OutOfMemory("refused"), DeviceFault("gone"), MemoryError()])
def test_any_call_may_fail(paths, kind, error):
    """A device that refuses its k-th call, for every k, is left as it was."""
    path = paths["llama"]
    total = calls(path)[kind]
    assert total >= {"allocate": 6, "upload": 20, "backend": 1, "lower": 1}[kind]

    def fail():
        raise error

    for number in range(1, total + 1):
        ledger = Ledger()
        with Watched(ledger, kind=kind, number=number, action=fail) as device:
            with pytest.raises(type(error)):
                load_model(path, LIMITS, device, ledger)
            loads_afterwards(path, device, ledger)
    gc.collect()  # a backend or buffer that was forgotten would warn now


@pytest.mark.parametrize("kind", ["allocate", "upload"])
def test_a_file_cut_while_it_is_read(paths, tmp_path, kind):
    """A file that becomes shorter between its header and its data is the file's fault."""
    path = shutil.copy(paths["llama"], tmp_path / "cut.gguf")
    ledger = Ledger()

    def cut():
        os.truncate(path, path.stat().st_size - tiny.VOCABULARY * tiny.WIDTH * 4 - 1000)

    # One reader: a second might have read the end before the first stores anything.
    with Watched(ledger, kind=kind, number=1, action=cut, readers=1) as device:
        with pytest.raises(InvalidModelFile, match=r"cut\.gguf"):
            load_model(path, LIMITS, device, ledger)
        loads_afterwards(paths["llama"], device, ledger)


def test_a_file_replaced_while_it_is_read(paths, tmp_path):
    """The file that was opened is read to its end, whatever its name means later."""
    path = shutil.copy(paths["llama"], tmp_path / "swap.gguf")
    ledger = Ledger()

    def swap():
        shutil.copy(paths["gemma3"], tmp_path / "other.gguf").replace(path)

    with Watched(ledger, kind="allocate", number=1, action=swap) as device:
        loaded = load_model(path, LIMITS, device, ledger)
        assert loaded.design.hyper.architecture == "llama"
        loaded.close()


def test_a_callback_that_raises(paths):
    """Whoever shows the progress may break the loading off, with any exception, at any call."""
    path = paths["llama"]
    seen = []
    ledger = Ledger()
    with ReferenceDevice() as device:
        note = seen.append
        progress = lambda *call: note(call)  # noqa: E731 - three numbers, kept
        load_model(path, LIMITS, device, ledger, progress=progress).close()
        for number in range(len(seen)):
            left = [number]

            def stop(*_, left=left):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                load_model(path, LIMITS, device, ledger, progress=stop)
            assert device.allocated_bytes == 0
            assert ledger.statistics() == ()
        loads_afterwards(path, device, ledger)


def test_progress_grows_to_its_total(paths):
    """Each stage tells what is done and the total, up to the total."""
    stages = {}
    with ReferenceDevice() as device:
        load_model(
            paths["llama"],
            LIMITS,
            device,
            Ledger(),
            progress=lambda stage, done, total: stages.setdefault(stage, []).append((done, total)),
        ).close()
    assert set(stages) == {"read", "lower"}
    for steps in stages.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
        assert len({total for _, total in steps}) == 1


def footprint(path, traits):
    with open_model(path) as file:
        return design_model(file.metadata, file.tensors, LIMITS, traits).plan.footprint()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_what_is_allocated_is_what_was_planned(paths, family):
    """Each lifetime's bytes exist exactly as planned, and no others."""
    ledger = Ledger()
    with ReferenceDevice() as device:
        planned = footprint(paths[family], device.traits)
        loaded = load_model(paths[family], LIMITS, device, ledger)
        entries = {entry.lifetime: entry for entry in ledger.statistics()}
        assert {life: entry.planned_bytes for life, entry in entries.items()} == planned
        assert {life: entry.allocated_bytes for life, entry in entries.items()} == planned
        assert device.allocated_bytes == sum(planned.values())
        loaded.close()
        loaded.close()
        assert device.allocated_bytes == 0


@pytest.mark.parametrize("missing_bytes", [1, 1 << 20])
def test_what_does_not_fit_is_refused_before_anything_exists(paths, missing_bytes):
    """One byte too few is too few, and the message lists what is needed."""
    needed = sum(footprint(paths["llama"], reference_traits()).values())
    ledger = Ledger()
    with NullDevice(reference_traits(), total_bytes=max(0, needed - missing_bytes)) as device:
        allocate = device.allocate
        made = []
        device.allocate = lambda *call: made.append(call) or allocate(*call)
        with pytest.raises(OutOfMemory, match=r"weights .* free: lower --context"):
            load_model(paths["llama"], LIMITS, device, ledger)
        assert made == []
        assert ledger.statistics() == ()


def test_unknown_memory_admits_nothing(paths):
    """A device that cannot say what is free gets no model."""
    ledger = Ledger()
    with ReferenceDevice() as device:
        device.memory = lambda: MemoryReading(1 << 40, None, "nobody")
        with pytest.raises(OutOfMemory, match=r"does not tell .* \(nobody\)"):
            load_model(paths["llama"], LIMITS, device, ledger)
        assert (device.allocated_bytes, ledger.statistics()) == (0, ())


def test_a_device_that_gives_other_bytes_is_caught(paths):
    """A driver that rounds otherwise than its traits say breaks the account at once."""
    ledger = Ledger()
    with ReferenceDevice() as device:
        allocate = device.allocate
        device.allocate = lambda size, lifetime: allocate(size + 4096, lifetime)
        with pytest.raises(LedgerMismatch):
            load_model(paths["llama"], LIMITS, device, ledger)
        assert (device.allocated_bytes, ledger.statistics()) == (0, ())


def test_loading_needs_its_buffer_only_while_it_lasts(paths):
    """The staging that weights pass through is in the ledger, under its own name, and goes."""
    ledger = Ledger()
    seen = []
    with Watched(ledger, kind="upload", number=3) as device:
        device._action = lambda: seen.extend(ledger.statistics())
        load_model(paths["llama"], LIMITS, device, ledger).close()
    (loading,) = [entry for entry in seen if entry.owner == "llama.gguf (loading)"]
    assert (loading.lifetime, loading.allocated_bytes) == (
        Lifetime.STAGING,
        reference_traits().loading_bytes,
    )


def test_one_file_may_be_loaded_twice(paths):
    """Two models of one name share an account without losing bytes, and end one by one."""
    ledger = Ledger()
    with ReferenceDevice() as device:
        first, second = (load_model(paths["llama"], LIMITS, device, ledger) for _ in range(2))
        assert device.allocated_bytes == committed(ledger)
        first.close()
        assert device.allocated_bytes == committed(ledger) > 0
        second.close()
        assert (device.allocated_bytes, ledger.statistics()) == (0, ())


def test_files_that_do_not_exist(tmp_path):
    """A missing file is found missing before anything is asked of the device."""
    ledger = Ledger()
    with ReferenceDevice() as device:
        with pytest.raises(ModelNotFound):
            load_model(tmp_path / "none.gguf", LIMITS, device, ledger)
        assert (device.allocated_bytes, ledger.statistics()) == (0, ())


def test_a_lowering_that_wants_more_records_is_caught(paths, monkeypatch):
    """A backend that takes more records than planned fails while loading, not while answering."""
    lower = ReferenceBackend.lower

    def greedy(self, plan, buffers, **options):
        buffers.records.take()
        return lower(self, plan, buffers, **options)

    monkeypatch.setattr(ReferenceBackend, "lower", greedy)
    ledger = Ledger()
    with ReferenceDevice() as device:
        with pytest.raises(InternalError, match="record pool"):
            load_model(paths["llama"], LIMITS, device, ledger)
        assert (device.allocated_bytes, ledger.statistics()) == (0, ())
