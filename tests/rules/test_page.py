"""The page is small files that need no build, ask nobody else, and make no markup of text."""

import re
from pathlib import Path

import pytest

from corral.api import page

FOLDER = Path(page.__file__).with_name("static")
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
FILE_LINES = 300
BYTES = 200_000
NAMESPACE = "http://www.w3.org/2000/svg"
FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"),
    *("DOMParser", "createContextualFragment", "srcdoc"),
)


def name(path):
    return path.relative_to(FOLDER).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files(path):
    """A file is read at once, and names no other host."""
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= FILE_LINES
    assert re.findall(r"https?://\w[^\s\"'`)]*", text.replace(NAMESPACE, "")) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_scripts(path):
    """A script opens with what it is for, and has none of the ways from text to markup or code."""
    text = path.read_text("utf-8")
    assert text.startswith("/**")
    assert [word for word in FORBIDDEN if word in text] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_imports(path):
    """What a script imports is a file of the page."""
    text = path.read_text("utf-8")
    for target in re.findall(r"""(?:from|import)\(?\s*["']([^"']+)["']""", text):
        assert target.startswith("."), target
        assert (path.parent / target).resolve() in FILES, target


def test_markup():
    """The page holds no script and no style of its own, and its files are there."""
    text = (FOLDER / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text) == []
    for target in re.findall(r"""<(?:link|script)[^>]*(?:href|src)=["']([^"']+)["']""", text):
        assert FOLDER / target in FILES, target


def test_the_whole_is_small():
    """A phone gets the page at once."""
    assert sum(path.stat().st_size for path in FILES) <= BYTES
    assert {path.suffix for path in FILES} == {".html", ".js", ".css", ".svg"}
