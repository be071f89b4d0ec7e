"""Files that are legal GGUF and nonsense as a model: each is refused by name, fast and small."""

import time
import tracemalloc

import pytest

import adapters
import tiny
from corral.devices.cpu.traits import CPU_TRAITS
from corral.devices.reference.device import ReferenceDevice
from corral.errors import InvalidModelFile, ModelError, UnsupportedModel
from corral.gguf import ValueType, open_model, write_model
from corral.gguf.values import make_value
from corral.memory.ledger import Ledger
from corral.models.footprint import Limits, choose_limits, design_model
from corral.quant.types import DType
from loaded import load_model

INT8, INT32, FLOAT64 = ValueType.INT8, ValueType.INT32, ValueType.FLOAT64
NAN, INF = float("nan"), float("inf")
PEAK_BYTES = 64 << 20
HEADS, KV_HEADS = "attention.head_count", "attention.head_count_kv"
KEY_LENGTH, ROPE_DIMS = "attention.key_length", "rope.dimension_count"
WINDOW, EPSILON = "attention.sliding_window", "attention.layer_norm_rms_epsilon"
SCALING, FACTOR = "rope.scaling.type", "rope.scaling.factor"
ORIGINAL = "rope.scaling.original_context_length"
EXPERTS, USED = "expert_count", "expert_used_count"
DERIVED = {KEY_LENGTH: None, "attention.value_length": None, ROPE_DIMS: None}
"""Without these keys heads are as wide as the model divided by their number."""


def plan(path):
    """Plan a file for a device that packs weights."""
    with open_model(path) as file:
        limits = choose_limits(file.metadata)
        return design_model(file.metadata, file.tensors, limits, CPU_TRAITS)


def load(path):
    """Load a file, of which nothing may be left when that fails."""
    ledger = Ledger()
    with ReferenceDevice() as device:
        try:
            load_model(path, Limits(64), device, ledger).close()
        finally:
            assert device.allocated_bytes == 0
            assert ledger.statistics() == ()


WAYS = pytest.mark.parametrize("way", [plan, load])


def refuse(way, path, error, *named):
    """Check that a file is refused within two seconds, in little memory, naming what is wrong."""
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(error) as caught:
        way(path)
    assert time.perf_counter() - started < 2
    assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    tracemalloc.stop()
    message = str(caught.value)
    for name in named:
        assert name in message
    assert len(message) < 500
    assert str(path.parent) not in message


