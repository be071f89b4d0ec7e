"""Calls of DeepSeek V3, R1 and V3.1, between tokens of their own."""

from typing import Final

from corral.text.parsers.forms import Reading, Spelling, ToolForm
from corral.text.parsers.json_text import pass_value
from corral.text.parsers.source import Parsing, drop, text_until

CALLS: Final = "<｜tool▁calls▁begin｜>"
CALLS_END: Final = "<｜tool▁calls▁end｜>"
CALL: Final = "<｜tool▁call▁begin｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
FENCE: Final = "```json"


def _read(reading: Reading, opening: str) -> Parsing[bool]:
    """Read calls up to their common end; between them nothing counts."""
    source = reading.source
    found: str | None = opening
    while found is not None and found != CALLS_END:
        if found == CALL:
            yield from _read_call(reading)
        found = yield from source.until((CALL, CALLS_END), drop)
    return True


def _read_call(reading: Reading) -> Parsing[None]:
    """Read a kind, a name and fenced arguments (V3), or a name and plain arguments (V3.1)."""
    source, sink = reading.source, reading.sink
    head, found = yield from text_until(source, SEPARATOR, CALL_END)
    if found != SEPARATOR:
        return
    if head.strip() == "function" and (yield from source.skip_space()) != "{":
        name, _ = yield from text_until(source, "\n", CALL_END)
        sink.begin(name.strip())
        yield from source.skip_space()
        yield from source.starts_with(FENCE)
    else:
        sink.begin(head.strip())
    yield from pass_value(source, sink.arguments)


DEEPSEEK: Final = ToolForm(
    "deepseek",
    Spelling(
        begin=CALLS,
        before_name=CALL + "function" + SEPARATOR,
        after_name="\n" + FENCE + "\n",
        after_arguments="\n```" + CALL_END,
        between="\n",
        end=CALLS_END,
    ),
    handlers={CALLS: _read, CALL: _read},
    markup=(CALLS_END, CALL_END, SEPARATOR),
)
DEEPSEEK_PLAIN: Final = ToolForm(
    "deepseek-plain",
    Spelling(
        begin=CALLS,
        before_name=CALL,
        after_name=SEPARATOR,
        after_arguments=CALL_END,
        end=CALLS_END,
    ),
    handlers={CALLS: _read, CALL: _read},
    markup=(CALLS_END, CALL_END, SEPARATOR),
)
