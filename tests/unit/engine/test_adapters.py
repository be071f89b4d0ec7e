"""Adapters of a loaded model: the same as merged, beside others, coming and going."""

from contextlib import ExitStack

import numpy as np
import pytest

import adapters
import corral
import tiny
from corral.contract.sampling import SamplingParams
from corral.devices.cpu.device import CpuDevice
from corral.errors import InvalidAdapter, InvalidArgument, NotFinite, OutOfMemory, UnsupportedModel
from corral.gguf import write_model
from corral.quant.types import DType
from golden import nmse

TOKENS = list(range(5, 45))
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def files(tmp_path):
    """Write a model and adapters of two ranks for it."""
    return {
        "base": tiny.write(tmp_path / "base.gguf"),
        "a": adapters.write(tmp_path / "a.gguf", 0, dtype=DType.F16),
        "b": adapters.write(tmp_path / "b.gguf", 1, rank=12, targets=("attn_q", "ffn_down")),
    }


@pytest.fixture
def load(files):
    """Return a function that loads a model, closed and counted at the end."""
    with ExitStack() as stack:

        def load_one(path=None, *, device="cpu", **options):
            path = files["base"] if path is None else path
            return stack.enter_context(corral.Model.load(path, device=device, **options))

        yield load_one


def text(model, prompt="Hello there", tokens=12, **options):
    return "".join(model.generate(prompt, max_tokens=tokens, sampling=GREEDY, **options))


def total(model):
    memory = model.memory()
    assert all(row.planned_bytes == row.allocated_bytes for row in memory.rows)
    assert model._opened.allocated_bytes == sum(row.allocated_bytes for row in memory.rows)
    return memory.total_bytes


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_attached_is_as_good_as_merged(load, tmp_path, family, device):
    """Logits are those of a model whose weights have the adapter in them, in F32."""
    base = tiny.write(tmp_path / "own.gguf", family, table=tiny.tensors(family))
    path = adapters.write(tmp_path / "own.lora.gguf", family=family, strength=0.2)
    table = adapters.merged(family=family, strength=0.2, scale=0.7)
    merged = load(tiny.write(tmp_path / "merged.gguf", family, table=table), device=device)
    model = load(base, device=device, kv_type="f32")
    plain = model.logits(TOKENS)
    model.adapters.load(path, name="one", scale=0.0)
    expected = merged.logits(TOKENS)
    assert nmse(model.logits(TOKENS, adapters={"one": 0.7}), expected) <= 1e-6
    assert nmse(plain, expected) > 1e-3
    assert np.array_equal(model.logits(TOKENS), plain)


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0])
def test_adapters_go_with_quantized_models(load, files, tmp_path, dtype):
    """What attaching changes is what merging changes, within what the type loses."""
    base = load(tiny.write(tmp_path / "q.gguf", table=tiny.tensors(dtype=dtype)))
    exact = load()
    for model in (base, exact):
        model.adapters.load(files["a"], scale=0.0)
    lost = nmse(base.logits(TOKENS), exact.logits(TOKENS))
    with_adapter = {"adapters": {"a": 0.3}}
    found = nmse(base.logits(TOKENS, **with_adapter), exact.logits(TOKENS, **with_adapter))
    assert found <= 3 * lost


def test_several_add_up(load, files, tmp_path):
    """Two adapters of one answer are two sums."""
    table = adapters.merged(0, scale=0.5)
    second = adapters.merged(1, rank=12, targets=("attn_q", "ffn_down"), scale=-0.25)
    for name, (kind, shape, data) in tiny.tensors().items():
        table[name] = kind, shape, table[name][2] + second[name][2] - data
    merged = load(tiny.write(tmp_path / "merged.gguf", table=table), device="reference")
    model = load()
    for name in "ab":
        model.adapters.load(files[name], scale=0.0)
    found = model.logits(TOKENS, adapters={"a": 0.5, "b": -0.25})
    assert nmse(found, merged.logits(TOKENS)) <= 1e-5


def test_answers_are_the_same_whatever_runs_beside(load, files):
    """Several adapters and scales in one batch: each answer is what it is alone."""
    model = load(parallel=5, context=64)
    for name in "ab":
        model.adapters.load(files[name], scale=0.0)
    wanted = [None, ["a"], {"b": 1.0}, {"a": 0.5, "b": 2.0}, ["a"]]
    alone = [text(model, adapters=one) for one in wanted]
    assert len(set(alone)) == 4
    together = [
        model.generate("Hello there", max_tokens=12, sampling=GREEDY, adapters=one)
        for one in wanted
    ]
    pieces = [""] * len(wanted)
    for _ in range(13):
        for place, answer in enumerate(together):
            pieces[place] += next(answer, "")
    assert pieces == alone


