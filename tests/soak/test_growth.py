"""Evaluation allocates nothing: memory, objects and buffers stay as they are, token after token.

At every run with tiny models; with `--soak` with the demo model too.
"""

import sys

import pytest

import tiny
from corral.devices import registry
from corral.engine.model import Model
from corral.kv.prefix import Link
from corral.kv.spec import blocks_for
from growth import Samples, live_objects
from smollm2 import demo_path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

DEVICE = "cpu"
PROMPT = "Once upon"
SAMPLES = 200
BYTES_A_TOKEN = 56
"""What an answer may grow by while it lasts: its tokens are kept, each an integer of 32 bytes in a
list that grows by an eighth, and every 32 of them have a name of some 300."""
BYTES_A_TOKEN_OVER_ANSWERS = 8
"""What may be left of answers that have ended: page-sized noise over thousands of tokens."""


class Watched:
    """A model whose device reports every buffer made after loading."""

    def __init__(self, path, context, monkeypatch):
        devices = []
        real = registry.open

        def opened(*arguments, **options):
            devices.append(real(*arguments, **options))
            return devices[-1]

        monkeypatch.setattr(registry, "open", opened)
        self.model = Model.load(path, device=DEVICE, context=context)
        (self.device,) = devices
        self.loaded_bytes = self.device.allocated_bytes
        self.made = []
        allocate = type(self.device).allocate

        def noted(device, size_bytes, lifetime):
            self.made.append((size_bytes, lifetime))
            return allocate(device, size_bytes, lifetime)

        monkeypatch.setattr(type(self.device), "allocate", noted)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.close()

    def check_buffers(self):
        """Fail if a buffer was made or given back since loading."""
        assert self.made == []
        assert self.device.allocated_bytes == self.loaded_bytes


@pytest.fixture(params=["llama", "gemma3", "demo"])
def path(request, tmp_path):
    """Models with a full cache, with a windowed one, and the real one where it is asked for."""
    if request.param != "demo":
        return tiny.write(tmp_path / "tiny.gguf", request.param, context_length=8192)
    if not request.config.getoption("--soak"):
        pytest.skip("long: --soak runs it")
    if demo_path() is None:
        pytest.skip("the demo model is not in the cache: corral pull demo")
    return demo_path()


def test_long_answer(path, monkeypatch):
    """4,000 tokens in a context of 8,192."""
    tokens, every = 4000, 4000 // SAMPLES
    samples = Samples(SAMPLES + 1)
    names_before = live_objects().get(Link, 0)
    with Watched(path, 8192, monkeypatch) as watched:
        answer = watched.model.generate(PROMPT, max_tokens=tokens, ignore_eos=True)
        done, early, late = 0, None, None
        for _ in answer:
            count = watched.model.statistics().evaluations
            if count >= done + every:
                done = count
                samples.sample(count)
                watched.check_buffers()
            if early is None and count >= tokens // 10:
                early = live_objects()
            if late is None and count >= tokens * 9 // 10:
                late = live_objects()
        assert answer.statistics.generated_tokens == tokens
    # Each full block of a sequence has a name, by which a later prompt finds it.
    assert late.pop(Link, 0) - names_before <= blocks_for(tokens)
    early.pop(Link, None)
    assert late == early
    slope = samples.slope(skip=SAMPLES // 10)
    assert not slope.is_growth(BYTES_A_TOKEN), slope


def test_answers_in_turn(path, monkeypatch):
    """Eight answers of 500 tokens in a context of 512, in one process."""
    runs, tokens = 8, 500
    samples = Samples(runs * 10)
    with Watched(path, 512, monkeypatch) as watched:
        first = None
        for run in range(runs):
            answer = watched.model.generate(PROMPT, max_tokens=tokens, ignore_eos=True)
            for number, _ in enumerate(answer):
                if number % 100 == 0:
                    samples.sample(run * tokens + number)
            assert answer.statistics.generated_tokens == tokens
            del answer
            watched.check_buffers()
            first = first or live_objects()
        assert live_objects() == first
    slope = samples.slope(skip=samples.count // runs)
    assert not slope.is_growth(BYTES_A_TOKEN_OVER_ANSWERS), slope
