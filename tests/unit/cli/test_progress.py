"""Progress: plain lines where no terminal is, a bar where one is, silence when it is fast."""

import io

import pytest

from corral.cli import progress
from corral.cli.progress import ProgressDisplay


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose only item is the time."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_are_few(clock, capsys):
    """Elsewhere than on a terminal a long stage says something every ten seconds."""
    with ProgressDisplay(io.StringIO()) as display:
        for second in range(25):
            clock[0] = 100.0 + second
            display("download", second * 1_000_000, 25_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "corral: downloading (25.0 MB)",
        "corral: downloading: 44 %",
        "corral: downloading: 88 %",
    ]


def test_fast_reading_is_silent(clock, capsys):
    """Reading weights is shown only if it lasts."""
    with ProgressDisplay(Screen()) as display:
        for done in range(11):
            clock[0] += 0.05
            display("read", done, 10)
    assert capsys.readouterr() == ("", "")


def test_compiling_is_told_at_its_beginning_and_end(clock, capsys):
    """The first run says that it compiles, once, and how long it took."""
    with ProgressDisplay(io.StringIO()) as display:
        for done in range(15):
            display("kernels", done, 14)
            clock[0] += 0.5
        display("kernels", 14, 14)
    assert capsys.readouterr().err.splitlines() == [
        "corral: compiling kernels for this CPU, once (14)",
        "corral: compiled 14 kernels for this CPU in 7.0 s",
    ]


def test_nothing_to_compile_is_silent(clock, capsys):
    """Kernels that come from the cache are no news."""
    with ProgressDisplay(io.StringIO()) as display:
        display("kernels", 14, 14)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("total", [0, 20_000_000])
def test_a_terminal_gets_a_bar(total):
    """On a terminal a bar is drawn and removed at the end, known total or not."""
    screen = Screen()
    with ProgressDisplay(screen) as display:
        display("download", 0, total)
        display("download", 10_000_000, total)
    assert "downloading" in screen.getvalue()


def test_unknown_stages_are_shown_by_name(clock, capsys):
    """A stage that another part of corral adds needs no entry here."""
    with ProgressDisplay(io.StringIO()) as display:
        display("merge", 0, 3)
    assert capsys.readouterr().err == "corral: merge (3)\n"