METADATA = {
    "block_count absent": (InvalidModelFile, "block_count", {"block_count": None}),
    "block_count 0": (InvalidModelFile, "block_count", {"block_count": 0}),
    "block_count 2^32-1": (InvalidModelFile, "block_count", {"block_count": 2**32 - 1}),
    "block_count as i8": (InvalidModelFile, "block_count", {"block_count": make_value(2, INT8)}),
    "block_count as text": (InvalidModelFile, "block_count", {"block_count": "2"}),
    "width 0": (InvalidModelFile, "embedding_length", {"embedding_length": 0}),
    "width 2^63": (InvalidModelFile, "embedding_length", {"embedding_length": 2**63}),
    "heads 0": (InvalidModelFile, "head_count", {HEADS: 0}),
    "heads 2^32-1": (InvalidModelFile, "head_count", {HEADS: 2**32 - 1} | DERIVED),
    "kv heads 0": (InvalidModelFile, "head_count_kv", {KV_HEADS: 0}),
    "more kv heads than heads": (InvalidModelFile, "head_count_kv", {KV_HEADS: 8}),
    "kv heads do not divide heads": (InvalidModelFile, "head_count_kv", {KV_HEADS: 3}),
    "width not divisible by heads": (
        InvalidModelFile,
        "embedding_length",
        {HEADS: 6, KV_HEADS: 2} | DERIVED,
    ),
    "heads of one dimension": (
        InvalidModelFile,
        "embedding_length",
        {HEADS: tiny.WIDTH, KV_HEADS: tiny.WIDTH} | DERIVED,
    ),
    "key length 2^31": (InvalidModelFile, "key_length", {KEY_LENGTH: 2**31, ROPE_DIMS: 2**31}),
    "one head as wide as 2^32": (
        InvalidModelFile,
        "embedding_length",
        {"embedding_length": 2**32 - 2, HEADS: 1, KV_HEADS: 1} | DERIVED,
    ),
    "value length differs": (UnsupportedModel, "value_length", {"attention.value_length": 8}),
    "context 0": (InvalidModelFile, "context_length", {"context_length": 0}),
    "context 2^31": (InvalidModelFile, "context_length", {"context_length": 2**31}),
    "context absent": (InvalidModelFile, "context_length", {"context_length": None}),
    "odd rope dims": (InvalidModelFile, "dimension_count", {ROPE_DIMS: 15}),
    "more rope dims than head dims": (InvalidModelFile, "dimension_count", {ROPE_DIMS: 18}),
    "rope dims 0": (InvalidModelFile, "dimension_count", {ROPE_DIMS: 0}),
    "rope dims 2^32-2": (InvalidModelFile, "dimension_count", {ROPE_DIMS: 2**32 - 2}),
    "heads for three layers": (InvalidModelFile, "head_count", {HEADS: [4, 4, 4]}),
    "kv heads for one layer": (InvalidModelFile, "head_count_kv", {KV_HEADS: [2]}),
    "widths differ between layers": (
        UnsupportedModel,
        "feed_forward_length",
        {"feed_forward_length": [96, 48]},
    ),
    "feed-forward for no layer": (
        InvalidModelFile,
        "feed_forward_length",
        {"feed_forward_length": make_value([], INT32)},
    ),
    "a million experts": (UnsupportedModel, "expert_count", {EXPERTS: 10**6}),
    "more experts used than there are": (InvalidModelFile, "expert_used", {EXPERTS: 2, USED: 4}),
    "no expert used": (InvalidModelFile, "expert_used_count", {EXPERTS: 4, USED: 0}),
    "experts used of none": (InvalidModelFile, "expert_used_count", {USED: 2}),
    "a negative number of experts": (InvalidModelFile, "expert_count", {EXPERTS: -1}),
    "attention that looks ahead": (UnsupportedModel, "causal", {"attention.causal": False}),
    "more tokens listed": (InvalidModelFile, "vocab_size", {"vocab_size": tiny.VOCABULARY - 1}),
    "fewer tokens listed": (InvalidModelFile, "vocab_size", {"vocab_size": tiny.VOCABULARY + 1}),
    "vocab_size 0": (InvalidModelFile, "vocab_size", {"vocab_size": 0}),
    "unknown rope scaling": (UnsupportedModel, SCALING, {SCALING: "x" * 10**6}),
    "rope factor 0": (InvalidModelFile, FACTOR, {SCALING: "linear", FACTOR: 0.0}),
    "rope factor below 1": (InvalidModelFile, FACTOR, {SCALING: "yarn", FACTOR: 1e-30}),
    "rope factor NaN": (InvalidModelFile, FACTOR, {SCALING: "linear", FACTOR: NAN}),
    "YaRN of context 0": (InvalidModelFile, ORIGINAL, {SCALING: "yarn", ORIGINAL: 0}),
    "YaRN beta out of range": (
        InvalidModelFile,
        "yarn_beta_fast",
        {SCALING: "yarn", "rope.scaling.yarn_beta_fast": make_value(1e308, FLOAT64)},
    ),
    "rope base NaN": (InvalidModelFile, "freq_base", {"rope.freq_base": NAN}),
    "rope base 0": (InvalidModelFile, "freq_base", {"rope.freq_base": 0.0}),
    "rope base near 0": (
        InvalidModelFile,
        "freq_base",
        {"rope.freq_base": make_value(1e-300, FLOAT64)},
    ),
    "epsilon Inf": (InvalidModelFile, "epsilon", {EPSILON: INF}),
    "epsilon 0": (InvalidModelFile, "epsilon", {EPSILON: 0.0}),
    "epsilon beyond F32": (InvalidModelFile, "epsilon", {EPSILON: make_value(1e300, FLOAT64)}),
}


@WAYS
@pytest.mark.parametrize("case", METADATA)
def test_metadata_are_refused(tmp_path, way, case):
    """A value that no model can have is refused, and the message names its key."""
    error, named, changes = METADATA[case]
    path = tiny.write(tmp_path / "bad.gguf", **changes)
    refuse(way, path, error, named)


