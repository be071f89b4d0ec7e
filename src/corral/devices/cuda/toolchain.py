"""Which compiler a machine has for CUDA kernels, told without loading it.

A warm start compiles nothing, so it should not load a compiler of 100 MB to learn its version: the
installed wheel tells that, in the name of its folder. Only where NVRTC came another way is it
asked itself.
"""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from corral.devices.cuda.driver_errors import EXTRA
from corral.errors import DeviceUnavailable

BUNDLED_FROM = (13, 3)
"""The first release of NVRTC that carries CUDA's headers itself."""
_HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp")
"""All that kernels include of CUDA's; the second and fourth are not in every release."""
_WHEEL = "nvidia_cuda_nvrtc-"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler and the headers of CUDA that it compiles with."""

    version: str
    """As exact as it is known, beginning with major.minor."""
    include: Path | None = None
    """Where the headers are; None where the compiler brings them."""
    headers_digest: str = ""
    """Of the headers in `include`."""

    @property
    def release(self) -> tuple[int, int]:
        """The compiler's (major, minor)."""
        return release_of(self.version)

    @property
    def identity(self) -> str:
        """The same text for toolchains that make the same code."""
        return f"NVRTC {self.version}, headers {self.headers_digest or 'its own'}"


def release_of(version: str) -> tuple[int, int]:
    """Return the (major, minor) that a version begins with."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def find_toolchain(
    ask: Callable[[], str],
    paths: Iterable[str] | None = None,
    headers: Callable[[], Path | None] | None = None,
) -> Toolchain:
    """Return the toolchain of this machine; `ask` is called only where no wheel tells the version.

    Raises:
        DeviceUnavailable: if the compiler or the headers that it needs are missing.
    """
    version = wheel_version(sys.path if paths is None else paths) or ask()
    if release_of(version) >= BUNDLED_FROM:
        return Toolchain(version)
    include = (headers or _toolkit_headers)()
    if include is None:
        raise DeviceUnavailable(
            f"NVRTC {version} needs the headers of CUDA, which are not installed: "
            f"pip install 'nvidia-cuda-nvrtc>={'.'.join(map(str, BUNDLED_FROM))}', which has them, "
            "or nvidia-cuda-runtime of the same version"
        )
    return Toolchain(version, include, _digest(include))


def wheel_version(paths: Iterable[str]) -> str | None:
    """Return the version of the NVRTC that pip installed, or None.

    importlib.metadata would tell the same and takes longer to import than sixty kernels to load.
    """
    for path in paths:
        for folder in sorted(Path(path).glob(f"{_WHEEL}*.dist-info")):
            return folder.name.removeprefix(_WHEEL).removesuffix(".dist-info")
    return None


@functools.cache
def machine_toolchain() -> Toolchain:
    """Return the toolchain of this machine, as `find_toolchain`; looked for once."""

    def ask() -> str:
        # Imported late: most processes never compile, and NVRTC's bindings are an extra.
        from corral.devices.cuda.nvrtc import nvrtc_version

        return nvrtc_version()

    return find_toolchain(ask)


def _toolkit_headers() -> Path | None:
    try:
        # Imported late: it comes with the bindings, which are an extra, and new NVRTCs do without.
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise DeviceUnavailable(f"the CUDA bindings are not installed: {EXTRA}") from error
    found = find_nvidia_header_directory("cudart")
    return Path(found) if found else None


def _digest(include: Path) -> str:
    digest = hashlib.sha256()
    for name in _HEADERS:
        path = include / name
        digest.update(name.encode() + (path.read_bytes() if path.exists() else b"\0"))
    return digest.hexdigest()
