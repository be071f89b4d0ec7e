"""The loop with a real model: batches, chunks, windows and reuse change nothing of an answer."""

import numpy as np
import pytest

import tiny
from corral.contract.events import FinishReason
from corral.devices import registry
from corral.engine.batch import Rows
from corral.errors import ContextExceeded, NotFinite, ResourceError
from corral.kv.table import BlockTable
from corral.quant.types import DType
from loaded import Recorder, prompt

FAMILIES = pytest.mark.parametrize("family", tiny.FAMILIES)
FULL_FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
CLOSE = {"rtol": 1e-3, "atol": 2e-3}
"""How far NumPy's products of one row and of many may be apart."""


@FAMILIES
@pytest.mark.parametrize("delays", [(0, 0, 0), (0, 1, 5), (3, 0, 9)])
def test_several_at_once_answer_as_alone(load, family, delays):
    """However prompts interleave, each answer is the one it would be alone."""
    loaded = load(family, context=128)
    prompts = [prompt(length, seed=length) for length in (3, 45, 70)]
    alone = [loaded.answer(p, 12, seed=i) for i, p in enumerate(prompts)]
    together = {}
    for step in range(max(delays) + 1):
        for i, delay in enumerate(delays):
            if delay == step:
                together[i] = loaded.submit(prompts[i], 12, seed=i, reuse=False)
        loaded.engine.step()
    assert loaded.finish(*(together[i] for i in range(3))) == alone
    assert loaded.is_empty


@FAMILIES
def test_score_equals_the_logits_of_steps(load, family):
    """One causal pass gives what sampling saw, token after token."""
    loaded = load(family)
    recorder = Recorder.on(loaded)
    sequence = loaded.submit(prompt(50), 20)
    loaded.finish(sequence)
    scored = np.empty((69, tiny.VOCABULARY), np.float32)
    loaded.engine.score(sequence.tokens[:69], scored)
    np.testing.assert_allclose(recorder.logits[sequence], scored[49:], **CLOSE)
    assert loaded.is_empty


def test_score_needs_room(load):
    """Scoring more tokens than the context holds is refused; exactly as many is not."""
    loaded = load()
    into = np.empty((129, tiny.VOCABULARY), np.float32)
    with pytest.raises(ContextExceeded):
        loaded.engine.score(prompt(129), into)
    loaded.engine.score(prompt(128), into[:128])
    assert loaded.is_empty


def test_score_needs_a_slot(load):
    """While all sequences are in use there are no blocks for another; afterwards there are."""
    loaded = load(parallel=1)
    sequence = loaded.submit(prompt(3), 50)
    loaded.engine.step()
    into = np.empty((100, tiny.VOCABULARY), np.float32)
    with pytest.raises(ResourceError, match="all 1 sequences"):
        loaded.engine.score(prompt(100), into)
    loaded.finish(sequence)
    loaded.engine.score(prompt(100), into)


def test_a_failing_score_gives_its_blocks_back(load):
    """An array too narrow for the logits is the caller's mistake and leaks nothing."""
    loaded = load()
    with pytest.raises(ValueError, match="broadcast"):
        loaded.engine.score(prompt(50), np.empty((50, 3), np.float32))
    assert loaded.is_empty


def test_score_forgets_no_running_answer(load):
    """A pass in the middle of an answer leaves it as it is."""
    loaded = load(parallel=2)
    expected = loaded.answer(prompt(40), 20)
    sequence = loaded.submit(prompt(40), 20)
    for _ in range(5):
        loaded.engine.step()
    loaded.engine.score(prompt(90), np.empty((90, tiny.VOCABULARY), np.float32))
    assert loaded.finish(sequence) == [expected]


def test_windows_slide_without_changing_an_answer(load, monkeypatch):
    """Blocks behind the window are given back, and logits are what they would be with them."""
    loaded = load("gemma3", parallel=3)
    recorder = Recorder.on(loaded)
    sliding = loaded.submit(prompt(10), 100)
    most = 0
    while sliding.finish_reason is None:
        loaded.engine.step()
        most = max(most, loaded.num_blocks[0] - loaded.engine.statistics().free_blocks[0])
    assert most == 2  # 20 positions touch two blocks of 32
    monkeypatch.setattr(BlockTable, "slide", lambda *_: None)
    keeping = loaded.submit(prompt(10), 100)
    loaded.finish(keeping)
    assert keeping.tokens == sliding.tokens
    np.testing.assert_array_equal(recorder.logits[keeping], recorder.logits[sliding])