@WAYS
@pytest.mark.parametrize("window", [0, -1, None])
def test_windows_are_refused(tmp_path, way, window):
    """A family with windowed layers needs a window of at least one position."""
    path = tiny.write(tmp_path / "bad.gguf", "gemma3", **{WINDOW: window})
    refuse(way, path, InvalidModelFile, f"gemma3.{WINDOW}")


ARCHITECTURES = {
    "absent": (InvalidModelFile, None),
    "a number": (InvalidModelFile, 7),
    "unknown": (UnsupportedModel, "lama"),
    "empty": (InvalidModelFile, ""),
    "a path": (InvalidModelFile, "../../llama"),
    "a module of another package": (UnsupportedModel, "os.path"),
    "a module that is no family": (UnsupportedModel, "footprint"),
    "a megabyte": (InvalidModelFile, "l" * (1 << 20)),
    "a NUL": (InvalidModelFile, "llama\0"),
    "other letters": (InvalidModelFile, "lläma"),
}


@WAYS
@pytest.mark.parametrize("case", ARCHITECTURES)
def test_architectures_are_refused(tmp_path, way, case):
    """The architecture is a known short name, or it is refused before anything is looked up."""
    error, value = ARCHITECTURES[case]
    metadata = tiny.keys() | tiny.vocabulary()
    del metadata["general.architecture"]
    if value is not None:
        metadata["general.architecture"] = value
    write_model(tmp_path / "bad.gguf", metadata, tiny.tensors())
    refuse(way, tmp_path / "bad.gguf", error, "architecture")


def test_near_architecture_is_named(tmp_path):
    """A misspelt architecture gets the name it may have meant."""
    write_model(tmp_path / "bad.gguf", tiny.keys() | {"general.architecture": "qwen33"}, {})
    with pytest.raises(UnsupportedModel, match="did you mean qwen3"):
        plan(tmp_path / "bad.gguf")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mamba"])
@WAYS
def test_an_adapter_is_no_model(tmp_path, way, family):
    """Its architecture is that of its model, and all else that a model has is not there."""
    path = tmp_path / "style.gguf"
    write_model(path, adapters.metadata(family), adapters.table(adapters.halves()))
    with pytest.raises(InvalidModelFile) as caught:
        way(path)
    told = "style.gguf is a LoRA adapter: give a model, and this with --lora"
    assert str(caught.value) == told


def test_another_architecture_is_no_spelling_mistake(tmp_path):
    """A family that only rhymes with one of ours is not taken for it."""
    write_model(tmp_path / "bad.gguf", tiny.keys() | {"general.architecture": "mamba"}, {})
    with pytest.raises(UnsupportedModel) as caught:
        plan(tmp_path / "bad.gguf")
    assert "did you mean" not in str(caught.value)


def test_no_vocabulary_and_no_size(tmp_path):
    """Without tokens and vocab_size nobody knows how many logits there are."""
    metadata = tiny.keys(vocab_size=None) | {"tokenizer.ggml.tokens": make_value([], INT32)}
    write_model(tmp_path / "bad.gguf", metadata, tiny.tensors())
    refuse(plan, tmp_path / "bad.gguf", InvalidModelFile, "vocab_size")


@WAYS
@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"],
)
def test_required_tensor_is_missing(tmp_path, way, name):
    """A tensor the family needs is asked for by name."""
    table = tiny.tensors()
    del table[name]
    path = tiny.write(tmp_path / "bad.gguf", table=table)
    refuse(way, path, InvalidModelFile, name)


@WAYS
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_layers_are_missing(tmp_path, way, family):
    """A file with fewer layers than it says lacks the first tensor of the next."""
    layers = tiny.LAYERS[family]
    table = tiny.tensors(family)
    path = tiny.write(tmp_path / "bad.gguf", family, table=table, block_count=layers + 1)
    refuse(way, path, InvalidModelFile, f"blk.{layers}.")


@WAYS
def test_output_and_embedding_are_missing(tmp_path, way):
    """Without an output matrix the embedding serves; without both there is no model."""
    table = tiny.tensors()
    del table["output.weight"], table["token_embd.weight"]
    path = tiny.write(tmp_path / "bad.gguf", table=table)
    refuse(way, path, InvalidModelFile, "token_embd.weight")


