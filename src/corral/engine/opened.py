"""A model opened by name, with all that answers are made of: engine, tokenizer, template, samplers.

The library's `Model` and the service are two ways to drive the same.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from threading import Lock

from corral.devices.base import Device, Progress
from corral.engine.adapters import Adapters
from corral.engine.engine import Engine
from corral.engine.holding import held_by_driver
from corral.engine.load import LoadedModel, load_split
from corral.engine.merged import MergedAdapters
from corral.engine.opening import Opening
from corral.engine.reply_plan import grammar_compiler
from corral.engine.runner import Runner
from corral.engine.samplers import Samplers
from corral.engine.targets import Targets
from corral.engine.templates import chat_template
from corral.errors import InvalidArgument
from corral.gguf import Metadata, ModelFile, fingerprint, open_model
from corral.hub.resolve import may_fetch, resolve
from corral.interrupts import deferred
from corral.kv.shift import most_kept
from corral.memory.ledger import Ledger, LedgerEntry
from corral.models.footprint import choose_limits, write_graph
from corral.sampling.grammar import GrammarCompiler
from corral.text.rendering import Renderer
from corral.text.template import TEMPLATE_KEY, ChatTemplate
from corral.text.template_process import ProcessRenderer
from corral.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a model is opened for."""

    context: int | None = None
    """Tokens of one sequence; None is the model's own, at most 4096."""
    parallel: int = 1
    """Sequences at once."""
    kv_type: str = "f16"
    kv_blocks: int | None = None
    """Blocks of the KV cache; None is enough for `parallel` full sequences."""
    chunk_beside: int | None = None
    """Prompt tokens of a step at most while sequences decode; None is what suits the devices."""
    embeddings: bool = False
    """Whether vectors can be asked for, beside texts."""
    context_shift: bool = False
    """Whether an answer goes on when the context is full, without its older tokens."""
    keep: int = 0
    """Tokens of the prompt that are never dropped; more than it has are all of it."""

    def __post_init__(self) -> None:
        if self.keep and not self.context_shift:
            raise InvalidArgument(
                f"keep is {self.keep}, but nothing is dropped without context shift: turn that on "
                "(--context-shift, context_shift=True) or leave keep out"
            )


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """Everything of a model that lives until it is closed."""

    name: str
    metadata: Metadata
    tokenizer: Tokenizer
    devices: tuple[Device, ...]
    """Those that compute some of its layers, in order."""
    loaded: LoadedModel
    engine: Engine
    num_parameters: int
    ledger: Ledger
    adapters: Adapters
    merged: MergedAdapters
    _closing: ExitStack
    isolates_template: bool = False
    """Whether the chat template runs in a process of its own."""
    fingerprint: str = ""
    """Of its files, if it was asked for."""
    _opening: Lock = field(default_factory=Lock)

    @property
    def device(self) -> str:
        """The names of its devices, with commas between them."""
        return ",".join(device.name for device in self.devices)

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

    @property
    def allocated_bytes(self) -> int:
        """Bytes that exist on its devices now."""
        return sum(device.allocated_bytes for device in self.devices)

    @cached_property
    def samplers(self) -> Samplers:
        """Makes the samplers of answers; for one thread."""
        return Samplers(self.tokenizer, self.vocabulary_size)

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; from any thread.

        Raises:
            TemplateError: if the file has none, or one that cannot be used.
        """
        with self._opening:
            return self._template

    @cached_property
    def _template(self) -> ChatTemplate:
        compiler = self._isolated if self.isolates_template else None
        return chat_template(self.metadata, self.tokenizer, compiler)

    def _isolated(self, source: str) -> Renderer:
        return self._closing.enter_context(ProcessRenderer(source))

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles what answers must fit."""
        return grammar_compiler(self.tokenizer, self.vocabulary_size)

    def memory(self) -> tuple[LedgerEntry, ...]:
        """Return every byte the model holds, and those of its devices' contexts."""
        contexts = chain.from_iterable(map(held_by_driver, self.devices))
        return (*self.ledger.statistics(), *contexts)

    def close(self) -> None:
        """Give every byte back; a second call does nothing."""
        with deferred:
            self._closing.close()


