"""Runs the command line in this process or in another, with a fake model."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from corral.cli.main import main
from unit.cli import fake_model


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def corral(monkeypatch, capsys):
    """Return a function that runs a command with the fake model in this process."""
    fake_model.install(monkeypatch.setattr)

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def environment(tmp_path):
    """Return the environment of a child process that finds corral, the fakes and no cache."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CORRAL_CACHE": str(tmp_path / "cache"),
        "CORRAL_LOG": "",
    }


@pytest.fixture
def process(environment):
    """Return a function that runs `python -m MODULE …` to its end."""

    def run(module, *arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "env": environment, "timeout": 30} | options
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run
