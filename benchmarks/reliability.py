"""Tries everything hostile against a real `corral serve`, and prints what became of each.

    python benchmarks/reliability.py [--only R018 H …]

Requests that are no requests, fields that hold what they may not, grammars, schemas and templates
that explode, clients that dawdle or leave, keys and hosts that are not ours, a worker that dies or
hangs. `reliability_rows.py` says what must hold for every row. The last line is JSON; the exit code
is 1 if something does not hold.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import reliability_bodies
import reliability_clients
import reliability_grammars
import reliability_http
import reliability_templates
import reliability_worker
from machine import machine
from reliability_rows import Result, Row, run_row
from reliability_server import Server

_SIZES = ("--parallel", "2", "--context", "1024", "--queue", "8")
_FAMILIES = (
    reliability_bodies,
    reliability_grammars,
    reliability_templates,
    reliability_http,
    reliability_clients,
    reliability_worker,
)


def chosen(only: Sequence[str]) -> list[Row]:
    """Return the rows whose ids begin with one of these, in the order of their ids."""
    rows = sorted((row for family in _FAMILIES for row in family.rows()), key=lambda row: row.id)
    return [row for row in rows if not only or row.id.startswith(tuple(only))]


@contextmanager
def serving(kind: str, model: str, folder: Path) -> Iterator[Server]:
    """Give the server that rows of a kind are tried on, warm and ready."""
    more = [*_SIZES, "--stuck", str(reliability_worker.STUCK_S), "--embeddings"]
    key = reliability_http.KEY if kind == "keyed" else None
    if kind.startswith("template "):
        model = str(reliability_templates.write(kind.split()[1], folder))
        more = ["--device", "reference", "--parallel", "2"]
    with Server.start(model, *more, key=key) as server:
        ready = lambda: server.ask("GET", "/health").status == 200  # noqa: E731
        server.until("the model is ready", ready)
        server.canned()
        if kind == "demo":
            warm(server)
        yield server


def warm(server: Server) -> None:
    """Load what is loaded once: the template's process, the reader of grammars."""
    server.post(
        reliability_bodies.CHAT, reliability_bodies.chat(response_format={"type": "json_object"})
    )
    server.post(reliability_bodies.TEXT, reliability_bodies.text(prompt=[1] * 900, max_tokens=1))
    server.post(reliability_bodies.TEXT, reliability_bodies.text(prompt="a" * (1 << 20)))


def run_all(rows: Sequence[Row], model: str, folder: Path) -> Iterator[Result]:
    """Try rows, those of one server after another."""
    for kind in dict.fromkeys(row.server for row in rows):
        with serving(kind, model, folder) as server:
            for row in rows:
                if row.server == kind:
                    yield run_row(row, server)


def line(result: Result) -> str:
    """Return a row of the table."""
    row = result.row
    became = "holds" if result.failure is None else f"**fails**: {result.failure}"
    said = f" ({result.said})" if result.said else ""
    return f"| {row.id} | {row.what} | {row.rule} | {became}{said} |".replace("\n", " ")


def main() -> int:
    """Try, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="ids or beginnings")
    given = parser.parse_args()
    facts, began = machine(), time.monotonic()
    results: list[Result] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for result in run_all(chosen(given.only), given.model, folder):
            results.append(result)
            print(f"{result.seconds:6.2f} s  {line(result)}", file=sys.stderr, flush=True)
    print("| row | what is tried | rule | result |\n| --- | --- | --- | --- |")
    for result in sorted(results, key=lambda result: result.row.id):
        print(line(result))
    failures = {result.row.id: result.failure for result in results if result.failure}
    print(
        json.dumps(
            {
                "machine": facts,
                "settings": vars(given),
                "rows": len(results),
                "seconds": round(time.monotonic() - began),
                "failures": failures,
            }
        )
    )
    return int(bool(failures) or not results)


if __name__ == "__main__":
    sys.exit(main())
