"""The calls of NVRTC that compile one kernel, checked; loaded only when something must be compiled.

It knows sources, options and logs; of caches and of what kernels do it knows nothing.

Source: NVRTC documentation, Compilation, Lowered Names and Supported Compile Options.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.devices.cuda.driver_errors import EXTRA
from corral.devices.cuda.toolchain import Toolchain, release_of
from corral.errors import CompileError, CorralError, DeviceUnavailable, ResourceError

OPTIONS = (
    "-std=c++17",
    "-default-device",
    "--ptxas-options=-v",  # the log then tells registers and spills
    # It would raise the stack of the whole process while it compiles. Here compilers run side by
    # side, on stacks whose size it does not change.
    "--modify-stack-limit=false",
    "--diag-suppress=177",  # of unused variables: what one instance leaves, another needs
)
"""What every kernel is compiled with, besides its architecture and the headers."""

_LOG_LINES = 12
_INVALID_OPTION, _BUILTINS = 5, 7
"""Statuses: NVRTC does not know the architecture; it cannot unpack its headers."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A source and the one kernel of it that is wanted, for one architecture."""

    name: str
    """What the log calls the file."""
    source: bytes
    headers: Mapping[str, bytes]
    expression: str
    """The kernel as C++ names it, template arguments included."""
    arch: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a unit."""

    code: bytes
    symbol: str
    """The kernel's name in the code."""
    log: str


def nvrtc_version() -> str:
    """Return the version of NVRTC that would compile.

    Raises:
        DeviceUnavailable: if the bindings or the library are missing.
    """
    api = _bindings()
    try:
        status, major, minor = api.nvrtcVersion()
    except RuntimeError as error:  # how the bindings tell that there is no library
        raise DeviceUnavailable(f"NVRTC, CUDA's compiler, is not installed: {EXTRA}") from error
    if int(status):
        raise DeviceUnavailable(f"NVRTC does not tell its version ({status.name}): {EXTRA}")
    return f"{major}.{minor}"


def _bindings() -> Any:
    try:
        # Imported late: an extra, and without it this module imports too.
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceUnavailable(f"the CUDA bindings are not installed: {EXTRA}") from error
    return nvrtc


class Nvrtc:
    """A compiler with its headers. Threads may share it: NVRTC compiles side by side."""

    def __init__(self, toolchain: Toolchain, header_directory: Path) -> None:
        """Load the library; headers that it brings are unpacked to a directory for them.

        Raises:
            DeviceUnavailable: if the bindings or the library are missing.
        """
        self.version = nvrtc_version()
        self.release = release_of(self.version)
        self._api = _bindings()
        if toolchain.include is None:
            headers = f"--use-bundled-headers={header_directory}"
        else:
            headers = f"-I{toolchain.include}"
        self._options = (*OPTIONS, headers)

    def compile(self, unit: Unit) -> Compiled:
        """Compile a kernel to a cubin, which runs on its architecture and needs no driver's help.

        Raises:
            CompileError: if NVRTC rejects the source; `ir` holds it.
            DeviceUnavailable: if NVRTC does not know the architecture.
            ResourceError: if the headers cannot be unpacked.
        """
        names, contents = list(unit.headers), list(unit.headers.values())
        program = self._call(
            self._api.nvrtcCreateProgram,
            *(unit.source, _c_string(f"{unit.name}.cu"), len(names), contents),
            [_c_string(name) for name in names],
        )
        try:
            return self._compiled(program, unit)
        finally:
            self._api.nvrtcDestroyProgram(program)

    def _compiled(self, program: Any, unit: Unit) -> Compiled:
        api, expression = self._api, _c_string(unit.expression)
        self._call(api.nvrtcAddNameExpression, program, expression)
        options = [_c_string(option) for option in (f"-arch={unit.arch}", *self._options)]
        (status,) = api.nvrtcCompileProgram(program, len(options), options)
        said = self._bytes(api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog, program)
        log = said.rstrip(b"\0").decode("utf-8", "replace")
        if int(status):
            raise self._failure(int(status), log or status.name, unit)
        code = self._bytes(api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN, program)
        symbol = self._call(api.nvrtcGetLoweredName, program, expression)
        return Compiled(code, symbol.decode(), log)

    def _bytes(self, size_of: Any, read: Any, program: Any) -> bytes:
        content = bytearray(self._call(size_of, program))
        self._call(read, program, content)
        return bytes(content)

    def _call(self, function: Any, *arguments: object) -> Any:
        status, *values = function(*arguments)
        if int(status):
            raise CompileError(f"{function.__name__} said {status.name} ({int(status)})")
        return values[0] if values else None

    def _failure(self, status: int, log: str, unit: Unit) -> CorralError:
        said = "\n".join([line for line in log.splitlines() if line.strip()][:_LOG_LINES])
        what = f"{unit.expression} of {unit.name}.cu for {unit.arch}"
        if status == _INVALID_OPTION and "gpu-architecture" in said:
            return DeviceUnavailable(
                f"NVRTC {self.version} does not know {unit.arch}: a newer one may, "
                "pip install -U nvidia-cuda-nvrtc"
            )
        if status == _BUILTINS:
            return ResourceError(
                f"NVRTC cannot unpack its headers to compile {what}: {said}\n"
                "CORRAL_CACHE can name a directory that is writable"
            )
        return CompileError(f"{what} does not compile: {said}", ir=unit.source.decode())


def _c_string(text: str) -> bytes:
    return text.encode()
