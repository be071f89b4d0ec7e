"""Who waits, and who is next: in turn over namespaces, in order of arrival inside each.

A sequence whose blocks were taken for others was already admitted once, so it goes before all.
"""

from collections import deque
from collections.abc import Iterator

from corral.engine.sequence import Sequence


class WaitingLine:
    """The sequences that wait; it knows neither blocks nor slots."""

    def __init__(self) -> None:
        self._returned: deque[Sequence] = deque()
        self._lines: dict[str, deque[Sequence]] = {}
        """By namespace; whose turn it is stands first, and none of them is empty."""

    def __len__(self) -> int:
        return len(self._returned) + sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Sequence]:
        """Go through all that wait, in the order in which they are to be admitted."""
        yield from self._returned
        lines = [iter(line) for line in self._lines.values()]
        while lines:
            going = []
            for line in lines:
                sequence = next(line, None)
                if sequence is not None:
                    going.append(line)
                    yield sequence
            lines = going

    def join(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of its namespace's line."""
        self._lines.setdefault(sequence.namespace, deque()).append(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Put a sequence back that was admitted; it is next."""
        self._returned.appendleft(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Take a sequence out, and give the next turn to another namespace."""
        if not self.leave(sequence):
            line = self._lines.pop(sequence.namespace, None)
            if line:
                self._lines[sequence.namespace] = line

    def leave(self, sequence: Sequence) -> bool:
        """Take a sequence out, if it is here; return whether it had been admitted before."""
        if sequence in self._returned:
            self._returned.remove(sequence)
            return True
        line = self._lines.get(sequence.namespace, deque())
        if sequence in line:
            line.remove(sequence)
            if not line:
                del self._lines[sequence.namespace]
        return False
