"""Runs the code of a template: here, in a sandbox and within a budget.

`template_process.py` runs the same in a process of its own, for where a template of unknown origin
must not be able to harm the process that serves.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from corral.errors import TemplateError
from corral.text.budget import Budget, Refused, Rejected, check_length

if TYPE_CHECKING:
    from jinja2 import Template


class Renderer(Protocol):
    """A compiled template. Threads may share it."""

    def render(self, variables: Mapping[str, object], deadline_s: float) -> str:
        """Return the text for `variables`, which are of JSON's types.

        Raises:
            TemplateError: the template refuses them, has an error or exceeds its limits.
        """
        ...


class SandboxRenderer:
    """Renders in this process, one text after another."""

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        """Compile `source`, which may use the time `now`.

        Raises:
            TemplateError: the template has an error, or uses other templates.
        """
        self._budget = Budget()
        self._lock = threading.Lock()
        self._template = self._compile(source, now)

    def render(self, variables: Mapping[str, object], deadline_s: float) -> str:
        """Return the text for `variables`; raises as `Renderer.render` does."""
        template = self._template
        with self._lock:
            self._budget.start(deadline_s)
            try:
                context = template.new_context(dict(variables))
                pieces, length = [], 0
                for piece in template.root_render_func(context):
                    self._budget.tick()
                    pieces.append(piece)
                    length += len(piece)
                    check_length(length)
                return "".join(pieces)
            except Exception as error:
                raise _translated(error, self._line(error.__traceback__)) from None

    def _compile(self, source: str, now: Callable[[], datetime]) -> "Template":
        from corral.text.sandbox import BudgetedEnvironment, format_time

        environment = BudgetedEnvironment(self._budget, lambda form: format_time(now(), form))
        try:
            return environment.from_string(source)
        except Exception as error:  # also RecursionError, MemoryError, IndentationError
            raise _translated(error, getattr(error, "lineno", None)) from None

    def _line(self, trace: TracebackType | None) -> int | None:
        """Return the line of the template that was being rendered, if it is known."""
        line = None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line


def _translated(error: Exception, line: int | None) -> TemplateError:
    place = "the chat template" if line is None else f"line {line} of the chat template"
    reason = str(error)[:300] or type(error).__name__
    if isinstance(error, Rejected):
        return TemplateError(f"{place} refuses the messages: {reason}")
    if isinstance(error, Refused):
        return TemplateError(f"{place} is not run: {reason}.")
    if isinstance(error, RecursionError):
        return TemplateError(f"{place} is nested too deep.")
    if isinstance(error, MemoryError):
        return TemplateError(f"{place} needs more memory than it may have.")
    return TemplateError(f"{place} fails with {type(error).__name__}: {reason}")
