"""The adapters of a `Model`, as people use them from Python."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from corral.contract.checks import refuse
from corral.engine.adapters import Adapters, LoadedAdapter
from corral.engine.answers import Answers
from corral.engine.merged import MergedAdapters
from corral.errors import InvalidArgument

Wanted = Mapping[str | int, float] | Iterable[str | int]
"""Adapters by name or number: with a scale each, or as they are."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter that is loaded, as it is now."""

    id: int
    name: str
    path: Path
    rank: int
    scale: float
    """What it counts for answers that do not say otherwise; 0 is nothing."""
    bytes: int
    """What it holds on the devices."""

    @classmethod
    def of(cls, one: LoadedAdapter) -> "AdapterInfo":
        """Describe an adapter."""
        header = one.header
        return cls(one.id, one.name, header.path, header.max_rank, one.scale, one.size_bytes)


class ModelAdapters:
    """LoRA adapters of a loaded model: they come and go while answers are made."""

    def __init__(self, adapters: Adapters, merged: MergedAdapters, answers: Answers) -> None:
        """Speak for the adapters of a model whose engine answers drive; use `Model.adapters`."""
        self._adapters = adapters
        self._merged = merged
        self._answers = answers

    def load(self, path: str | Path, *, name: str = "", scale: float = 1.0) -> AdapterInfo:
        """Load an adapter from a GGUF file in llama.cpp's format; the model stays as it is.

        Args:
            path: of the file.
            name: how answers ask for it; by default the file's, without its ending, with a number
                if another adapter has it.
            scale: what it counts for answers that do not ask; 0 is for those only that do.

        Raises:
            ModelNotFound: if there is no such file.
            ModelError: if it is no adapter, or not one of this model.
            OutOfMemory: if there is no room for it.
            InvalidArgument: if the name is taken or the scale is no number.
        """
        if not isinstance(path, str | Path):
            refuse("path", path, "a str or a pathlib.Path")
        prepared = self._adapters.prepare(Path(path))
        with self._answers.paused():
            return AdapterInfo.of(self._adapters.add(prepared, name=name, scale=_number(scale)))

    def unload(self, adapter: str | int) -> None:
        """Let an adapter go: at once, or when the last answer that has it ends.

        Raises:
            InvalidArgument: if there is no such adapter.
        """
        with self._answers.paused():
            self._adapters.remove(self._find(adapter).id)

    def set_scale(self, adapter: str | int, scale: float) -> None:
        """Say what an adapter counts for answers, from now on, that do not ask for any.

        Raises:
            InvalidArgument: if there is no such adapter, or the scale is no number.
        """
        with self._answers.paused():
            self._adapters.set_scale(self._find(adapter).id, _number(scale))

    def merge(self, path: str | Path, *, scale: float = 1.0) -> None:
        """Merge an adapter into the model's weights, in their own types: then it costs nothing.

        It counts for every answer until `unmerge`. What it changes is rounded to the weights' type,
        so that of a model with few bits a fine change is partly lost.

        Raises:
            InvalidArgument: while answers are made, if one is merged already, or the scale is no
                number.
            ModelError: if it is no adapter, or not one of this model.
        """
        if not isinstance(path, str | Path):
            refuse("path", path, "a str or a pathlib.Path")
        with self._answers.idle():
            self._merged.merge([(Path(path), _number(scale))])

    def unmerge(self) -> None:
        """Have the model's weights as its file has them, to the byte, by reading them anew.

        Raises:
            InvalidArgument: while answers are made.
            InvalidModelFile: if the model's file changed or cannot be read.
        """
        with self._answers.idle():
            self._merged.unmerge()

    def __iter__(self) -> Iterator[AdapterInfo]:
        """Go through the adapters that answers can have."""
        return iter([AdapterInfo.of(one) for one in self._adapters])

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(1 for _ in self._adapters)

    def pairs(self, wanted: object) -> tuple[tuple[int, float], ...] | None:
        """Return (number, scale) of what an answer asks for; None if it says nothing.

        Raises:
            InvalidArgument: if there is no such adapter, or it is no list nor mapping of them.
        """
        if wanted is None:
            return None
        if isinstance(wanted, Mapping):
            return tuple((self._find(one).id, _number(scale)) for one, scale in wanted.items())
        if isinstance(wanted, str) or not isinstance(wanted, Iterable):
            refuse("adapters", wanted, "a list of names, or names and scales ({'name': 0.5})")
        return tuple((self._find(one).id, 1.0) for one in wanted)

    def _find(self, adapter: object) -> LoadedAdapter:
        if not isinstance(adapter, str | int) or isinstance(adapter, bool):
            refuse("adapter", adapter, "a name or a number")
        for one in self._adapters:
            if adapter in (one.id, one.name):
                return one
        there = ", ".join(one.name for one in self._adapters) or "none"
        raise InvalidArgument(f"there is no adapter {adapter!r}; there are: {there}")


def _number(scale: object) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        refuse("scale", scale, "a number")
    return float(scale)
