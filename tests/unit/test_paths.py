"""The cache tree is private, and compiled code is only taken from a directory nobody can write."""

import errno
import os
import stat
from pathlib import Path

import pytest

from corral.errors import ResourceError
from corral.paths import CacheTree


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def tree(tmp_path):
    old = os.umask(0)
    yield CacheTree(tmp_path / "deep" / "corral")
    os.umask(old)


@pytest.mark.parametrize("name", ["models", "kernels", "sessions"])
def test_directories_are_made_private(tree, name):
    """A directory is made when it is asked for, for its owner only, and asking again is fine."""
    directory = getattr(tree, name)()
    assert directory == tree.root / name
    assert mode_of(directory) == mode_of(tree.root) == 0o700
    assert getattr(tree, name)() == directory
    assert [entry.name for entry in tree.root.iterdir()] == [name]


def test_contexts_file(tree):
    """The file of context costs has a place before it exists."""
    path = tree.contexts_file()
    assert path == tree.root / "contexts.json"
    assert path.parent.is_dir()
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
@pytest.mark.parametrize("which", ["root", "kernels"])
def test_kernels_writable_by_others(tree, mode, which):
    """Compiled code is refused where others can write, and the message says what to do."""
    directory = tree.kernels()
    (tree.root if which == "root" else directory).chmod(mode)
    with pytest.raises(ResourceError, match=rf"mode {mode:04o}.*chmod 700"):
        tree.kernels()
    assert tree.models().is_dir()


def test_kernels_readable_by_others(tree):
    """Others may read."""
    tree.kernels().chmod(0o755)
    assert tree.kernels().is_dir()


def test_kernels_of_another_user(tree, monkeypatch):
    """Compiled code is refused where another user owns the directory."""
    tree.kernels()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(ResourceError, match=r"belongs to user .* not to you \(user 12345\)"):
        tree.kernels()


def test_kernels_behind_a_link(tree, tmp_path):
    """A link in the place of the kernels directory is not followed."""
    tree.models()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tree.root / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResourceError, match="link"):
        tree.kernels()


def test_root_behind_a_link(tmp_path):
    """The whole cache may lie behind a link, if what it points to is private."""
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    assert CacheTree(tmp_path / "link").kernels().is_dir()
    real.chmod(0o777)
    with pytest.raises(ResourceError, match="written by others"):
        CacheTree(tmp_path / "link").kernels()


def refuse_kernels(monkeypatch, number):
    """Let the system refuse to make the directory of kernels, as it does for others than root."""
    make = Path.mkdir

    def refuse(self, *arguments, **keywords):
        if self.name == "kernels":
            raise OSError(number, os.strerror(number))
        make(self, *arguments, **keywords)

    monkeypatch.setattr(Path, "mkdir", refuse)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_kernels_on_a_read_only_disk(tree, monkeypatch, number):
    """Where the directory of kernels may not be made it stays missing; that is no error."""
    refuse_kernels(monkeypatch, number)
    assert tree.kernels() == tree.root / "kernels"
    assert not tree.kernels().exists()
    tree.root.chmod(0o777)
    assert not tree.kernels().exists()


def test_kernels_that_cannot_be_a_directory(tree, monkeypatch):
    """Any other refusal is told."""
    refuse_kernels(monkeypatch, errno.ENAMETOOLONG)
    with pytest.raises(ResourceError, match="set CORRAL_CACHE"):
        tree.kernels()


def test_file_in_the_way(tmp_path):
    """A file where a directory should be is an error that names the setting."""
    (tmp_path / "models").write_text("")
    with pytest.raises(ResourceError, match="set CORRAL_CACHE"):
        CacheTree(tmp_path).models()
    with pytest.raises(ResourceError, match="set CORRAL_CACHE"):
        CacheTree(tmp_path / "models").sessions()


def test_overlong_name(tmp_path):
    """A path the system refuses is an error of ours."""
    with pytest.raises(ResourceError, match="cannot make"):
        CacheTree(tmp_path / ("x" * 5000)).models()
