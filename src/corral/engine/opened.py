"""A model opened by name: its file found, its devices open, its weights loaded, its words known."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from corral.devices import registry
from corral.devices.base import Device, Progress
from corral.engine.load import LoadedModel, load_split
from corral.engine.targets import Targets
from corral.gguf import Metadata, ModelFile, open_model
from corral.hub.resolve import resolve
from corral.memory.ledger import Ledger
from corral.models.footprint import choose_limits, write_graph
from corral.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a model is opened for."""

    context: int | None = None
    """Tokens of one sequence; None is the model's own, at most 4096."""
    parallel: int = 1
    kv_type: str = "f16"


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel:
    """Everything of a model that lives until it is closed."""

    name: str
    metadata: Metadata
    tokenizer: Tokenizer
    loaded: LoadedModel
    devices: tuple[Device, ...]
    """Those that compute some of its layers, in order."""
    ledger: Ledger
    closing: ExitStack

    @property
    def allocated_bytes(self) -> int:
        """Bytes that exist on its devices now."""
        return sum(device.allocated_bytes for device in self.devices)


def open_by_name(
    name: str | Path,
    targets: Targets,
    sizes: Sizes,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> OpenedModel:
    """Find a model, open its devices and load it; all of it or nothing.

    Raises:
        UsageError, ModelError, DownloadError, OutOfMemory: as `Model.load` does.
    """
    with ExitStack() as stack:
        # What can be refused now is: a wrong setting shall not wait for a download.
        devices = [_open(target, threads, stack) for target in targets.names]
        path, ledger = resolve(name, progress=progress), Ledger()
        with open_model(path) as file, ThreadPoolExecutor(1) as beside:
            metadata = file.metadata
            words = beside.submit(lambda: Tokenizer.from_metadata(metadata.plain()))
            used, loaded = _load(file, targets, devices, sizes, ledger, progress)
            stack.callback(loaded.close)
            tokenizer = words.result()
        closing = stack.pop_all()
    return OpenedModel(path.name, metadata, tokenizer, loaded, used, ledger, closing)


def _open(name: str, threads: int | None, stack: ExitStack) -> Device:
    device = registry.open(name, threads=threads)
    stack.callback(device.close)
    return device


def _load(
    file: ModelFile,
    targets: Targets,
    devices: Sequence[Device],
    sizes: Sizes,
    ledger: Ledger,
    progress: Progress | None,
) -> tuple[tuple[Device, ...], LoadedModel]:
    """Load a model on those of its devices that get layers."""
    traits = [device.traits for device in devices]
    limits = choose_limits(
        file.metadata,
        context=sizes.context,
        parallel=sizes.parallel,
        kv_type=sizes.kv_type,
        chunk=max(one.chunk_tokens for one in traits),
    )
    design = write_graph(file.metadata, file.tensors, limits)
    runs = targets.layers(design, traits)
    used = [(device, run) for device, run in zip(devices, runs, strict=True) if run]
    on, layers = tuple(device for device, _run in used), [run for _device, run in used]
    return on, load_split(file, design, on, layers, ledger, progress=progress)
