"""The CUDA sources of kernels, read once: what is compiled is what was digested.

    kernels/NAME.cu            kernels; each file is compiled by itself
    kernels/include/NAME.cuh   what they share; kernels include "include/NAME.cuh", and these files
                               each other by "NAME.cuh", as every C++ compiler finds them

It knows files, not what is in them.
"""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

from corral.errors import CompileError

KERNELS = Path(__file__).parent / "kernels"


class KernelSources:
    """The sources below one directory, as they were when they were first asked for."""

    def __init__(self, directory: Path = KERNELS) -> None:
        self._directory = directory
        self._sources: dict[str, bytes] = {}

    @functools.cached_property
    def headers(self) -> Mapping[str, bytes]:
        """The shared files by the names that they are included by.

        NVRTC looks for no file beside the one that includes it, so those at include/NAME lead on.
        """
        paths = sorted((self._directory / "include").glob("*.cuh"))
        return {path.name: path.read_bytes() for path in paths} | {
            f"include/{path.name}": f'#include "{path.name}"\n'.encode() for path in paths
        }

    def source(self, name: str) -> bytes:
        """Return the source of one file of kernels.

        Raises:
            CompileError: if there is none of that name.
        """
        if name not in self._sources:
            path = self._directory / f"{name}.cu"
            try:
                self._sources[name] = path.read_bytes()
            except OSError as error:
                reason = error.strerror or str(error)
                raise CompileError(f"{path} cannot be read: {reason}") from error
        return self._sources[name]

    def digest(self, name: str) -> str:
        """Return a digest of everything of ours that decides what a file's kernels become.

        Raises:
            CompileError: as `source`.
        """
        digest = self._headers_digest.copy()
        digest.update(self.source(name))
        return digest.hexdigest()

    @functools.cached_property
    def _headers_digest(self) -> "hashlib._Hash":
        digest = hashlib.sha256()
        for name, content in self.headers.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest
