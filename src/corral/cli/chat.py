"""A chat on the terminal: reads entries, keeps the history, obeys commands.

Ctrl-C ends an answer or clears an entry, never the chat; Ctrl-D or /exit leaves.
"""

import io
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.cli.answer import AnswerOptions, Keywords, statistics_line, stream
from corral.cli.arguments import is_text
from corral.cli.output import note, write
from corral.errors import ContextExceeded, UsageError

if TYPE_CHECKING:
    from corral import Model
    from corral.engine.generation import Generation

Read = Callable[[str], str]
"""Takes a prompt to show and returns a line; raises EOFError at the end."""

HELP = """\
/help          this text
/reset         forget the conversation
/system TEXT   set the instructions; without TEXT, show them
/exit          leave (Ctrl-D too)
An entry goes on after a \\ at the end of its line, and between \"\"\" and \"\"\".
Ctrl-C stops an answer."""

_PROMPT, _MORE, _QUOTES = "> ", ". ", '"""'
# A word after the slash and nothing that makes it a path.
_COMMAND = re.compile(r"/(\w+)(?:\s+(.*))?", re.DOTALL)


class Conversation:
    """The messages so far."""

    def __init__(self, system: str | None = None) -> None:
        """Begin a conversation under some instructions."""
        self.system = system
        self._turns: list[dict[str, object]] = []

    def messages(self) -> list[dict[str, object]]:
        """Return the instructions and all turns."""
        first = [] if self.system is None else [_message("system", self.system)]
        return [*first, *self._turns]

    def ask(self, text: str) -> None:
        """Add what the user says."""
        self._turns.append(_message("user", text))

    def answer(self, text: str) -> None:
        """Add what the model says; an empty answer takes its question back."""
        if text:
            self._turns.append(_message("assistant", text))
        else:
            self._turns.pop()

    def forget_oldest(self) -> bool:
        """Leave out the oldest question with its answer; False if there is only the last one."""
        if len(self._turns) < 3:
            return False
        del self._turns[:2]
        return True

    def reset(self) -> None:
        """Forget all turns; the instructions stay."""
        self._turns.clear()


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "content": content}


def chat(
    model: "Model",
    options: AnswerOptions,
    *,
    system: str | None = None,
    read: Read | None = None,
    is_endless: bool = False,
) -> None:
    """Chat until the user leaves; an endless chat leaves out its oldest turns when it must.

    Raises:
        TemplateError: the model has no usable chat template.
    """
    _ = model.template  # refused before the first question rather than after it
    read = read or _terminal_reader()
    conversation, keywords = Conversation(system), options.keywords(model)
    note(f"chat with {model.name}; /help lists commands, Ctrl-D leaves")
    while True:
        try:
            entry = read_entry(read)
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            note("/exit or Ctrl-D leaves")
            continue
        if not is_text(entry):
            note("that is not UTF-8, so it was not sent; set the terminal to UTF-8")
            continue
        command = _COMMAND.fullmatch(entry.strip())
        if command and command[1] == "exit":
            return
        if command:
            _obey(command[1], command[2] or "", conversation)
        elif entry.strip():
            _turn(model, keywords, conversation, entry, is_endless=is_endless)


def read_entry(read: Read) -> str:
    r"""Read one entry: a line, lines joined by a \ at their end, or lines between triple quotes.

    Raises:
        EOFError: the input ended.
    """
    first = read(_PROMPT)
    if first.lstrip().startswith(_QUOTES):
        return _quoted(read, first.lstrip()[len(_QUOTES) :])
    lines = [first]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read(_MORE))
    return "\n".join(lines)


def _quoted(read: Read, first: str) -> str:
    lines = [first] if first else []
    while not (lines and lines[-1].rstrip().endswith(_QUOTES)):
        lines.append(read(_MORE))
    lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
    return "\n".join(lines).strip("\n")


def _obey(command: str, text: str, conversation: Conversation) -> None:
    match command:
        case "help":
            print(HELP, file=sys.stderr)
        case "reset":
            conversation.reset()
            note("the conversation is forgotten")
        case "system" if text:
            conversation.system = text
            note("instructions set")
        case "system":
            note(f"instructions: {conversation.system or 'none'}")
        case _:
            note(f"no command /{command}; /help lists them")


def _turn(
    model: "Model",
    keywords: Keywords,
    conversation: Conversation,
    entry: str,
    *,
    is_endless: bool,
) -> None:
    conversation.ask(entry)
    text = ""
    try:
        generation = _start(model, keywords, conversation, is_endless=is_endless)
        text = stream(generation, write)
    except UsageError as error:
        note(f"{error}; /reset starts over")
        return
    finally:
        conversation.answer(text)
    write("\n")
    note(statistics_line(generation.statistics, model.memory().total_bytes))
    if generation.statistics.finish_reason.value == "context":
        note(
            f"the context of {model.context} tokens is full; /reset starts over, and with "
            "--context-shift (and --keep) a chat goes on without its older tokens"
        )


def _start(
    model: "Model", keywords: Keywords, conversation: Conversation, *, is_endless: bool
) -> "Generation":
    """Begin an answer, without the oldest turns if the context holds no more."""
    left_out = 0
    while True:
        try:
            generation = model.stream_chat(conversation.messages(), **keywords)
        except ContextExceeded:
            if not is_endless or not conversation.forget_oldest():
                raise
            left_out += 1
            continue
        if left_out:
            turns = "turn is" if left_out == 1 else f"{left_out} turns are"
            note(f"the oldest {turns} forgotten: the context holds {model.context} tokens")
        return generation


def _terminal_reader() -> Read:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # told by the chat, not raised in between
    if not sys.stdout.isatty():
        return _read_beside_output
    with suppress(ImportError):  # some builds of Python lack it
        import readline  # noqa: F401 - gives input() editing and history
    return input


def _read_beside_output(prompt: str) -> str:
    """Read a line while the output goes elsewhere, which the prompt must not."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
