"""What a device is without whose memory no driver holds anything: its context costs nothing."""

from contextlib import ExitStack


class Contextless:
    """Base of devices that compute in the host's memory, or not at all."""

    @property
    def context_bytes(self) -> int:
        """Nothing is held for a process."""
        return 0

    def hold(self) -> ExitStack:
        """Return what has nothing to give back."""
        return ExitStack()
