"""Where the prompt comes from."""

import os
import socket
import subprocess
import sys

import pytest

from corral.cli import prompt
from corral.cli.prompt import gather
from corral.errors import UsageError


@pytest.fixture
def opened():
    """Return a function that opens a descriptor as text and closes it at the end."""
    files = []

    def open_text(fd):
        files.append(os.fdopen(fd, encoding="utf-8"))
        return files[-1]

    yield open_text
    for file in files:
        file.close()


def pipe_with(data):
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def test_a_terminal_without_prompt_is_a_chat(opened):
    """No prompt on a terminal means a chat; with one the terminal is not read."""
    controller, terminal = os.openpty()
    stdin = opened(terminal)
    assert gather(None, stdin) is None
    assert gather("hello", stdin) == "hello"
    os.close(controller)


def test_a_file_is_a_prompt(opened, tmp_path):
    """Redirected input is read like a pipe."""
    path = tmp_path / "prompt"
    path.write_bytes(b"line\r\n")
    assert gather(None, opened(os.open(path, os.O_RDONLY))) == "line"


def test_bytes_that_are_no_text_are_refused(opened):
    """Piped bytes that are not UTF-8 are told with their place, not guessed at."""
    with pytest.raises(UsageError, match="standard input is not UTF-8: byte 3 is 0xff"):
        gather(None, opened(pipe_with("ä".encode() + b"a\xffb")))


def test_endless_input_is_refused(opened, monkeypatch, tmp_path):
    """More than any context could hold is refused as soon as it is seen, and just enough is not."""
    monkeypatch.setattr(prompt, "MAX_BYTES", 1 << 20)
    code = "while True: print('y' * 4096)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as endless:
        with pytest.raises(UsageError, match="more than 1 MiB"):
            gather(None, opened(os.dup(endless.stdout.fileno())))
        endless.kill()
    (tmp_path / "full").write_bytes(b"x" * (1 << 20))
    whole = gather(None, opened(os.open(tmp_path / "full", os.O_RDONLY)))
    assert len(whole) == 1 << 20


@pytest.mark.parametrize("data", [b"", b"\n", b"  \n"])
def test_an_empty_pipe_is_no_prompt(opened, data):
    """A pipe that says nothing is refused where it is all there is."""
    with pytest.raises(UsageError, match="the prompt is empty"):
        gather(None, opened(pipe_with(data)))


def test_devices_are_no_prompt(opened):
    """/dev/null is not read, so that it neither asks for a chat nor empties the prompt."""
    stdin = opened(os.open(os.devnull, os.O_RDONLY))
    assert gather("hello", stdin) == "hello"
    with pytest.raises(UsageError, match="no prompt"):
        gather(None, stdin)
    with pytest.raises(UsageError, match="no prompt"):
        gather(None, None)


def test_a_silent_pipe_does_not_block_a_prompt(opened, monkeypatch, capsys):
    """An inherited pipe or socket that nobody writes to is left out after a while, with a note."""
    monkeypatch.setattr(prompt, "_PATIENCE_S", 0.05)
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    for stdin in (opened(reader), opened(os.dup(ours.fileno()))):
        assert gather("hello", stdin) == "hello"
        assert "open but silent" in capsys.readouterr().err
    os.close(writer)
    ours.close()
    theirs.close()


def test_a_slow_pipe_is_waited_for(opened):
    """A pipe that has begun to speak is read to its end."""
    assert gather("hello", opened(pipe_with(b"x" * 50_000))) == "hello\n\n" + "x" * 50_000
