"""The picture of what benchmarks/leak.py found."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
MEASURES = ("host", "heap", "objects", "blocks", "device", "ledger", "files", "threads")


def result(name):
    """Return what leak.py says of one piece of work."""
    work = list(range(0, 200, 10))
    samples = {"work": work} | {m: [1000 + n % 3 for n in range(20)] for m in MEASURES}
    samples["heap"] = [1000 + 5 * at for at in work]
    slope = {"value": 0.01, "half_width": 0.02, "num_samples": 18}
    growth = dict.fromkeys(MEASURES, slope)
    return {
        "work": name,
        "device": "cpu",
        "times": 200,
        "unit": "step",
        "samples": samples,
        "growth": growth,
    }


def test_each_work_is_a_row(monkeypatch, tmp_path, capsys):
    """Results of several runs become one picture, taller with each of them, and one table."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(FOLDER)
    plot = pytest.importorskip("leak_plot")
    paths = [tmp_path / f"{n}.json" for n in range(2)]
    for path, names in zip(paths, (["one"], ["two", "three"]), strict=True):
        path.write_text("text\n" + json.dumps({"leak": [result(name) for name in names]}) + "\n")
    sizes = []
    for number in (1, 2):
        out = tmp_path / f"{number}.png"
        monkeypatch.setattr(sys, "argv", ["plot", *map(str, paths[:number]), "--out", str(out)])
        plot.main()
        head = out.read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        sizes.append((int.from_bytes(head[16:20]), int.from_bytes(head[20:24])))
    (width, height), (same, taller) = sizes
    assert width == same
    assert height < taller
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert [row.split(" | ")[0] for row in rows] == [
        f"| {n} (cpu)" for n in ("one", "two", "three")
    ]
    assert all(" | 5 ± 0 / 5 ± 0 | " in row for row in rows)
    sys.modules.pop("leak_plot", None)
