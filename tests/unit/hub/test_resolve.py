"""What a model's name may be, and what is said when it is none."""

from pathlib import Path

import pytest

from corral.errors import InvalidArgument, ModelNotFound
from corral.hub import demo, huggingface, resolve


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Make a cache with some models and work in another, empty directory."""
    directory = tmp_path / "cache"
    directory.mkdir()
    for name in (
        "Qwen2-0.5B.Q4_K_M.gguf",
        "Qwen2-0.5B.Q8_0.gguf",
        "big-00001-of-00002.gguf",
        "big-00002-of-00002.gguf",
        "notes.txt",
        ".fetch-x.gguf.part",
    ):
        (directory / name).touch()
    monkeypatch.setattr(resolve, "_models", lambda: directory)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return directory


def test_takes_a_path(models, tmp_path):
    """A path of a file is returned as it is, as text and as Path."""
    path = tmp_path / "x.gguf"
    path.touch()
    assert resolve.resolve(str(path)) == path
    assert resolve.resolve(path) == path


@pytest.mark.parametrize(
    ("name", "is_fetched"),
    [
        ("demo", True),
        ("hf:owner/repo", True),
        ("x.gguf", False),
        (Path("demo"), False),
        ("", False),
    ],
)
def test_tells_what_others_may_have_to_be_asked_for(name, is_fetched):
    """By the name alone, without looking whether it is there."""
    assert resolve.may_fetch(name) is is_fetched


def test_a_file_goes_before_a_cached_name(models):
    """A file of the current directory is meant rather than a cached model of that name."""
    Path("big").touch()
    assert resolve.resolve("big") == Path("big")
    assert resolve.resolve("./big") == Path("big")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Qwen2-0.5B.Q8_0", "Qwen2-0.5B.Q8_0.gguf"),
        ("Qwen2-0.5B.Q8_0.gguf", "Qwen2-0.5B.Q8_0.gguf"),
        ("qwen2-0.5b.q4", "Qwen2-0.5B.Q4_K_M.gguf"),
        ("b", "big-00001-of-00002.gguf"),
        ("big", "big-00001-of-00002.gguf"),
    ],
)
def test_takes_a_cached_name(models, name, file):
    """A cached model answers to its stem, in any case, or to a beginning only it has."""
    assert resolve.resolve(name) == models / file


def test_an_exact_name_may_begin_another(models):
    """A name that is complete is not ambiguous because a longer one begins with it."""
    (models / "big-brother.gguf").touch()
    assert resolve.resolve("big") == models / "big-00001-of-00002.gguf"


def test_names_the_candidates_of_an_ambiguous_beginning(models):
    """An ambiguous beginning lists what it could be."""
    with pytest.raises(ModelNotFound, match=r"Qwen2-0.5B.Q4_K_M, Qwen2-0.5B.Q8_0; write more"):
        resolve.resolve("qwen")


def test_proposes_names_that_are_near(models):
    """A misspelt name gets a proposal, the demo included."""
    with pytest.raises(ModelNotFound, match=r"did you mean Qwen2-0.5B.Q8_0"):
        resolve.resolve("Qwen3-0.5B.Q8_0")
    with pytest.raises(ModelNotFound, match=r"did you mean demo\?"):
        resolve.resolve("dmeo")


def test_says_what_an_empty_cache_can_do(models):
    """With nothing cached the message says where models come from."""
    for path in models.iterdir():
        path.unlink()
    with pytest.raises(ModelNotFound, match="the cache is empty"):
        resolve.resolve("llama")


def test_proposes_files_that_are_near(models):
    """A misspelt path gets a proposal from its directory."""
    Path("model-a.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"did you mean model-a\.gguf\?"):
        resolve.resolve("./model-b.gguf")
    with pytest.raises(ModelNotFound, match="no directory nowhere"):
        resolve.resolve("nowhere/model.gguf")


def test_refuses_a_directory(models):
    """A directory is refused with the files it holds."""
    Path("folder").mkdir()
    Path("folder/a.gguf").touch()
    with pytest.raises(InvalidArgument, match=r"directory with a\.gguf"):
        resolve.resolve("folder")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_refuses_what_is_no_name(models, name):
    """Empty names and NULs are refused."""
    with pytest.raises(InvalidArgument):
        resolve.resolve(name)


def test_demo_is_fetched(models, monkeypatch):
    """`demo` fetches the pinned model into the cache."""
    calls = []
    monkeypatch.setattr(demo, "fetch", lambda *a, **k: calls.append((a, k)) or Path("x"))
    assert resolve.resolve("demo") == Path("x")
    assert calls == [((demo.DEMO, models), {"progress": None})]


def test_hub_names_go_to_the_hub(models, monkeypatch):
    """`hf:` names are handed on without the prefix; pull asks for the newest."""
    calls = []
    monkeypatch.setattr(huggingface, "fetch", lambda *a, **k: calls.append((a, k)) or Path("x"))
    resolve.resolve("hf:a/b")
    resolve.pull("hf:a/b")
    assert calls[0] == (("a/b",), {"progress": None})
    assert calls[1] == (("a/b",), {"progress": None, "is_fresh_wanted": True})


def test_pull_refuses_a_path(models):
    """Only what can be fetched can be pulled."""
    with pytest.raises(InvalidArgument, match="expected demo or hf:"):
        resolve.pull("big")
