"""A model that says what it was asked, so that the command line is tested without an engine.

python -m unit.cli.fake_model ARGUMENTS     is `corral ARGUMENTS` with this model
"""

import sys
import time
from pathlib import Path

import numpy as np

from corral.contract.events import FinishReason
from corral.engine.metrics import (
    GenerationStatistics,
    MemoryGrowth,
    MemoryRow,
    MemoryStatistics,
)
from corral.errors import ContextExceeded, TemplateError
from corral.gguf import Metadata
from corral.memory.growth import Slope

METADATA = {
    "base": Metadata.of({}),
    "chat": Metadata.of({"tokenizer.chat_template": "…"}),
    "advised": Metadata.of(
        {
            "tokenizer.chat_template": "…",
            "general.sampling.temp": 0.6,
            "general.sampling.top_k": 20,
            "general.sampling.top_p": 0.95,
            "general.sampling.min_p": 7.0,
            "general.sampling.penalty_repeat": "much",
        }
    ),
}
VOCABULARY = 300
BOS = 299


class FakeGeneration:
    """Yields pieces; `slow` waits before each, `context` ends as if the context were full."""

    def __init__(self, pieces, reason=FinishReason.STOP, delay_s=0.0):
        self._pieces, self._reason, self._delay_s = pieces, reason, delay_s
        self._given = 0

    def __iter__(self):
        for piece in self._pieces:
            time.sleep(self._delay_s)
            if self._reason is FinishReason.CANCELLED:
                return
            self._given += 1
            yield piece

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._given < len(self._pieces):
            self.cancel()

    def cancel(self):
        self._reason = FinishReason.CANCELLED

    interrupt = cancel

    @property
    def statistics(self):
        return GenerationStatistics(
            prompt_tokens=20,
            cached_tokens=4,
            generated_tokens=self._given,
            prefill_s=0.01,
            decode_s=0.5,
            time_to_first_token_s=0.012,
            finish_reason=self._reason,
        )


class FakeModel:
    """Has the surface of `corral.Model` that the command line uses."""

    last = None

    def __init__(self, path, options):
        FakeModel.last = self
        self.path, self.options, self.calls = path, options, []
        self.name = path.name
        self.device = "cpu"
        self.context = options["context"] or 4096
        self.vocabulary_size = VOCABULARY
        self.is_closed = False
        self.metadata = METADATA["base" if "base" in path.name else "chat"]
        if "advised" in path.name:
            self.metadata = METADATA["advised"]

    @classmethod
    def load(cls, path, *, progress=None, **options):
        if progress is not None:
            progress("read", 10, 10)
        return cls(Path(path), options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closed = True

    @property
    def template(self):
        if not self.metadata:
            raise TemplateError(f"{self.name} has no chat template; give a PROMPT with --raw")
        return object()

    def stream_chat(self, messages, **options):
        self.calls.append(("chat", [dict(m) for m in messages], options))
        return self._answer(messages[-1]["content"], len(messages))

    def generate(self, prompt, **options):
        self.calls.append(("generate", prompt, options))
        return self._answer(prompt, 0)

    def _answer(self, asked, turns):
        if asked == "too long":
            raise ContextExceeded("the prompt has 5000 tokens, the context 4096")
        if asked == "fits 4" and turns > 6:
            raise ContextExceeded("the prompt has 5000 tokens, the context 4096")
        if asked == "slow":
            return FakeGeneration([f"{i} " for i in range(400)], delay_s=0.05)
        if asked == "stuck":
            return FakeGeneration(["late"], delay_s=60.0)
        if asked == "full":
            return FakeGeneration(["a"], FinishReason.CONTEXT)
        if asked == "endless":
            return FakeGeneration(["on", "and"], FinishReason.LENGTH)
        if asked == "nothing":
            return FakeGeneration([], FinishReason.LENGTH)
        if asked == "evil":
            return FakeGeneration(["a\x1b[31mb\x07"])
        if asked == "bug":
            raise ZeroDivisionError("oh\nno")
        return FakeGeneration([f"{turns}:", " you said ", asked])

    def tokenize(self, text, *, add_special=True, parse_special=False):
        tokens = list(text.encode())
        return [BOS, *tokens] if add_special else tokens

    def logits(self, tokens):
        """Every row favours the token after its own, by a factor of e."""
        rows = np.zeros((len(tokens), VOCABULARY), np.float32)
        rows[np.arange(len(tokens)), (np.asarray(tokens) + 1) % VOCABULARY] = 1.0
        return rows

    def benchmark(self, prompt_tokens, generated_tokens):
        self.calls.append((prompt_tokens, generated_tokens))
        number = len(self.calls)
        return prompt_tokens * 0.001 * number, generated_tokens * 0.01 * number

    def memory(self):
        rows = (MemoryRow("cpu", "weights", 1000, 1000), MemoryRow("cpu", "state", 24, 24))
        if not self.options.get("watch_growth"):
            return MemoryStatistics(rows)
        if "short" in self.name:
            return MemoryStatistics(rows, MemoryGrowth(3, 1, None, None))
        device = Slope(0.0, 0.0, 30)
        if "other system" in self.name:
            return MemoryStatistics(rows, MemoryGrowth(1200, 34, None, device))
        return MemoryStatistics(rows, MemoryGrowth(1200, 34, Slope(64.25, 8.5, 30), device))


def install(set_attribute):
    """Put the fake in the place of the engine; names resolve to themselves."""
    import corral
    from corral.hub import resolve

    set_attribute(corral, "Model", FakeModel)
    set_attribute(resolve, "resolve", lambda name, *, progress=None: Path(f"{name}.gguf"))


if __name__ == "__main__":
    install(setattr)
    from corral.cli.main import main

    sys.exit(main())
