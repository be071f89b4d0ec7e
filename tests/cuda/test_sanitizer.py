"""compute-sanitizer finds nothing in a decode and a prefill: no bad access, no race."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from corral.quant.types import DType
from source_tree import SOURCE

UNABLE = ("Device not supported", "not supported on this", "Unable to find", "failed to initialize")
"""What it says where it cannot work: on an old driver, or in a container that does not let it."""
SUMMARY = re.compile(r"SUMMARY: .*?(\d+) errors?")
TOOLS = {
    # The driver is also asked what it must refuse; each call is checked by whoever makes it.
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
}
TYPES = (DType.Q4_0, DType.Q8_0, DType.F16)

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import corral
greedy = corral.SamplingParams(temperature=0.0)
for path in sys.argv[2:]:
    with corral.Model.load(path, device="cuda:0", context=256, parallel=2) as model:
        tokens = [number % model.vocabulary_size for number in range(190)]
        answers = [
            model.generate(prompt, max_tokens=4, ignore_eos=True, sampling=greedy)
            for prompt in (tokens, tokens[:9])
        ]
        for answer in answers:
            for _ in answer:
                pass
        assert all(len(answer.tokens) == 4 for answer in answers)
print("computed")
"""


@pytest.fixture(scope="module")
def sanitizer():
    """Return the program, or skip."""
    beside = sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    found = shutil.which("compute-sanitizer") or next(map(str, reversed(beside)), None)
    if found is None:
        pytest.skip("compute-sanitizer is neither on PATH nor in /usr/local/cuda*/bin")
    return found


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return small models of several types of weights."""
    folder = tmp_path_factory.mktemp("sanitizer")
    written = [
        str(tiny.write(folder / f"{dtype.name}.gguf", table=tiny.tensors(dtype=dtype)))
        for dtype in TYPES
    ]
    real = folder / "Q4_K_M.gguf"  # of K-quants, with heads that tensor cores take
    _make_model().write(real, "tiny", "Q4_K_M")
    return [*written, str(real)]


def _make_model():
    path = SOURCE.parent / "tools" / "make_model.py"
    spec = importlib.util.spec_from_file_location("make_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_model"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_is_found(sanitizer, paths, tool):
    """A prompt of more rows than the narrow way takes, one of few, and steps of two sequences."""
    python = [sys.executable, "-c", CODE, str(SOURCE), *paths]
    subprocess.run(python, check=True, timeout=300, capture_output=True)  # compiles the kernels
    done = subprocess.run(
        [sanitizer, "--tool", tool, *TOOLS[tool], "--print-limit", "5", *python],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    said = done.stdout + done.stderr
    if "computed" not in done.stdout and any(text in said for text in UNABLE):
        pytest.skip(f"compute-sanitizer cannot work here: {said.strip().splitlines()[0][:200]}")
    found = [int(number) for number in SUMMARY.findall(said)]
    assert found, said[-3000:]
    assert not any(found), said[-3000:]
    assert done.returncode == 0, said[-3000:]
    assert "computed" in done.stdout
