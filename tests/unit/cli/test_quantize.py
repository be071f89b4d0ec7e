"""`corral quantize`: a smaller file, told in words or JSON, or one line of complaint."""

import json

import pytest

import tiny
from corral.cli.main import main
from corral.gguf import read_header
from corral.quant.types import DType


@pytest.fixture
def source(tmp_path):
    """A tiny model in F32."""
    return tiny.write(tmp_path / "tiny.gguf")


def test_writes_the_file_and_tells_what_became_of_it(source, tmp_path, capsys):
    """The types before and after are listed, most bytes first, and then the whole."""
    out = tmp_path / "new.gguf"
    assert main(["quantize", str(source), str(out), "q8_0"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split()[:5] == ["16", "tensors", "F32", "→", "Q8_0"]
    assert "bits a weight" in lines[-1]
    assert f"wrote {out}" in captured.err
    assert read_header(out).tensors["blk.0.attn_q.weight"].dtype is DType.Q8_0


def test_dry_runs_write_nothing(source, tmp_path, capsys):
    """What would be written is told tensor by tensor, and no file appears."""
    before = set(tmp_path.iterdir())
    arguments = ["quantize", str(source), str(tmp_path / "new.gguf"), "Q4_K_M"]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(tmp_path.iterdir()) == before
    assert (told["type"], told["written"]) == ("Q4_K_M", False)
    types = {tensor["name"]: (tensor["from"], tensor["to"]) for tensor in told["tensors"]}
    assert types["output.weight"] == ("F32", "Q8_0")
    assert types["blk.0.attn_q.weight"] == ("F32", "Q5_0")
    assert main(["quantize", *arguments[1:], "--pure", "--json", "--threads", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {tensor["to"] for tensor in told["tensors"]} == {"F32", "Q5_0"}
    assert told["size_bytes"] == sum(tensor["size_bytes"] for tensor in told["tensors"])


@pytest.mark.parametrize(
    ("source_type", "arguments", "code", "message"),
    [
        (DType.F32, ("Q9",), 2, "no type 'Q9'"),
        (DType.F32, ("Q8_0", "--threads", "0"), 2, "no integer from 1"),
        (DType.Q8_0, ("Q4_0",), 2, "--allow-requantize"),
    ],
)
def test_complaints_are_one_line(tmp_path, capsys, source_type, arguments, code, message):
    """A wrong type, a wrong option and a second rounding are told in one line, and nothing else."""
    source = tiny.write(tmp_path / "m.gguf", table=tiny.tensors(dtype=source_type))
    assert main(["quantize", str(source), str(tmp_path / "new.gguf"), *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "new.gguf").exists()


def test_a_type_is_looked_at_before_a_model_is_fetched(tmp_path, capsys):
    """A misspelt type is told even where the model is missing, too."""
    arguments = ["quantize", str(tmp_path / "none.gguf"), str(tmp_path / "new.gguf"), "Q4KM"]
    assert main(arguments) == 2
    assert "no type 'Q4KM'" in capsys.readouterr().err


def test_the_file_at_fault_is_named(source, tmp_path, capsys):
    """The path of a damaged model begins the line, and the exit code is 1."""
    source.write_bytes(source.read_bytes()[:-200])
    assert main(["quantize", str(source), str(tmp_path / "new.gguf"), "Q8_0"]) == 1
    assert capsys.readouterr().err.startswith(f"corral: {source}: ")
