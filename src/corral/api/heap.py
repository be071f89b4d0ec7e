"""Has the C library give long buffers back to the system as soon as they are free.

Each time one is freed that was mapped by itself, glibc keeps longer ones in the heaps of threads
from then on: after a few bodies of 15 MB a server would hold a multiple of that for good.
"""

import ctypes

MAPPED_BYTES = 1 << 20
"""From this size on memory is mapped by itself, and its place given back."""
_M_MMAP_THRESHOLD = -3


def map_long_buffers() -> bool:
    """Have it so in this process from now on; return whether the C library understood."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) == 1
