"""From kernel instances to cubins: found among those kept, or compiled by NVRTC and kept.

    Instance ─▶ key ─▶ kept? ──────────────────────▶ Cubin
                         └── no ─▶ NVRTC ─▶ kept ─▶

Each instance is a program of its own. Its part of the front end's work (30 ms for the headers) is
little beside what its code takes, programs compile side by side, and what is kept fits any model.
A warm start reads files and loads no compiler. It knows names and bytes, not what kernels compute;
`modules.py` loads cubins.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from corral.devices.base import Progress
from corral.devices.cpu.traits import usable_processors
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.kernel_sources import KernelSources
from corral.devices.cuda.nvrtc import OPTIONS, Compiled, Nvrtc, Unit
from corral.devices.cuda.toolchain import Toolchain, machine_toolchain
from corral.devices.cuda.traits import LEAST_CAPABILITY
from corral.devices.object_cache import ObjectCache
from corral.errors import DeviceUnavailable
from corral.log import logger

_log = logger(__name__)
_FORMAT = "corral cubin 1"
STAGE = "compile"
"""What progress callbacks call it."""


def architecture(capability: tuple[int, int]) -> str:
    """Return what NVRTC calls a device's architecture.

    Raises:
        DeviceUnavailable: if the device is older than kernels are written for.
    """
    major, minor = capability
    if capability < LEAST_CAPABILITY:
        least = ".".join(map(str, LEAST_CAPABILITY))
        raise DeviceUnavailable(
            f"the device has compute capability {major}.{minor}, and corral's kernels need {least} "
            "(Ampere) or newer: use --device cpu"
        )
    # Hopper's warpgroup instructions are there for sm_90a only, which no other device runs.
    return f"sm_{major}{minor}{'a' if capability == (9, 0) else ''}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes of a multiprocessor, by the assembler's account; 0 is nothing or untold.

    Bytes of stack and spills are a thread's, shared ones a block's, without what a launch adds.
    """

    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel's machine code and its name in it."""

    symbol: str
    usage: Usage
    warnings: str
    """What the compiler remarked; empty is as it should be."""
    code: bytes = field(repr=False)


class Compiler:
    """Compiles kernels and keeps them. Threads may share it, processes a cache directory."""

    def __init__(
        self,
        cache_directory: Path | None = None,
        *,
        sources: KernelSources | None = None,
        toolchain: Toolchain | None = None,
        threads: int | None = None,
    ) -> None:
        """Compile for a cache directory, without one for now only.

        Raises:
            ResourceError: if the directory belongs to someone else or others may write to it.
        """
        self._directory = cache_directory
        self._cache = ObjectCache(cache_directory, ".cubin") if cache_directory else None
        self._sources = sources or KernelSources()
        self._toolchain = toolchain
        self._threads = threads

    def request(
        self, instances: Iterable[Instance], arch: str, progress: Progress | None = None
    ) -> dict[Instance, Cubin]:
        """Return the cubins of kernels for an architecture, compiling those that are not kept.

        `progress("compile", done, total)` counts the kernels that must be compiled.

        Raises:
            CompileError: if a kernel does not compile; `ir` holds its source.
            DeviceUnavailable: if the compiler is missing, or too old for the architecture.
            ResourceError: if the compiler cannot unpack its headers.
        """
        toolchain = self._toolchain or machine_toolchain()
        keys = {instance: self.key(instance, arch, toolchain) for instance in instances}
        found = {instance: self._kept(key) for instance, key in keys.items()}
        missing = [instance for instance, cubin in found.items() if cubin is None]
        if missing:
            with ExitStack() as stack:
                nvrtc = Nvrtc(toolchain, self._header_directory(toolchain, stack))
                for instance, cubin in self._compiled(nvrtc, missing, arch, progress):
                    found[instance] = cubin
                    self._keep(keys[instance], cubin, nvrtc, toolchain)
        return {instance: cubin for instance, cubin in found.items() if cubin is not None}

    def key(self, instance: Instance, arch: str, toolchain: Toolchain) -> str:
        """Return the name under which a cubin is kept; it changes whenever the code could."""
        parts = (_FORMAT, toolchain.identity, arch, *OPTIONS, self._sources.digest(instance.stem))
        return hashlib.sha256("\n".join((*parts, instance.name)).encode()).hexdigest()

    def _kept(self, key: str) -> Cubin | None:
        content = self._cache.load(key) if self._cache else None
        return _decoded(content) if content is not None else None

    def _keep(self, key: str, cubin: Cubin, nvrtc: Nvrtc, toolchain: Toolchain) -> None:
        if nvrtc.release != toolchain.release:  # someone loaded another one into this process
            _log.info("NVRTC %s was installed, %s compiled", toolchain.version, nvrtc.version)
        elif self._cache:
            self._cache.store(key, _encoded(cubin))

    def _header_directory(self, toolchain: Toolchain, stack: ExitStack) -> Path:
        """Return where the compiler's headers are, or are to be unpacked; private, as they are
        compiled into code."""
        if self._directory is not None:
            directory = self._directory / f"headers-{toolchain.version}"
            with suppress(OSError):
                directory.mkdir(mode=0o700, exist_ok=True)
                return directory
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="corral-headers-")))

    def _compiled(
        self, nvrtc: Nvrtc, instances: Sequence[Instance], arch: str, progress: Progress | None
    ) -> Iterator[tuple[Instance, Cubin]]:
        # Imported late: it takes as long as a warm start.
        from concurrent.futures import ThreadPoolExecutor, as_completed

        total, threads = len(instances), self._threads or usable_processors()
        pool = ThreadPoolExecutor(min(threads, total), "corral-nvrtc")
        try:
            if progress:
                progress(STAGE, 0, total)
            jobs = {pool.submit(nvrtc.compile, self._unit(i, arch)): i for i in instances}
            for done, job in enumerate(as_completed(jobs), 1):
                yield jobs[job], _cubin(job.result())
                if progress:
                    progress(STAGE, done, total)
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, nothing new is begun

    def _unit(self, instance: Instance, arch: str) -> Unit:
        source = self._sources.source(instance.stem)
        return Unit(instance.stem, source, self._sources.headers, instance.name, arch)


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FACTS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}

_ASSEMBLER_REMARK = re.compile("warning|Performance Loss")
"""What is no account: the second is how it tells that products on tensor cores wait in turn."""


def _cubin(compiled: Compiled) -> Cubin:
    lines = [line for line in compiled.log.splitlines() if line.strip()]
    remarks = [x for x in lines if not x.startswith("ptxas") or _ASSEMBLER_REMARK.search(x)]
    return Cubin(compiled.symbol, _usage(compiled), "\n".join(remarks), compiled.code)


def _usage(compiled: Compiled) -> Usage:
    """Read the assembler's account of a kernel, its functions that are not inlined included."""
    _, *parts = _ENTRY.split(compiled.log)
    account = dict(zip(parts[::2], parts[1::2], strict=True)).get(compiled.symbol, "")
    return Usage(**{name: sum(map(int, f.findall(account))) for name, f in _FACTS.items()})


def _encoded(cubin: Cubin) -> bytes:
    facts = {"symbol": cubin.symbol, "usage": asdict(cubin.usage), "warnings": cubin.warnings}
    return json.dumps(facts).encode() + b"\n" + cubin.code


def _decoded(content: bytes) -> Cubin:
    head, _, code = content.partition(b"\n")
    facts = json.loads(head)
    return Cubin(facts["symbol"], Usage(**facts["usage"]), facts["warnings"], code)
