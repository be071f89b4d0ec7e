"""`corral lora`: adapters for people and for programs."""

import json

import pytest

import adapters
import tiny
from corral.cli.main import main
from corral.gguf import open_model, write_model
from corral.quant.types import DType
from unit.cli.conftest import Outcome


@pytest.fixture
def corral(capsys):
    """Return a function that runs a command in this process."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def adapter(tmp_path):
    """Return the path of an adapter."""
    return adapters.write(tmp_path / "small.gguf", rank=4, alpha=8.0)


def test_inspect_shows_what_an_adapter_changes(corral, adapter):
    """Rank, scale and matrices are told in words."""
    done = corral("lora", "inspect", adapter)
    assert (done.code, done.err) == (0, "")
    rows = dict(line.split(None, 1) for line in done.out.splitlines() if " " in line)
    assert rows["rank"] == "4"
    assert rows["scale"] == "2"
    assert rows["changes"] == f"14 matrices: {', '.join(sorted(adapters.LAYER))}"


def test_inspect_speaks_json(corral, adapter):
    """The same for programs."""
    found = json.loads(corral("lora", "inspect", adapter, "--json").out)
    assert (found["ranks"], found["alpha"], found["matrices"]) == ([4], 8.0, 14)
    assert found["file_bytes"] == adapter.stat().st_size


def test_inspect_checks_the_base(corral, adapter, tmp_path):
    """--base says whether the adapter fits a model."""
    base = tiny.write(tmp_path / "base.gguf")
    assert corral("lora", "inspect", adapter, "--base", base).code == 0
    other = tiny.write(tmp_path / "other.gguf", "qwen2", table=tiny.tensors("qwen2"))
    refused = corral("lora", "inspect", adapter, "--base", other)
    assert refused.code == 1
    assert refused.out == ""
    assert "is for llama, other.gguf is qwen2" in refused.err


def test_refuses_what_it_does_not_know(corral, adapter):
    """A word that is no subcommand is a usage error; no word at all shows the words there are."""
    assert corral("lora", "frobnicate", adapter).code == 2
    assert "it has inspect, merge" in corral("lora", "frobnicate").err
    assert "inspect" in corral("lora").out
    assert corral("lora", "inspect", "nowhere.gguf").code == 2


def test_merge_writes_a_model(corral, adapter, tmp_path):
    """The file that is written is a model, whose changed weights may have another type."""
    base, out = tiny.write(tmp_path / "base.gguf"), tmp_path / "out.gguf"
    done = corral(
        "lora", "merge", base, f"{adapter}:0.5", "-o", out, "--merge-type", "f16", "--json"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "path": str(out),
        "changed": 14,
        "size_bytes": out.stat().st_size,
    }
    with open_model(out) as model:
        assert model.tensors["blk.0.attn_q.weight"].dtype is DType.F16
        assert model.tensors["token_embd.weight"].dtype is DType.F32


def test_merge_needs_what_fits(corral, adapter, tmp_path):
    """No model, no output and an adapter of another model are told, and nothing is written."""
    other = tiny.write(tmp_path / "other.gguf", "qwen2", table=tiny.tensors("qwen2"))
    out = tmp_path / "out.gguf"
    assert corral("lora", "merge", other, adapter).code == 2
    refused = corral("lora", "merge", other, adapter, "-o", out)
    assert (refused.code, out.exists()) == (1, False)
    assert "is for llama" in refused.err


def test_merge_spares_what_it_reads(corral, adapter, tmp_path):
    """An adapter is not written over, whatever it is called, and keeps every byte."""
    base, link = tiny.write(tmp_path / "base.gguf"), tmp_path / "link.gguf"
    link.symlink_to(adapter)
    before = adapter.read_bytes()
    for out in (adapter, link):
        refused = corral("lora", "merge", base, adapter, "-o", out)
        assert refused.code == 2
        assert f"{out} is the adapter that is read: name another file" in refused.err
    assert adapter.read_bytes() == before


def test_merge_blames_the_file_at_fault(corral, adapter, tmp_path):
    """What is wrong with an adapter is told of its file, what is wrong with the model of that."""
    base, out = tiny.write(tmp_path / "base.gguf"), tmp_path / "out.gguf"
    wrong = adapters.write(tmp_path / "wrong.gguf", family="qwen3")
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(adapter.read_bytes()[:-64])
    for bad in (wrong, torn):
        refused = corral("lora", "merge", base, adapter, bad, "-o", out)
        assert refused.code == 1
        assert f"{bad}: " in refused.err
        assert str(base) not in refused.err
    base.write_bytes(base.read_bytes()[:-64])
    assert f"{base}: " in corral("lora", "merge", base, adapter, "-o", out).err


def test_merge_tells_which_adapters_overflow(corral, adapter, tmp_path):
    """A sum beyond F32 is the adapters' fault, and no file appears."""
    base, out = tiny.write(tmp_path / "base.gguf"), tmp_path / "out.gguf"
    large = tmp_path / "large.gguf"
    pairs = {name: (a * 1e19, b * 1e20) for name, (a, b) in adapters.halves().items()}
    write_model(large, adapters.metadata(), adapters.table(pairs))
    refused = corral("lora", "merge", base, large, "-o", out)
    assert (refused.code, out.exists()) == (1, False)
    assert f"{large}: what is added to blk." in refused.err
    assert "use a smaller scale" in refused.err
