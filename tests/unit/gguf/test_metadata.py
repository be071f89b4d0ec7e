"""Typed reads: the value, the default, or an error that names key, content and expectation."""

import pytest

from corral.errors import InvalidModelFile
from corral.gguf import Metadata, Value, ValueType
from corral.gguf.values import make_value

METADATA = Metadata.of(
    {
        "general.architecture": "llama",
        "llama.block_count": 4,
        "llama.rope.freq_base": 500000.0,
        "llama.attention.head_count_kv": [1, 2, 3, 4],
        "llama.expert_gating": True,
        "llama.pattern": [True, False],
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.scores": [0.5, -1.0],
        "negative": -1,
        "byte": Value(ValueType.INT8, 4),
        "wide": Value(ValueType.UINT16, 4),
        "nan": float("nan"),
        "infinite": float("inf"),
    }
)


def test_values_of_each_kind():
    """Each typed read returns its Python type."""
    assert METADATA.architecture == "llama"
    assert METADATA.int("llama.block_count") == 4
    assert METADATA.int("wide") == 4
    assert METADATA.int("negative", minimum=-1) == -1
    assert METADATA.float("llama.rope.freq_base") == 500000.0
    assert METADATA.float("llama.block_count") == 4.0
    assert METADATA.bool("llama.expert_gating") is True
    assert METADATA.ints("llama.attention.head_count_kv", count=4) == (1, 2, 3, 4)
    assert METADATA.ints("llama.block_count", count=3) == (4, 4, 4)
    assert METADATA.bools("llama.pattern") == (True, False)
    assert METADATA.bools("llama.expert_gating", count=2) == (True, True)
    assert METADATA.strings("tokenizer.ggml.tokens") == ["a", "b"]
    assert METADATA.floats("tokenizer.ggml.scores") == (0.5, -1.0)
    assert METADATA.length("tokenizer.ggml.tokens") == 2


def test_defaults_serve_absent_keys_only():
    """A default stands in for an absent key, not for a wrong value."""
    assert METADATA.int("absent", 7) == 7
    assert METADATA.float("absent", 0.5) == 0.5
    assert METADATA.str("absent", "x") == "x"
    assert METADATA.bool("absent", False) is False
    assert METADATA.ints("absent", (1,)) == (1,)
    assert METADATA.bools("absent", (True,)) == (True,)
    assert METADATA.floats("absent", ()) == ()
    assert METADATA.strings("absent", ()) == []
    assert METADATA.length("absent", 0) == 0
    with pytest.raises(InvalidModelFile, match="expected an integer"):
        METADATA.int("general.architecture", 7)


def test_absent_keys_name_near_ones():
    """A required key that is absent is reported with keys that look like it."""
    with pytest.raises(InvalidModelFile, match=r"no llama\.block_cout; it has llama\.block_count"):
        METADATA.int("llama.block_cout")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda m: m.int("llama.rope.freq_base"), "FLOAT32 500000.0, expected an integer"),
        (lambda m: m.int("llama.expert_gating"), "BOOL True, expected an integer"),
        (lambda m: m.int("byte"), "INT8 4, expected an integer"),
        (lambda m: m.int("negative"), "expected at least 0"),
        (lambda m: m.int("llama.block_count", maximum=3), "expected at most 3"),
        (lambda m: m.int("llama.attention.head_count_kv"), "an array of 4 UINT32"),
        (lambda m: m.float("general.architecture"), "STRING 'llama', expected a number"),
        (lambda m: m.float("nan"), "finite"),
        (lambda m: m.float("infinite"), "finite"),
        (lambda m: m.str("llama.block_count"), "UINT32 4, expected a string"),
        (lambda m: m.bool("llama.block_count"), "expected a bool"),
        (lambda m: m.ints("llama.attention.head_count_kv", count=3), "integers, 3 long"),
        (lambda m: m.ints("llama.block_count"), "expected an array of integers"),
        (lambda m: m.ints("tokenizer.ggml.scores"), "expected an array of integers"),
        (lambda m: m.bools("llama.attention.head_count_kv"), "expected an array of bools"),
        (lambda m: m.strings("llama.pattern"), "expected an array of strings"),
        (lambda m: m.floats("llama.pattern"), "expected an array of floats"),
        (lambda m: m.length("llama.block_count"), "expected an array"),
    ],
)
def test_wrong_kinds_are_refused(read, message: str):
    """G047-G049, G063: another type, length or range gives an error that says all three."""
    with pytest.raises(InvalidModelFile, match=message):
        read(METADATA)


def test_negative_elements_are_refused():
    """Arrays obey the lower bound too."""
    with pytest.raises(InvalidModelFile, match="at least 0, found -2"):
        Metadata.of({"a": [1, -2]}).ints("a")


def test_behaves_like_a_mapping():
    """Keys can be counted, iterated and tested."""
    assert "byte" in METADATA
    assert len(METADATA) == len(list(METADATA)) == 13
    assert METADATA.value("byte") == Value(ValueType.INT8, 4)


def test_a_value_may_be_replaced():
    """In a copy; the rest is as it was."""
    metadata = Metadata.of({"a": 1, "b": "x"})
    other = metadata.replacing("b", "y").replacing("c", True)
    assert other.plain() == {"a": 1, "b": "y", "c": True}
    assert metadata.plain() == {"a": 1, "b": "x"}


def test_long_values_are_shortened_in_messages():
    """A value of a mebibyte does not flood the message."""
    assert len(make_value("x" * (1 << 20)).describe()) < 100
