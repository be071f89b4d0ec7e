"""Which type each tensor of a quantized model gets: the mixtures of llama.cpp, and no other.

    tensor ─▶ kept as it is?   vectors, norms, and small matrices that a list names
           ─▶ the base type of the mixture
           ─▶ more bits?       the output, and in some layers what values and ffn_down compute with
           ─▶ another type     where rows are no whole blocks of the chosen one

Names, shapes and metadata in, types out: the bytes are made elsewhere. That the types are
llama.cpp's, for all families it knows, is what makes files comparable, so no rule here is ours.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from corral.errors import InvalidArgument
from corral.gguf import Metadata, TensorInfo
from corral.quant.types import DType


@dataclass(frozen=True, slots=True)
class Mixture:
    """One kind of model file."""

    name: str
    file_type: int
    """What `general.file_type` calls it."""
    base: DType
    """Of most matrices."""


MIXTURES: Final[dict[str, Mixture]] = {
    name: Mixture(name, number, base)
    for name, number, base in (
        ("F32", 0, DType.F32),
        ("F16", 1, DType.F16),
        ("BF16", 32, DType.BF16),
        ("Q8_0", 7, DType.Q8_0),
        ("Q6_K", 18, DType.Q6_K),
        ("Q5_K_M", 17, DType.Q5_K),
        ("Q5_K_S", 16, DType.Q5_K),
        ("Q5_1", 9, DType.Q5_1),
        ("Q5_0", 8, DType.Q5_0),
        ("Q4_K_M", 15, DType.Q4_K),
        ("Q4_K_S", 14, DType.Q4_K),
        ("Q4_1", 3, DType.Q4_1),
        ("Q4_0", 2, DType.Q4_0),
        ("Q3_K_L", 13, DType.Q3_K),
        ("Q3_K_M", 12, DType.Q3_K),
        ("Q3_K_S", 11, DType.Q3_K),
        ("Q2_K", 10, DType.Q2_K),
    )
}
"""What there is, most bits first."""

_KEPT: Final = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight"),
    *("time_mix_first.weight", "time_mix_lerp_fused.weight"),
    *(f"time_mix_{part}.weight" for part in ("w0", "w1", "w2", "v0", "v1", "v2")),
    *(f"time_mix_{part}.weight" for part in ("a0", "a1", "a2", "g1", "g2")),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
"""Matrices with this in their name are small, or of a kind that does not bear rounding."""
_KEPT_NAMES: Final = ("position_embd.weight", "token_types.weight")
_EMBEDDINGS: Final = ("token_embd.weight", "per_layer_token_embd.weight")
_LIKE_VALUES: Final = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")
_FALLBACKS: Final = {
    DType.Q2_K: DType.Q4_0,
    DType.Q3_K: DType.Q4_0,
    DType.Q4_K: DType.Q5_0,
    DType.Q5_K: DType.Q5_1,
    DType.Q6_K: DType.Q8_0,
}
"""For rows that are no multiple of 256."""
_FIVE_BITS_OF_EIGHT: Final = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M")
"""Mixtures that give attn_output five bits where there are eight experts."""
_LAYER: Final = re.compile(r"blk\.(\d+)\.")
_LARGE_LAYERS: Final = 80
_SHARING: Final = ("deci", "olmo", "qwen2")
"""Families whose models of 80 layers count as sharing values among many heads."""


def mixture(name: str) -> Mixture:
    """Return a mixture by its name, in capitals or not.

    Raises:
        InvalidArgument: if there is none of that name.
    """
    try:
        return MIXTURES[name.upper()]
    except KeyError:
        raise InvalidArgument(
            f"no type {name[:40]!r} to quantize to; there are {', '.join(MIXTURES)}"
        ) from None


def tensor_types(
    metadata: Metadata,
    tensors: Iterable[TensorInfo],
    to: Mixture,
    *,
    is_pure: bool = False,
) -> dict[str, DType]:
    """Return the type of each tensor by name, in the order in which llama.cpp writes them.

    With `is_pure` every matrix gets the base type, if its rows can have it.

    Raises:
        InvalidModelFile: if the metadata contradicts itself, or the name of a tensor.
    """
    ordered = sorted(tensors, key=lambda tensor: (_layer(tensor.name), tensor.name))
    choice = _Choice(_Model.of(metadata, ordered), to)
    types = {}
    for tensor in ordered:
        dtype = tensor.dtype
        if is_quantizable(tensor):
            dtype = to.base
            if dtype.is_quantized:
                wanted = dtype if is_pure else choice.of(tensor)
                dtype = fitting(wanted, tensor.shape[-1])
        types[tensor.name] = dtype
    return types


def is_quantizable(tensor: TensorInfo) -> bool:
    """Whether a tensor is a matrix (or several) of a kind that is rounded at all."""
    name = tensor.name
    return (
        any(size > 1 for size in tensor.shape[:-1])
        and name.endswith("weight")
        and name not in _KEPT_NAMES
        and not any(part in name for part in _KEPT)
    )


def fitting(dtype: DType, columns: int) -> DType:
    """Return the type itself if rows are whole blocks of it, or the one that stands in."""
    for each in (dtype, _FALLBACKS.get(dtype, dtype)):
        if columns % each.block_elements == 0:
            return each
    return DType.F16


@dataclass(frozen=True, slots=True)
class _Model:
    """What the rules ask of a model."""

    architecture: str
    layers: int
    experts: int
    heads_a_value: int
    """How many heads of the first layer share keys and values."""
    is_large: bool
    """Whether values are so small beside the rest that they are given more bits."""
    is_tied: bool
    """Whether the embeddings serve as the output, too."""
    values: int
    """Tensors that compute values."""

    @classmethod
    def of(cls, metadata: Metadata, tensors: list[TensorInfo]) -> "_Model":
        name = metadata.architecture
        names = [tensor.name for tensor in tensors]
        layers = metadata.int(f"{name}.block_count", 0)
        sharing = _heads_a_value(metadata, name)
        is_large = name in _SHARING or (name == "llama" and sharing != 1)
        return cls(
            name,
            layers,
            metadata.int(f"{name}.expert_count", 0),
            sharing,
            is_large and layers == _LARGE_LAYERS,
            "output.weight" not in names,
            len([each for each in names if _is_like_values(each)]),
        )


class _Choice:
    """Chooses types in the order of the tensors, some by how many of a kind came before."""

    def __init__(self, model: _Model, to: Mixture) -> None:
        self._model, self._to = model, to
        self._seen: Counter[str] = Counter()

    def of(self, tensor: TensorInfo) -> DType:
        """Return the type that a tensor should have, whatever its shape."""
        name, model = tensor.name, self._model
        if name == "output.weight" or (model.is_tied and name in _EMBEDDINGS):
            return self._output(tensor)
        if name in _EMBEDDINGS:
            return self._to.base
        if _is_like_values(name):
            return self._values(self._count("values"))
        if "attn_k.weight" in name and model.experts == 8:
            return DType.Q8_0
        if "attn_output.weight" in name:
            return self._attention_output()
        if "ffn_down" in name and "ffn_up" not in name and "ffn_gate" not in name:
            before = self._count("down")
            return self._down(before if model.experts <= 1 else _layer(name))
        return self._to.base

    def _output(self, tensor: TensorInfo) -> DType:
        base = self._to.base
        is_odd = tensor.shape[-1] % base.block_elements != 0
        if base is DType.Q8_0 or is_odd or self._model.architecture == "falcon":
            return DType.Q8_0
        return DType.Q6_K

    def _values(self, before: int) -> DType:
        model, dtype = self._model, self._to.base
        if self._is("Q4_K_M", "Q5_K_M") and _gets_more_bits(before, model.values):
            dtype = DType.Q6_K
        elif (self._is("Q4_K_S") and before < 4) or self._is("Q3_K_L"):
            dtype = DType.Q5_K
        elif self._is("Q3_K_M"):
            dtype = DType.Q5_K if before < 2 else DType.Q4_K
        elif self._is("Q2_K"):
            dtype = DType.Q4_K if model.heads_a_value >= 4 else DType.Q3_K
        if model.is_large and dtype in (DType.Q3_K, DType.Q4_K):
            dtype = DType.Q5_K
        return DType.Q8_0 if model.experts == 8 else dtype

    def _attention_output(self) -> DType:
        if self._model.architecture == "falcon":
            return DType.Q4_K if self._is("Q3_K_L") else self._to.base
        if self._model.experts == 8:
            return DType.Q5_K if self._to.name in _FIVE_BITS_OF_EIGHT else self._to.base
        more = {"Q2_K": DType.Q3_K, "Q3_K_M": DType.Q4_K, "Q3_K_L": DType.Q5_K}
        return more.get(self._to.name, self._to.base)

    def _down(self, layer: int) -> DType:
        layers, is_falcon = self._model.layers, self._model.architecture == "falcon"
        if self._is("Q2_K"):
            return DType.Q3_K
        if self._is("Q3_K_L"):
            return DType.Q4_K if is_falcon else DType.Q5_K
        is_chosen = _gets_more_bits(layer, layers)
        if self._is("Q3_K_M"):
            more = DType.Q4_K if is_chosen or not is_falcon else DType.Q3_K
            return DType.Q5_K if layer < layers // 16 else more
        if is_falcon and self._is("Q4_K_M"):
            more = DType.Q5_K if is_chosen else DType.Q4_K
            return DType.Q6_K if layer < layers // 16 else more
        if self._is("Q4_K_M", "Q5_K_M") and is_chosen:
            return DType.Q6_K
        if self._is("Q4_K_S") and not is_falcon and layer < layers // 8:
            return DType.Q5_K
        return self._to.base

    def _is(self, *names: str) -> bool:
        return self._to.name in names

    def _count(self, kind: str) -> int:
        """Return how many of a kind came before."""
        self._seen[kind] += 1
        return self._seen[kind] - 1


def _gets_more_bits(layer: int, layers: int) -> bool:
    """Whether a mixture spends more on this layer: the first and last eighth, a third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _is_like_values(name: str) -> bool:
    return any(part in name for part in _LIKE_VALUES)


def _layer(name: str) -> int:
    """Return the layer that a name tells, or −1: such tensors come first."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def _heads_a_value(metadata: Metadata, name: str) -> int:
    """Return how many heads of the first layer share keys and values, as far as that is told."""
    key = f"{name}.attention.head_count"
    if key not in metadata or f"{key}_kv" not in metadata:
        return 1
    layers = metadata.int(f"{name}.block_count")
    heads, shared = (metadata.ints(each, count=layers)[:1] for each in (key, f"{key}_kv"))
    return heads[0] // shared[0] if heads and shared and shared[0] else 1
