"""lora/adapter.py: what an adapter's file must be, and which model it fits."""

import numpy as np
import pytest

import adapters
import tiny
from corral.errors import InvalidAdapter, InvalidModelFile, UnsupportedModel
from corral.gguf import write_model
from corral.lora.adapter import MAX_RANK, looks_like_adapter, open_adapter, require_fitting

WEIGHT = "blk.0.attn_q.weight"


def read(path):
    with open_adapter(path) as (adapter, _file):
        return adapter


def spoiled(tmp_path, tensors=None, **changes):
    """Return the path of an adapter whose metadata or tensors are not as they should be."""
    path = tmp_path / "spoiled.gguf"
    if tensors is None:
        tensors = adapters.table(adapters.halves())
    write_model(path, adapters.metadata(**changes), tensors)
    return path


def test_an_adapter_is_told_from_its_beginning(tmp_path):
    """Without parsing: models, what merely has the words, short files and none at all are none."""
    assert looks_like_adapter(adapters.write(tmp_path / "a.gguf"))
    tiny.write(tmp_path / "model.gguf")
    words = tiny.keys() | {"general.type": "model", "general.name": "adapter"}
    write_model(tmp_path / "words.gguf", words, {})
    (tmp_path / "short.gguf").write_bytes(b"GGUF")
    for name in ("model", "words", "short", "absent"):
        assert not looks_like_adapter(tmp_path / f"{name}.gguf")


def test_a_header_says_what_is_changed(tmp_path):
    """Each matrix has its pair, rank and scale; nothing of the values is read."""
    adapter = read(adapters.write(tmp_path / "a.gguf", rank=4, alpha=8.0))
    assert len(adapter.pairs) == 7 * tiny.LAYERS["llama"]
    pair = adapter.pairs[WEIGHT]
    assert pair.rank == adapter.max_rank == 4
    assert pair.shape == tiny.shapes()[WEIGHT]
    assert adapter.scale(pair) == 2.0
    assert adapter.num_parameters == sum(
        a.size + b.size for a, b in adapters.halves(rank=4).values()
    )


def test_without_alpha_the_rank_does_not_count(tmp_path):
    """No alpha, or one of 0, means that B·A counts as it is."""
    adapter = read(spoiled(tmp_path, **{"adapter.lora.alpha": None}))
    assert adapter.scale(adapter.pairs[WEIGHT]) == 1.0


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"general.type": "model"}, InvalidAdapter, "general.type is 'model'"),
        ({"general.type": None}, InvalidAdapter, "the file is no adapter"),
        ({"adapter.type": "ia3"}, InvalidAdapter, "adapter.type is 'ia3'"),
        ({"adapter.type": None}, InvalidAdapter, "adapter.type is ''"),
        ({"adapter.lora.alpha": float("nan")}, InvalidModelFile, "expected a finite number"),
        ({"adapter.lora.alpha": float("inf")}, InvalidModelFile, "expected a finite number"),
        ({"adapter.lora.alpha": 1e30}, InvalidAdapter, "a scale of a million at most"),
        ({"general.architecture": None}, InvalidModelFile, "general.architecture"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, UnsupportedModel, "activated LoRA"),
    ],
)
def test_refuses_metadata(tmp_path, changes, error, words):
    """What the file says of itself must be an adapter's."""
    with pytest.raises(error, match=words):
        read(spoiled(tmp_path, **changes))


def test_refuses_a_model(tmp_path):
    """A base model given as an adapter is told from one."""
    with pytest.raises(InvalidAdapter, match="no adapter"):
        read(tiny.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((4, 64), (64, 8), "ranks 4 and 8"),
        ((0, 64), (64, 0), "has rank 0"),
        ((MAX_RANK + 1, 64), (64, MAX_RANK + 1), f"rank {MAX_RANK + 1}"),
    ],
)
def test_refuses_ranks(tmp_path, a, b, words):
    """Both halves have one rank, within reason."""
    pairs = {WEIGHT: (np.zeros(a, np.float32), np.zeros(b, np.float32))}
    with pytest.raises(InvalidAdapter, match=words):
        read(spoiled(tmp_path, adapters.table(pairs)))


def test_refuses_tensors_that_are_no_pair(tmp_path):
    """No tensors, half a pair, other names and stacks of matrices are refused."""
    whole = adapters.table(adapters.halves())
    with pytest.raises(InvalidAdapter, match="no tensors"):
        read(spoiled(tmp_path, {}))
    half = {name: entry for name, entry in whole.items() if name != f"{WEIGHT}.lora_b"}
    with pytest.raises(InvalidAdapter, match=r"has no \.lora_b"):
        read(spoiled(tmp_path, half))
    with pytest.raises(InvalidAdapter, match="neither"):
        read(spoiled(tmp_path, whole | {"output_norm.weight": whole[f"{WEIGHT}.lora_a"]}))
    kind, _shape, data = whole[f"{WEIGHT}.lora_a"]
    with pytest.raises(UnsupportedModel, match="3 dimensions"):
        read(spoiled(tmp_path, whole | {f"{WEIGHT}.lora_a": (kind, (1, 4, 64), data)}))


def test_a_truncated_file_is_refused(tmp_path):
    """Data that are missing at the end are found out from the header."""
    path = adapters.write(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(InvalidModelFile, match="truncated"):
        read(path)


def fits(adapter, family="llama", **changes):
    infos = tiny.header(family)[1] | changes
    require_fitting(adapter, family, infos, base="base.gguf")


def test_fits_its_own_model_only(tmp_path):
    """Architecture, names and shapes are compared with the base."""
    adapter = read(adapters.write(tmp_path / "a.gguf"))
    fits(adapter)
    with pytest.raises(InvalidAdapter, match=r"is for llama, base\.gguf is qwen2"):
        fits(adapter, "qwen2")
    other = tiny.header()[1]["blk.0.ffn_up.weight"]
    with pytest.raises(InvalidAdapter, match=f"{WEIGHT} of 64×64, in base.gguf that has 96×64"):
        fits(adapter, **{WEIGHT: other})


def test_refuses_what_the_base_lacks_or_cannot_change(tmp_path):
    """A matrix that the model does not have, and the table of embeddings."""
    a, b = np.zeros((4, 64), np.float32), np.zeros((64, 4), np.float32)
    adapter = read(spoiled(tmp_path, adapters.table({"blk.9.attn_q.weight": (a, b)})))
    with pytest.raises(InvalidAdapter, match="does not have"):
        fits(adapter)
    adapter = read(spoiled(tmp_path, adapters.table({"token_embd.weight": (a, b)})))
    with pytest.raises(UnsupportedModel, match="token_embd"):
        fits(adapter)
