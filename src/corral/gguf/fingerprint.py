"""What tells one model from another: a digest of its header and of samples of every tensor.

It depends neither on where the files lie nor on what they are called, and reads some kilobytes a
tensor. Files that differ only in bytes of a tensor that are not looked at have the same one; no
conversion, quantization or training makes such files.
"""

from hashlib import blake2b

from corral.gguf.shards import ModelFile

_SAMPLE_BYTES = 2048
"""Looked at, at the beginning, in the middle and at the end of each tensor."""
_DIGEST_BYTES = 20


def fingerprint(file: ModelFile) -> str:
    """Return the fingerprint of an open model, in hexadecimal.

    Raises:
        Closed: if the file was closed.
        InvalidModelFile: if it became shorter or cannot be read.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"corral model")
    for number in range(len(file.headers)):
        digest.update(file.header_bytes(number))
    for name, tensor in file.tensors.items():
        size = min(_SAMPLE_BYTES, tensor.size_bytes)
        for start in (0, (tensor.size_bytes - size) // 2, tensor.size_bytes - size):
            sample = bytearray(size)
            file.read(name, sample, start)
            digest.update(sample)
    return digest.hexdigest()
