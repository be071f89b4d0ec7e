"""What the text of an answer means, and what it must fit: the place where both are decided.

One `Reply` an answer; it is asked before the answer begins, then told each piece of text.
"""

from corral.contract.events import ContentDelta, Delta
from corral.contract.messages import GenerationRequest
from corral.errors import InvalidArgument


class Reply:
    """Reads one answer as it grows; what is not to be parsed has no deltas."""

    def __init__(self, request: GenerationRequest) -> None:
        """Begin an answer.

        Raises:
            InvalidArgument: if the request wants what cannot be given yet.
        """
        if request.constraint is not None:
            raise InvalidArgument(
                f"the answer is to fit a constraint ({request.constraint.kind.value}), which is "
                "not supported: leave it out"
            )
        self._is_parsed = request.is_parsed
        self.has_tool_calls = False

    def push(self, text: str) -> tuple[Delta, ...]:
        """Return what more text means."""
        return (ContentDelta(text),) if self._is_parsed and text else ()

    def finish(self, text: str) -> tuple[Delta, ...]:
        """Return what the last text means."""
        return self.push(text)
