"""Every supported family against the reference answers, in each way a model can be run."""

import numpy as np
import pytest

from corral.devices import registry
from corral.engine.batch import Rows
from corral.engine.engine import Engine
from corral.engine.runner import Runner
from corral.engine.sequence import Sequence
from corral.memory.ledger import Ledger
from corral.models.footprint import Limits
from golden import (
    FAMILIES,
    GOLDEN,
    HIGHEST_FLOAT_NMSE,
    TWINS,
    needs_golden,
    nmse,
    write_architecture,
)
from loaded import load_model

pytestmark = needs_golden

# The golden logits came from a cache in F16: with one, NMSE falls from 6e-7 to a few 1e-9 (llama:
# 3e-8, where rounding to F16 falls on other sides). Exact F32 is therefore allowed the difference.
EXACT = {"f16": 5e-8, "f32": 1e-6}


class Loaded:
    """A golden model on a device, with the tokens and logits it must reproduce."""

    def __init__(self, path, golden, device, *, kv_type="f16", chunk=64, parallel=2, threads=None):
        self.device = registry.open(device, threads=threads)
        limits = Limits(128, parallel, kv_type, chunk, min(32, chunk))
        self.loaded = load_model(path, limits, self.device, Ledger())
        groups = self.loaded.design.kv.groups
        runner = Runner(self.loaded.parts, groups)
        self.engine = Engine(runner, groups, context=128)
        with np.load(golden) as data:
            self.tokens, self.expected = data["tokens"].tolist(), data["logits"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loaded.close()
        assert self.device.allocated_bytes == 0
        self.device.close()

    def score(self):
        logits = np.empty_like(self.expected)
        self.engine.score(self.tokens, logits)
        return logits


@pytest.fixture(scope="session")
def architectures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archs")
    return {
        (name, dtype): write_architecture(name, folder, dtype)
        for name in FAMILIES
        for dtype in ("f32", "f16")
    }


def golden(name):
    return GOLDEN / "archs" / f"{name}.npz"


def twin(name):
    return GOLDEN / "archs" / f"{name}.Q4_K_M.gguf", golden(f"{name}.Q4_K_M")


@pytest.mark.parametrize("kv_type", EXACT)
@pytest.mark.parametrize("name", FAMILIES)
def test_reference_is_exact(architectures, name, kv_type):
    """The reference device gives the golden logits of F32 weights."""
    path = architectures[name, "f32"]
    with Loaded(path, golden(name), "reference", kv_type=kv_type) as model:
        assert nmse(model.score(), model.expected) <= EXACT[kv_type]


@pytest.mark.parametrize("name", TWINS)
def test_reference_decodes_quantized_weights(name):
    """The reference device gives the golden logits of dequantized weights."""
    with Loaded(*twin(name), "reference") as model:
        assert nmse(model.score(), model.expected) <= EXACT["f16"]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_cpu_float_weights(architectures, name, dtype):
    """The CPU gives the golden logits of float weights with float math."""
    with Loaded(architectures[name, dtype], golden(name), "cpu") as model:
        assert nmse(model.score(), model.expected) <= HIGHEST_FLOAT_NMSE


@pytest.mark.parametrize("name", TWINS)
def test_cpu_quantized_weights(name):
    """The CPU's int8 activations cost no more than they may."""
    with Loaded(*twin(name), "cpu") as model:
        assert nmse(model.score(), model.expected) <= TWINS[name]


def cases():
    return [(name, None) for name in FAMILIES] + [(name, "Q4_K_M") for name in TWINS]


@pytest.mark.parametrize(("name", "kind"), cases())
@pytest.mark.parametrize(("chunk", "threads"), [(1, 2), (7, 2), (64, 1), (64, 2), (96, 2)])
def test_cpu_is_bit_identical_however_it_is_run(architectures, name, kind, chunk, threads):
    """Whole, in chunks, token by token, with one thread or two: the same bits."""
    path, data = twin(name) if kind else (architectures[name, "f16"], golden(name))
    with Loaded(path, data, "cpu", chunk=96, threads=1) as whole:
        expected = whole.score()
    with Loaded(path, data, "cpu", chunk=chunk, threads=threads) as model:
        assert np.array_equal(model.score(), expected)


@pytest.mark.parametrize(("name", "kind"), cases())
def test_cpu_is_bit_identical_beside_other_sequences(architectures, name, kind):
    """A sequence computed in one batch with another one gets the same bits as alone."""
    path, data = twin(name) if kind else (architectures[name, "f16"], golden(name))
    with Loaded(path, data, "cpu", chunk=64) as model:
        expected = model.score()
        first = Walk(model, model.tokens)
        second = Walk(model, model.tokens[::-1])
        second.advance(5)
        while first.rest:
            run_together(model, first.take(3), second.take(2))
        assert np.array_equal(np.concatenate(first.logits), expected)
        first.close(), second.close()


class Walk:
    """A sequence that is computed a few tokens at a time, keeping its logits."""

    def __init__(self, model, tokens):
        self.model, self.logits = model, []
        self.sequence = Sequence(0, list(tokens), len(tokens), 0, None)
        model.engine._cache.open_tables(self.sequence)

    @property
    def rest(self):
        return self.sequence.num_pending

    def take(self, count):
        rows = Rows(self.sequence, min(count, self.rest), min(count, self.rest))
        self.model.engine._cache.grow(self.sequence, rows.num_tokens)
        return self, rows

    def advance(self, count):
        run_together(self.model, self.take(count))

    def close(self):
        self.model.engine._cache.close_tables(self.sequence)


def run_together(model, *parts):
    parts = [(walk, rows) for walk, rows in parts if rows.num_tokens]
    logits = model.engine._runner.run([rows for _, rows in parts])
    start = 0
    for walk, rows in parts:
        walk.logits.append(logits[start : start + rows.num_outputs].copy())
        start += rows.num_outputs
        model.engine._cache.advance(walk.sequence, rows.num_tokens)
