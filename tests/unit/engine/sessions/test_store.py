"""A directory of pieces: bounded by its quota, safe to share, and never believed."""

import os
import threading
import time

import numpy as np
import pytest

from corral.engine.sessions.file import Form
from corral.engine.sessions.store import SessionStore
from corral.errors import ResourceError
from corral.kv.chains import Piece
from corral.kv.prefix import as_bytes

FORM = Form(b"k" * 20, (1000,))


def piece(token):
    return Piece.of(0, b"", as_bytes([token] * 32))


SIZE = FORM.file_bytes(piece(0))


def layers():
    return [np.zeros((1, 1000), np.uint8)]


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens the directory with room for so many pieces."""

    def open_one(count=100, form=FORM):
        return SessionStore(tmp_path / "sessions", form, quota_bytes=count * SIZE)

    return open_one


def held(store):
    """Return the first token of each piece that is there."""
    return sorted(int.from_bytes(found.tokens[:4], "little") for found in store.pieces())


def test_what_was_written_is_found(opened):
    """By whoever opens the directory next; with the time of its last use."""
    assert opened().write(piece(1), layers(), at_ns=5 * 10**18) == SIZE
    ((found, kept),) = opened().pieces().items()
    assert (found, kept.used_ns, kept.size_bytes) == (piece(1), 5 * 10**18, SIZE)
    assert opened().touch(piece(1), 6 * 10**18)
    assert not opened().touch(piece(2), 6 * 10**18)
    assert next(iter(opened().pieces().values())).used_ns == 6 * 10**18


def test_the_longest_unused_go_first(opened):
    """Those of other models count and go as well."""
    store, other = opened(3), opened(3, Form(b"o" * 20, (1000,)))
    other.write(piece(9), layers(), at_ns=1)
    for token in (2, 3, 4):
        store.write(piece(token), layers(), at_ns=token)
    assert held(other) == []
    assert held(store) == [2, 3, 4]
    store.touch(piece(2), 10)
    store.write(piece(5), layers(), at_ns=11)
    assert held(store) == [2, 4, 5]


def test_a_newer_one_does_not_go_for_an_older(opened):
    """What would push out something used later is not written."""
    store = opened(2)
    store.write(piece(1), layers(), at_ns=10)
    store.write(piece(2), layers(), at_ns=11)
    assert store.write(piece(3), layers(), at_ns=5) == 0
    assert held(store) == [1, 2]


def test_one_that_is_larger_than_the_quota_is_not_written(opened):
    """And nothing goes for it."""
    assert opened(0).write(piece(1), layers(), at_ns=10) == 0
    assert held(opened()) == []


def test_what_cannot_be_used_is_removed(opened):
    """Damaged files, files under a wrong name and files of nobody are refused, and counted."""
    store = opened()
    store.write(piece(1), layers(), at_ns=10)
    (kept,) = store.pieces().values()
    kept.path.with_name("0" * 40 + ".kv").write_bytes(kept.path.read_bytes())
    kept.path.with_name("1" * 40 + ".kv").write_bytes(b"nothing")
    assert held(store) == [1]
    assert store.num_refused == 2
    assert len(list(kept.path.parent.iterdir())) == 1


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(opened, tmp_path):
    """A temporary file is somebody's work, until it is old."""
    store = opened()
    folder = tmp_path / "sessions" / FORM.key.hex()
    for name, age in ((".old", 7200), (".new", 0)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age,) * 2)
    store.settle()
    assert [one.name for one in folder.iterdir()] == [".new"]


def test_a_directory_of_others_is_refused(tmp_path):
    """Who could write there could make a model say anything."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ResourceError, match="others cannot write"):
        SessionStore(folder, FORM, quota_bytes=1)


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    """A file in its place, or a parent that allows nothing."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot make"):
        SessionStore(tmp_path / "file", FORM, quota_bytes=1)


def test_many_may_write_at_once(opened):
    """Every file is whole, and the quota holds afterwards."""
    failures = []

    def write(store, first):
        try:
            for number in range(15):
                store.write(piece(first + number), layers(), at_ns=time.time_ns())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(opened(10), 100 * count)) for count in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    store = opened(10)
    found = store.pieces()
    assert store.num_refused == 0
    for kept in found.values():
        assert len(list(store.read(kept))) == 1
    # A file that was being written while others made room was not counted yet.
    assert 10 <= len(found) <= 14
    store.make_room(0)
    assert len(store.pieces()) == 10
