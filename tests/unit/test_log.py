"""Logging is silent until it is configured, and no message can forge a line."""

import io
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import log


@pytest.fixture
def stream():
    root = logging.getLogger("corral")
    handlers, level, propagate = list(root.handlers), root.level, root.propagate
    yield io.StringIO()
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


def test_silent_as_a_library():
    """Importing and warning prints nothing, not even through logging's last resort."""
    code = "from corral import log; log.logger('corral.x').error('lost')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_stderr_for_the_command_line():
    """Configured logging goes to stderr; stdout stays for answers."""
    code = "from corral import log; log.configure(); log.logger('corral.x').warning('seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.endswith(" WARNING corral.x: seen\n")


@pytest.mark.parametrize(
    ("verbosity", "printed"),
    [(-9, "E"), (-1, "E"), (0, "WE"), (1, "IWE"), (2, "DIWE"), (9, "DIWE")],
)
def test_verbosity(stream, verbosity, printed):
    """More verbosity prints more levels."""
    log.configure(verbosity, stream=stream)
    logger = log.logger("corral.engine")
    for method in (logger.debug, logger.info, logger.warning, logger.error):
        method("message")
    assert "".join(line.split()[1][0] for line in stream.getvalue().splitlines()) == printed


def test_configuring_twice_prints_once(stream):
    """A second call replaces the first."""
    log.configure(0, stream=stream)
    log.configure(0, stream=stream)
    log.logger("corral").warning("once")
    assert stream.getvalue().count("once") == 1


def test_names():
    """Every logger hangs under the one of the package."""
    assert log.logger("corral.engine").name == "corral.engine"
    assert log.logger("__main__").name == "corral.__main__"
    assert log.logger("corralled").name == "corral.corralled"


@pytest.mark.parametrize(
    ("level", "verbosity"), [("debug", 2), ("info", 1), ("warning", 0), ("error", -1)]
)
def test_verbosity_of(level, verbosity):
    """The names of levels in the environment have a verbosity each."""
    assert log.verbosity_of(level) == verbosity


def test_control_characters(stream):
    """Line ends, terminal commands and marks that reorder text become visible."""
    log.configure(0, stream=stream)
    log.logger("corral").warning("a\nb\r\x1b[2J\x00\x9b\u2028\u202e%s", "\u2066ü")
    [line] = stream.getvalue().splitlines()
    assert line.endswith(r"corral: a\nb\r\x1b[2J\x00\x9b\u2028\u202e\u2066ü")


@given(st.text())
def test_any_text_stays_on_its_line(text):
    """No text has a line end after escaping, whatever Python counts as one."""
    assert len(log.escape(text).splitlines()) <= 1


def test_long_messages_are_cut(stream):
    """A message of a megabyte becomes a short line that says how much is missing."""
    log.configure(0, stream=stream)
    log.logger("corral").warning("x" * 10**6)
    assert stream.getvalue().endswith("x… and 995904 more characters\n")
    assert len(stream.getvalue()) < 4200


def test_tracebacks_are_indented(stream):
    """A traceback follows its message, each line indented and escaped."""
    log.configure(0, stream=stream)
    try:
        raise ValueError("bad\x1b\r\nforged")
    except ValueError:
        log.logger("corral").exception("failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("corral: failed")
    assert all(line.startswith("    ") for line in rest)
    assert r"    ValueError: bad\x1b\r" in rest


def test_long_tracebacks_keep_their_end(stream):
    """Of an endless traceback the end stays, which names the error."""
    log.configure(0, stream=stream)
    try:
        raise ValueError("\n".join(map(str, range(1000))))
    except ValueError:
        log.logger("corral").exception("failed")
    lines = stream.getvalue().splitlines()
    assert len(lines) == log.MAX_TRACEBACK_LINES + 2
    assert lines[-1] == "    999"
