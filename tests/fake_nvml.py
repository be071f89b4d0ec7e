"""A management library that is played: cards with memory, and failures by call."""

from corral.devices.nvml import Gpu, MigSlice, NvmlFailure, NvmlMemory

MIB = 1 << 20


def gpu(number: int, name: str = "Played card", *, slices: int = 0) -> Gpu:
    """Return a card whose UUID begins with its number."""
    parts = tuple(
        MigSlice(f"MIG-{number}{n}000000-0000-0000-0000-000000000000", f"{name} MIG 1g", (n + 7, 0))
        for n in range(slices)
    )
    return Gpu(f"GPU-{number}abc0000-0000-0000-0000-00000000000{number}", name, parts)


class FakeNvml:
    """Plays the library."""

    def __init__(self, *gpus: Gpu) -> None:
        self.cards = gpus
        self.memory_of = {
            card.uuid: NvmlMemory(8000 * MIB, 600 * MIB, 7000 * MIB, 400 * MIB) for card in gpus
        }
        self.failures: dict[str, NvmlFailure] = {}
        """By call: what it fails with."""
        self.calls: list[str] = []

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failures:
            raise self.failures[call]

    def gpus(self) -> tuple[Gpu, ...]:
        self._enter("gpus")
        return self.cards

    def memory(self, uuid: str) -> NvmlMemory:
        self._enter("memory")
        return self.memory_of[uuid]

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        self._enter("processes")
        return ()

    def driver_version(self) -> str:
        self._enter("driver_version")
        return "580.0"
