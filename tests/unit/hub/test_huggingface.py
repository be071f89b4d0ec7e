"""Models of the hub: which file is taken, what is cached, and what its errors become."""

import os
import subprocess
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from corral.errors import DownloadError, InvalidArgument, ModelNotFound
from corral.hub import huggingface
from corral.hub.huggingface import Reference, choose


def reference(file=None, type_=None):
    return Reference("owner/repo", file, type_)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/repo", reference()),
        ("owner/repo/m.gguf", reference("m.gguf")),
        ("owner/repo/sub/m.gguf", reference("sub/m.gguf")),
        ("owner/repo:Q8_0", reference(None, "Q8_0")),
    ],
)
def test_reads_references(text, expected):
    """The three forms of a reference are told apart."""
    assert Reference.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "owner", "owner/", "/repo", "a/b:", "owner/repo/", "ä/b", "a b/c"]
)
def test_refuses_other_references(text):
    """Anything else says what is expected."""
    with pytest.raises(InvalidArgument, match="expected hf:owner/repo"):
        Reference.parse(text)


TWO = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m.gguf", "m.imatrix.gguf"]
SHARDS = ["q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("files", "wanted", "expected"),
    [
        (["README.md", "only.gguf"], reference(), ["only.gguf"]),
        (TWO, reference(), ["m-Q4_K_M.gguf"]),
        (TWO, reference("m-Q8_0.gguf"), ["m-Q8_0.gguf"]),
        (TWO, reference(None, "q8_0"), ["m-Q8_0.gguf"]),
        (SHARDS, reference(), SHARDS),
        (SHARDS + TWO, reference(SHARDS[1]), SHARDS),
        (SHARDS + TWO, reference("q/m-Q8_0"), SHARDS),
    ],
)
def test_chooses_a_model(files, wanted, expected):
    """The only model, the preferred type, or what was named; companions are no models."""
    assert choose(files, wanted) == tuple(expected)


@pytest.mark.parametrize(
    ("files", "wanted", "error", "message"),
    [
        ([], reference(), ModelNotFound, "no GGUF file"),
        (["a-Q5_0.gguf", "b-Q8_0.gguf"], reference(), InvalidArgument, "has 2 models; name one"),
        (TWO, reference("m-Q6_K.gguf"), ModelNotFound, "did you mean"),
        (TWO, reference(None, "Q2_K"), InvalidArgument, "has no Q2_K"),
        (SHARDS[:1], reference(), ModelNotFound, "1 of the 2 shards"),
    ],
)
def test_says_what_can_be_chosen(files, wanted, error, message):
    """Where no one model is meant the message lists what there is."""
    with pytest.raises(error, match=message):
        choose(files, wanted)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Replace the hub by a list of files and an error to raise; files come into a real cache."""
    state = SimpleNamespace(files=[], error=None, downloads=[])
    snapshot = tmp_path / "models--owner--repo" / "snapshots" / "abc"

    def model_info(self, repository, *, timeout):
        if state.error:
            raise state.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in state.files])

    def download(repository, file, *, tqdm_class):
        bar = tqdm_class(total=100, unit="B", disable=True, desc=file)
        bar.update(60)
        bar.update(40)
        bar.close()
        state.downloads.append(file)
        cache(file)
        return str(snapshot / file)

    def cache(*files):
        for file in files:
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / file).touch()
        reference_file = tmp_path / "models--owner--repo" / "refs" / "main"
        reference_file.parent.mkdir(exist_ok=True)
        reference_file.write_text("abc")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    state.cache, state.snapshot = cache, snapshot
    return state


def test_downloads_and_reports(hub, capfd):
    """A model is fetched with its shards, progress is reported and nothing is drawn."""
    hub.files = SHARDS
    calls = []
    path = huggingface.fetch("owner/repo", progress=lambda *call: calls.append(call))
    assert path == hub.snapshot / SHARDS[0]
    assert hub.downloads == SHARDS
    assert calls == [("download", 60, 100), ("download", 100, 100)] * 2
    assert capfd.readouterr() == ("", "")


def test_older_versions_download_without_reports(hub, monkeypatch):
    """Versions of the library that take no progress bar are used all the same."""
    hub.files = TWO
    path = hub.snapshot / "m-Q4_K_M.gguf"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repository, file: str(path))
    assert huggingface.fetch("owner/repo") == path


@pytest.mark.parametrize("name", ["owner/repo", "owner/repo:Q4_K_M", "owner/repo/m-Q4_K_M.gguf"])
def test_uses_the_cache_without_asking(hub, name):
    """A cached model is used without a word to the hub."""
    hub.cache("m-Q4_K_M.gguf")
    hub.error = AssertionError("asked the hub")
    assert huggingface.fetch(name) == hub.snapshot / "m-Q4_K_M.gguf"


def test_asks_the_hub_when_the_preferred_type_is_not_cached(hub):
    """Another cached type does not stand for the one the hub would choose."""
    hub.cache("m-Q8_0.gguf")
    hub.files = TWO
    assert huggingface.fetch("owner/repo") == hub.snapshot / "m-Q4_K_M.gguf"


def test_takes_what_is_cached_without_a_network(hub):
    """If the hub cannot be asked, the only cached model will do; pull still fails."""
    hub.cache("m-Q8_0.gguf")
    hub.error = ConnectionError("no route to host")
    assert huggingface.fetch("owner/repo") == hub.snapshot / "m-Q8_0.gguf"
    with pytest.raises(DownloadError, match="no route to host"):
        huggingface.fetch("owner/repo", is_fresh_wanted=True)


def test_an_incomplete_set_of_shards_is_not_cached(hub):
    """Shards that are missing are fetched."""
    hub.cache(SHARDS[0])
    hub.files = SHARDS
    huggingface.fetch(f"owner/repo/{SHARDS[0]}")
    assert hub.downloads == SHARDS


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (errors.GatedRepoError, DownloadError, "gated"),
        (errors.RepositoryNotFoundError, ModelNotFound, "does not exist or is private"),
        (errors.RemoteEntryNotFoundError, ModelNotFound, "name another"),
        (errors.LocalEntryNotFoundError, DownloadError, "not in the local cache"),
        (errors.OfflineModeIsEnabled, DownloadError, "HF_HUB_OFFLINE"),
        (errors.HFValidationError, ModelNotFound, "check the name"),
        (OSError, DownloadError, "reason of several lines; try again"),
    ],
)
def test_translates_errors(hub, kind, error, message):
    """Each error of the library becomes one of corral's, on one line, saying what to do."""
    hub.error = kind.__new__(kind)
    Exception.__init__(hub.error, "reason of several lines\nsecond line")
    hub.error.args = ("reason of several lines\nsecond line",)
    with pytest.raises(error, match=message) as caught:
        huggingface.fetch("owner/repo")
    assert "\n" not in str(caught.value)


def test_without_a_network_one_error_comes_soon(tmp_path):
    """Where the hub cannot be reached it is asked once, and the library under it says nothing."""
    environment = os.environ | {
        "HF_ENDPOINT": "http://127.0.0.1:9",  # the port where nobody listens
        "HF_HUB_CACHE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "corral", "run", "-m", "hf:owner/repo", "hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,  # the library's own retries take 24 s
        env=environment,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("corral: hf:owner/repo could not be fetched: the hub cannot ")
    assert done.stderr.count("\n") == 1


def test_says_when_the_library_is_missing(monkeypatch):
    """Without huggingface_hub the message names it."""
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match="need huggingface_hub"):
        huggingface.fetch("owner/repo")