def test_a_default_scale_counts_for_who_says_nothing(load, files):
    """Adapters with a scale are part of every answer that asks for none in particular."""
    model = load()
    plain = text(model)
    model.adapters.load(files["a"])
    changed = text(model)
    assert changed != plain
    assert text(model, adapters=[]) == plain
    model.adapters.set_scale("a", 0.0)
    assert text(model) == plain
    assert text(model, adapters={"a": 1.0}) == changed


def test_known_beginnings_belong_to_their_adapter(load, files):
    """Keys and values are reused with the same adapter and scale, and with no other."""
    model = load()
    model.adapters.load(files["a"], scale=0.0)

    def cached(**options):
        answer = model.generate(list(range(70)), max_tokens=1, sampling=GREEDY, **options)
        for _ in answer:
            pass
        return answer.statistics.cached_tokens

    assert cached() == cached(adapters=["a"]) == cached(adapters={"a": 0.5}) == 0
    assert cached() == cached(adapters=["a"]) == cached(adapters={"a": 0.5}) == 64


def test_every_byte_comes_back(load, files):
    """Loading and unloading leave the books as they were, and all of it is planned."""
    model = load()
    before = total(model)
    for _ in range(3):
        loaded = [model.adapters.load(files[name]) for name in "ab"]
        assert total(model) > before + sum(one.bytes for one in loaded)
        text(model, tokens=2)
        for one in loaded:
            model.adapters.unload(one.id)
        assert total(model) == before
        assert len(model.adapters) == 0


def test_an_adapter_lives_until_its_last_answer_ends(load, files):
    """Unloading while answers are made: they end as they would, nobody else gets it."""
    model = load(parallel=2)
    before = total(model)
    model.adapters.load(files["a"])
    expected, plain = text(model), text(model, adapters=[])
    answer = model.generate("Hello there", max_tokens=12, sampling=GREEDY)
    begun = next(answer)
    model.adapters.unload("a")
    assert len(model.adapters) == 0
    assert total(model) > before
    with pytest.raises(InvalidArgument, match="there is no adapter"):
        model.generate("Hello", adapters=["a"])
    assert text(model) == plain
    assert begun + "".join(answer) == expected
    text(model, tokens=1)
    assert total(model) == before


def test_one_that_needs_more_room_may_come_later(load, files):
    """Programs are made anew for a larger rank and more weights; answers go on meanwhile."""
    model = load(parallel=3)
    model.adapters.load(files["b"], scale=0.0)
    expected = text(model, adapters=["b"], tokens=20)
    answer = model.generate("Hello there", max_tokens=20, sampling=GREEDY, adapters=["b"])
    begun = next(answer)
    held = total(model)
    for number in range(4):
        model.adapters.load(files["a"], name=f"more{number}", scale=0.0)
    assert total(model) > held
    assert begun + "".join(answer) == expected
    assert text(model, adapters={"more3": 0.5}) != text(model)


def test_a_cancelled_answer_lets_go_of_its_adapter(load, files):
    """However an answer ends, it counts no more."""
    model = load()
    before = total(model)
    model.adapters.load(files["a"])
    answer = model.generate("Hello there", max_tokens=50, sampling=GREEDY)
    next(answer)
    model.adapters.unload("a")
    answer.cancel()
    text(model, tokens=1)
    assert total(model) == before


def test_a_name_is_given_once(load, files):
    """An adapter that nobody named gets its file's name, with a number if that is taken."""
    model = load()
    for _ in range(3):
        model.adapters.load(files["b"], scale=0.0)
    assert [one.name for one in model.adapters] == ["b", "b-2", "b-3"]
    model.adapters.unload("b")
    assert model.adapters.load(files["b"], scale=0.0).name == "b"


