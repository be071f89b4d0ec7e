"""What a worker is told."""

import pytest

from corral.contract.worker import MAX_QUEUE, WorkerSpec
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
        ("template", 3),
        ("template", "x" * (2 << 20)),
    ],
)
def test_what_cannot_be_is_refused_by_name(field, value):
    """The message names the field."""
    spec = WorkerSpec(**({"model": "m.gguf"} | {field: value}))
    with pytest.raises(InvalidArgument, match=field):
        spec.validate()
