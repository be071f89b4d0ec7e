"""A model file with adapters merged into its weights: W + scale · B·A, in the weight's own type.

It is a conversion like quantizing: each piece of a changed tensor is read, unpacked, added to and
packed again; all other bytes are copied. What is in memory is a few pieces, and A and B.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corral.engine.adapters import require_scale
from corral.engine.quantizing import Change, Conversion, Encode, convert
from corral.errors import InvalidAdapter, InvalidArgument, UnsupportedModel
from corral.gguf import ModelFile
from corral.lora.adapter import Adapter, open_adapter, require_fitting
from corral.lora.values import Matrix, read_pair
from corral.quant.blocks import Floats
from corral.quant.quantize import quantize
from corral.quant.types import DType


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """What is to be written, and what is added to which weight."""

    conversion: Conversion
    deltas: dict[str, list[tuple[Matrix, Matrix]]]
    """A (rank, columns) and B (rows, rank) of each adapter, with its scale in B."""
    adapters: tuple[Path, ...]
    """What was read, and must not be written."""

    def alter(self, name: str, first_row: int, values: Floats) -> Floats:
        """Return rows of a weight with what adapters add to them.

        Raises:
            InvalidAdapter: if a sum is no finite number.
        """
        rows = slice(first_row, first_row + len(values))
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            for a, b in self.deltas[name]:
                values = values + b[rows] @ a
        if not np.isfinite(values).all():
            files = ", ".join(path.name for path in self.adapters)
            raise InvalidAdapter(
                f"{files}: what is added to {name} exceeds F32: use a smaller scale"
            )
        return values


@contextmanager
def opened_adapters(
    file: ModelFile, adapters: Sequence[tuple[Path, float]]
) -> Iterator[list[tuple[Adapter, ModelFile, float]]]:
    """Open adapters that fit a model; each with its file and its scale.

    Raises:
        InvalidArgument: if a scale is no number.
        ModelError: if one is no adapter, or not one of this model.
    """
    with ExitStack() as stack:
        found = []
        for path, scale in adapters:
            adapter, own = stack.enter_context(open_adapter(path))
            architecture, base = file.metadata.architecture, file.path.name
            require_fitting(adapter, architecture, file.tensors, base=base)
            found.append((adapter, own, require_scale(scale)))
        yield found


def plan_merge(
    file: ModelFile, adapters: Sequence[tuple[Path, float]], dtype: DType | None = None
) -> Merge:
    """Read adapters and say what becomes of each tensor; nothing is written.

    Args:
        file: the model.
        adapters: files, and what each counts.
        dtype: type of the weights that change; None is what each has.

    Raises:
        InvalidArgument: if a scale is no number.
        ModelError: if an adapter is at fault, or not one of this model, or a changed weight has a
            type that cannot be written.
    """
    deltas: dict[str, list[tuple[Matrix, Matrix]]] = {}
    with opened_adapters(file, adapters) as opened:
        for adapter, own, scale in opened:
            for weight, pair in adapter.pairs.items():
                a, b = read_pair(own, pair)
                with np.errstate(over="ignore"):  # `alter` refuses what comes of it
                    scaled = b * np.float32(scale * adapter.scale(pair))
                deltas.setdefault(weight, []).append((a, scaled))
    changes = tuple(
        Change(tensor, (dtype or tensor.dtype) if name in deltas else tensor.dtype, name in deltas)
        for name, tensor in file.tensors.items()
    )
    for change in changes:
        if change.is_altered:
            _require_packable(file, change)
    return Merge(Conversion(None, changes), deltas, tuple(path for path, _scale in adapters))


def require_no_adapter(out: Path, adapters: Iterable[Path]) -> None:
    """Refuse to write over an adapter that is read.

    Raises:
        InvalidArgument: if a file is one of the adapters, under this or another name.
    """
    for path in adapters:
        if out.exists() and path.exists() and out.samefile(path):
            raise InvalidArgument(f"{out} is the adapter that is read: name another file to write")


def _require_packable(file: ModelFile, change: Change) -> None:
    """Refuse a type that can be read and not written; one block of zeros tells."""
    try:
        quantize(np.zeros((1, change.tensor.shape[-1]), np.float32), change.dtype)
    except InvalidArgument as error:
        raise UnsupportedModel(
            f"{file.path.name}: tensor {change.name} cannot be packed again as "
            f"{change.dtype.name} ({error}): choose another type with --merge-type f16"
        ) from None


def merge(
    file: ModelFile,
    out: Path,
    what: Merge,
    *,
    threads: int = 1,
    encode: Encode = quantize,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Write a model with adapters in its weights.

    Raises:
        InvalidArgument: if the file to be written is one of the adapters.
        CorralError: as `quantizing.convert` does.
    """
    require_no_adapter(out, what.adapters)
    convert(
        file,
        out,
        what.conversion,
        threads=threads,
        encode=encode,
        alter=what.alter,
        progress=progress,
    )
