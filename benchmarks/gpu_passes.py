"""The evaluations of a loaded model on its card, timed by the card itself: whole and by kernel.

    inputs ──▶ one evaluation, so that the card has them ──▶ its launches as a graph, repeated

A kernel's time is told twice: alone, all its launches in one graph without the others; and left
out, what the whole graph gains without them. The two differ by what runs side by side.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from corral import Model
from corral.devices.cuda.backend import chip_of
from corral.devices.cuda.launch import Launch
from corral.devices.cuda.lowering import lower_plan
from corral.kv.spec import BLOCK_TOKENS
from corral.memory.factors import TILE_COLUMNS
from corral.memory.plan import ModelPlan
from corral.tensor.ops import Attend, Op
from corral.tensor.tensor import Extent
from gpu_figures import floor_s

SAMPLES = 5
SAMPLE_S = 0.02
"""What one sample lasts at least; it repeats the graph as often as that takes."""
_WEIGHTS = ("weights", "weights0", "weights1", "weights2")
"""Fields of kernels that are addresses of whole matrices."""


@dataclass(frozen=True)
class Batch:
    """Rows of one evaluation: each sequence has as many, behind so many tokens of context."""

    sequences: int
    rows: int = 1
    """Of each sequence."""
    depth: int = 0

    @property
    def total(self) -> int:
        """Rows of the batch."""
        return self.sequences * self.rows


def inputs_of(batch: Batch, tables: Sequence[str], blocks: int, vocabulary: int) -> dict:
    """Return the inputs of a batch; each sequence has `blocks` blocks of its own in all tables.

    Only the last row of each sequence wants logits.
    """
    numbers = np.arange(batch.sequences, dtype=np.int32)
    own = np.arange(batch.sequences * blocks, dtype=np.int32).reshape(batch.sequences, blocks)
    positions = np.arange(batch.depth, batch.depth + batch.rows, dtype=np.int32)
    tokens = np.random.default_rng(0).integers(0, vocabulary, batch.total)
    return {
        "tokens": tokens.astype(np.int32),
        "positions": np.tile(positions, batch.sequences),
        "sequences": np.repeat(numbers, batch.rows),
        "output_rows": (numbers + 1) * np.int32(batch.rows) - np.int32(1),
        **dict.fromkeys(tables, own),
    }


def least_work(plan: ModelPlan, batch: Batch) -> tuple[float, float]:
    """Return the bytes that an evaluation must read, and its operations.

    Read are all matrices but the embeddings, once, and the keys and values of each sequence.
    """
    bytes_read, flops = attention_work(plan, batch)
    for node in plan.plans[0].graph:
        if node.op in (Op.MATMUL, Op.MATMUL_ADD):
            weight = node.sources[1]
            rows = batch.total if node.extent is Extent.ROWS else batch.sequences
            bytes_read += plan.weights.slots[weight.name].form.size_bytes
            flops += 2.0 * rows * weight.rows * weight.columns
    return bytes_read, flops


def attention_work(plan: ModelPlan, batch: Batch) -> tuple[float, float]:
    """Return the bytes and operations of the attention of all layers."""
    bytes_read, flops = 0.0, 0.0
    seen = batch.sequences * sum(batch.depth + row + 1 for row in range(batch.rows))
    for node in plan.plans[0].graph:
        if node.op is Op.ATTENTION:
            attend, state = node.attributes, node.sources[1]
            assert isinstance(attend, Attend)
            token_bytes = 2 * attend.kv_heads * state.dtype.row_bytes(attend.head_dim)
            bytes_read += batch.sequences * (batch.depth + batch.rows) * token_bytes
            flops += 4.0 * attend.heads * attend.head_dim * seen
    return bytes_read, flops


def label(launch: Launch, names: Mapping[int, str]) -> str:
    """Return what a launch is listed as: its kernel, and the matrices it reads."""
    kernel = launch.instance.name.removeprefix("corral::").partition("<")[0]
    read = [names[launch.fields[f]] for f in _WEIGHTS if launch.fields.get(f) in names]
    if read:
        return f"{kernel} {' + '.join(read)}"
    if "tiles" in launch.fields:  # a product of two factors
        columns = launch.fields["tiles"] * TILE_COLUMNS
        return f"{kernel} {launch.fields['columns']} × {columns}"
    return kernel


def matrix_names(plan: ModelPlan, base: int) -> tuple[dict[int, str], dict[int, int]]:
    """Return the short name and the bytes of every matrix by its address."""
    slots = plan.weights.slots.items()
    matrices = [(name, slot) for name, slot in slots if slot.form.layout is not None]
    short = {base + s.offset: name.removesuffix(".weight") for name, s in matrices}
    sizes = {base + slot.offset: slot.form.size_bytes for _, slot in matrices}
    return {at: name.rpartition(".")[2] for at, name in short.items()}, sizes


def group_work(
    launches: Sequence[Launch], sizes: Mapping[int, int], plan: ModelPlan, batch: Batch
) -> dict[str, float]:
    """Return what launches of one kind must read and compute, and the floor of that."""
    size, flops = 0.0, 0.0
    for launch in launches:
        fields = launch.fields
        size += sum(sizes.get(fields.get(name, 0), 0) for name in _WEIGHTS)
        if "tiles" in fields:
            flops += 2.0 * batch.total * fields["columns"] * fields["tiles"] * TILE_COLUMNS
    if launches[0].instance.stem.startswith("attention"):
        size, flops = attention_work(plan, batch)
    return {"bytes": size, "flops": flops, "floor_us": floor_s(size, flops) * 1e6}


class Passes:
    """Times the evaluations of one loaded model."""

    def __init__(self, model: Model) -> None:
        """Take a model that is on a CUDA device and computes nothing meanwhile."""
        loaded = model._opened.loaded
        self._model, self._loaded = model, loaded
        self._backend, self._program = loaded.parts[0].backend, loaded.parts[0].program
        self._context, self._driver = self._backend._context, self._backend._driver
        self._stream = self._backend._stream.handle
        self._plan = loaded.parts[0].plan

    def time(self, batch: Batch) -> dict[str, float]:
        """Return the time of one evaluation and of its floor, in seconds, and tokens a second."""
        with self._ready(batch) as found:
            seconds = found.seconds(found.whole)
        floor = floor_s(*least_work(self._plan, batch))
        return {
            "seconds": seconds,
            "floor_s": floor,
            "tokens_per_s": batch.total / seconds,
            "floor_tokens_per_s": batch.total / floor,
        }

    def table(self, batch: Batch) -> dict[str, object]:
        """Return where the time of one evaluation goes, by kernel."""
        program, plan = self._program, self._plan
        chip = chip_of(self._context.facts, self._driver)
        each = program.pass_for(batch.total)
        lowered = lower_plan(program.plan, program.buffers, each.bucket, chip)
        names, sizes = matrix_names(plan, program.buffers.weights.address)
        groups: dict[str, list[int]] = {}
        for number, launch in enumerate(lowered):
            groups.setdefault(label(launch, names), []).append(number)
        with self._ready(batch) as found:
            whole = found.seconds(found.whole)
            rows = []
            for kernel, numbers in groups.items():
                launches = [lowered[number] for number in numbers]
                work = group_work(launches, sizes, plan, batch)
                times = found.with_and_without(set(numbers), whole)
                rows.append({"kernel": kernel, "launches": len(numbers)} | times | work)
        floor = floor_s(*least_work(plan, batch))
        return {
            "rows": batch.total,
            "whole_us": whole * 1e6,
            "floor_us": floor * 1e6,
            "kernels": rows,
        }

    @contextmanager
    def _ready(self, batch: Batch) -> Iterator["_Ready"]:
        """Evaluate a batch once and give its launches to be repeated."""
        program, groups = self._program, self._loaded.design.kv.groups
        blocks = -(-(batch.depth + batch.rows) // BLOCK_TOKENS)
        names = [group.tables_name for group in groups]
        inputs = inputs_of(batch, names, blocks, self._model.vocabulary_size)
        self._backend.run(program, inputs, batch.sequences)
        self._backend.read(program, program.plan.graph.outputs[0], batch.sequences)
        each, driver = program.pass_for(batch.total), self._driver
        with self._context.current():
            events = [driver.create_event(keeps_time=True) for _ in range(2)]
            found = _Ready(driver, self._stream, each.launches, tuple(events))
            graph = found.capture(each.launches)
            found.whole = lambda: driver.launch_executable(graph, self._stream)
            try:
                yield found
            finally:
                driver.destroy_executable(graph)
                for event in events:
                    driver.destroy_event(event)


class _Ready:
    """Launches whose inputs are on the card, in its current context."""

    def __init__(
        self, driver, stream: int, launches: Sequence[Callable[[], None]], events: tuple[int, int]
    ) -> None:
        self.launches = launches
        self.whole: Callable[[], None]
        self._driver, self._stream, self._events = driver, stream, events

    def capture(self, launches: Sequence[Callable[[], None]]) -> int:
        """Return a graph of some launches, ready to run."""
        self._driver.begin_capture(self._stream)
        for launch in launches:
            launch()
        graph = self._driver.end_capture(self._stream)
        executable = self._driver.instantiate(graph)
        self._driver.destroy_graph(graph)
        return executable

    def captured(self, launches: Sequence[Callable[[], None]]) -> float:
        """Return the seconds of some launches as a graph."""
        graph = self.capture(launches)
        try:
            return self.seconds(lambda: self._driver.launch_executable(graph, self._stream))
        finally:
            self._driver.destroy_executable(graph)

    def with_and_without(self, numbers: set[int], whole_s: float) -> dict[str, float]:
        """Return the time of some launches alone, and what the whole gains without them."""
        chosen = [one for number, one in enumerate(self.launches) if number in numbers]
        others = [one for number, one in enumerate(self.launches) if number not in numbers]
        rest = self.captured(others) if others else 0.0
        return {"alone_us": self.captured(chosen) * 1e6, "left_out_us": (whole_s - rest) * 1e6}

    def seconds(self, body: Callable[[], None]) -> float:
        """Return the median seconds that the card takes for what `body` puts into the stream."""
        once = self._sample(body, 1)
        once = min(once, self._sample(body, 1))  # the first brings code and weights along
        times = max(2, min(50, round(SAMPLE_S / max(once, 1e-6))))
        return statistics.median(self._sample(body, times) for _ in range(SAMPLES))

    def _sample(self, body: Callable[[], None], times: int) -> float:
        driver, (begin, end) = self._driver, self._events
        driver.record_event(begin, self._stream)
        for _ in range(times):
            body()
        driver.record_event(end, self._stream)
        driver.synchronize_event(end)
        return driver.elapsed_ms(begin, end) * 1e-3 / times
