"""Each foreign library is imported in its home only, where its errors are translated."""

import sys

import pytest

from source_tree import imports, modules

HOMES = {
    "llvmlite": ("devices/cpu/",),
    "jinja2": ("text/rendering.py", "text/sandbox.py", "text/guard.py"),
    "tokenizers": ("text/",),
    "huggingface_hub": ("hub/",),
    "typer": ("cli/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "llguidance": ("sampling/grammar.py",),
    "msgspec": ("contract/", "api/"),
    "psutil": ("devices/host.py",),
    "cuda": ("devices/cuda/",),
    "starlette": ("api/",),
    "uvicorn": ("api/",),
    "h11": ("api/",),
    "prometheus_client": ("api/",),
    "numpy": ("quant/", "devices/", "sampling/", "engine/", "lora/", "cli/perplexity.py"),
    "_typeshed": ("",),
}
"""Where each may be imported, by path below the package."""

NO_NUMPY = (
    *("quant/types.py", "quant/packed.py", "gguf/", "models/", "memory/", "tensor/", "kv/"),
    *(
        "contract/",
        "api/",
        "devices/registry.py",
        "router/",
        "engine/scheduler.py",
        "engine/sequence.py",
    ),
    *("devices/probe.py", "devices/probe_child.py", "devices/bounded_process.py"),
    *("devices/context_cost.py", "lora/adapter.py", "lora/placing.py"),
)
"""Deciders and descriptions, which know integers only."""


def foreign(module):
    """Return the foreign libraries of a module with the lines they are imported in."""
    for found in imports(module):
        library = found.target.split(".")[0]
        if library != "corral" and library not in sys.stdlib_module_names:
            yield library, found.line


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_libraries_stay_at_home(module):
    """A library without a home is not imported at all."""
    strays = [
        f"line {line}: {library}"
        for library, line in foreign(module)
        if not module.relative.startswith(HOMES.get(library, ()))
    ]
    assert not strays


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_deciders_know_no_arrays(module):
    """What plans and schedules is free of NumPy."""
    if module.relative.startswith(NO_NUMPY):
        assert "numpy" not in {library for library, _ in foreign(module)}
