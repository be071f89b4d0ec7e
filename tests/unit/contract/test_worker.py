"""What a worker is told."""

import pytest

from corral.contract.worker import MAX_QUEUE, AdapterSpec, WorkerSpec
from corral.errors import InvalidArgument


def test_a_spec_of_defaults_is_fine():
    """Only the model must be named."""
    WorkerSpec(model="/models/tiny.gguf").validate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", "x" * 5000),
        ("devices", ("",)),
        ("devices", "cpu"),
        ("visible_devices", ("GPU-1", 2)),
        ("queue_capacity", -1),
        ("queue_capacity", MAX_QUEUE + 1),
        ("drain_s", float("nan")),
        ("drain_s", -1.0),
        ("embeddings", 1),
        ("context_shift", "yes"),
        ("keep", -1),
        ("template", 3),
        ("template", "x" * (2 << 20)),
    ],
)
def test_what_cannot_be_is_refused_by_name(field, value):
    """The message names the field."""
    spec = WorkerSpec(**({"model": "m.gguf"} | {field: value}))
    with pytest.raises(InvalidArgument, match=field):
        spec.validate()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.gguf", AdapterSpec("a.gguf", 1.0)),
        ("a.gguf:0.5", AdapterSpec("a.gguf", 0.5)),
        ("dir:x/a.gguf", AdapterSpec("dir:x/a.gguf", 1.0)),
        ("a:b.gguf", AdapterSpec("a:b.gguf", 1.0)),
        ("a:b.gguf:-2", AdapterSpec("a:b.gguf", -2.0)),
    ],
)
def test_an_adapter_is_a_file_and_a_scale(text, expected):
    """A colon may be part of a name; behind the last one stands the scale."""
    assert AdapterSpec.parse(text) == expected


@pytest.mark.parametrize("text", ["a.gguf:much", "a.gguf:", "a.gguf:nan", "a.gguf:1e9"])
def test_a_scale_is_a_number(text):
    """Anything else behind a colon is told."""
    with pytest.raises(InvalidArgument, match="scale"):
        AdapterSpec.parse(text)
