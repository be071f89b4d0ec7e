"""What a model would hold on a device, from its header alone; no weight is read, nothing made."""

from dataclasses import dataclass
from pathlib import Path

from corral.devices import registry
from corral.engine import checks
from corral.gguf import open_model
from corral.hub.resolve import resolve
from corral.models.footprint import Limits, choose_limits, design_model


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Bytes of one lifetime."""

    lifetime: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The footprint of a model with certain limits on one device."""

    model: str
    device: str
    limits: Limits
    rows: tuple[PlanRow, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all lifetimes."""
        return sum(row.bytes for row in self.rows)

    @property
    def context(self) -> int:
        """Tokens of one sequence."""
        return self.limits.context

    @property
    def parallel(self) -> int:
        """Sequences at once."""
        return self.limits.parallel


def plan(
    name: str | Path,
    *,
    context: int | None = None,
    parallel: int = 1,
    kv_type: str = "f16",
    device: str = "auto",
) -> PlanReport:
    """Plan a model named as for `Model.load`.

    Raises:
        UsageError: if the name or a setting is wrong.
        ModelError: if the file is at fault or needs what corral does not run.
    """
    name = checks.model_name(name)
    context = checks.integer_or_none("context", context, low=1)
    parallel = checks.integer("parallel", parallel, low=1)
    kv_type = checks.text("kv_type", kv_type)
    registry.resolve(device)
    path = resolve(name)
    with open_model(path) as file:
        limits = choose_limits(file.metadata, context=context, parallel=parallel, kv_type=kv_type)
        design = design_model(file.metadata, file.tensors, limits, registry.traits(device))
    rows = tuple(PlanRow(life.value, size) for life, size in design.plan.footprint().items())
    return PlanReport(path.name, registry.resolve(device), limits, rows)