def test_what_does_not_fit_changes_nothing(load, files, tmp_path):
    """Refusals come before anything is reserved; answers are what they were."""
    model = load()
    model.adapters.load(files["b"], scale=0.0)
    before, held = text(model, adapters=["b"]), total(model)
    pairs = adapters.halves()
    pairs["blk.0.ffn_up.weight"][1][3, 1] = np.nan
    table = adapters.table(adapters.halves())
    b = pairs["blk.0.ffn_up.weight"][1]
    table["blk.0.ffn_up.weight.lora_b"] = DType.F32, b.shape, b
    write_model(tmp_path / "nan.gguf", adapters.metadata(), table)
    other = adapters.write(tmp_path / "other.gguf", family="qwen3")
    cases = [
        (tmp_path / "nan.gguf", {}, InvalidAdapter, "no finite number"),
        (other, {}, InvalidAdapter, "is for qwen3"),
        (files["base"], {}, InvalidAdapter, "no adapter"),
        (files["b"], {"name": "b"}, InvalidArgument, "already"),
        (files["a"], {"scale": float("nan")}, InvalidArgument, "scale"),
    ]
    for path, options, error, words in cases:
        with pytest.raises(error, match=words):
            model.adapters.load(path, **options)
    assert total(model) == held
    assert text(model, adapters=["b"]) == before


def test_no_room_is_told_before_anything_is_made(load, files, monkeypatch):
    """An adapter that does not fit beside the model leaves no byte, first or second."""
    model = load()
    before = total(model)
    plain = text(model)
    reading = CpuDevice.memory
    for free in (4096, 100_000):
        monkeypatch.setattr(
            CpuDevice,
            "memory",
            lambda self, free=free: type(reading(self))(1 << 30, free, "test"),
        )
        with pytest.raises(OutOfMemory, match="adapter"):
            model.adapters.load(files["a"])
        assert total(model) == before
    assert text(model) == plain


def test_closing_a_model_takes_its_adapters_along(files):
    """Adapters that nobody unloaded are given back once."""
    with corral.Model.load(files["base"], device="cpu") as model:
        model.adapters.load(files["a"])
        device = model._opened.devices[0]
    assert device.allocated_bytes == 0


def test_a_split_model_has_parts_of_an_adapter(load, files):
    """Each device keeps what changes its own layers."""
    whole, split = load(), load(device=["cpu", "reference"])
    for model in (whole, split):
        model.adapters.load(files["a"], scale=0.0)
    found = split.logits(TOKENS, adapters=["a"])
    assert nmse(found, whole.logits(TOKENS, adapters=["a"])) <= 1e-6
    total(split)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["c"], "there is no adapter 'c'; there are: a"),
        ("a", "a list of names"),
        ({"a": "much"}, "a number"),
        ({"a": float("inf")}, "scale of an adapter"),
        ([True], "a name or a number"),
        (["a", 0], "named twice"),
    ],
)
def test_refuses_what_an_answer_cannot_have(load, files, wanted, words):
    """The adapters of an answer are names or numbers of those loaded, each once."""
    model = load()
    model.adapters.load(files["a"], scale=0.0)
    with pytest.raises(InvalidArgument, match=words):
        model.generate("Hello", adapters=wanted)


def test_weights_without_products_cannot_be_attached(load, tmp_path):
    """A matrix that no row is multiplied with is refused by name."""
    table = tiny.tensors() | {"extra.weight": (DType.F32, (8, 64), np.ones((8, 64), np.float32))}
    model = load(tiny.write(tmp_path / "extra.gguf", table=table))
    pairs = {"extra.weight": (np.ones((2, 64), np.float32), np.ones((8, 2), np.float32))}
    write_model(tmp_path / "x.gguf", adapters.metadata(), adapters.table(pairs))
    with pytest.raises(UnsupportedModel, match=r"extra\.weight"):
        model.adapters.load(tmp_path / "x.gguf")


def test_an_overflow_is_blamed_on_the_adapter(load, tmp_path):
    """Numbers that are none after an adapter name it and its scale; without it all is well."""
    pairs = adapters.halves(targets=("output", "attn_q"))
    pairs["output.weight"] = tuple(half * np.float32(1e18) for half in pairs["output.weight"])
    path = tmp_path / "large.gguf"
    write_model(path, adapters.metadata(), adapters.table(pairs))
    model = load()
    model.adapters.load(path, scale=1000.0)
    with pytest.raises(NotFinite, match=r"large \(scale 1000\); use smaller scales") as refused:
        text(model)
    assert "quantization" not in str(refused.value)
    assert len(text(model, adapters=[])) > 0
