"""The chat: entries, commands, history, and Ctrl-C on a real terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from corral.cli.answer import AnswerOptions
from corral.cli.chat import Conversation, chat, read_entry
from corral.errors import TemplateError
from unit.cli.fake_model import FakeModel


def reader(*lines):
    """Return a reader of these lines; an exception among them is raised."""
    left = list(lines)

    def read(prompt):
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return read


@pytest.fixture
def talk(tmp_path):
    """Return a function that chats with the fake model and returns the model's calls."""

    def run(*lines, name="demo", system=None, is_endless=False):
        model = FakeModel(tmp_path / f"{name}.gguf", {"context": 100})
        options = AnswerOptions(None, (), False, {})
        chat(model, options, system=system, read=reader(*lines), is_endless=is_endless)
        return [messages for _, messages, _ in model.calls]

    return run


@pytest.mark.parametrize(
    ("lines", "entry"),
    [
        (["hello"], "hello"),
        (["one \\", "two\\", "three"], "one \ntwo\nthree"),
        (['"""', "one", "", 'two"""'], "one\n\ntwo"),
        (['"""one', "two", '"""'], "one\ntwo"),
        (['"""only"""'], "only"),
        (["a \\", ""], "a \n"),
    ],
)
def test_entries_may_have_several_lines(lines, entry):
    """A backslash or triple quotes continue an entry."""
    assert read_entry(reader(*lines)) == entry


def test_keeps_the_conversation(talk, capsys):
    """Every question is asked with all that was said before."""
    calls = talk("one", "two")
    assert calls[1] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1: you said one"},
        {"role": "user", "content": "two"},
    ]
    assert capsys.readouterr().out == "1: you said one\n3: you said two\n"


def test_reset_forgets_and_keeps_the_instructions(talk):
    """/reset drops the turns, not the system message."""
    calls = talk("one", "/reset", "two", system="be brief")
    assert [message["role"] for message in calls[1]] == ["system", "user"]


def test_system_sets_the_instructions(talk, capsys):
    """/system TEXT takes effect with the next question; alone it shows the text."""
    calls = talk("/system", "/system be kind", "hi", "/system")
    assert calls[0][0] == {"role": "system", "content": "be kind"}
    err = capsys.readouterr().err
    assert "instructions: none" in err
    assert "instructions: be kind" in err


def test_exit_leaves(talk):
    """/exit ends the chat; what follows is not read."""
    assert talk("/exit", "never") == []


def test_help_and_unknown_commands(talk, capsys):
    """/help lists the commands, an unknown one is told, and neither is sent to the model."""
    assert talk("/help", "/halp") == []
    err = capsys.readouterr().err
    assert "/reset" in err
    assert "no command /halp" in err


def test_a_path_is_no_command(talk):
    """Text that begins with a path is a question."""
    assert len(talk("/etc/passwd is what?")) == 1


def test_an_entry_that_is_no_text_is_not_sent(talk, capsys):
    """What came with bytes that are not UTF-8 never reaches the model."""
    assert [messages[-1]["content"] for messages in talk("a\udcff", "b")] == ["b"]
    assert "not UTF-8" in capsys.readouterr().err


def test_empty_entries_are_skipped(talk):
    """An empty line asks nothing."""
    assert talk("", "   ") == []


def test_interrupt_at_the_prompt_goes_on(talk, capsys):
    """Ctrl-C while typing drops the entry and says how to leave."""
    assert len(talk(KeyboardInterrupt(), "hello")) == 1
    assert "/exit or Ctrl-D leaves" in capsys.readouterr().err


def test_an_entry_too_long_goes_on_without_it(talk, capsys):
    """A question that does not fit is told and taken back."""
    calls = talk("too long", "hello")
    assert calls[1] == [{"role": "user", "content": "hello"}]
    assert "/reset starts over" in capsys.readouterr().err


def test_a_full_context_is_told(talk, capsys):
    """An answer that fills the context says how to go on."""
    talk("full")
    told = capsys.readouterr().err
    assert "the context of 100 tokens is full; /reset starts over" in told
    assert "--context-shift (and --keep)" in told


