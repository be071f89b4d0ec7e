"""What leak.py repeats: each piece of work is a context that gives an action to be called often."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from corral import Model, SamplingParams
from corral.devices import registry
from corral.devices.base import Device
from corral.engine.load import load_file
from corral.engine.runner import Runner
from corral.errors import CorralError, ModelError, OutOfMemory
from corral.gguf import open_model
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.models.footprint import choose_limits, design_model
from corral.tensor.ops import Op
from held import Held

GPU = "cuda:0"
PROMPT = "Once upon a time"
WORDS = " ".join(f"w{number:x}" for number in range(2000))
"""A text of many words: tokenizers like to keep those they have seen."""
CONTEXT = 256
ANSWER_TOKENS = 100
FAILING_EVERY = 10
"""Loads, one of which is preceded by one that fails."""
FREE_BYTES = 4096
"""Of the device on which nothing fits."""
UPLOAD_BYTES = 16 << 20
"""The most of one weight that an upload takes at once."""


@dataclass(frozen=True)
class Noise:
    """Growth a unit that is no leak, of the measures that have some; the others have none."""

    host: float
    """Bytes. The C library's allocator needs some rounds to find its size."""
    heap: float
    """Bytes. It counts what each thread keeps for itself."""
    objects: float = 0.1
    blocks: float = 20.0
    """Python and NumPy keep freed pieces for the next to come, more of them for some rounds."""
    used: float = 65_536
    """Bytes of a GPU, which gives and takes megabytes."""


Action = Callable[[int], None]


@dataclass(frozen=True)
class Elsewhere:
    """An action of other processes, and what tells what they hold."""

    act: Action
    held: Callable[[], Held]


@dataclass(frozen=True)
class Setting:
    """What all work is done with."""

    model: Path
    device: str
    folder: Path
    """For files that are damaged on purpose."""


