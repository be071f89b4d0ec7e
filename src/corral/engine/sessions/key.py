"""What must be the same for keys and values of one process to be right in another."""

from hashlib import blake2b

from corral.engine.opened import OpenedModel
from corral.engine.sessions.file import KEY_BYTES
from corral.kv.spec import BLOCK_TOKENS
from corral.text.template import TEMPLATE_KEY


def session_key(opened: OpenedModel, adapters: tuple[str, ...] = ()) -> bytes:
    """Return a digest of a model, of how its cache is kept, and of who computes which layer.

    Namespaces are no part of it: they stand in the names of blocks.

    Args:
        adapters: fingerprints of what changes the model's weights.
    """
    kv = opened.loaded.design.kv
    kinds = [
        (part.plan.traits.kind, len(layers))
        for part, layers in zip(opened.loaded.parts, opened.loaded.layers, strict=True)
    ]
    template = opened.metadata.str(TEMPLATE_KEY, "")
    parts = (opened.fingerprint, adapters, template, kv.dtype.name, kv.layers, BLOCK_TOKENS, kinds)
    digest = blake2b(digest_size=KEY_BYTES, person=b"session key")
    for part in parts:
        digest.update(repr(part).encode() + b"\0")
    return digest.digest()
