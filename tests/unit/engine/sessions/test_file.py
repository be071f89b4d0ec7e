"""A file holds a piece whole and unchanged, or it is refused."""

import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.engine.sessions import file
from corral.engine.sessions.file import Form
from corral.errors import InvalidSession
from corral.kv.chains import Piece
from corral.kv.prefix import as_bytes

FORM = Form(b"k" * 20, (64, 128, 64))
PIECE = Piece.of(3, b"p" * 32, as_bytes(range(70)))
LAYERS = [
    np.random.RandomState(size).randint(0, 256, (3, size)).astype(np.uint8) for size in FORM.layers
]


@pytest.fixture
def path(tmp_path):
    """Return a file with a piece."""
    file.write(tmp_path / "a.kv", FORM, PIECE, LAYERS, at_ns=10**18)
    return tmp_path / "a.kv"


def read(path, form=FORM):
    return list(file.read(path, form))


@pytest.mark.parametrize("piece", [PIECE, Piece.of(0, b"", as_bytes([1])), PIECE])
def test_it_comes_back_as_it_was(tmp_path, piece):
    """Tokens, parent and every byte; and nobody else may look into it."""
    path = tmp_path / "b.kv"
    layers = [layer[: len(piece.links)] for layer in LAYERS]
    file.write(path, FORM, piece, layers, at_ns=10**18)
    assert file.read_head(path, FORM) == piece
    for found, expected in zip(read(path), layers, strict=True):
        np.testing.assert_array_equal(found, expected)
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_mtime_ns == 10**18
    assert status.st_size == FORM.file_bytes(piece)
    assert [one.name for one in tmp_path.iterdir()] == ["b.kv"]


def test_another_key_is_another_model(path):
    """What was computed by one model is never read for another."""
    with pytest.raises(InvalidSession, match="another model"):
        file.read_head(path, Form(b"x" * 20, FORM.layers))
    with pytest.raises(InvalidSession, match="layers are others"):
        file.read_head(path, Form(FORM.key, (64, 128)))


def test_another_version_is_refused(path, monkeypatch):
    """A file of a later or an earlier form is not guessed at."""
    monkeypatch.setattr(file, "VERSION", file.VERSION + 1)
    with pytest.raises(InvalidSession, match=r"version 1, expected 2"):
        file.read_head(path, FORM)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_seen(path, data):
    """Bits that turned, and ends that are missing or too much: nothing of it is used."""
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [whole[:at], whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :], whole + b"\0"]
        )
    )
    other = path.with_name("damaged.kv")
    other.write_bytes(damaged)
    with pytest.raises(InvalidSession):
        read(other)


def test_a_full_disk_leaves_nothing(tmp_path):
    """What could not be written whole is not there at all, and an older file stays."""
    path = tmp_path / "c.kv"
    path.write_bytes(b"before")

    def failing():
        yield LAYERS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        file.write(path, FORM, PIECE, failing(), at_ns=1)
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == ["c.kv"]
