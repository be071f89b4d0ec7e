"""Imports only point downwards, by the table below; nothing imports in a circle.

8  cli, corral itself → all
7  worker | router | api
6  engine
4  models | devices          (they meet in the engine only)
3  memory | sampling | lora
2  gguf | tensor | kv | hub
1  quant | contract | text
0  errors, log, config, paths, interrupts
"""

from graphlib import CycleError, TopologicalSorter

import pytest

from source_tree import imports, module_names, modules

GROUND = {"errors", "log", "config", "paths", "interrupts"}
"""What everybody above may import."""

_BELOW_ENGINE = {
    *("quant", "contract", "text", "gguf", "tensor", "kv", "hub"),
    *("memory", "sampling", "models", "devices", "lora"),
}

MAY_IMPORT = {
    "errors": set(),
    "interrupts": set(),
    "config": {"errors"},
    "log": {"errors", "config"},
    "paths": {"errors", "config"},
    "quant": GROUND,
    "contract": GROUND,
    "text": GROUND,
    "gguf": GROUND | {"quant"},
    "tensor": GROUND | {"quant"},
    "kv": GROUND | {"quant"},
    "hub": GROUND | {"gguf"},
    "memory": GROUND | {"tensor", "quant"},
    "sampling": GROUND | {"contract", "tensor"},
    "models": GROUND | {"gguf", "tensor", "memory", "kv", "quant"},
    "devices": GROUND | {"tensor", "memory", "quant", "kv"},
    "lora": GROUND | {"gguf", "quant", "tensor"},
    "engine": GROUND | _BELOW_ENGINE,
    "worker": GROUND | {"engine", "contract"},
    "router": GROUND
    | {"contract", "gguf", "models", "memory", "lora.adapter", "lora.placing"}
    | {"devices.base", "devices.registry", "devices.nvml", "devices.probe"}
    | {"devices.listing", "devices.reading", "devices.cpu.traits", "devices.cuda.traits"},
    "api": GROUND | {"contract"},
    "cli": {""},
    "__main__": {""},
    "": {""},
}
"""Packages (or modules) below `corral` that each may import besides itself; "" is everything."""

LAZY = {
    "__init__.py": "the version is read from the metadata only when asked for",
    "text/bpe.py": "tokenizers takes 30 ms, and reading a vocabulary's metadata does not need it",
    "text/wordpiece.py": "as in bpe.py",
    "text/rendering.py": "Jinja is loaded when a template is first rendered",
    "text/template_child.py": "limits of processes exist on POSIX only",
    "sampling/grammar.py": "llguidance is loaded when a grammar is first compiled",
    "hub/huggingface.py": "huggingface_hub takes 300 ms, and most runs fetch nothing",
    "devices/cpu/compile.py": "worker processes are needed only when something must be compiled",
    "devices/host.py": "psutil takes 20 ms, and loading on a card does not ask it",
    "devices/__init__.py": "called, the package reads devices; imported, it loads nothing",
    "devices/listing.py": "reading cards needs no NumPy, which reading the host loads",
    "devices/cuda/driver_calls.py": "the bindings are an extra; without them this imports too",
    "devices/cuda/compile.py": "threads are needed only when something must be compiled",
    "devices/cuda/nvrtc.py": "as in driver_calls.py",
    "devices/cuda/toolchain.py": "as in driver_calls.py; and most processes never ask a compiler",
    "devices/registry.py": "a device is loaded when it is first asked for",
}
"""Files that may import inside functions, and why; those of `cli` may always."""


def package(name):
    """Return the part of a module's name that the table speaks of."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def is_allowed(source, target):
    own, inner = package(source), target.removeprefix("corral").removeprefix(".")
    if package(target) == own:
        return True
    return any(
        not allowed or inner == allowed or inner.startswith(allowed + ".")
        for allowed in MAY_IMPORT[own]
    )


def test_every_package_is_in_the_table():
    """A new package finds its place before it finds its first import."""
    assert {package(module.name) for module in modules()} <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_imports_point_down(module):
    """Imports for type checkers count: a type that is known is a dependency."""
    wrong = [
        f"line {found.line}: {found.target}"
        for found in imports(module)
        if found.target.split(".")[0] == "corral" and not is_allowed(module.name, found.target)
    ]
    assert not wrong


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_imports_stand_at_the_top(module):
    """An import inside a function hides a dependency, so each file that has one says why."""
    inside = [found for found in imports(module) if found.function]
    assert not inside or module.relative in LAZY or package(module.name) == "cli"


def test_the_exceptions_are_needed():
    """A reason that no file needs any more goes."""
    lazy = {m.relative for m in modules() if any(found.function for found in imports(m))}
    assert set(LAZY) <= lazy


def test_models_and_devices_meet_in_few_places():
    """Inside the engine, only who plans, opens or loads a model knows both."""
    both = set()
    for module in modules():
        known = {package(found.target) for found in imports(module)}
        if package(module.name) == "engine" and {"models", "devices"} <= known:
            both.add(module.relative)
    assert both <= {
        f"engine/{name}.py" for name in ("planning", "targets", "opened", "load", "attaching")
    }


def test_nothing_imports_in_a_circle():
    """Modules can be loaded in one order, types left out."""
    graph = {
        module.name: {
            found.target
            for found in imports(module)
            if found.target in module_names() and not found.function and not found.is_typing_only
        }
        - {module.name}
        for module in modules()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))
