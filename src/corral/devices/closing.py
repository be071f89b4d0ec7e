"""What everything that owns something does at its end: once, quietly, and not by accident."""

import warnings
from types import TracebackType
from typing import Self

from corral.errors import Closed


class Closing:
    """Base of devices and backends: `with` closes them, twice is fine, forgetting it warns."""

    is_closed = True
    """Until the constructor is through, there is nothing to close."""

    def close(self) -> None:
        """End it; a second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            self._release()

    def _release(self) -> None:
        """Give back what is owned; called once."""

    def _require_open(self) -> None:
        if self.is_closed:
            raise Closed(f"{type(self).__name__} was closed; open a new one")

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.is_closed:
            text = f"{type(self).__name__} was never closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
