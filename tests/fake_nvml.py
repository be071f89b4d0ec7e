"""A management library that is played, as reading sees it and as C functions below that."""

import ctypes

from corral.devices.nvml import Gpu, MigSlice, NvmlFailure, NvmlMemory

MIB = 1 << 20
NOT_AVAILABLE = 2**64 - 1


def gpu(
    number: int,
    name: str = "Played card",
    *,
    slices: int = 0,
    is_cut: bool = False,
    capability: tuple[int, int] | None = (9, 0),
) -> Gpu:
    """Return a card whose UUID begins with its number."""
    parts = tuple(
        MigSlice(f"MIG-{number}{n}000000-0000-0000-0000-000000000000", f"{name} MIG 1g", (n + 7, 0))
        for n in range(slices)
    )
    uuid = f"GPU-{number:x}abc0000-0000-0000-0000-00000000000{number:x}"
    return Gpu(uuid, name, parts, is_cut=is_cut or bool(parts), capability=capability)


class FakeNvml:
    """Plays what reading sees of the library; failures by call, or one after the other."""

    def __init__(self, *gpus: Gpu) -> None:
        self.cards = gpus
        self.memory_of = {card.uuid: NvmlMemory(8000 * MIB, 600 * MIB, 7000 * MIB) for card in gpus}
        self.processes_of: dict[str, tuple[tuple[int, int | None], ...]] = {}
        self.failures: dict[str, NvmlFailure] = {}
        """By call: what it fails with."""
        self.calls: list[str] = []
        self.asked: list[str] = []
        """The devices whose memory was read."""

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failures:
            raise self.failures[call]

    def gpus(self) -> tuple[Gpu, ...]:
        self._enter("gpus")
        return self.cards

    def memory(self, uuid: str) -> NvmlMemory:
        self.asked.append(uuid)
        self._enter("memory")
        return self.memory_of[uuid]

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        self._enter("processes")
        return self.processes_of.get(uuid, ())

    def driver_version(self) -> str:
        self._enter("driver_version")
        return "580.0"


class FakeLibrary:
    """Plays the library itself: functions that fill structures and return statuses."""

    def __init__(self, *, cards: int = 1, slices: int = 0) -> None:
        self.cards, self.slices = cards, slices
        self.status: dict[str, int | str | list[int]] = {}
        """By function: its status; a list gives one a call, then 0; "missing": it is not there."""
        self.calls: list[str] = []
        self.processes: dict[str, list[tuple[int, int]]] = {}
        self.stale: set[int] = set()
        """Handles that are not known any more."""

    def __getattr__(self, name: str):
        if not name.startswith("nvml") or self.status.get(name) == "missing":
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            status = self.status.get(name, 0)
            if isinstance(status, list):
                status = status.pop(0) if status else 0
            return status or self._answer(name, arguments) or 0

        return call

    def uuid(self, handle: int) -> str:
        """Return the UUID behind a handle: 1, 2, … are cards, 101, 102, … slices."""
        return f"GPU-{handle}" if handle < 100 else f"MIG-{handle}"

    def _answer(self, name, arguments):
        handle = getattr(arguments[0], "value", None) if arguments else None
        if handle in self.stale and "HandleBy" not in name and "Count" not in name:
            return 2
        texts = {"nvmlDeviceGetName": "A card", "nvmlSystemGetDriverVersion": "580.1"}
        numbers = {
            "nvmlDeviceGetCount_v2": self.cards,
            "nvmlDeviceGetMaxMigDeviceCount": 7,
            "nvmlDeviceGetGpuInstanceId": 7,
            "nvmlDeviceGetComputeInstanceId": 0,
        }
        if name in texts:
            arguments[-2].value = texts[name].encode()
        elif name == "nvmlDeviceGetUUID":
            arguments[-2].value = self.uuid(handle).encode()
        elif name in numbers:
            arguments[-1]._obj.value = numbers[name]
        elif name == "nvmlDeviceGetCudaComputeCapability":
            arguments[1]._obj.value, arguments[2]._obj.value = 8, 6
        elif name == "nvmlDeviceGetMigMode":
            arguments[1]._obj.value = int(self.slices > 0)
        elif "HandleBy" in name:
            return self._find(name, arguments)
        elif name.startswith("nvmlDeviceGetMemoryInfo"):
            self._tell_memory(name, arguments[1]._obj)
        elif name.endswith("RunningProcesses_v3"):
            return self._list(name, arguments[1]._obj, arguments[2])
        return 0

    def _find(self, name, arguments):
        found = arguments[-1]._obj
        if name.endswith("ByIndex_v2"):
            found.value = arguments[0].value + 1
        elif name.endswith("MigDeviceHandleByIndex"):
            place = arguments[1].value
            if place >= self.slices:
                return 6
            found.value = 101 + place
        else:
            number = arguments[0].decode().partition("-")[2]
            if not number.isdigit():
                return 6
            self.stale.discard(int(number))
            found.value = int(number)
        return 0

    def _tell_memory(self, name, told):
        told.total, told.free, told.used = 100, 60, 30
        if name.endswith("_v2"):
            assert told.version == ctypes.sizeof(told) | 2 << 24 == 40 | 2 << 24
            told.reserved = 10

    def _list(self, name, count, told):
        kind = "Compute" if "Compute" in name else "Graphics"
        running = self.processes.get(kind, [])
        room, count.value = count.value, len(running)
        if room < len(running):
            return 7
        for place, (pid, used) in enumerate(running):
            told[place].pid, told[place].used = pid, used
        return 0
