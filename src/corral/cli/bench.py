"""`corral bench`: prompt and generation speed with llama-bench's meaning.

    pp N   N random tokens computed into an empty cache
    tg N   N tokens computed one by one from an empty cache

One pass warms up, then `--repeat` passes are timed; JSON has llama-bench's names.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import LoadOptions, Parser, whole
from corral.cli.describe import Description, describe
from corral.cli.loading import loaded
from corral.cli.output import print_columns, print_json
from corral.cli.progress import ProgressDisplay
from corral.errors import UsageError
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral import Model

_MAX_REPEAT = 1000


@dataclass(frozen=True, slots=True)
class Setting:
    """What was measured on; what the user left open is decided here."""

    device: str
    threads: int
    kv_type: str

    @classmethod
    def of(cls, load: LoadOptions, devices: str) -> "Setting":
        """Return the devices that the options led to, and the threads of the widest."""
        from corral.devices import registry

        traits = [registry.traits(name, threads=load.threads) for name in devices.split(",")]
        return cls(devices, max(one.workers for one in traits), load.kv_type)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: only one of the two counts is not 0."""

    prompt: int
    generated: int

    @property
    def name(self) -> str:
        """What llama-bench calls it."""
        return f"pp{self.prompt}" if self.prompt else f"tg{self.generated}"

    @property
    def tokens(self) -> int:
        """Tokens one pass computes."""
        return self.prompt + self.generated


@dataclass(frozen=True, slots=True)
class Result:
    """The seconds of every pass of a test."""

    test: Case
    began: str
    samples_s: tuple[float, ...]

    @property
    def speeds(self) -> list[float]:
        """Tokens a second of every pass."""
        return [self.test.tokens / max(seconds, 1e-9) for seconds in self.samples_s]

    @property
    def mean(self) -> float:
        """Mean speed."""
        return statistics.fmean(self.speeds)

    @property
    def deviation(self) -> float:
        """Standard deviation of the speed; 0 for one pass."""
        return _deviation(self.speeds)

    @property
    def median(self) -> float:
        """Median speed."""
        return statistics.median(self.speeds)


def execute(given: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    parser = Parser(
        "bench",
        "MODEL [-p N] [-n N] [OPTIONS]",
        "Measure prompt and generation speed, as llama-bench does.",
    )
    options.add_model(parser)
    parser.add_argument(
        "-p", "--prompt", metavar="N", type=whole(0), default=512, help="prompt tokens (512)"
    )
    parser.add_argument(
        "-n", "--generate", metavar="N", type=whole(0), default=128, help="generated tokens (128)"
    )
    parser.add_argument(
        "--repeat", metavar="N", type=whole(1, _MAX_REPEAT), default=5, help="timed passes (5)"
    )
    options.add_load_options(parser)
    options.add_json(parser)
    parsed = parser.parse_args(given)
    tests = [test for test in (Case(parsed.prompt, 0), Case(0, parsed.generate)) if test.tokens]
    if not tests:
        raise UsageError("-p and -n are both 0, so there is nothing to measure")
    if parsed.context is None:
        parsed.context = max(test.tokens for test in tests) + 1
    load = LoadOptions.of(parsed)
    with loaded(load) as model, ProgressDisplay() as display:
        results = [measure(model, test, parsed.repeat, display) for test in tests]
        display.close()
        description, devices = _description(load.model), model.device
    show = _print_json if parsed.json else _print_text
    show(description, Setting.of(load, devices), results)
    return 0


def measure(model: "Model", test: Case, repeat: int, display: ProgressDisplay) -> Result:
    """Time a test `repeat` times after one pass that is not counted."""
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    samples = []
    for number in range(repeat + 1):
        display("bench", number, repeat + 1)
        prefill_s, decode_s = model.benchmark(test.prompt, test.generated)
        samples.append(prefill_s + decode_s)
    return Result(test, began, tuple(samples[1:]))


def _description(name: str) -> Description:
    from corral.gguf import open_model
    from corral.hub.resolve import resolve

    with open_model(resolve(name), skip_arrays=True) as file:
        return describe(file)


def _print_text(model: Description, on: Setting, results: Sequence[Result]) -> None:
    head = ("model", "size", "params", "device", "threads", "test", "t/s", "median")
    rows = [
        (
            model.summary,
            format_bytes(model.weights_bytes),
            f"{model.parameters / 1e6:.2f} M",
            on.device,
            str(on.threads),
            result.test.name,
            f"{result.mean:.2f} ± {result.deviation:.2f}",
            f"{result.median:.2f}",
        )
        for result in results
    ]
    print_columns([head, *rows], "<>><>>>>")


def _print_json(model: Description, on: Setting, results: Sequence[Result]) -> None:
    print_json([_json_row(model, on, result) for result in results])


def _json_row(model: Description, on: Setting, result: Result) -> dict[str, object]:
    nanoseconds = [round(seconds * 1e9) for seconds in result.samples_s]
    return {
        "model_filename": model.file,
        "model_type": model.summary,
        "model_size": model.weights_bytes,
        "model_n_params": model.parameters,
        "backends": on.device,
        "n_threads": on.threads,
        "type_k": on.kv_type,
        "type_v": on.kv_type,
        "n_prompt": result.test.prompt,
        "n_gen": result.test.generated,
        "n_depth": 0,
        "test_time": result.began,
        "avg_ns": round(statistics.fmean(nanoseconds)),
        "stddev_ns": round(_deviation(nanoseconds)),
        "avg_ts": result.mean,
        "stddev_ts": result.deviation,
        "median_ts": result.median,
        "samples_ns": nanoseconds,
        "samples_ts": result.speeds,
    }


def _deviation(samples: Sequence[float]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0
