"""The commands that README and how-tos show exist, with the options they show."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from corral.cli.arguments import Parser
from corral.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]


def shown_commands(document):
    """Return the arguments of every `corral …` in the code blocks of a document."""
    blocks = re.findall(r"^```\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    calls = (re.search(r"(?:^|[|&] )corral ([a-z]+.*)", line) for line in lines)
    return [shlex.split(call[1], comments=True) for call in calls if call]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_shown_commands_can_be_parsed(document, monkeypatch):
    """Each command line of a document names a command and options that exist."""

    class Parsed(Exception):
        pass

    def parse(self, given):
        argparse.ArgumentParser.parse_args(self, given)
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parse)
    for arguments in shown_commands(document):
        module = __import__(f"corral.cli.{arguments[0]}", fromlist=["execute"])
        with pytest.raises(Parsed):
            module.execute(arguments[1:])


def test_the_readme_lists_every_command(capsys):
    """The README's table has a row for each command."""
    text = DOCUMENTS[0].read_text()
    assert main(["--help"]) == 0
    for command in COMMANDS:
        assert f"| `corral {command} " in text


def test_the_readme_begins_with_the_two_commands():
    """A newcomer copies two lines: one that answers and one that tests."""
    first, second, *_ = re.findall(r"^pip install .*$", DOCUMENTS[0].read_text(), re.MULTILINE)
    assert first == 'pip install . && corral run "What do horses eat?"'
    assert second == "pip install '.[test]' && pytest"


def test_the_readme_draws_every_folder():
    """The tree in the README has each folder of the package."""
    text = DOCUMENTS[0].read_text()
    folders = {path.parent.name for path in (ROOT / "src" / "corral").glob("*/__init__.py")}
    assert [folder for folder in sorted(folders) if f"\n  {folder}/ " not in text] == []


def test_links_between_documents_lead_somewhere():
    """A relative link names a file that exists."""
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)
