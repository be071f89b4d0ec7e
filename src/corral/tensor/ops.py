"""The op table: what each operation reads, gives and may overwrite.

Models write the first group. The second group comes from `rewrite.py`, and only for a device whose
traits name it; the third from `attach.py`, for models with adapters. Attributes are frozen
dataclasses, one for each operation that needs any.
"""

import enum
from dataclasses import dataclass


class Activation(enum.Enum):
    """The non-linearity of a gated feed-forward block."""

    SILU = "x · sigmoid(x)"
    GELU = "x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))"


class RopePairs(enum.Enum):
    """Which two dimensions of a head turn together."""

    HALVES = "i and i + dims/2 (neox)"
    NEIGHBOURS = "2i and 2i + 1 (llama)"


@dataclass(frozen=True, slots=True)
class Product:
    """Attributes of MATMUL, not precise by default: worth twice the work where x is rounded?"""

    is_precise: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """Attributes of RMS_NORM: each run of `group` columns is divided by its root mean square."""

    epsilon: float
    group: int


@dataclass(frozen=True, slots=True)
class Embed:
    """Attributes of EMBED: rows of the table are multiplied by `scale`."""

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """Attributes of ROTATIONS: cosines and sines are multiplied by `magnitude` (YaRN's mscale)."""

    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Attributes of ROPE and KV_SHIFT: the first dimensions of each head turn, the others pass."""

    head_dim: int
    pairs: RopePairs


@dataclass(frozen=True, slots=True)
class Attend:
    """Attributes of ATTENTION."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    """Positions a row sees, itself included; None is all."""
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Attributes of GATED: activation(gate) · up."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Constant:
    """Attributes of CONSTANT: the values themselves."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Attributes of VIEW: a run of columns of the source."""

    first: int


@dataclass(frozen=True, slots=True)
class Cap:
    """Attributes of SOFTCAP: limit · tanh(x / limit)."""

    limit: float


Attributes = (
    Product | Norm | Embed | Rotation | Rope | Attend | Gate | Constant | Columns | Cap | None
)


@dataclass(frozen=True, slots=True)
class OpTraits:
    """What the planner and the verifier must know of one operation."""

    sources: tuple[str, ...]
    optional: int = 0
    """How many of the last sources may be missing."""
    in_place: int | None = None
    """The source whose bytes the result may take over, if it dies here and has the same size."""
    attributes: type | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether the value is given and not computed."""
        return not self.sources


class Op(enum.Enum):
    """An operation; rows are tokens, the columns lie contiguous."""

    __hash__ = object.__hash__  # as members are equal to themselves only; five times as quick

    # leaves
    INPUT = "a value that the host writes before each evaluation"
    WEIGHT = "a tensor of the model file"
    STATE = "keys and values of one layer, kept between evaluations"
    CONSTANT = "a few numbers known when the graph is built"
    RECEIVED = "rows that another device computed, in scratch before the evaluation begins"
    ADAPTERS = "for one weight, where the matrices of each loaded adapter lie"
    # written by models
    EMBED = "rows of a table, chosen by token"
    RMS_NORM = "x / rms(x) · weight"
    MATMUL = "x · weightᵀ (+ bias)"
    ADD = "a + b"
    MUL = "a · b"
    ACTIVATE = "silu or gelu of x"
    SOFTCAP = "limit · tanh(x / limit)"
    ROTATIONS = "cosine and sine of position · frequency"
    ROPE = "x turned by rotations"
    KV_APPEND = "keys and values written to their blocks; the result is the state"
    KV_SHIFT = "keys of some blocks turned further; the result is the state"
    ATTENTION = "softmax(q·K)·V over the blocks of each row's sequence"
    SELECT_ROWS = "the rows whose logits are wanted"
    VIEW = "some columns of the source; owns no bytes"
    # written by rewrite.py
    QUANTIZE = "x as integer codes with scale and sum (A8 or A16)"
    NORM_QUANTIZE = "RMS_NORM, then QUANTIZE"
    GATED = "activation(gate) · up"
    GATED_QUANTIZE = "GATED, then QUANTIZE"
    MATMUL_ADD = "MATMUL plus a residual"
    # written by attach.py
    LORA_DOWN = "x · Aᵀ, for rows with adapters"
    LORA_UP = "y + scale · down · Bᵀ, for rows with adapters"

    @property
    def traits(self) -> OpTraits:
        """The row of the op table."""
        return TABLE[self]


_CACHE_INDEX = ("positions", "sequences", "tables")

TABLE: dict[Op, OpTraits] = {
    Op.INPUT: OpTraits(()),
    Op.WEIGHT: OpTraits(()),
    Op.STATE: OpTraits(()),
    Op.CONSTANT: OpTraits((), attributes=Constant),
    Op.RECEIVED: OpTraits(()),
    Op.ADAPTERS: OpTraits(()),
    Op.EMBED: OpTraits(("tokens", "table"), attributes=Embed),
    Op.RMS_NORM: OpTraits(("x", "weight"), in_place=0, attributes=Norm),
    Op.MATMUL: OpTraits(("x", "weight", "bias"), optional=1),
    Op.ADD: OpTraits(("a", "b"), in_place=0),
    Op.MUL: OpTraits(("a", "b"), in_place=0),
    Op.ACTIVATE: OpTraits(("x",), in_place=0, attributes=Gate),
    Op.SOFTCAP: OpTraits(("x",), in_place=0, attributes=Cap),
    Op.ROTATIONS: OpTraits(
        ("positions", "frequencies", "factors"), optional=1, attributes=Rotation
    ),
    Op.ROPE: OpTraits(("x", "rotations"), in_place=0, attributes=Rope),
    Op.KV_APPEND: OpTraits(("k", "v", "state", *_CACHE_INDEX), in_place=2),
    Op.KV_SHIFT: OpTraits(
        ("state", "rotations", "from_blocks", "to_blocks"), in_place=0, attributes=Rope
    ),
    Op.ATTENTION: OpTraits(("q", "state", *_CACHE_INDEX), attributes=Attend),
    Op.SELECT_ROWS: OpTraits(("x", "rows")),
    Op.VIEW: OpTraits(("x",), in_place=0, attributes=Columns),
    Op.QUANTIZE: OpTraits(("x",)),
    Op.NORM_QUANTIZE: OpTraits(("x", "weight"), attributes=Norm),
    Op.GATED: OpTraits(("gate", "up"), in_place=0, attributes=Gate),
    Op.GATED_QUANTIZE: OpTraits(("gate", "up"), attributes=Gate),
    Op.MATMUL_ADD: OpTraits(("x", "weight", "residual", "bias"), optional=1, in_place=2),
    Op.LORA_DOWN: OpTraits(("x", "spans", "adapters")),
    Op.LORA_UP: OpTraits(("y", "down", "spans", "adapters"), in_place=0),
}
