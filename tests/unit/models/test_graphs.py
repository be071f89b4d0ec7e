"""The graph of each family, kept as text: a change of any node shows as a change of a file.

To accept a change, run this file and read what git says of `graphs/`.
"""

from pathlib import Path

import pytest

import tiny
from corral.devices.cpu.traits import CPU_TRAITS
from corral.devices.reference.device import reference_traits
from corral.models.footprint import Limits, design_model
from corral.quant.types import DType
from corral.tensor.render import render

GRAPHS = Path(__file__).parent / "graphs"
LIMITS = Limits(64, parallel=2, chunk=16, outputs=4)
CASES = {family: (family, DType.F32, reference_traits()) for family in tiny.FAMILIES}
CASES |= {
    "llama-fused": ("llama", DType.Q4_0, CPU_TRAITS),
    "gemma3-fused": ("gemma3", DType.Q4_0, CPU_TRAITS),
}


def rendered(case):
    family, dtype, traits = CASES[case]
    design = design_model(*tiny.header(family, dtype), LIMITS, traits)
    (plan,) = design.plan.plans
    return render(plan.graph) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_graph_is_as_it_was(case):
    """Names, operations, types, shapes and sources of all nodes are those last looked at."""
    assert rendered(case) == (GRAPHS / f"{case}.txt").read_text()


def accept():
    """Keep the graphs as they are now."""
    GRAPHS.mkdir(exist_ok=True)
    for case in CASES:
        (GRAPHS / f"{case}.txt").write_text(rendered(case))


if __name__ == "__main__":
    accept()
