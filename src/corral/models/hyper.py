"""The hyper-parameters that families share, read once and checked here.

Whatever corral does not run is refused while reading, with the key named.
"""

from dataclasses import dataclass

from corral.errors import InvalidModelFile, UnsupportedModel
from corral.gguf import Metadata

MAX_LAYERS = 1024
MAX_CONTEXT = 1 << 26


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How positions beyond the trained context are squeezed."""

    kind: str
    """"none", "linear" or "yarn"."""
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Hyper:
    """Sizes and constants of a dense transformer."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    context: int
    """Tokens the model was trained for."""
    epsilon: float
    rope_dims: int
    rope_base: float
    rope_scaling: RopeScaling
    window: int | None = None


def read_hyper(metadata: Metadata) -> Hyper:
    """Read the hyper-parameters under the architecture's own prefix.

    Raises:
        InvalidModelFile: if a key is missing, of another type, or contradicts another.
        UnsupportedModel: if the file asks for something no family here does.
    """
    name = metadata.architecture
    layers = metadata.int(f"{name}.block_count", minimum=1, maximum=MAX_LAYERS)
    width = metadata.int(f"{name}.embedding_length", minimum=1)
    heads = _same(metadata, f"{name}.attention.head_count", layers)
    kv_heads = _same(metadata, f"{name}.attention.head_count_kv", layers, default=heads)
    if kv_heads > heads or heads % kv_heads:
        raise InvalidModelFile(
            f"{name}.attention.head_count {heads} is no multiple of head_count_kv {kv_heads}"
        )
    head_dim = _head_dim(metadata, name, width, heads)
    rope_dims = metadata.int(f"{name}.rope.dimension_count", head_dim, minimum=2)
    if rope_dims % 2 or rope_dims > head_dim:
        raise InvalidModelFile(
            f"{name}.rope.dimension_count is {rope_dims}, expected an even number ≤ {head_dim}"
        )
    return Hyper(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_same(metadata, f"{name}.feed_forward_length", layers),
        vocabulary=_vocabulary(metadata, name),
        context=metadata.int(f"{name}.context_length", minimum=1, maximum=MAX_CONTEXT),
        epsilon=_positive(metadata, f"{name}.attention.layer_norm_rms_epsilon", 1e-5),
        rope_dims=rope_dims,
        rope_base=_positive(metadata, f"{name}.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(metadata, name),
        window=_window(metadata, name),
    )


def _same(metadata: Metadata, key: str, layers: int, default: int | None = None) -> int:
    """Read one number, or an array that holds it for each layer."""
    if default is not None and key not in metadata:
        return default
    values = set(metadata.ints(key, count=layers, minimum=1))
    if len(values) > 1:
        raise UnsupportedModel(f"{key} differs between layers, which corral does not run")
    return values.pop()


def _head_dim(metadata: Metadata, name: str, width: int, heads: int) -> int:
    key, value = f"{name}.attention.key_length", f"{name}.attention.value_length"
    if key not in metadata and width % heads:
        raise InvalidModelFile(
            f"{name}.embedding_length {width} is no multiple of the {heads} heads, "
            f"and {key} is missing"
        )
    head_dim = metadata.int(key, width // heads, minimum=2)
    value_dim = metadata.int(value, head_dim, minimum=2)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{key} is {head_dim}, {value} is {value_dim}; corral needs equals")
    return head_dim


def _vocabulary(metadata: Metadata, name: str) -> int:
    tokens = metadata.length("tokenizer.ggml.tokens", 0)
    size = metadata.int(f"{name}.vocab_size", tokens, minimum=1) if tokens == 0 else tokens
    declared = metadata.int(f"{name}.vocab_size", size, minimum=1)
    if declared != size:
        raise InvalidModelFile(f"{name}.vocab_size is {declared}, but {size} tokens are listed")
    return size


def _positive(metadata: Metadata, key: str, default: float) -> float:
    value = metadata.float(key, default)
    if value <= 0:
        raise InvalidModelFile(f"{key} is {value}, expected a number above 0")
    return value


def _window(metadata: Metadata, name: str) -> int | None:
    key = f"{name}.attention.sliding_window"
    return metadata.int(key, minimum=1) if key in metadata else None


def _rope_scaling(metadata: Metadata, name: str) -> RopeScaling:
    prefix = f"{name}.rope.scaling"
    legacy = _positive(metadata, f"{name}.rope.scale_linear", 1.0)
    kind = metadata.str(f"{prefix}.type", "linear" if legacy != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{prefix}.type is {kind!r}; corral runs none, linear and yarn")
    return RopeScaling(
        kind,
        _positive(metadata, f"{prefix}.factor", legacy),
        metadata.int(f"{prefix}.original_context_length", 0),
        _positive(metadata, f"{prefix}.attn_factor", 1.0),
        _positive(metadata, f"{prefix}.yarn_beta_fast", 32.0),
        _positive(metadata, f"{prefix}.yarn_beta_slow", 1.0),
    )
