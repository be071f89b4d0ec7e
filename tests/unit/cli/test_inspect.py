"""`corral inspect`: metadata and tensors for people and for programs."""

import json
import time

import pytest

from corral.cli.describe import _rounded
from corral.cli.main import main
from unit.cli.small_file import write_small_file


@pytest.fixture
def inspect(tmp_path, capsys):
    """Return a function that inspects the small file."""
    path = write_small_file(tmp_path / "small.gguf")

    def run(*options):
        assert main(["inspect", str(path), *options]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


def test_shows_the_model_and_its_metadata(inspect):
    """The summary comes first, then a line a key with its type and value."""
    lines = inspect().splitlines()
    assert "model            llama 64 F32" in lines
    assert "parameters       64" in lines
    assert any(line.split() == ["llama.context_length", "UINT32", "8192"] for line in lines)
    assert any(line.split() == ["llama.layers", "UINT32[3]", "1,", "2,", "3"] for line in lines)


def test_shortens_what_is_long(inspect):
    """A vocabulary shows its length only; a long text its beginning, on one line."""
    out = inspect()
    assert "STRING[2000]" in out
    assert "t1999" not in out
    assert r"line one\nxxx" in out
    assert "(430 more)" in out


def test_shows_control_characters(inspect):
    """Text of a file cannot drive the terminal."""
    out = inspect()
    assert "\x1b" not in out
    assert r"Small \x1b[31mred" in out


def test_lists_tensors_when_asked(inspect):
    """--tensors adds a line a tensor."""
    assert "8 × 8" not in inspect()
    last = inspect("--tensors").splitlines()[-1]
    assert last.split() == ["w", "F32", "8", "×", "8", "256", "B"]


def test_json_is_strict(inspect):
    """JSON has lengths in place of long arrays, and no infinity."""

    def refuse(constant):
        raise AssertionError(constant)

    value = json.loads(inspect("--json", "--tensors"), parse_constant=refuse)
    assert value["parameters"] == 64
    assert value["metadata"]["llama.layers"] == [1, 2, 3]
    assert value["metadata"]["tokenizer.ggml.tokens"] == {"type": "STRING", "length": 2000}
    assert value["metadata"]["odd"] == "inf"
    assert value["tensors"][0]["shape"] == [8, 8]
    assert value["types"] == [{"dtype": "F32", "tensors": 1, "elements": 64, "size_bytes": 256}]


def test_a_large_vocabulary_is_no_burden(tmp_path, capsys):
    """262,144 tokens are skipped, not decoded."""
    path = write_small_file(tmp_path / "large.gguf", vocabulary=262_144)
    began = time.perf_counter()
    assert main(["inspect", str(path)]) == 0
    assert time.perf_counter() - began < 2.0  # measured 0.02 s
    assert "STRING[262144]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"),
    [(64, "64"), (134_515_008, "135M"), (1_500_000_000, "1.5B"), (70_553_706_496, "71B")],
)
def test_counts_are_rounded_as_names_have_them(count, text):
    """Parameter counts look like those in model names."""
    assert _rounded(count) == text
