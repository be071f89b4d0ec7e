"""`corral run`: one answer, or a chat when there is no prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli import memory_report
from corral.cli.answer import (
    DEFAULT_MAX_TOKENS,
    AnswerOptions,
    add_answer_options,
    as_json,
    statistics_line,
    stream,
)
from corral.cli.arguments import LoadOptions, Parser
from corral.cli.loading import loaded
from corral.cli.output import note, print_json, write
from corral.cli.prompt import gather, standard_input
from corral.errors import UsageError

if TYPE_CHECKING:
    from corral import Generation, Model

_CHAT_TEMPLATE = "tokenizer.chat_template"
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `corral run` was asked."""

    prompt: str | None
    system: str | None
    is_raw: bool
    is_json: bool
    has_memory_report: bool
    load: LoadOptions
    answer: AnswerOptions


def execute(given: Sequence[str]) -> int:
    """Answer, print what it took, and return the exit code."""
    run = _parse(given)
    prompt = gather(run.prompt, standard_input())
    if prompt is None and (run.is_json or run.is_raw):
        raise UsageError("--json and --raw need a prompt; a chat has none")
    with loaded(run.load, watch_growth=run.has_memory_report) as model:
        code = _chat(model, run) if prompt is None else _answer(model, prompt, run)
        if run.has_memory_report and not run.is_json:
            memory_report.show(model.memory())
        return code


def _parse(given: Sequence[str]) -> RunOptions:
    parser = Parser(
        "run",
        "[PROMPT] [-m MODEL] [OPTIONS]",
        "Answer a prompt, or chat when there is none and this is a terminal.",
    )
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        type=options.utf8,
        help="what to ask; piped text is added below it",
    )
    parser.add_argument(
        "--system", metavar="TEXT", type=options.utf8, help="instructions before the conversation"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as it is, without chat template; special tokens are recognised",
    )
    parser.add_argument(
        "--memory-report",
        action="store_true",
        help="watch memory, and tell at the end what is held and what each token added to it",
    )
    options.add_json(parser)
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        default=options.DEFAULT_MODEL,
        help=f"{options.MODEL_HELP} (default: demo)",
    )
    options.add_load_options(group)
    options.add_shift(group)
    add_answer_options(parser)
    parsed = parser.parse_args(given)
    if parsed.raw and parsed.system is not None:
        parser.error("--system needs the chat template that --raw leaves out")
    return RunOptions(
        prompt=parsed.prompt,
        system=parsed.system,
        is_raw=parsed.raw,
        is_json=parsed.json,
        has_memory_report=parsed.memory_report,
        load=LoadOptions.of(parsed),
        answer=AnswerOptions.of(parsed),
    )


def _chat(model: "Model", run: RunOptions) -> int:
    from corral.cli.chat import chat

    chat(model, run.answer, system=run.system, is_endless=run.load.context_shift)
    return 0


def _answer(model: "Model", prompt: str, run: RunOptions) -> int:
    generation = _start(model, prompt, run)
    text = stream(generation, _nowhere if run.is_json else write)
    statistics = generation.statistics
    if run.is_json:
        print_json({"model": model.name, **as_json(text, statistics, model.memory())})
    else:
        if text and not text.endswith("\n"):
            write("\n")
        limit = None if run.answer.max_tokens is not None else DEFAULT_MAX_TOKENS
        note(statistics_line(statistics, model.memory().total_bytes, unasked_limit=limit))
    if statistics.finish_reason.value == "context":
        note(
            f"stopped: the context of {model.context} tokens is full; --context makes it larger, "
            "--context-shift goes on and drops all but the first --keep tokens step by step"
        )
    return _INTERRUPTED if statistics.finish_reason.value == "cancelled" else 0


def _start(model: "Model", prompt: str, run: RunOptions) -> "Generation":
    keywords = run.answer.keywords(model, longest=DEFAULT_MAX_TOKENS)
    is_raw = run.is_raw
    if not is_raw and _CHAT_TEMPLATE not in model.metadata:
        if run.system is not None:
            raise UsageError(f"{model.name} has no chat template, so --system cannot be used")
        note(f"{model.name} has no chat template: the prompt is continued as it is (--raw)")
        is_raw = True
    if is_raw:
        return model.generate(prompt, parse_special=True, **keywords)
    messages = [{"role": "user", "content": prompt}]
    if run.system is not None:
        messages.insert(0, {"role": "system", "content": run.system})
    return model.stream_chat(messages, **keywords)


def _nowhere(piece: str) -> None:
    """Show nothing of a piece."""
