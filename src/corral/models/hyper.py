"""The hyper-parameters that families share, read once and checked here.

Whatever corral does not run is refused while reading, with the key named.
"""

from dataclasses import dataclass

from corral.errors import InvalidModelFile, UnsupportedModel
from corral.gguf import Metadata

# Far above every model there is, and low enough that a lie costs no time: sizes become loops.
MAX_LAYERS = 1024
MAX_CONTEXT = 1 << 26
MAX_WIDTH = 1 << 20
MAX_HEAD_DIM = 1024
EPSILONS = (1e-30, 1.0)
ROPE_BASES = (1.0 + 1e-6, 1e30)
ROPE_FACTORS = (1.0, 1e6)
"""Scaling squeezes positions; it never stretches them."""
YARN_NUMBERS = (1e-6, 1e6)


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
    _refuse_unknown_semantics(metadata, name)
    layers = metadata.int(f"{name}.block_count", minimum=1, maximum=MAX_LAYERS)
    width = metadata.int(f"{name}.embedding_length", minimum=1, maximum=MAX_WIDTH)
    heads = _same(metadata, f"{name}.attention.head_count", layers)
    kv_heads = _same(metadata, f"{name}.attention.head_count_kv", layers, default=heads)
    if kv_heads > heads or heads % kv_heads:
        raise InvalidModelFile(
            f"{name}.attention.head_count {heads} is no multiple of head_count_kv {kv_heads}"
        )
    head_dim = _head_dim(metadata, name, width, heads)
    context = metadata.int(f"{name}.context_length", minimum=1, maximum=MAX_CONTEXT)
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
        context=context,
        epsilon=_between(metadata, f"{name}.attention.layer_norm_rms_epsilon", 1e-5, *EPSILONS),
        rope_dims=rope_dims,
        rope_base=_between(metadata, f"{name}.rope.freq_base", 10000.0, *ROPE_BASES),
        rope_scaling=_rope_scaling(metadata, name, context),
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


def _refuse_unknown_semantics(metadata: Metadata, name: str) -> None:
    """Refuse what would load and run, and give wrong answers."""
    experts = metadata.int(f"{name}.expert_count", 0)
    used = metadata.int(f"{name}.expert_used_count", min(experts, 1))
    if used > experts or (experts and not used):
        raise InvalidModelFile(f"{name}.expert_used_count is {used} of {experts} experts")
    if experts:
        raise UnsupportedModel(
            f"{name}.expert_count is {experts}: a mixture of experts, which corral does not run yet"
        )
    if not metadata.bool(f"{name}.attention.causal", True):
        raise UnsupportedModel(
            f"{name}.attention.causal is false: tokens see later ones, which corral does not run"
        )


def _head_dim(metadata: Metadata, name: str, width: int, heads: int) -> int:
    key, value = f"{name}.attention.key_length", f"{name}.attention.value_length"
    if key not in metadata and width % heads:
        raise InvalidModelFile(
            f"{name}.embedding_length {width} is no multiple of the {heads} heads "
            f"of {name}.attention.head_count, and {key} is missing"
        )
    head_dim = metadata.int(key, width // heads, minimum=2, maximum=MAX_HEAD_DIM)
    if not 2 <= head_dim <= MAX_HEAD_DIM:
        raise InvalidModelFile(
            f"{name}.embedding_length {width} and {name}.attention.head_count {heads} make heads "
            f"of {head_dim}, expected 2 to {MAX_HEAD_DIM}"
        )
    value_dim = metadata.int(value, head_dim, minimum=2)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{key} is {head_dim}, {value} is {value_dim}; corral needs equals")
    return head_dim


def _vocabulary(metadata: Metadata, name: str) -> int:
    key, listed = f"{name}.vocab_size", metadata.length("tokenizer.ggml.tokens", 0)
    if listed and key not in metadata:
        return listed
    declared = metadata.int(key, minimum=1)
    if listed not in (0, declared):
        raise InvalidModelFile(f"{key} is {declared}, but {listed} tokens are listed")
    return declared


def _between(metadata: Metadata, key: str, default: float, low: float, high: float) -> float:
    value = metadata.float(key, default)
    if not low <= value <= high:
        raise InvalidModelFile(f"{key} is {value:g}, expected {low:g} to {high:g}")
    return value


def _window(metadata: Metadata, name: str) -> int | None:
    key = f"{name}.attention.sliding_window"
    return metadata.int(key, minimum=1) if key in metadata else None


def _rope_scaling(metadata: Metadata, name: str, context: int) -> RopeScaling:
    prefix = f"{name}.rope.scaling"
    legacy = _between(metadata, f"{name}.rope.scale_linear", 1.0, *ROPE_FACTORS)
    kind = metadata.str(f"{prefix}.type", "linear" if legacy != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{prefix}.type is {kind[:60]!r}; corral runs none, linear and yarn")
    return RopeScaling(
        kind,
        _between(metadata, f"{prefix}.factor", legacy, *ROPE_FACTORS),
        metadata.int(f"{prefix}.original_context_length", context, minimum=int(kind == "yarn")),
        _between(metadata, f"{prefix}.attn_factor", 1.0, *YARN_NUMBERS),
        _between(metadata, f"{prefix}.yarn_beta_fast", 32.0, *YARN_NUMBERS),
        _between(metadata, f"{prefix}.yarn_beta_slow", 1.0, *YARN_NUMBERS),
    )
