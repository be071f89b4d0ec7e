"""The loop on the CPU, whose bits depend on a sequence alone: not on batch, chunk or reuse."""

import numpy as np
import pytest

import tiny
from corral.devices import registry
from corral.quant.types import DType
from loaded import Recorder, prompt

FULL = ("llama", "qwen2", "qwen3", "llama.Q4_0", "qwen3.Q8_0")
FULL_FAMILIES = pytest.mark.parametrize("model", FULL)
FAMILIES = pytest.mark.parametrize("model", (*FULL, "gemma3", "gemma3.Q4_0"))


@pytest.fixture
def load_on_cpu(load, tmp_path):
    """Return a function that loads a model on the CPU and records the logits of its engine."""

    def load_one(model, **limits):
        if isinstance(model, str) and "." in model:
            family, dtype = model.split(".")
            table = tiny.tensors(family, dtype=DType[dtype])
            model = tiny.write(tmp_path / f"{model}.gguf", family, table=table)
        loaded = load(model, device=registry.open("cpu", threads=2), **limits)
        return loaded, Recorder.on(loaded)

    return load_one


def logits_of(recorder, sequence):
    return np.array(recorder.logits[sequence])


@FAMILIES
def test_a_batch_gives_the_bits_of_one_sequence(load_on_cpu, model):
    """Three sequences at once, chunked differently, give the logits each has alone."""
    loaded, recorder = load_on_cpu(model)
    prompts = [prompt(length, seed=length) for length in (3, 45, 70)]
    alone = []
    for i, tokens in enumerate(prompts):
        alone.append(loaded.submit(tokens, 12, seed=i, reuse=False))
        loaded.finish(alone[-1])
    together = []
    for i, tokens in enumerate(prompts):
        together.append(loaded.submit(tokens, 12, seed=i, reuse=False))
        loaded.engine.step()
    loaded.finish(*together)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(logits_of(recorder, one), logits_of(recorder, other))
    assert loaded.is_empty


@FAMILIES
def test_score_gives_the_bits_of_steps(load_on_cpu, model):
    """One causal pass equals what sampling saw, bit for bit."""
    loaded, recorder = load_on_cpu(model)
    sequence = loaded.submit(prompt(50), 20)
    loaded.finish(sequence)
    scored = np.empty((69, tiny.VOCABULARY), np.float32)
    loaded.engine.score(sequence.tokens[:69], scored)
    np.testing.assert_array_equal(logits_of(recorder, sequence), scored[49:])


@FULL_FAMILIES
def test_reuse_gives_the_same_bits(load_on_cpu, model):
    """A history computed token by token serves a prompt as if it were computed whole."""
    loaded, recorder = load_on_cpu(model)
    history = prompt(20)
    history += loaded.answer(history, 60)
    question = history + prompt(9, seed=5)
    reusing = loaded.submit(question, 20)
    loaded.finish(reusing)
    fresh = loaded.submit(question, 20, reuse=False)
    loaded.finish(fresh)
    assert (reusing.num_cached, fresh.num_cached) == (79, 0)
    np.testing.assert_array_equal(logits_of(recorder, reusing), logits_of(recorder, fresh))


def test_nan_left_in_blocks_is_never_read(load_on_cpu, tmp_path):
    """Blocks of a sequence that ended in NaN are handed out again and harm nobody."""
    table = tiny.tensors()
    values = tiny.values("token_embd.weight", (tiny.VOCABULARY, tiny.WIDTH))
    values[7] = np.nan
    table["token_embd.weight"] = (DType.F32, values.shape, values)
    path = tiny.write(tmp_path / "nan.gguf", table=table)
    loaded, recorder = load_on_cpu(path, parallel=1)
    clean = [token for token in prompt(45) if token != 7]
    before = loaded.submit(clean, 3, temperature=0.0, reuse=False)
    loaded.finish(before)
    for _ in range(3):
        loaded.finish(loaded.submit([7] * 126, 3))
        after = loaded.submit(clean, 3, temperature=0.0, reuse=False)
        loaded.finish(after)
        np.testing.assert_array_equal(logits_of(recorder, after), logits_of(recorder, before))
