"""Which models are found in folders, and what they are called."""

import os

import pytest

from corral.errors import InvalidArgument, InvalidModelFile, ModelNotFound
from corral.router.children import Order, WorkerChild
from corral.router.entry import HOST, ModelEntry, Preset
from corral.router.placing import Need
from corral.router.scan import look_at, require_unchanged, scan
from machines import machine


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
    return folder


def names(*folders):
    return [model.name for model in scan(map(str, folders))]


def test_files_are_models_and_sets_of_shards_are_one(tmp_path):
    """Others are none: projectors, hidden files, other endings."""
    touch(
        tmp_path,
        *("b.gguf", "a.gguf", "notes.txt", "mmproj-a.gguf", ".hidden.gguf", ".cache/x.gguf"),
        *(f"big-0000{n}-of-00003.gguf" for n in (3, 1, 2)),
    )
    (tmp_path / "folder.gguf").mkdir()
    found = scan([str(tmp_path)])
    assert [model.name for model in found] == ["a", "b", "big"]
    assert [path[-21:] for path in found[2].paths] == [
        f"big-0000{n}-of-00003.gguf"[-21:] for n in (1, 2, 3)
    ]
    assert found[0].sizes == (6,)
    assert found[2].size_bytes == 3 * len("big-00001-of-00003.gguf")


def test_folders_in_folders_are_searched_once(tmp_path):
    """A link that leads back is not followed for ever."""
    touch(tmp_path, "one/two/deep.gguf")
    (tmp_path / "one" / "back").symlink_to(tmp_path)
    (tmp_path / "link.gguf").symlink_to(tmp_path / "one" / "two" / "deep.gguf")
    assert names(tmp_path) == ["deep", "link"]
    assert names(tmp_path, tmp_path) == ["deep", "link"]


def test_each_name_is_given_once(tmp_path):
    """The later of two is called by its folder too."""
    touch(tmp_path, "m.gguf", "x/m.gguf", "y/m.gguf", "x/other.gguf")
    other = touch(tmp_path / "z", "m.gguf")
    assert names(tmp_path) == ["m", "other", "x/m", "y/m", "z/m"]
    assert names(tmp_path / "x", tmp_path / "y", other) == ["m", "other", "y/m", "z/m"]
    touch(tmp_path, "p/q/m.gguf", "r/q/m.gguf", "s/q/m.gguf")
    assert names(tmp_path / "p" / "q", tmp_path / "r" / "q", tmp_path / "s" / "q") == [
        *("m", "q/m", "q/m#2")
    ]


def test_what_is_not_there_is_left_out(tmp_path):
    """And dangling links too."""
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    assert names(tmp_path, tmp_path / "nothing") == []


def test_one_file_is_looked_at_with_its_shards(tmp_path):
    """Whichever of them is named."""
    touch(
        tmp_path, "a.gguf", *(f"s-0000{n}-of-00002.gguf" for n in (1, 2)), "s-00001-of-00003.gguf"
    )
    assert look_at(tmp_path / "a.gguf").name == "a"
    found = look_at(tmp_path / "s-00002-of-00002.gguf")
    assert found.name == "s"
    assert len(found.paths) == 2
    assert found.modified_s > 0


def test_a_file_that_is_none_is_refused(tmp_path):
    """Missing, or a folder."""
    with pytest.raises(ModelNotFound, match=r"no\.gguf"):
        look_at(tmp_path / "no.gguf")
    with pytest.raises(InvalidArgument, match="is no file"):
        look_at(tmp_path)


def entry_of(path):
    found = look_at(path)
    return ModelEntry(Preset(name="m"), found.paths, found.size_bytes, found.modified_s)


def test_files_that_changed_are_not_loaded(tmp_path):
    """What they need is not known: written since, larger, or gone."""
    path = touch(tmp_path, "m.gguf") / "m.gguf"
    entry = entry_of(path)
    require_unchanged(entry)
    os.utime(path, (1.0, 1.0))
    with pytest.raises(InvalidModelFile, match="reload"):
        require_unchanged(entry)
    entry = entry_of(path)
    path.write_bytes(b"another")
    with pytest.raises(InvalidModelFile):
        require_unchanged(entry)
    path.unlink()
    with pytest.raises(ModelNotFound):
        require_unchanged(entry)


def test_a_worker_is_not_started_for_a_file_that_changed(tmp_path):
    """Whoever wanted the model is told."""
    path = touch(tmp_path, "m.gguf") / "m.gguf"
    order = Order(entry_of(path), Need(("cpu",), {HOST: 5}), machine(10))
    path.write_bytes(b"another")
    with pytest.raises(InvalidModelFile):
        WorkerChild(order, lambda news: None)