def open_by_name(
    name: str | Path,
    targets: Targets,
    sizes: Sizes,
    *,
    threads: int | None = None,
    template: str | None = None,
    isolates_template: bool = False,
    identifies: bool = False,
    progress: Progress | None = None,
) -> OpenedModel:
    """Find a model, open its devices and load it with what belongs to it; all of it or nothing.

    Args:
        template: a chat template in place of the file's own.
        isolates_template: run the chat template, which is code from outside, in a process of its
            own: where others are served, it must not be able to harm this one.
        identifies: find the fingerprint of the files, too.

    Raises:
        UsageError: if the name or a setting is wrong.
        ModelError: if the file is at fault.
        DownloadError: if the model could not be fetched.
        OutOfMemory: if it does not fit; nothing of it is left.
    """
    with ExitStack() as stack:
        with deferred:
            opening = Opening(targets, threads=threads)
            stack.callback(opening.close)
        if may_fetch(name):  # what is wrong with a device shall not wait for a download
            opening.devices()
        path, ledger = resolve(name, progress=progress), Ledger()
        with open_model(path) as file, ThreadPoolExecutor(1) as beside:
            metadata = file.metadata
            if template is not None:
                metadata = metadata.replacing(TEMPLATE_KEY, template)
            words = beside.submit(lambda: Tokenizer.from_metadata(metadata.plain()))
            devices = opening.devices()
            used, loaded = _load(file, targets, devices, sizes, ledger, progress)
            stack.callback(loaded.close)
            opening.let_go()
            num_parameters = sum(prod(tensor.shape) for tensor in file.tensors.values())
            tokenizer = words.result()
            identity = fingerprint(file) if identifies else ""
            engine, runner = _engine(loaded, sizes, tokenizer)
            adapters = Adapters(loaded, runner, ledger, path.name, file.tensors)
            merged = MergedAdapters(loaded.parts, file.path, dict(file.tensors))
            stack.callback(adapters.close)
            engine.adapters = adapters
        return OpenedModel(
            name=path.name,
            metadata=metadata,
            tokenizer=tokenizer,
            devices=used,
            loaded=loaded,
            engine=engine,
            num_parameters=num_parameters,
            ledger=ledger,
            adapters=adapters,
            merged=merged,
            _closing=stack.pop_all(),
            isolates_template=isolates_template,
            fingerprint=identity,
        )


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
        kv_blocks=sizes.kv_blocks,
        embeddings=sizes.embeddings,
        context_shift=sizes.context_shift,
    )
    if sizes.context_shift:
        _require_droppable(sizes.keep, limits.context)
    design = write_graph(file.metadata, file.tensors, limits)
    runs = targets.layers(design, traits)
    used = [(device, run) for device, run in zip(devices, runs, strict=True) if run]
    on, layers = tuple(device for device, _run in used), [run for _device, run in used]
    return on, load_split(file, design, on, layers, ledger, progress=progress)


def _require_droppable(keep: int, context: int) -> None:
    """Refuse to keep so much that a full context may have nothing to drop."""
    if keep > most_kept(context):
        raise InvalidArgument(
            f"keep is {keep}, expected at most {most_kept(context)} of a context of {context} "
            "tokens: whole blocks of 32 are kept, and context shift needs one to drop and one to "
            "go on from; keep fewer (--keep, keep=) or make the context larger (--context)",
            field="keep",
        )


def _engine(loaded: LoadedModel, sizes: Sizes, tokenizer: Tokenizer) -> tuple[Engine, Runner]:
    """Return an engine that disturbs those who decode no more than the slowest device must.

    Its runner comes with it.
    """
    groups = loaded.design.kv.groups
    suiting = min(part.plan.traits.chunk_beside_tokens for part in loaded.parts)
    keep = max(sizes.keep, int(tokenizer.add_bos))  # models are lost without their first token
    runner = Runner(loaded.parts, groups)
    engine = Engine(
        runner,
        groups,
        context=loaded.design.limits.context,
        chunk_beside=sizes.chunk_beside or suiting,
        keep=keep if sizes.context_shift else None,
    )
    return engine, runner