SHAPES = {
    "a vector for a matrix": ("blk.0.attn_q.weight", (tiny.WIDTH,)),
    "a matrix for a vector": ("blk.0.attn_norm.weight", (1, tiny.WIDTH)),
    "four dimensions": ("blk.1.ffn_up.weight", (1, 1, tiny.FFN, tiny.WIDTH)),
    "transposed": ("blk.1.ffn_down.weight", (tiny.FFN, tiny.WIDTH)),
    "another vocabulary": ("token_embd.weight", (tiny.VOCABULARY + 1, tiny.WIDTH)),
    "another width": ("output_norm.weight", (tiny.WIDTH + 1,)),
    "empty": ("blk.0.attn_k.weight", (0, tiny.WIDTH)),
    "rope factors of another number": ("rope_freqs.weight", (tiny.HEAD_DIM,)),
    "a bias of another length": ("blk.0.attn_q.bias", (tiny.WIDTH - 1,)),
}


@WAYS
@pytest.mark.parametrize("case", SHAPES)
def test_shapes_are_refused(tmp_path, way, case):
    """A tensor of another rank or shape than the metadata say is named, with both shapes."""
    name, shape = SHAPES[case]
    values = tiny.values(name, shape)
    table = tiny.tensors() | {name: (DType.F32, shape, values)}
    path = tiny.write(tmp_path / "bad.gguf", table=table)
    refuse(way, path, InvalidModelFile, name, "×".join(map(str, shape)))


@WAYS
@pytest.mark.parametrize("dtype", [DType.I8, DType.I32, DType.F64, DType.Q8_1])
@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output_norm.weight"])
def test_types_are_refused(tmp_path, way, name, dtype):
    """A weight of a type corral does not run is named, with the types it may have."""
    shape = tiny.shapes()[name]
    data = bytes(shape[0] * dtype.row_bytes(tiny.WIDTH) if shape[1:] else dtype.row_bytes(*shape))
    path = tiny.write(tmp_path / "bad.gguf", table=tiny.tensors() | {name: (dtype, shape, data)})
    refuse(way, path, UnsupportedModel, name, dtype.name, "Q4_K")


@WAYS
def test_unknown_extra_tensors_are_accepted(tmp_path, way):
    """Tensors that no family asks for cost nothing and do no harm."""
    extra = {"blk.0.attn_k.extra": (DType.F32, (3,), tiny.values("extra", (3,)))}
    path = tiny.write(tmp_path / "good.gguf", table=tiny.tensors() | extra)
    way(path)


def test_extra_tensors_are_not_planned(tmp_path):
    """What is not asked for takes no bytes."""
    extra = {"huge": (DType.F32, (1000, 1000), bytes(4_000_000))}
    plain = plan(tiny.write(tmp_path / "a.gguf"))
    more = plan(tiny.write(tmp_path / "b.gguf", table=tiny.tensors() | extra))
    assert plain.plan.footprint() == more.plan.footprint()


ACCEPTED = {
    "heads for each layer": {HEADS: [4, 4], KV_HEADS: [2, 2]},
    "kv heads absent": {KV_HEADS: None},
    "no optional key": {ROPE_DIMS: None, EPSILON: None, "rope.freq_base": None},
    "fewer rope dims": {ROPE_DIMS: 8},
    "linear scaling": {SCALING: "linear", FACTOR: 4.0},
    "legacy scaling": {"rope.scale_linear": 2.0},
    "YaRN": {SCALING: "yarn", FACTOR: 4.0, ORIGINAL: 64},
    "YaRN without its context": {SCALING: "yarn", FACTOR: 4.0},
    "no experts": {EXPERTS: 0, USED: 0},
    "no vocab_size": {"vocab_size": None},
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_variants_are_accepted(tmp_path, case):
    """Keys that may be missing, and the ways to write one value, all load."""
    changes = ACCEPTED[case]
    table = tiny.tensors()
    if changes.get(KV_HEADS, 0) is None:
        full = (tiny.WIDTH, tiny.WIDTH)
        for name in ("attn_k", "attn_v"):
            for i in range(2):
                key = f"blk.{i}.{name}.weight"
                table[key] = (DType.F32, full, tiny.values(key, full))
    path = tiny.write(tmp_path / "good.gguf", table=table, **changes)
    plan(path)
    load(path)


def test_every_refusal_is_a_model_error():
    """The errors of this module are one branch of the tree."""
    assert issubclass(InvalidModelFile, ModelError)
    assert issubclass(UnsupportedModel, ModelError)
