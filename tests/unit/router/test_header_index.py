"""The index of headers: what is kept, and when it is believed."""

import json
from dataclasses import replace

import pytest

from corral.router import header_index
from corral.router.entry import Unusable
from corral.router.header_index import HeaderIndex, header_key
from corral.router.plan_job import PlanJob

JOB = PlanJob(path="m.gguf", kinds=("cpu",))
BAD = Unusable("invalid_model_file", "it is bad")


def test_what_was_put_is_there_the_next_time(tmp_path):
    """In one file, and what nobody asked for stays in it."""
    path = tmp_path / "headers.json"
    index = HeaderIndex(path)
    assert index.get("a") is None
    index.put("a", BAD)
    index.put("b", BAD)
    index.save()
    again = HeaderIndex(path)
    assert again.get("a") == BAD
    again.put("c", BAD)
    again.save()
    assert [HeaderIndex(path).get(key) for key in "abcd"] == [BAD, BAD, BAD, None]
    assert [entry.name for entry in tmp_path.iterdir()] == ["headers.json"]


def test_nothing_new_is_not_written(tmp_path):
    """A start without changes leaves the disk alone."""
    path = tmp_path / "headers.json"
    index = HeaderIndex(path)
    index.save()
    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"version": 2, "headers": {}}', b'{"version": 1, "headers": 3}'],
)
def test_a_damaged_index_is_an_empty_one(tmp_path, content):
    """And is replaced by a whole one."""
    path = tmp_path / "headers.json"
    path.write_bytes(content)
    index = HeaderIndex(path)
    assert index.get("a") is None
    index.put("a", BAD)
    index.save()
    assert HeaderIndex(path).get("a") == BAD


def test_a_damaged_header_is_not_believed(tmp_path):
    """The others are."""
    path = tmp_path / "headers.json"
    whole = {"code": BAD.code, "message": BAD.message}
    path.write_text(json.dumps({"version": 1, "headers": {"a": {"code": 3}, "b": whole}}))
    index = HeaderIndex(path)
    assert (index.get("a"), index.get("b")) == (None, BAD)


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path):
    """Headers are then read again the next time."""
    index = HeaderIndex(tmp_path / "nowhere" / "headers.json")
    index.put("a", BAD)
    index.save()
    assert index.get("a") == BAD


def test_it_does_not_grow_for_ever(tmp_path, monkeypatch):
    """What nobody asks for goes when there is too much, the oldest first."""
    monkeypatch.setattr(header_index, "_MOST_HEADERS", 3)
    path = tmp_path / "headers.json"
    index = HeaderIndex(path)
    for key in "abc":
        index.put(key, BAD)
    index.save()
    index = HeaderIndex(path)
    index.put("d", BAD)
    index.save()
    assert [HeaderIndex(path).get(key) for key in "abcd"] == [None, BAD, BAD, BAD]


def test_a_key_changes_with_all_that_it_depends_on(monkeypatch):
    """Files, sizes, times, presets, processors."""
    monkeypatch.delenv("CORRAL_THREADS", raising=False)
    keys = [
        header_key(["m"], [1], [2], JOB),
        header_key(["n"], [1], [2], JOB),
        header_key(["m"], [3], [2], JOB),
        header_key(["m"], [1], [3], JOB),
        *(
            header_key(["m"], [1], [2], replace(JOB, **{name: value}))
            for name, value in {
                "context": 5,
                "parallel": 2,
                "kv_type": "f32",
                "threads": 77,
            }.items()
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert header_key(["m"], [1], [2], JOB) == keys[0]
    monkeypatch.setattr(header_index, "_code_digest", lambda: "other code")
    assert header_key(["m"], [1], [2], JOB) != keys[0]
