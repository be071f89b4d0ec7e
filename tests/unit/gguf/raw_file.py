"""Builds GGUF files byte by byte, so that tests can break any field of a good one."""

from dataclasses import dataclass
from struct import pack

U32, I32, F32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
GGML_F32, GGML_Q4_0 = 0, 2


def string(data: bytes, length: int | None = None) -> bytes:
    """A string, optionally with a lying length."""
    return pack("<Q", len(data) if length is None else length) + data


def key(name: bytes, kind: int, payload: bytes) -> bytes:
    """A key with the bytes of its value."""
    return string(name) + pack("<I", kind & 0xFFFFFFFF) + payload


def u32(name: bytes, number: int) -> bytes:
    """A key with an unsigned 32-bit value."""
    return key(name, U32, pack("<I", number))


def text(name: bytes, value: bytes) -> bytes:
    """A key with a string value."""
    return key(name, STRING, string(value))


def array(name: bytes, kind: int, length: int, payload: bytes) -> bytes:
    """A key with an array value."""
    return key(name, ARRAY, pack("<IQ", kind, length) + payload)


def tensor(
    name: bytes = b"t",
    sizes: tuple[int, ...] = (8,),
    kind: int = GGML_F32,
    offset: int = 0,
    rank: int | None = None,
) -> bytes:
    """An entry of the tensor table; `sizes` fastest first, as in the file."""
    shape = pack(f"<{len(sizes)}Q", *(s & (1 << 64) - 1 for s in sizes))
    head = string(name) + pack("<I", len(sizes) if rank is None else rank) + shape
    return head + pack("<IQ", kind & 0xFFFFFFFF, offset)


ARCHITECTURE = text(b"general.architecture", b"llama")


@dataclass(frozen=True)
class RawFile:
    """A GGUF file in parts; good as it is."""

    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    keys: tuple[bytes, ...] = (ARCHITECTURE,)
    tensors: tuple[bytes, ...] = (tensor(),)
    alignment: int = 32
    data: bytes = bytes(range(32))

    @property
    def header(self) -> bytes:
        """Everything before the padding."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        start = self.magic + pack("<IQQ", self.version, num_tensors, num_keys)
        return start + b"".join(self.keys) + b"".join(self.tensors)

    def build(self) -> bytes:
        """The bytes of the file."""
        header = self.header
        return header + bytes(-len(header) % self.alignment) + self.data
