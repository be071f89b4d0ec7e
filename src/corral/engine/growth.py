"""The leak sentinel: what a run costs in memory for each token it generates.

It knows when tokens came and what was held then; what a slope means is for whoever asks.
"""

import time
from collections.abc import Callable

from corral.engine.metrics import MemoryGrowth
from corral.memory.growth import Samples

_SPACING_TOKENS = 8
_SPACING_S = 0.05
"""A sample takes 10 to 50 µs: no more than one part in a thousand of the time."""
_STATUS = "/proc/self/status"
_KINDS = (b"RssAnon:", b"RssShmem:", b"VmSwap:")


def held_bytes() -> int | None:
    """Return the bytes this process holds and could not get back from a file.

    That is RssAnon, RssShmem and VmSwap of Linux; None on other systems.
    """
    try:
        with open(_STATUS, "rb", buffering=0) as file:  # noqa: PTH123 (a tenth of the time)
            text = file.read()
    except OSError:
        return None
    found = [text.find(kind) for kind in _KINDS]
    if -1 in found:
        return None
    kinds = zip(_KINDS, found, strict=True)
    return sum(int(text[at + len(kind) :].split(None, 1)[0]) * 1024 for kind, at in kinds)


class GrowthWatch:
    """Samples host and device memory of one loaded model while it generates."""

    def __init__(
        self,
        device_bytes: Callable[[], int],
        *,
        host_bytes: Callable[[], int | None] = held_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch what the two functions tell; the clock is one in seconds."""
        self._device_bytes = device_bytes
        self._host_bytes = host_bytes
        self._clock = clock
        self._samples = Samples(2, spacing=_SPACING_TOKENS)
        self._tells_host = host_bytes() is not None
        self._tokens = 0
        self._sampled_at = -_SPACING_S

    def generated(self, tokens: int) -> None:
        """Take note of an evaluation that gave so many tokens; sample if it is time."""
        self._tokens += tokens
        if tokens and self._samples.is_due(self._tokens):
            now = self._clock()
            if now - self._sampled_at >= _SPACING_S:
                self._sampled_at = now
                self._samples.add(self._tokens, self._host_bytes() or 0, self._device_bytes())

    def growth(self) -> MemoryGrowth:
        """Return bytes a token over all that was generated so far."""
        samples = self._samples
        return MemoryGrowth(
            generated_tokens=self._tokens,
            num_samples=samples.count,
            host=samples.slope(0) if self._tells_host else None,
            device=samples.slope(1),
        )
