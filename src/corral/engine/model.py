"""The model as people use it from Python: load, generate, chat, ask for logits, look at memory."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from corral.config import MAX_THREADS
from corral.contract.sampling import SamplingParams
from corral.devices.base import Progress
from corral.engine import checks
from corral.engine.answers import Answers
from corral.engine.generation import Generation
from corral.engine.growth import GrowthWatch
from corral.engine.metrics import EngineStatistics, GenerationStatistics, MemoryStatistics
from corral.engine.model_adapters import ModelAdapters, Wanted
from corral.engine.opened import OpenedModel, Sizes, open_by_name
from corral.engine.options import Options
from corral.engine.targets import Targets
from corral.engine.text_stream import TextStream
from corral.errors import Closed, ContextExceeded
from corral.interrupts import deferred
from corral.memory.ledger import format_bytes
from corral.text.chat import encode_chat
from corral.text.template import ChatTemplate
from corral.text.tokenizer import Tokenizer

Messages = Iterable[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A whole answer and how it came to be; `str()` is its text."""

    text: str
    statistics: GenerationStatistics

    def __str__(self) -> str:
        return self.text


class Model:
    """One loaded model. Made by `load`; a context manager; not for two threads at once."""

    def __init__(self, opened: OpenedModel, *, watch: GrowthWatch | None = None) -> None:
        """Answer with an opened model, which is then this one's; use `load` instead."""
        self.metadata = opened.metadata
        self.name = opened.name
        self.device = opened.device
        self._opened = opened
        self._answers = Answers(opened.engine, name=opened.name, watch=watch)
        self.adapters = ModelAdapters(opened.adapters, opened.merged, self._answers)
        """Its LoRA adapters: `load`, `unload`, `set_scale`; iterate over them to list them."""

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        device: str | Sequence[str] = "auto",
        split: Sequence[float] | None = None,
        gpu_layers: int | None = None,
        context: int | None = None,
        parallel: int = 1,
        kv_type: str = "f16",
        context_shift: bool = False,
        keep: int = 0,
        threads: int | None = None,
        progress: Progress | None = None,
        watch_growth: bool = False,
    ) -> "Model":
        """Load a model by path, cached name, `hf:owner/repo[/file]` or `demo`.

        Args:
            name: a str; or a Path, which is always that of a file.
            device: "auto" (a card, or else the CPU), "cpu", "cuda:0", a card's UUID, "reference";
                or several, each of which gets a run of layers with their keys and values.
            split: for each device the weights it gets, in proportion; by default equal parts.
            gpu_layers: how many of the last layers are on the device, a card then, or on several;
                the others are on the CPU.
            context: tokens of one sequence; by default the model's own, at most 4096.
            parallel: sequences at once.
            kv_type: "f16", "bf16", "f32" or "q8_0".
            context_shift: whether an answer goes on when the context is full: half of the tokens
                behind the kept ones are dropped, in whole blocks of 32, and the cached keys of the
                others are turned to their new positions.
            keep: tokens of a prompt that are never dropped, rounded up to whole blocks of 32; one
                that begins a text, where the model has such, is kept in any case. Two blocks of the
                context must be left.
            threads: of the CPU, 1 to 1024; by default all that the process may use. More than the
                machine has processors is allowed, and slow.
            progress: called with a stage ("download", "unpack", "kernels", "read" and others),
                what is done, and the total, 0 if that is not known.
            watch_growth: whether `memory().growth` shall tell what a token adds to memory.

        Raises:
            UsageError: if the name or a setting is wrong.
            ModelError: if the file is at fault.
            DownloadError: if the model could not be fetched.
            OutOfMemory: if it does not fit; nothing of it is left.
        """
        name = checks.model_name(name)
        sizes = Sizes(
            checks.integer_or_none("context", context, low=1),
            checks.integer("parallel", parallel, low=1),
            checks.text("kv_type", kv_type),
            context_shift=checks.flag("context_shift", context_shift),
            keep=checks.integer("keep", keep, low=0),
        )
        threads = checks.integer_or_none("threads", threads, low=1, high=MAX_THREADS)
        checks.progress(progress)
        watch_growth = checks.flag("watch_growth", watch_growth)
        targets = Targets.of(device, split, gpu_layers)
        opened = open_by_name(name, targets, sizes, threads=threads, progress=progress)
        watch = GrowthWatch(lambda: opened.allocated_bytes) if watch_growth else None
        return cls(opened, watch=watch)

    def close(self) -> None:
        """Give every byte back; a second call does nothing."""
        with deferred:
            self._answers.close()
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        answers = getattr(self, "_answers", None)
        if answers is not None and not answers.is_closed:
            warnings.warn(f"model {self.name} was not closed", ResourceWarning, stacklevel=1)
            self.close()

    def __repr__(self) -> str:
        holds = "closed" if self._answers.is_closed else format_bytes(self.memory().total_bytes)
        return f"<corral.Model {self.name} on {self.device}, context {self.context}, {holds}>"

    @property
    def context(self) -> int:
        """Tokens one sequence may hold, prompt and answer together."""
        return self._opened.context

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, and of logits a row."""
        return self._opened.vocabulary_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._opened.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            TemplateError: if the file has none.
        """
        return self._opened.template

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the tokens of a text.

        Args:
            add_special: whether to add what the model expects around a text, such as BOS.
            parse_special: whether the spelling of a control token stands for that token. With
                SmolLM2, "<|im_start|>" is the one token 1, which begins a message, if this is on;
                if it is off, it is seven tokens of ordinary text, as safe as any other. Turn it on
                for prompts that you write, not for text of others.

        Raises:
            InvalidArgument: if the text is no str, or holds half of a surrogate pair.
        """
        return self.tokenizer.encode(
            checks.text("text", text),
            add_special=checks.flag("add_special", add_special),
            parse_special=checks.flag("parse_special", parse_special),
        )

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; control tokens are spelled out.

        Raises:
            InvalidArgument: if one of them is no token of the vocabulary.
        """
        size = self.tokenizer.vocabulary_size
        return self.tokenizer.decode(checks.tokens("tokens", tokens, vocabulary_size=size))

    def generate(
        self,
        prompt: str | Iterable[int],
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] = (),
        ignore_eos: bool = False,
        parse_special: bool = False,
        sampling: SamplingParams | None = None,
        adapters: Wanted | None = None,
    ) -> Generation:
        """Continue a text or tokens; iterate over the result to get pieces of text.

        Args:
            max_tokens: of the answer; by default until the model ends or the context is full,
                and with `context_shift` until the model ends.
            stop: a text that ends the answer and is not part of it, or several of them.
            ignore_eos: whether to go on when the model wants to end.
            parse_special: whether "<|im_start|>" in a text is read as the control token, so that a
                chat can be written by hand, or as ordinary text; see `tokenize`.
            sampling: how tokens are chosen; by default as `SamplingParams()` says.
            adapters: what changes the model for this answer: names of loaded adapters, or a scale
                for each name; by default those that have a scale of their own.

        Raises:
            ContextExceeded: if the prompt leaves no room for an answer.
            InvalidArgument: if the prompt or an option is not what it may be.
        """
        options = Options.of(max_tokens, stop, ignore_eos, sampling)
        parse_special = checks.flag("parse_special", parse_special)
        if isinstance(prompt, str):
            prompt = self.tokenize(prompt, parse_special=parse_special)
        wanted = self.adapters.pairs(adapters)
        return self._start(self._prompt_tokens("prompt", prompt), options, wanted)

    def chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] = (),
        ignore_eos: bool = False,
        sampling: SamplingParams | None = None,
        adapters: Wanted | None = None,
    ) -> ChatReply:
        """Answer a conversation and return the whole reply; options are those of `generate`.

        Control tokens that a message spells are ordinary text.

        Raises:
            TemplateError: if the model has no usable chat template.
            ContextExceeded: if the conversation leaves no room for an answer.
            InvalidArgument: if a message or an option is not what it may be.
        """
        generation = self.stream_chat(
            messages,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            sampling=sampling,
            adapters=adapters,
        )
        text = "".join(generation)
        return ChatReply(text, generation.statistics)

    def stream_chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] = (),
        ignore_eos: bool = False,
        sampling: SamplingParams | None = None,
        adapters: Wanted | None = None,
    ) -> Generation:
        """Answer a conversation piece by piece; raises as `chat` does."""
        options = Options.of(max_tokens, stop, ignore_eos, sampling)
        rendered = encode_chat(self.tokenizer, self.template, checks.messages(messages))
        wanted = self.adapters.pairs(adapters)
        return self._start(self._prompt_tokens("the rendered chat", rendered), options, wanted)

    def logits(
        self, tokens: Iterable[int], *, adapters: Wanted | None = None
    ) -> NDArray[np.float32]:
        """Return the logits of one causal pass: (tokens, vocabulary); adapters as for `generate`.

        Raises:
            ContextExceeded: if there are more tokens than the context holds.
            InvalidArgument: if there are none, or one is no token of the vocabulary.
        """
        self._check_open()
        prompt = self._prompt_tokens("tokens", tokens)
        result = np.empty((len(prompt), self.vocabulary_size), np.float32)
        self._answers.score(prompt, result, adapters=self.adapters.pairs(adapters))
        return result

    def benchmark(self, prompt_tokens: int, generated_tokens: int) -> tuple[float, float]:
        """Return seconds of one prefill and of so many single-token steps, each from empty.

        Raises:
            ContextExceeded: if the context does not hold so many tokens and one more.
            InvalidArgument: if a count is no integer of at least 0.
        """
        prompt_tokens = checks.integer("prompt_tokens", prompt_tokens, low=0)
        generated_tokens = checks.integer("generated_tokens", generated_tokens, low=0)
        if max(prompt_tokens, generated_tokens) >= self.context:
            raise ContextExceeded(
                f"{max(prompt_tokens, generated_tokens)} tokens and one more are needed, the "
                f"context holds {self.context}: load the model with a larger context"
            )
        numbers = np.random.default_rng(0).integers(0, self.vocabulary_size, prompt_tokens + 1)
        prefill = self._timed(numbers[:prompt_tokens].tolist(), 1) if prompt_tokens else 0.0
        decode = self._timed(numbers[-1:].tolist(), generated_tokens) if generated_tokens else 0.0
        return prefill, decode

    def memory(self) -> MemoryStatistics:
        """Return every byte the model holds, planned and allocated, by device and lifetime.

        A device's context is listed as long as it lives; models on one device share it.
        """
        return MemoryStatistics.of(self._opened.memory(), self._answers.growth())

    def statistics(self) -> EngineStatistics:
        """Return the engine's counts."""
        return self._answers.statistics()

    def _check_open(self) -> None:
        if self._answers.is_closed:
            raise Closed(f"model {self.name} was closed")

    def _prompt_tokens(self, field: str, given: object) -> list[int]:
        expected = "a list of tokens" if field == "tokens" else "a text (str) or a list of tokens"
        return checks.tokens(
            field, given, vocabulary_size=self.vocabulary_size, shortest=1, expected=expected
        )

    def _start(
        self,
        tokens: list[int],
        options: Options,
        adapters: tuple[tuple[int, float], ...] | None = None,
    ) -> Generation:
        self._check_open()
        sampler = self._opened.samplers.make(options.sampling)
        stream = TextStream(self.tokenizer, options.stop)
        sequence = self._answers.submit(
            tokens,
            sampler=sampler,
            max_tokens=options.max_tokens,
            end_tokens=self._opened.samplers.end_tokens(ignore_eos=options.ignore_eos),
            reuse=options.reuse,
            adapters=adapters,
        )
        return Generation(sequence, self._answers, parent=self, stream=stream)

    def _timed(self, prompt: list[int], num_tokens: int) -> float:
        options = Options(num_tokens, (), True, SamplingParams(temperature=0.0), reuse=False)
        generation = self._start(prompt, options)
        started = time.perf_counter()
        for _ in generation:
            pass
        return time.perf_counter() - started
