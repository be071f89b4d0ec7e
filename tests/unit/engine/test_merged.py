"""engine/merged.py: adapters in the weights of a loaded model, and the weights as they were."""

from contextlib import ExitStack

import numpy as np
import pytest

import adapters
import corral
import tiny
from corral.contract.sampling import SamplingParams
from corral.errors import InvalidAdapter, InvalidArgument, InvalidModelFile
from corral.gguf import write_model
from corral.quant.types import DType
from golden import nmse

TOKENS = list(range(5, 45))
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a model of a type, and the path of an adapter for it."""
    adapter = adapters.write(tmp_path / "a.gguf", strength=0.2)
    with ExitStack() as stack:

        def load_one(dtype=DType.F32, **options):
            path = tiny.write(tmp_path / f"{dtype.name}.gguf", table=tiny.tensors(dtype=dtype))
            return stack.enter_context(corral.Model.load(path, **({"device": "cpu"} | options)))

        yield load_one, adapter


def weights(model):
    """Return the bytes of all weights as the devices have them."""
    return [
        part.device.download(part.buffers.weights, 0, part.buffers.weights.size_bytes)
        for part in model._opened.loaded.parts
    ]


@pytest.mark.parametrize("device", ["cpu", "reference", ["cpu", "reference"]], ids=str)
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0, DType.Q4_0], ids=lambda t: t.name)
def test_merged_and_as_it_was(load, device, dtype):
    """Merging gives what the merged file gives; unmerging gives every byte back."""
    load_one, adapter = load
    model = load_one(dtype, device=device)
    before, plain, held = weights(model), model.logits(TOKENS), model.memory().total_bytes
    model.adapters.merge(adapter, scale=0.7)
    merged = model.logits(TOKENS)
    assert model.memory().total_bytes == held
    if dtype is DType.F32:
        model.adapters.unmerge()
        model.adapters.load(adapter, name="same", scale=0.0)
        assert nmse(merged, model.logits(TOKENS, adapters={"same": 0.7})) <= 1e-6
        model.adapters.unload("same")
    assert nmse(merged, plain) > 1e-3
    for _ in range(2):
        model.adapters.unmerge()
        assert all(map(np.array_equal, weights(model), before))
        assert np.array_equal(model.logits(TOKENS), plain)


def test_nothing_computed_before_is_used_after(load):
    """Known keys and values are of other weights: they are forgotten."""
    load_one, adapter = load
    model = load_one()

    def cached():
        answer = model.generate(list(range(70)), max_tokens=1, sampling=GREEDY)
        for _ in answer:
            pass
        return answer.statistics.cached_tokens

    assert (cached(), cached()) == (0, 64)
    model.adapters.merge(adapter)
    assert (cached(), cached()) == (0, 64)
    model.adapters.unmerge()
    assert (cached(), cached()) == (0, 64)


def test_not_while_answers_are_made(load):
    """An answer keeps the weights it began with."""
    load_one, adapter = load
    model = load_one()
    with model.generate("Hello", max_tokens=20, sampling=GREEDY) as answer:
        next(answer)
        with pytest.raises(InvalidArgument, match="answers are being made"):
            model.adapters.merge(adapter)
    model.adapters.merge(adapter)
    with pytest.raises(InvalidArgument, match="merged already"):
        model.adapters.merge(adapter)


def test_what_fails_changes_nothing(load, tmp_path):
    """A bad adapter, and an error in the middle: the weights are those of the file."""
    load_one, _ = load
    model = load_one(DType.Q8_0)
    before = weights(model)
    table = adapters.table(adapters.halves())
    shape = table["blk.1.ffn_up.weight.lora_a"][1]
    nan = np.full(shape, np.nan, np.float32)
    table["blk.1.ffn_up.weight.lora_a"] = DType.F32, shape, nan
    write_model(tmp_path / "nan.gguf", adapters.metadata(), table)
    with pytest.raises(InvalidAdapter, match="no finite number"):
        model.adapters.merge(tmp_path / "nan.gguf")
    huge = adapters.write(tmp_path / "huge.gguf", alpha=1e6, strength=1e37)
    with pytest.raises(corral.CorralError):
        model.adapters.merge(huge, scale=1e6)
    assert all(map(np.array_equal, weights(model), before))


def test_another_file_is_not_read(load, tmp_path):
    """If the model's file is another by now, nothing of it gets into the weights."""
    load_one, adapter = load
    model = load_one(DType.Q8_0)
    before = weights(model)
    tiny.write(tmp_path / "Q8_0.gguf", table=tiny.tensors(dtype=DType.Q4_0))
    with pytest.raises(InvalidModelFile, match="not the one that was loaded"):
        model.adapters.merge(adapter)
    assert all(map(np.array_equal, weights(model), before))
