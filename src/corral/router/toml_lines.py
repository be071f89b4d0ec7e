"""On which line of a TOML text each key stands, which Python's own parser does not tell.

For texts that are valid TOML: it looks for headers and keys, and steps over texts and arrays of
several lines. Keys inside of inline tables stand where the table begins.
"""

import re
from collections.abc import Iterator

Key = tuple[str, ...]

_PART = re.compile(r"""\s*(?:([A-Za-z0-9_-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')\s*""")
_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\[\]{}\n]''',
    re.DOTALL,
)


def key_lines(text: str) -> dict[Key, int]:
    """Return the line of every table and key by its whole name; the first line is 1."""
    lines: dict[Key, int] = {}
    table: Key = ()
    for number, statement in _statements(text):
        if statement.startswith("["):
            table = _key(statement.lstrip("["), ends="]")
            lines.setdefault(table, number)
        elif statement and (key := _key(statement, ends="=")):
            for length in range(1, len(key) + 1):
                lines.setdefault((*table, *key[:length]), number)
    return lines


def line_of(lines: dict[Key, int], key: Key) -> int | None:
    """Return the line of a key, or of the nearest table it is in; None if there is none."""
    for length in range(len(key), 0, -1):
        if key[:length] in lines:
            return lines[key[:length]]
    return None


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line of each statement with its number, however many lines it has."""
    start = depth = 0
    for match in _TOKEN.finditer(text + "\n"):
        token = match.group()
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
        elif token == "\n" and depth <= 0:
            number = text.count("\n", 0, start) + 1
            yield number, text[start : match.start()].strip()
            start, depth = match.end(), 0


def _key(text: str, *, ends: str) -> Key:
    """Return the dotted key that a text begins with; empty if it begins with none."""
    parts: list[str] = []
    position = 0
    while match := _PART.match(text, position):
        bare, quoted, literal = match.groups()
        parts.append(bare or literal or re.sub(r"\\(.)", r"\1", quoted or ""))
        position = match.end()
        if not text.startswith(".", position):
            return tuple(parts) if text.startswith(ends, position) else ()
        position += 1
    return ()