def test_an_endless_chat_forgets_its_oldest_turns(talk, capsys):
    """A conversation that the context does not hold goes on without its beginning; it is told."""
    calls = talk("one", "two", "three", "fits 4", system="brief", is_endless=True)
    assert [message["content"] for message in calls[-1]] == ["brief", *_TOLD, "fits 4"]
    assert len(calls) == 3 + 2
    assert "the oldest turn is forgotten: the context holds 100" in capsys.readouterr().err


_TOLD = ("two", "4: you said two", "three", "6: you said three")
"""The turns behind the first, as the model saw and answered them."""


def test_an_endless_chat_refuses_what_never_fits(talk, capsys):
    """Without turns to leave out the question is told to be too long, and taken back."""
    calls = talk("one", "too long", "two", is_endless=True)
    assert calls[-1] == [{"role": "user", "content": "two"}]
    assert "/reset starts over" in capsys.readouterr().err


def test_a_model_without_template_cannot_chat(talk):
    """A base model is refused before the first question."""
    with pytest.raises(TemplateError, match="no chat template"):
        talk("hello", name="base")


def test_an_empty_answer_takes_the_question_back():
    """A question without an answer is no part of the conversation."""
    conversation = Conversation()
    conversation.ask("x")
    conversation.answer("")
    assert conversation.messages() == []


class Terminal:
    """`corral run` with the fake model on a pseudo terminal."""

    def __init__(self, environment, *arguments):
        self.fd, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unit.cli.fake_model", "run", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment | {"TERM": "dumb"},
            start_new_session=True,
        )
        os.close(inner)
        self.seen = ""

    def wait_for(self, pattern, timeout_s=10.0):
        """Read until a pattern has come; what came before it is consumed."""
        deadline = time.monotonic() + timeout_s
        while not (match := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], self.seen
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:  # the other end is closed
                raise AssertionError(f"ended with {self.seen!r}") from None
        self.seen = self.seen[match.end() :]
        return match

    def type(self, text):
        os.write(self.fd, text.encode("utf-8", "surrogateescape"))

    def interrupt(self):
        # readline misses a signal between showing its prompt and waiting; nobody types so fast.
        time.sleep(0.2)
        self.process.send_signal(signal.SIGINT)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


@pytest.fixture
def terminal(environment):
    """Start a chat on a pseudo terminal."""
    terminal = Terminal(environment)
    yield terminal
    terminal.close()


def test_interrupt_stops_the_answer_and_not_the_program(terminal):
    """Ctrl-C ends a long answer; the chat goes on and remembers it; Ctrl-D leaves."""
    terminal.wait_for("> ")
    terminal.type("slow\n")
    terminal.wait_for("3 4 5 ")
    terminal.interrupt()
    terminal.wait_for(r"tokens/s[^\n]*\n")
    terminal.wait_for("> ")
    terminal.type("still there\n")
    terminal.wait_for("3: you said still there")
    terminal.wait_for("> ")
    terminal.interrupt()
    terminal.wait_for("/exit or Ctrl-D leaves")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=20) == 0


def test_a_second_interrupt_ends_the_program(terminal):
    """Ctrl-C twice while a step of the engine does not end leaves with the shell's code."""
    terminal.wait_for("> ")
    terminal.type("stuck\n")
    terminal.wait_for("stuck")
    terminal.interrupt()
    terminal.interrupt()
    assert terminal.process.wait(timeout=20) == 130


def test_control_characters_do_not_reach_the_terminal(terminal):
    """What a model says cannot drive the terminal."""
    terminal.wait_for("> ")
    terminal.type("evil\n")
    terminal.wait_for(re.escape(r"a\x1b[31mb\x07"))


def test_bytes_that_are_no_text_are_told(terminal):
    """An entry in another encoding is not sent; the chat says why and goes on."""
    terminal.wait_for("> ")
    terminal.type("caf\udcff!\n")
    terminal.wait_for("that is not UTF-8, so it was not sent")
    terminal.wait_for("> ")
    terminal.type("café\n")
    terminal.wait_for("1: you said café")
