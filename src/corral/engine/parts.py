"""A loaded model with all that answers are made of: engine, tokenizer, template, samplers.

The library's `Model` and the service are two ways to drive the same parts.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from corral.devices import registry
from corral.devices.base import Device, Progress
from corral.engine.engine import Engine
from corral.engine.load import LoadedModel, held_by_driver, load_file
from corral.engine.runner import Runner
from corral.engine.samplers import Samplers
from corral.engine.templates import chat_template
from corral.gguf import Metadata, open_model
from corral.hub.resolve import resolve
from corral.interrupts import deferred
from corral.memory.ledger import Ledger, LedgerEntry
from corral.models.footprint import choose_limits
from corral.text.template import ChatTemplate
from corral.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class ModelParts:
    """What `load_parts` made; closed as one."""

    name: str
    metadata: Metadata
    tokenizer: Tokenizer
    device: Device
    loaded: LoadedModel
    engine: Engine
    num_parameters: int
    _ledger: Ledger
    _closing: ExitStack

    @property
    def context(self) -> int:
        """Tokens one sequence may hold, prompt and answer together."""
        return self.loaded.design.limits.context

    @property
    def parallel(self) -> int:
        """Sequences at once."""
        return self.loaded.design.limits.parallel

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, and of logits a row."""
        return self.loaded.design.hyper.vocabulary

    @cached_property
    def samplers(self) -> Samplers:
        """Makes the samplers of answers; for one thread."""
        return Samplers(self.tokenizer, self.vocabulary_size)

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            TemplateError: if the file has none, or one that cannot be used.
        """
        return chat_template(self.metadata, self.tokenizer)

    def memory(self) -> tuple[LedgerEntry, ...]:
        """Return every byte the model holds, and those of its device's context."""
        return (*self._ledger.statistics(), *held_by_driver(self.device))

    def close(self) -> None:
        """Give every byte back; a second call does nothing."""
        with deferred:
            self._closing.close()


def load_parts(
    name: str | Path,
    *,
    device: str = "auto",
    context: int | None = None,
    parallel: int = 1,
    kv_type: str = "f16",
    kv_blocks: int | None = None,
    threads: int | None = None,
    chunk_beside: int | None = None,
    progress: Progress | None = None,
) -> ModelParts:
    """Load a model with what belongs to it; all of it or nothing.

    `chunk_beside` is how many prompt tokens a step computes at most while sequences decode, by
    default what suits the device; the other settings are those of `Model.load`.

    Raises:
        UsageError: if the name or a setting is wrong.
        ModelError: if the file is at fault.
        DownloadError: if the model could not be fetched.
        OutOfMemory: if it does not fit; nothing of it is left.
    """
    with ExitStack() as stack:
        on = registry.open(device, threads=threads)
        stack.callback(on.close)
        # What can be refused now was: a wrong setting shall not wait for a download.
        path, ledger = resolve(name, progress=progress), Ledger()
        with open_model(path) as file, ThreadPoolExecutor(1) as beside:
            metadata = file.metadata
            limits = choose_limits(
                metadata,
                context=context,
                parallel=parallel,
                kv_type=kv_type,
                chunk=on.traits.chunk_tokens,
                kv_blocks=kv_blocks,
            )
            tokenizer = beside.submit(lambda: Tokenizer.from_metadata(metadata.plain()))
            loaded = load_file(file, limits, on, ledger, progress=progress)
            stack.callback(loaded.close)
            num_parameters = sum(prod(tensor.shape) for tensor in file.tensors.values())
            words = tokenizer.result()
        return ModelParts(
            name=path.name,
            metadata=metadata,
            tokenizer=words,
            device=on,
            loaded=loaded,
            engine=_engine(loaded, chunk_beside or on.traits.chunk_beside_tokens),
            num_parameters=num_parameters,
            _ledger=ledger,
            _closing=stack.pop_all(),
        )


def _engine(loaded: LoadedModel, chunk_beside: int) -> Engine:
    groups = loaded.design.kv.groups
    runner = Runner(loaded.backend, loaded.programs[0], groups)
    return Engine(runner, groups, context=loaded.design.limits.context, chunk_beside=chunk_beside)
