"""Settings are read from the environment once, with types, and refused when they make no sense."""

from pathlib import Path

import pytest

from corral import config
from corral.config import Settings, read_settings
from corral.errors import InvalidArgument


def test_defaults(monkeypatch):
    """An empty environment gives the defaults, with the cache at the usual place."""
    monkeypatch.setenv("HOME", "/home/someone")
    expected = Settings(cache=Path("/home/someone/.cache/corral"))
    assert read_settings({}) == expected
    empty = ("CORRAL_CACHE", "CORRAL_LOG", "CORRAL_THREADS", "CORRAL_CPU", "XDG_CACHE_HOME")
    assert read_settings(dict.fromkeys(empty, "")) == expected


def test_everything_set():
    """Each variable sets its field."""
    environment = {
        "CORRAL_CACHE": "/big/corral",
        "XDG_CACHE_HOME": "/cache",
        "CORRAL_LOG": "DEBUG",
        "CORRAL_THREADS": "8",
        "CORRAL_CPU": "avx2",
    }
    assert read_settings(environment) == Settings(Path("/big/corral"), "debug", 8, "avx2")


@pytest.mark.parametrize(
    ("own", "usual", "expected"),
    [
        ("", "/cache", "/cache/corral"),
        ("", "relative", "/home/someone/.cache/corral"),
        ("~/corral", "/cache", "/home/someone/corral"),
    ],
)
def test_cache(monkeypatch, own, usual, expected):
    """Our own variable comes first, then the usual one if it is absolute, then the home."""
    monkeypatch.setenv("HOME", "/home/someone")
    environment = {"CORRAL_CACHE": own, "XDG_CACHE_HOME": usual}
    assert read_settings(environment).cache == Path(expected)


def test_relative_cache_stays_where_it_was(tmp_path, monkeypatch):
    """A relative cache directory does not move when the process changes its directory."""
    monkeypatch.chdir(tmp_path)
    assert read_settings({"CORRAL_CACHE": "here"}).cache == tmp_path / "here"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CORRAL_LOG", "loud"),
        ("CORRAL_LOG", "x" * 10**6),
        *(("CORRAL_THREADS", v) for v in ("0", "-1", "1025", "2.5", "many", "٣", "9" * 5000)),
        *(("CORRAL_CPU", v) for v in ("AVX2 ", "a b", "../x", "x" * 33)),
    ],
)
def test_values_that_make_no_sense(variable, value):
    """A variable that cannot be meant is refused by name, in a short message."""
    with pytest.raises(InvalidArgument, match=rf"^environment variable {variable} is ") as caught:
        read_settings({variable: value})
    assert len(str(caught.value)) < 300


def test_no_home(monkeypatch):
    """A user without a home directory is told which variable helps."""

    def expanduser(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", expanduser)
    with pytest.raises(InvalidArgument, match="set CORRAL_CACHE"):
        read_settings({})


def test_environment_is_read_once(monkeypatch):
    """A later change of the environment changes nothing."""
    config.settings.cache_clear()
    monkeypatch.setenv("CORRAL_THREADS", "3")
    first = config.settings()
    monkeypatch.setenv("CORRAL_THREADS", "4")
    assert config.settings() is first
    assert first.threads == 3
    config.settings.cache_clear()


def test_what_a_child_inherits(monkeypatch):
    """A child gets the named variables that are set, empty ones too, and nothing else."""
    monkeypatch.setenv("CORRAL_TEST_SET", "a=b")
    monkeypatch.setenv("CORRAL_TEST_EMPTY", "")
    monkeypatch.delenv("CORRAL_TEST_UNSET", raising=False)
    names = ("CORRAL_TEST_SET", "CORRAL_TEST_EMPTY", "CORRAL_TEST_UNSET")
    assert config.inherited(names) == {"CORRAL_TEST_SET": "a=b", "CORRAL_TEST_EMPTY": ""}
