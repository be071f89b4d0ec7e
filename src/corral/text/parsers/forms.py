"""The forms in which models write tool calls: how each is read, and how it is to be spelled.

A form is data: handlers by the text that announces a call, and the texts around name and arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from corral.text.parsers.deltas import Sink
from corral.text.parsers.source import Parsing, Source

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a handler needs to read a call."""

    source: Source
    sink: Sink
    schemas: Schemas


Handler: TypeAlias = Callable[[Reading, str], Parsing[bool]]
"""Reads what follows an announcement, which it is given; false if that is no call."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The texts around a call's name and arguments, as a model was trained to write them."""

    before_name: str
    after_name: str
    after_arguments: str
    between: str = ""
    begin: str = ""
    end: str = ""

    def written(self, *calls: tuple[str, str]) -> str:
        """Return calls, each a name and the text of its arguments, as a model writes them."""
        texts = (
            f"{self.before_name}{name}{self.after_name}{arguments}{self.after_arguments}"
            for name, arguments in calls
        )
        return f"{self.begin}{self.between.join(texts)}{self.end}"


@dataclass(frozen=True, slots=True)
class ToolForm:
    """One way to write tool calls."""

    name: str
    spelling: Spelling
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    """By the text that announces a call, wherever it stands."""
    at_start: Handler | None = None
    """Reads a reply that is a call from its first character on."""
    markup: tuple[str, ...] = ()
    """Further texts that are no content, for a control token may spell them."""
    writes_json: bool = True
    """Whether arguments are one JSON object; else `parameters` are written one by one."""