@dataclass(frozen=True)
class Work:
    """Something that must leave nothing behind, however often it is done."""

    name: str
    unit: str
    start: Callable[[Setting], AbstractContextManager[Action | Elsewhere]]
    times: int
    """Units to do."""
    noise: Noise
    """Growth a unit that is not taken for a leak."""
    batch: int = 1
    """Units that one action does."""
    every: int = 1
    """Actions between two samples."""
    warm_up: int = 6
    """Actions before the first sample: caches fill, modules are imported, kernels compiled."""
    settling: Noise | None = None
    """Growth over all units together that is not taken for a leak either: caches still fill."""
    device: str | None = None
    """Where it is done, if not where the command line says."""

    @property
    def is_on_gpu(self) -> bool:
        """Whether the device can be asked what all processes use of it."""
        return self.device == GPU

    def floor(self, measure: str) -> float:
        """Return the growth a unit up to which nothing counts as a leak."""
        over_all: float = getattr(self.settling, measure, 0.0)
        return max(getattr(self.noise, measure, 0.0), over_all / self.times)

    def shortened(self, divisor: int) -> "Work":
        """Return the same for a quick look: fewer units."""
        least = min(self.times, 10 * self.batch * self.every)
        return replace(self, times=max(least, self.times // divisor))


def _load(setting: Setting, parallel: int = 1) -> Model:
    return Model.load(setting.model, device=setting.device, context=CONTEXT, parallel=parallel)


@contextmanager
def loads(setting: Setting) -> Iterator[Action]:
    """Load the model, tokenize, let it say something, unload it; some loads fail in between."""
    cut = setting.folder / "half.gguf"
    shutil.copyfile(setting.model, cut)
    with cut.open("r+b") as file:
        file.truncate(setting.model.stat().st_size // 2)

    def act(number: int) -> None:
        if number % FAILING_EVERY == 0:
            _must_fail(ModelError, lambda: Model.load(cut, device=setting.device))
        with _load(setting) as model:
            model.tokenize(WORDS)
            for _ in model.generate(PROMPT, max_tokens=4, ignore_eos=True):
                pass

    yield act
    cut.unlink()


@contextmanager
def steps(setting: Setting) -> Iterator[Action]:
    """Evaluate on one loaded model, answer after answer, each with another seed."""
    with _load(setting) as model:

        def act(number: int) -> None:
            sampling = SamplingParams(seed=number)
            answer = model.generate(
                PROMPT, max_tokens=ANSWER_TOKENS, ignore_eos=True, sampling=sampling
            )
            for _ in answer:
                pass

        yield act


@contextmanager
def aborts(setting: Setting) -> Iterator[Action]:
    """Begin an answer and end it before its time, in each of the ways there are."""
    with _load(setting, parallel=2) as model:

        def act(number: int) -> None:
            answer = model.generate(PROMPT, sampling=SamplingParams(seed=number), ignore_eos=True)
            for _ in range(number % 5):
                next(answer)
            match number % 4:
                case 0:
                    answer.cancel()
                case 1:
                    with answer:
                        pass
                case 2:
                    answer.interrupt()
                    for _ in answer:
                        pass
                case _:
                    del answer

        yield act


@contextmanager
def openings(setting: Setting) -> Iterator[Action]:
    """Open the device, take some memory, start an executor where there is one, close all."""

    def act(number: int) -> None:
        with closing(registry.open(setting.device)) as device:
            buffer = device.allocate(1 << 20, Lifetime.STATE)
            try:
                device.memory()
                if setting.device != GPU:  # there, it would keep the context
                    device.backend().close()
            finally:
                buffer.close()

    yield act


@contextmanager
def corrupt_files(setting: Setting) -> Iterator[Action]:
    """Load files that are cut off, or whose header is not what it was."""
    cut, damaged = setting.folder / "cut.gguf", setting.folder / "damaged.gguf"
    shutil.copyfile(setting.model, cut)
    with cut.open("r+b") as file:
        file.truncate(setting.model.stat().st_size // 2)
    shutil.copyfile(setting.model, damaged)
    with damaged.open("r+b") as file:
        file.seek(12)
        file.write(b"\xff" * 16)

    def act(number: int) -> None:
        _must_fail(ModelError, lambda: Model.load((cut, damaged)[number % 2]))

    yield act
    cut.unlink()
    damaged.unlink()


@contextmanager
def misfits(setting: Setting) -> Iterator[Action]:
    """Load on a device that has no room, and is asked before anything is allocated."""

    def act(number: int) -> None:
        with closing(registry.open(setting.device)) as device:
            reading = replace(device.memory(), free_bytes=FREE_BYTES)
            device.memory = lambda: reading
            _must_fail(OutOfMemory, lambda: _load_on(setting, device))

    yield act


@contextmanager
def refusals(setting: Setting) -> Iterator[Action]:
    """Load on a device that refuses an allocation: each time a later one, from the first on."""
    refused = 0

    def act(number: int) -> None:
        nonlocal refused
        with closing(registry.open(setting.device)) as device:
            allocate, left = device.allocate, refused

            def scripted(size_bytes: int, lifetime: Lifetime) -> object:
                nonlocal left
                if left == 0:
                    raise OutOfMemory("refused, as it was told to")
                left -= 1
                return allocate(size_bytes, lifetime)

            device.allocate = scripted
            try:
                _load_on(setting, device).close()
                refused = 0  # it had no more to refuse
            except OutOfMemory:
                refused += 1

    yield act


@contextmanager
def uploads(setting: Setting) -> Iterator[Action]:
    """Put all weights of the model on the device and take them off again."""

    def act(number: int) -> None:
        with closing(registry.open(setting.device)) as device, open_model(setting.model) as file:
            limits = choose_limits(file.metadata, context=CONTEXT, parallel=1, kv_type="f16")
            design = design_model(file.metadata, file.tensors, limits, device.traits)
            size = design.plan.footprint()[Lifetime.WEIGHTS]
            with closing(device.allocate(size, Lifetime.WEIGHTS)) as weights:
                for slot in design.plan.weights.slots.values():
                    _upload(file, slot, device, weights)

    yield act


def _upload(file, slot, device: Device, weights) -> None:
    tensor = slot.tensor
    if tensor.op is Op.CONSTANT:
        return
    row_bytes = tensor.dtype.row_bytes(tensor.columns)
    step = max(1, device.traits.interleave)
    rows = max(step, UPLOAD_BYTES // row_bytes // step * step)
    for first in range(0, tensor.rows, rows):
        data = bytearray(min(rows, tensor.rows - first) * row_bytes)
        file.read(tensor.name, memoryview(data), first * row_bytes)
        device.upload(slot, weights, first, memoryview(data))


def _load_on(setting: Setting, device: Device):
    with open_model(setting.model) as file:
        limits = choose_limits(file.metadata, context=CONTEXT, parallel=1, kv_type="f16")
        return load_file(file, limits, device, Ledger())


def _must_fail(kind: type[CorralError], act: Callable[[], object]) -> None:
    try:
        act()
    except kind:
        return
    raise SystemExit(f"what should have been refused with {kind.__name__} went well")


@contextmanager
def seeded_leak() -> Iterator[None]:
    """Let every evaluation keep one record, for good: what leak.py must find."""
    start, kept = Runner.start, []

    def leaking(runner, batch, **choice):
        kept.append({"rows": len(batch)})
        start(runner, batch, **choice)

    with mock.patch.object(Runner, "start", leaking):
        yield


LOADING = Noise(host=32_768, heap=4096)
OPENING = Noise(host=4096, heap=1024)
REQUEST = Noise(host=512, heap=128, blocks=2)
STEP = Noise(host=8, heap=8, objects=0.01, blocks=0.1)
"""Page-sized noise over thousands of steps, as the soak tests allow."""

NONE = Noise(host=0, heap=0, objects=0, blocks=0)
SETTLING = Noise(host=1 << 20, heap=128 << 10, objects=150, blocks=1500)
"""As much as a process that is warm takes in the first minutes, however long it goes on."""

WORKS = (
    Work("load and unload", "load", loads, 200, LOADING, warm_up=15),
    Work("evaluate", "step", steps, 10_000, STEP, batch=ANSWER_TOKENS),
    Work("abort", "request", aborts, 500, REQUEST, every=5),
    Work("open and close", "opening", openings, 50, OPENING),
    Work("fail: corrupt file", "load", corrupt_files, 20, LOADING),
    Work("fail: does not fit", "load", misfits, 20, LOADING),
    Work("fail: allocation refused", "load", refusals, 20, LOADING),
)
ON_GPU = (
    Work("upload and free", "upload", uploads, 50, LOADING, device=GPU),
    Work("open and close", "opening", openings, 50, LOADING, device=GPU),
)