@FULL_FAMILIES
def test_reuse_gives_the_same_bits(load, family):
    """Logits after a known beginning equal those of a prompt computed whole, bit for bit."""
    loaded = load(family, chunk=32)  # blocks are computed in equal batches either way
    recorder = Recorder.on(loaded)
    loaded.answer(prompt(100), 1)
    again = prompt(64) + prompt(9, seed=5)
    fresh = loaded.submit(again, 20, reuse=False)
    loaded.finish(fresh)
    reusing = loaded.submit(again, 20)
    loaded.finish(reusing)
    assert (reusing.num_cached, fresh.num_cached) == (64, 0)
    np.testing.assert_array_equal(recorder.logits[reusing], recorder.logits[fresh])


def test_the_next_turn_of_a_chat_is_the_same_with_and_without_reuse(load):
    """A history that was partly generated is reused as well."""
    loaded = load()
    history = prompt(40)
    for turn in range(4):
        question = prompt(7, seed=turn)
        history += question
        fresh = loaded.answer(history, 10, reuse=False)
        sequence = loaded.submit(history, 10)
        assert loaded.finish(sequence) == [fresh]
        assert sequence.num_cached == (len(history) - len(question) - 1 if turn else 0)
        history += fresh


def poisoned(token):
    """Return a tiny model whose embedding of one token is NaN."""
    table = tiny.tensors()
    values = tiny.values("token_embd.weight", (tiny.VOCABULARY, tiny.WIDTH))
    values[token] = np.nan
    table["token_embd.weight"] = (DType.F32, values.shape, values)
    return table


def test_nan_logits_end_their_sequence_only(load, tmp_path):
    """A sequence that hits a NaN ends with an error; its neighbour and its successors do not."""
    loaded = load(tiny.write(tmp_path / "nan.gguf", table=poisoned(7)), parallel=2)
    clean = [token for token in prompt(60) if token != 7]
    expected = loaded.answer(clean, 10, temperature=0.0, reuse=False)
    assert 7 not in expected
    lost = loaded.submit([7, *clean], 10)
    other = loaded.submit(clean, 10, temperature=0.0)
    errors = []
    while other.finish_reason is None:
        errors += [emission for emission in loaded.engine.step() if emission.error is not None]
    assert [(e.sequence, e.token, type(e.error)) for e in errors] == [(lost, None, NotFinite)]
    assert lost.finish_reason is FinishReason.ERROR
    assert other.tokens[len(clean) :] == expected
    # The blocks that hold NaN are handed out again: nothing behind a sequence's end may be read.
    for _ in range(4):
        assert loaded.answer(clean, 10, temperature=0.0, reuse=False) == expected
    assert loaded.is_empty


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_device_runs_the_loop(load, name):
    """The engine knows no device: each of them, the null device too, ends a sequence."""
    loaded = load(device=registry.open(name))
    assert len(loaded.answer(prompt(40), 5, temperature=0.0)) == 5
    assert loaded.is_empty


def test_batches_end_where_their_rows_end(load):
    """Arrays made once serve batches of any size; what an earlier one left is not seen."""
    loaded = load()
    loaded.finish(*(loaded.submit(prompt(30, seed=i), 5) for i in range(3)))
    recorder = Recorder.on(loaded)
    loaded.answer(prompt(3), 1)
    (logits,) = recorder.logits.values()
    assert len(logits) == 1


def test_rows_are_laid_out_flat(load):
    """A batch is its sequences' tokens one after the other, with positions and tables."""
    loaded = load()
    first, second = loaded.submit(prompt(40), 5), loaded.submit(prompt(3), 5)
    loaded.engine.step()
    loaded.engine.step()
    arrays = loaded.runner._arrays
    inputs = arrays.fill([Rows(first, 1, 1), Rows(second, 1, 0)])
    assert inputs["positions"].tolist() == [first.num_computed, second.num_computed]
    assert inputs["sequences"].tolist() == [0, 1]
    assert inputs["output_rows"].tolist() == [0]
    assert inputs["tables"][:, 0].tolist() == [
        first.tables[0].blocks[0],
        second.tables[0].blocks[0],
    ]
    assert inputs["tables"].shape == (2, 4)
