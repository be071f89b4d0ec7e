"""How much address space the system allows this process (`ulimit -v`): too little has odd effects.

Libraries that run short end the process or claim to be missing, so a limit below what they take
is refused before they are loaded, and named beside errors it may have caused.
"""

import resource

from corral.errors import OutOfMemory

LIBRARIES_BYTES = 400 << 20
"""Measured: with 400 MiB NumPy, LLVM and the tokenizers load, with 380 one of them fails."""
_SUSPECT_BYTES = 4 << 30


def address_space() -> int | None:
    """Return the bytes of address space allowed, or None if there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def require_room() -> None:
    """Refuse to begin where not even the libraries fit.

    Raises:
        OutOfMemory: the limit is below what they take.
    """
    limit = address_space()
    if limit is not None and limit < LIBRARIES_BYTES:
        raise OutOfMemory(
            f"this process may use {limit >> 20} MiB of address space (ulimit -v) and needs "
            f"{LIBRARIES_BYTES >> 20} MiB beside the model: raise the limit"
        )


def hint() -> str:
    """Return the end of a message: the limit, where it is so low that it may be the cause."""
    limit = address_space()
    if limit is None or limit > _SUSPECT_BYTES:
        return ""
    return f" (this process may use {limit >> 20} MiB of address space: ulimit -v)"
