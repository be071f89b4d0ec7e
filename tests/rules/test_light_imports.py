"""What importing a part of corral loads, seen in a fresh interpreter."""

import subprocess
import sys

import pytest

from source_tree import SOURCE

HEAVY = (
    *("numpy", "llvmlite", "tokenizers", "jinja2", "huggingface_hub", "rich", "psutil"),
    "llguidance",
)

NUMPY_FREE = (
    *("corral.gguf", "corral.models.footprint", "corral.models.architecture"),
    *("corral.memory.plan", "corral.memory.ledger", "corral.memory.records"),
    *("corral.tensor.build", "corral.tensor.rewrite", "corral.tensor.verify"),
    *("corral.kv.spec", "corral.kv.pool", "corral.kv.table"),
    *("corral.quant.types", "corral.quant.packed", "corral.lora.placing"),
    *("corral.contract.messages", "corral.contract.service", "corral.contract.wire"),
    *("corral.router.process", "corral.router.remote", "corral.router.supervisor"),
    *("corral.router.router", "corral.router.children", "corral.contract.fleet"),
    *("corral.router.catalog", "corral.router.machine", "corral.router.planner_child"),
    *("corral.api.app", "corral.api.server"),
    *("corral.devices.base", "corral.devices.registry", "corral.devices.binding"),
    *("corral.devices.cpu.traits", "corral.devices.cuda.traits", "corral.devices.cuda.lowering"),
    *("corral.devices.probe", "corral.devices.probe_child", "corral.devices.context_cost"),
)
"""What the router process and `corral plan` live on."""


def loaded_by(code):
    """Return which heavy libraries are loaded after running code in a new interpreter."""
    report = f"import sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{code}\n{report}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(result.stdout.split())


def test_the_package_itself_loads_nothing_heavy():
    """`import corral` is fast, whatever it will be used for."""
    assert loaded_by("import corral") == set()


def test_planning_loads_no_arrays():
    """A router can plan any model without NumPy, a compiler or a tokenizer."""
    assert loaded_by(f"import {', '.join(NUMPY_FREE)}") == set()


def test_traits_load_no_compiler():
    """Asking what the CPU needs imports nothing that compiles for it."""
    code = "from corral.devices import registry; registry.traits('cpu')"
    assert loaded_by(code) == set()


def test_all_model_families_are_free_of_arrays():
    """A family is arithmetic on integers; each is imported by its name."""
    code = "from corral.models.architecture import *\nfor n in architectures(): architecture(n)"
    assert loaded_by(code) == set()


@pytest.mark.parametrize("name", ["reference", "null"])
def test_other_devices_load_no_compiler(name):
    """LLVM is loaded by the CPU device and nobody else."""
    code = f"from corral.devices import registry\nwith registry.open({name!r}): pass"
    assert "llvmlite" not in loaded_by(code)
