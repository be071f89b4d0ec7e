"""benchmarks/lora.py: what it measures is there, and it ends in JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import tiny

ROOT = Path(__file__).parents[3]


def test_a_small_model_is_measured(tmp_path):
    """Every kind of batch, a prompt and swaps, each as often as was asked."""
    model = tiny.write(tmp_path / "tiny.gguf")
    sizes = {"rank": "4", "tokens": "6", "prompt": "64", "repeat": "2"}
    options = [part for name, value in sizes.items() for part in (f"--{name}", value)]
    options += ["--batches", "1", "3"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "lora.py", "--model", model, *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    *shown, last = done.stdout.splitlines()
    found = json.loads(last)
    assert set(found["decode"]) == {"1", "3"}
    for rates in (*found["decode"].values(), found["prefill"]):
        assert all(len(values) == 2 and min(values) > 0 for values in rates.values())
    assert len(found["swap_s"]) == 2
    assert found["adapter_bytes"] > 0
    assert shown[0].startswith("decode, 1 at once")
