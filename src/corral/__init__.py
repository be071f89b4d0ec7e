"""Run GGUF language models from Python, with every byte of memory accounted for.

    import corral

    with corral.Model.load("demo") as model:
        print(model.chat([{"role": "user", "content": "What is the capital of France?"}]))

Importing the package loads nothing heavy; each name below is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral import devices
    from corral.contract.events import FinishReason
    from corral.contract.sampling import SamplingParams
    from corral.devices.reading import DeviceReading
    from corral.engine.generation import Generation
    from corral.engine.metrics import (
        GenerationStatistics,
        MemoryGrowth,
        MemoryRow,
        MemoryStatistics,
    )
    from corral.engine.model import ChatReply, Model
    from corral.engine.model_adapters import AdapterInfo
    from corral.engine.planning import PlanReport, plan
    from corral.errors import CorralError
    from corral.memory.growth import Slope

__all__ = [
    "AdapterInfo",
    "ChatReply",
    "CorralError",
    "DeviceReading",
    "FinishReason",
    "Generation",
    "GenerationStatistics",
    "MemoryGrowth",
    "MemoryRow",
    "MemoryStatistics",
    "Model",
    "PlanReport",
    "SamplingParams",
    "Slope",
    "devices",
    "plan",
]

_HOMES = {
    "AdapterInfo": "corral.engine.model_adapters",
    "ChatReply": "corral.engine.model",
    "CorralError": "corral.errors",
    "DeviceReading": "corral.devices.reading",
    "FinishReason": "corral.contract.events",
    "Generation": "corral.engine.generation",
    "GenerationStatistics": "corral.engine.metrics",
    "MemoryGrowth": "corral.engine.metrics",
    "MemoryRow": "corral.engine.metrics",
    "MemoryStatistics": "corral.engine.metrics",
    "Model": "corral.engine.model",
    "PlanReport": "corral.engine.planning",
    "SamplingParams": "corral.contract.sampling",
    "Slope": "corral.memory.growth",
    "plan": "corral.engine.planning",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name == "__version__":
        return _version()
    if name == "devices":  # a package that can be called
        return importlib.import_module("corral.devices")
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'corral' has no attribute {name!r}") from None
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not, and nothing that only this file needs."""
    own = (name for name in globals() if name.startswith("__") and name.endswith("__"))
    return sorted({*own, *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("corral")
    except PackageNotFoundError:  # run from a source tree
        return "0+unknown"
