"""A test that a document names as proof exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("docs/comparison.md", "docs/memory-cases.md", "ARCHITECTURE.md")
_DEFINED = re.compile(r"^ *(?:def|class) ([Tt]est\w+)", re.MULTILINE)


def files_of(name):
    """Return the files that a document calls by a name, with or without folders."""
    return [path for path in (ROOT / "tests").rglob(Path(name).name) if str(path).endswith(name)]


def defined_in(name):
    """Return the tests in the files of a name."""
    return {test for path in files_of(name) for test in _DEFINED.findall(path.read_text("utf-8"))}


def cited(text):
    """Yield (file, test) for each test that is named; a name without a file is of the last one."""
    file = None
    for found in re.finditer(r"([\w/]*test_\w+\.py)(?:::(\w+))?|`([Tt]est_?\w+)`", text):
        file = found[1] or file
        if found[2] or found[3]:
            yield file, found[2] or found[3]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_cited_tests_exist(document):
    """Renaming a test is noticed where it is cited."""
    missing = [
        f"{file}::{test}"
        for file, test in cited((ROOT / document).read_text("utf-8"))
        if test not in defined_in(file)
    ]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_cited_files_exist(document):
    """Also those of which no single test is named."""
    names = re.findall(r"`([\w/]*test_\w+\.py)", (ROOT / document).read_text("utf-8"))
    assert not [name for name in names if not files_of(name)]
