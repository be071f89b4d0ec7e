"""What the planning process is asked: a file, and for which devices and sizes it is planned."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corral.router.entry import AUTO, Preset

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """A file to plan, and for what."""

    path: str
    kinds: tuple[str, ...]
    """Of devices: `cpu`, `cuda`."""
    are_mixed: bool = False
    """Whether devices of all these kinds share the layers, and a step has one size for all."""
    context: int | None = None
    parallel: int = 1
    kv_type: str = "f16"
    kv_blocks: int | None = None
    embeddings: bool = False
    context_shift: bool = False
    threads: int | None = None
    adapters: tuple[str, ...] = ()
    """Files of adapters that are to be attached."""

    @classmethod
    def of(cls, path: str, preset: Preset, present: Sequence[str]) -> "PlanJob":
        """Return the job for a preset; `present` are the kinds of devices of this machine."""
        named = {CPU if name == CPU else CUDA for name in preset.devices}
        kinds = tuple(present) if preset.devices == (AUTO,) else tuple(sorted(named))
        return cls(
            path=path,
            kinds=kinds,
            are_mixed=preset.devices != (AUTO,) and len(kinds) > 1,
            context=preset.context,
            parallel=preset.parallel,
            kv_type=preset.kv_type,
            kv_blocks=preset.kv_blocks,
            embeddings=preset.embeddings,
            context_shift=preset.context_shift,
            threads=preset.threads,
            adapters=tuple(path for path, _scale in preset.adapters),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PlanJob":
        """Return what `to_json` took."""
        lists = {name: tuple(data[name]) for name in ("kinds", "adapters")}
        return cls(**{**data, **lists})
