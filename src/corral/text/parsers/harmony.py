"""Replies of gpt-oss: several messages, each with a channel and maybe a recipient."""

import re
from typing import Final

from corral.text.parsers.forms import Reading, Spelling, ToolForm
from corral.text.parsers.source import Parsing, text_until

CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
START: Final = "<|start|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


def _read(reading: Reading, opening: str) -> Parsing[bool]:
    """Read messages from a header on; a header that does not end means nothing."""
    found: str | None = opening
    while found in (CHANNEL, START):
        header, found = yield from text_until(reading.source, MESSAGE, *_ENDS)
        if found == MESSAGE:
            found = yield from _read_message(reading, header)
    return True


def _read_message(reading: Reading, header: str) -> Parsing[str | None]:
    """Read a message to its end or to the next one, and return which it was."""
    source, sink = reading.source, reading.sink
    recipient = _RECIPIENT.search(header)
    ends = (*_ENDS, START)
    if recipient is not None:
        sink.begin(recipient.group(1))
        return (yield from source.until(ends, sink.arguments))
    sink.border()
    channel = header.rpartition(CHANNEL)[2].lstrip()
    is_thought = channel.startswith("analysis")
    found = yield from source.until(ends, sink.reasoning if is_thought else sink.content)
    if found is not None:
        sink.border()
    return found


HARMONY: Final = ToolForm(
    "harmony",
    Spelling(
        before_name=CHANNEL + "commentary to=functions.",
        after_name=" <|constrain|>json" + MESSAGE,
        after_arguments="",
    ),
    handlers=dict.fromkeys((CHANNEL, START, *_ENDS), _read),
    markup=(MESSAGE, "<|constrain|>"),
)
