"""How large each part of a GGUF header may be.

A header states its own lengths, so none of them can be believed. These bounds lie far above every
real model and far below what would exhaust a machine.
"""

from typing import Final

MAX_TENSORS: Final = 65_536
MAX_KEYS: Final = 65_536
MAX_KEY_BYTES: Final = 65_535
MAX_STRING_BYTES: Final = 16 << 20
MAX_ARRAY_ELEMENTS: Final = 16_000_000
MAX_STRINGS: Final = 4_000_000
"""In all arrays together: strings must be walked one by one. The largest vocabularies of today
have 260,000 tokens and 510,000 merges."""
MAX_HEADER_BYTES: Final = 512 << 20
"""Metadata and tensor table together."""
MAX_ALIGNMENT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
MAX_TENSOR_NAME_BYTES: Final = 63
"""ggml keeps names in 64 bytes with a terminator."""
MAX_ELEMENTS: Final = (1 << 63) - 1
MAX_SHARDS: Final = 1_024
SKIPPED_ARRAY_ELEMENTS: Final = 1_024
"""With `skip_arrays`, longer arrays keep only type and length; per-layer arrays are shorter."""
