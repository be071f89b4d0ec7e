"""The parts of `gpu.py`: which processes each starts, and what it makes of their answers."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpu_figures import MIB, Result, account_is_close, gathered, kernel_lines
from gpu_session import Session, card_bytes, say


def part_compile(session: Session) -> None:
    """The first run ever, and what of it compiling takes."""
    reply = session.measure("start", session.large, 120, repeat=1, is_fresh=not session.owns_cache)
    if reply is None:
        return
    seconds = reply["first_s"] - statistics.median(reply["warm_s"])
    session.add([Result("first compile", (seconds,))])
    say(f"  {reply['cubins']} kernels, the first run {reply['first_s']:.2f} s to its first token")
    session.details["compile"] = reply


def part_load(session: Session) -> None:
    """From the command to the first token, kernels kept, the file in the page cache."""
    repeat = 2 if session.is_quick else 5
    reply = session.measure("start", session.large, 60, repeat=repeat, is_fresh=False)
    if reply is not None:
        session.add(gathered("first token", [{"s": one} for one in reply["warm_s"]], "s"))
    marks = session.measure("stages", session.large, 60, context=4096)
    if marks is not None:
        for name, (begin, end) in marks.items():
            say(f"  {name:14} {begin:7.3f} … {end:7.3f} s")
    session.details["load"] = {"start": reply, "stages": marks}


def _single(session: Session, model: Path, prefix: str, prompts: Sequence[int]) -> None:
    replies = session.repeated(
        "single",
        model,
        75,
        context=max(prompts) + 128,
        prompts=prompts,
        generated=128,
        repeat=2 if session.is_quick else 3,
        depth=128,
    )
    if not replies:
        return
    steps = [reply["step"] for reply in replies]
    floor = steps[0]["floor_tokens_per_s"]
    session.add(gathered(f"{prefix}decode", replies, "decode", floor))
    session.add(gathered(f"{prefix}decode, GPU alone", steps, "tokens_per_s", floor))
    for count in map(str, prompts):
        passes = [one["prefill_pass"][count] for one in replies if count in one["prefill_pass"]]
        # A longer prompt than one evaluation takes is held against the floor of the longest.
        known = replies[0]["prefill_pass"].values()
        least = passes[0] if passes else max(known, key=lambda one: one["seconds"], default=None)
        floor = least["floor_tokens_per_s"] if least else None
        rates = [one["prefill"] for one in replies]
        session.add(gathered(f"{prefix}prefill {count}", rates, count, floor))
        name = f"{prefix}prefill {count}, GPU alone"
        session.add(gathered(name, passes, "tokens_per_s", floor))
    session.details[f"{prefix}single"] = replies


def part_single(session: Session) -> None:
    """Decode and prefill of one sequence, the large model."""
    _single(session, session.large, "", (512, 2048, 4096))


def part_small(session: Session) -> None:
    """The same with the small model."""
    _single(session, session.small, "small ", (512, 2048))


def part_depth(session: Session) -> None:
    """Decode behind 8192 tokens."""
    replies = session.repeated(
        "deep", session.large, 75, depth=8192, generated=128, repeat=1 if session.is_quick else 2
    )
    if not replies:
        return
    steps = [reply["step"] for reply in replies]
    floor = steps[0]["floor_tokens_per_s"]
    session.add(gathered("decode at 8192", replies, "decode", floor))
    session.add(gathered("decode at 8192, GPU alone", steps, "tokens_per_s", floor))
    session.add(gathered("prefill 8192", replies, "prefill"))
    session.details["depth"] = replies


def part_batches(session: Session) -> None:
    """Steps of many sequences with prompts of 128 tokens."""
    sizes = (4, 16, 32, 64, 128)
    replies = session.repeated(
        "batches",
        session.large,
        90,
        sizes=sizes,
        prompt=128,
        generated=16 if session.is_quick else 64,
        context=512,
    )
    if not replies:
        return
    for size in map(str, sizes):
        found = [reply[size] for reply in replies]
        steps = [one["step"] for one in found]
        floor = steps[0]["floor_tokens_per_s"]
        session.add(gathered(f"batch {size}", found, "engine", floor))
        session.add(gathered(f"batch {size}, GPU alone", steps, "tokens_per_s", floor))
    session.details["batches"] = replies


def part_kernels(session: Session) -> None:
    """Where the time of a step goes, by kernel."""
    reply = session.measure(
        "kernels", session.large, 100, sizes=(1, 32), depth=128, prompt=2048, context=2304
    )
    if reply is None:
        return
    for name, table in reply.items():
        share = table["floor_us"] / table["whole_us"]
        say(f"{name}: {table['whole_us']:,.1f} µs, floor {table['floor_us']:,.1f} ({share:.0%})")
        for line in kernel_lines(table["kernels"], table["whole_us"]):
            say(line)
    session.details["kernels"] = reply


def part_memory(session: Session) -> None:
    """The plan, the ledger and the card's own account, before, while and after a model works."""
    used = card_bytes()
    reply = session.measure(
        "memory",
        session.large,
        120,
        context=2304,
        steps=300 if session.is_quick else 2000,
        requests=10 if session.is_quick else 50,
        parallel=4,
    )
    if reply is None:
        return
    left = card_bytes() - used
    judged = memory_verdicts(reply, left)
    planned, held = reply["planned_on_card_bytes"], reply["held_on_card_bytes"]
    say(f"planned on the card {planned / MIB:,.3f} MiB, held {held / MIB:,.3f} MiB")
    for what in ("decode", "requests"):
        spread = reply[what]
        say(
            f"{what}: buffers ± {spread['buffers_bytes']:,} bytes, the card ±"
            f" {spread['card_bytes']:,}, {spread['samples']} samples"
        )
    closed = reply["held_after_close_bytes"]
    say(
        f"after close {closed / MIB:,.3f} MiB, of them {reply['context_bytes'] / MIB:,.3f} MiB"
        f" context; after exit {left / MIB:,.3f} MiB"
    )
    for name, is_so in judged.items():
        say(f"  {'yes' if is_so else 'NO '}  {name}")
    session.details["memory"] = reply | {"left_after_exit_bytes": left, "verdicts": judged}


def memory_verdicts(reply: Mapping[str, object], left: int) -> dict[str, bool]:
    """Say of each promise about memory whether it was kept."""
    after_close = reply["held_after_close_bytes"] - reply["context_bytes"]
    return {
        "planned is allocated in every lifetime": reply["ledger_is_exact"],
        "corral plan says the same": reply["plan_is_exact"],
        "the card holds it, within 1 % + 2 MiB": account_is_close(
            reply["held_on_card_bytes"], reply["planned_on_card_bytes"]
        ),
        "constant over steps": not any(reply["decode"][x] for x in _SPREADS),
        "constant over requests": not any(reply["requests"][x] for x in _SPREADS),
        "the ledger is the same after them": reply["rows_stay"],
        "only the context after close": after_close <= 2 * MIB,
        "nothing after exit": left == 0,
    }


_SPREADS = ("buffers_bytes", "card_bytes")
PARTS: dict[str, Callable[[Session], None]] = {
    "compile": part_compile,
    "single": part_single,
    "load": part_load,
    "depth": part_depth,
    "kernels": part_kernels,
    "batches": part_batches,
    "small": part_small,
    "memory": part_memory,
}
"""In the order in which they run: first what matters most, should time run out."""
