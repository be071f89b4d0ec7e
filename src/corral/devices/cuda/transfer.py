"""Rows on their way from one backend to another.

    source's stream    … launches ─▶ (ready) ──────────────────────▶ waits for (taken) ─▶ next run
                                        ╎                                 ▲
    target's stream                 waits ─▶ copy to its own scratch ─▶ (taken) ─▶ launches …

The host waits for nothing, and nothing goes through its memory, unless one of the two is no card.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.devices.cuda.driver_execution import Place


@dataclass(frozen=True, slots=True, eq=False)
class CudaRows:
    """Rows in the scratch of a card, complete when an event is."""

    at: Place
    size_bytes: int
    ready: int
    """Handle of that event."""
    hold: Callable[[int], None]
    """Given an event: the rows' backend does not write over them before it."""
    fetch: Callable[[], NDArray[np.float32]]

    def on_host(self) -> NDArray[np.float32]:
        """Copy them to the staging of their model, wait, and return them."""
        return self.fetch()
