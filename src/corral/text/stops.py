"""Stop strings in streamed text: nothing that may belong to one is handed out. Knows no tokens."""

from collections.abc import Sequence

from corral.errors import InvalidArgument


class StopMatcher:
    """Cuts a stream of text before the first stop string.

    The first is the one that is complete first, the longest of those complete at once; so the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for any of `stops`.

        Raises:
            InvalidArgument: one of them is empty, and would stop everything.
        """
        if not all(stops):
            raise InvalidArgument("a stop string is empty; give at least one character, or none.")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, once there is one."""
        return self._matched

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return what can be shown now, and whether a stop string has come.

        After a stop string nothing more is returned.
        """
        if self._matched is not None:
            return "", True
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self._matched = min(found)
            self._held = ""
            return text[:at], True
        keep = self._first_possible_start(text)
        self._held = text[keep:]
        return text[:keep], False

    def finish(self) -> str:
        """Return the text held back, which no stop string can claim any more."""
        rest, self._held = self._held, ""
        return rest

    def _first_possible_start(self, text: str) -> int:
        """Return where the longest tail of `text` that begins a stop string starts."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return len(text)
