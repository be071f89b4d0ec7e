"""Draw what leak.py found: each measure against the work, with its line and the line's interval.

    python benchmarks/leak_plot.py RESULT.json … --out docs/images/leaks.png

It prints a table, too: growth a unit over all samples but the first tenth, and over the later half,
when what only settles has settled.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from corral.memory.growth import fit

COLUMNS = (
    ("host", "RssAnon + RssShmem + VmSwap", 1 / (1 << 20), "MiB"),
    ("heap", "allocator", 1 / (1 << 10), "KiB"),
    ("objects", "Python objects", 1.0, ""),
    ("device", "bytes on the device", 1 / (1 << 20), "MiB"),
    ("ledger", "ledger", 1 / (1 << 20), "MiB"),
    ("files", "open files and threads", 1.0, ""),
)
"""Measures, what they are called, a factor and a unit."""
_POINT, _LINE = "#4878a8", "#c04030"
_LEAST_SPAN = {"host": 1.0, "heap": 64.0, "device": 1.0, "ledger": 1.0, "files": 4.0, "objects": 50}
"""What an axis shows at least, so that noise looks like noise."""

TABLE = {"host": "host, bytes", "heap": "heap, bytes", "objects": "objects", "blocks": "pieces"}
"""Measures of the table, and what they are called."""

Result = Mapping[str, Any]


def results_of(paths: Iterable[Path]) -> list[Result]:
    """Return the results of files that end with leak.py's line of JSON."""
    found: list[Result] = []
    for path in paths:
        found += json.loads(path.read_text().splitlines()[-1])["leak"]
    return found


def draw(results: list[Result], out: Path) -> None:
    """Draw a row of panels for each work, and write the picture."""
    size = (2.6 * len(COLUMNS), 1.5 * len(results) + 0.6)
    figure, rows = plt.subplots(len(results), len(COLUMNS), figsize=size, squeeze=False)
    for row, result in zip(rows, results, strict=True):
        for axes, column in zip(row, COLUMNS, strict=True):
            _panel(axes, result, *column)
        row[0].set_ylabel(f"{result['work']}\n{result['times']:,} × {result['unit']}", fontsize=7)
    for axes, (_, title, _, unit) in zip(rows[0], COLUMNS, strict=True):
        axes.set_title(f"{title}, {unit}" if unit else title, fontsize=8)
    figure.tight_layout(pad=0.4)
    figure.savefig(out, dpi=110)


def table(results: list[Result]) -> str:
    """Return the growth of each work as Markdown: of all samples / of the later half."""
    head = f"| work | times | {' | '.join(TABLE.values())} |"
    lines = [head, "| --- " * (len(TABLE) + 2) + "|"]
    for result in results:
        cells = [f"{_told(result, m, 10)} / {_told(result, m, 2)}" for m in TABLE]
        times = f"{result['times']:,} × {result['unit']}"
        lines.append(f"| {result['work']} ({result['device']}) | {times} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _told(result: Result, measure: str, part: int) -> str:
    """Return a slope with its interval, without the first of so many parts of the samples."""
    work, values = result["samples"]["work"], result["samples"][measure]
    first = len(work) // part
    slope = fit(work[first:], values[first:])
    if slope is None:
        return "?"
    if slope.value == slope.half_width == 0:
        return "0"
    return f"{slope.value:.2g} ± {slope.half_width:.1g}"


def _panel(axes: Axes, result: Result, name: str, _title: str, factor: float, _unit: str) -> None:
    work = result["samples"]["work"]
    values = [value * factor for value in result["samples"][name]]
    axes.plot(work, values, ".", color=_POINT, markersize=2.5)
    if name == "files":
        axes.plot(work, result["samples"]["threads"], ".", color="#888", markersize=2.5)
        values += result["samples"]["threads"]
    _fitted(axes, result, name, factor)
    middle, span = (min(values) + max(values)) / 2, max(values) - min(values)
    half = max(span * 0.6, _LEAST_SPAN[name] / 2)
    axes.set_ylim(middle - half, middle + half)
    axes.tick_params(labelsize=6)
    axes.ticklabel_format(useOffset=False, style="plain")


def _fitted(axes: Axes, result: Result, name: str, factor: float) -> None:
    """Draw the line through the middle of the fitted samples, and the lines of its interval."""
    work, values = result["samples"]["work"], result["samples"][name]
    first = len(work) // 10
    work, values = work[first:], values[first:]
    x, y = sum(work) / len(work), sum(values) / len(values)
    slope = result["growth"][name]
    ends = (work[0], work[-1])

    def line(value: float) -> list[float]:
        return [(y + value * (end - x)) * factor for end in ends]

    low, high = (slope["value"] + sign * slope["half_width"] for sign in (-1, 1))
    axes.plot(ends, line(slope["value"]), color=_LINE, linewidth=0.8)
    axes.fill_between(
        [ends[0], x, ends[1]],
        [line(low)[0], y * factor, line(low)[1]],
        [line(high)[0], y * factor, line(high)[1]],
        color=_LINE,
        alpha=0.15,
        linewidth=0,
    )


def main() -> None:
    """Draw the given files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results = results_of(given.files)
    draw(results, given.out)
    print(table(results))


if __name__ == "__main__":
    main()
