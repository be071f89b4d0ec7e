"""`corral run`: streaming, statistics, JSON, options, models without a template."""

import json
import subprocess
import sys

from corral.cli.answer import statistics_line
from corral.contract.events import FinishReason
from corral.engine.metrics import GenerationStatistics
from unit.cli.fake_model import FakeModel

STATISTICS = GenerationStatistics(
    prompt_tokens=1,
    cached_tokens=0,
    generated_tokens=2,
    prefill_s=0.01,
    decode_s=0.5,
    time_to_first_token_s=0.01,
    finish_reason=FinishReason.STOP,
)


def test_answers_on_stdout_and_reports_on_stderr(corral):
    """The answer alone goes to stdout; one line of statistics goes to stderr."""
    outcome = corral("run", "hello")
    assert outcome.code == 0
    assert outcome.out == "1: you said hello\n"
    assert outcome.err == (
        "corral: 20 prompt tokens (4 cached) at 1,600 tokens/s · 3 generated at 4.0 tokens/s · "
        "first after 0.01 s · memory 1.0 KiB\n"
    )
    assert FakeModel.last.is_closed


def test_takes_the_demo_without_a_name(corral):
    """Without -m the demo model is used."""
    corral("run", "hello")
    assert FakeModel.last.name == "demo.gguf"


def test_hands_options_on(corral):
    """Every option arrives where it belongs."""
    corral(
        *("run", "hi", "-m", "x", "--context", 512, "--threads", 2, "--device", "reference"),
        *("--kv-type", "q8_0", "-n", 5, "--stop", "a", "--stop", "b", "--ignore-eos"),
        *("--temperature", 0.5, "--top-k", 1, "--top-p", 0.5, "--min-p", 0.1),
        *("--repeat-penalty", 1.1, "--seed", 7, "--system", "be brief"),
        *("--context-shift", "--keep", 4),
    )
    model = FakeModel.last
    assert model.options == {
        "device": ("reference",),
        "split": None,
        "gpu_layers": None,
        "context": 512,
        "kv_type": "q8_0",
        "context_shift": True,
        "keep": 4,
        "threads": 2,
        "watch_growth": False,
    }
    kind, messages, options = model.calls[0]
    assert kind == "chat"
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    sampling = options.pop("sampling")
    assert options == {"max_tokens": 5, "stop": ("a", "b"), "ignore_eos": True}
    values = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    assert values == (0.5, 1, 0.5, 0.1)
    assert (sampling.repeat_penalty, sampling.seed) == (1.1, 7)


def test_raw_continues_the_prompt(corral):
    """--raw hands the text on without a template and lets it hold special tokens."""
    outcome = corral("run", "--raw", "Once", "-n", 3)
    assert outcome.out == "0: you said Once\n"
    kind, prompt, options = FakeModel.last.calls[0]
    assert (kind, prompt, options["parse_special"]) == ("generate", "Once", True)


def test_a_model_without_template_continues_the_prompt(corral):
    """A base model is used as with --raw, and the user is told."""
    outcome = corral("run", "Once", "-m", "base")
    assert outcome.out == "0: you said Once\n"
    assert outcome.err.startswith("corral: base.gguf has no chat template")
    assert corral("run", "Once", "-m", "base", "--system", "x").code == 2


def test_json_is_one_object(corral):
    """--json prints text, counts, times, finish reason and memory, and nothing else."""
    outcome = corral("run", "hello", "--json")
    value = json.loads(outcome.out)
    assert value["text"] == "1: you said hello"
    assert value["finish_reason"] == "stop"
    assert value["prompt_tokens"] == 20
    assert value["decode_tokens_per_s"] == 4.0
    assert value["memory"]["total_bytes"] == 1024
    assert value["memory"]["rows"][0]["lifetime"] == "weights"
    assert outcome.err == ""


def test_memory_is_reported(corral):
    """--memory-report watches, and prints what is held and what a token adds below the answer."""
    outcome = corral("run", "hello", "--memory-report")
    assert FakeModel.last.options["watch_growth"] is True
    assert outcome.out == "1: you said hello\n"
    assert outcome.err.splitlines()[1:] == [
        "corral: memory           planned  allocated",
        "corral: cpu     weights    1,000      1,000",
        "corral: cpu     state         24         24",
        "corral: total              1,024      1,024",
        "corral: growth of the host: 64.2 ± 8.5 bytes/token (95 %, 30 samples in 1,200 tokens)",
        "corral: growth of the device: 0 ± 0 bytes/token (95 %, 30 samples in 1,200 tokens)",
    ]


def test_growth_that_is_not_known_is_told(corral):
    """Too few tokens and a system that does not tell are said to be so."""
    short = corral("run", "hello", "--memory-report", "-m", "short")
    assert short.err.count("unknown after 3 tokens; about a hundred are needed") == 2
    other = corral("run", "hello", "--memory-report", "-m", "other system")
    assert "growth of the host: this system does not tell it\n" in other.err
    assert "growth of the device: 0 ± 0 bytes/token" in other.err


def test_memory_report_in_json(corral):
    """With --json the growth is part of the object, and stderr stays empty."""
    outcome = corral("run", "hello", "--json", "--memory-report")
    growth = json.loads(outcome.out)["memory"]["growth"]
    assert growth["host"] == {"value": 64.25, "half_width": 8.5, "num_samples": 30}
    assert growth["device"]["value"] == 0
    assert (growth["generated_tokens"], growth["num_samples"]) == (1200, 34)
    assert outcome.err == ""
    assert "growth" not in json.loads(corral("run", "hello", "--json").out)["memory"]


def test_a_full_context_is_told(corral):
    """An answer that fills the context ends with a message that says what to do."""
    outcome = corral("run", "full", "--context", 100)
    assert outcome.code == 0
    assert "stopped: the context of 100 tokens is full; --context makes it larger" in outcome.err
    assert "--context-shift goes on and drops all but the first --keep tokens" in outcome.err


def test_a_pipe_is_the_prompt(process):
    """Piped text is the prompt; with a prompt it follows after an empty line."""
    outcome = piped("a text\n", "run")
    assert outcome == "1: you said a text\n"
    assert piped("a text\n", "run", "Summarise:") == "1: you said Summarise:\n\na text\n"
    assert piped("", "run", "Hello") == "1: you said Hello\n"


def piped(text, *arguments):
    import os

    done = subprocess.run(
        [sys.executable, "-m", "unit.cli.fake_model", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return done.stdout


def test_output_to_a_file_is_untouched(corral):
    """Control characters of a model reach a pipe or file as they are."""
    assert corral("run", "evil").out == "a\x1b[31mb\x07\n"


def test_an_answer_has_a_limit_of_its_own(corral):
    """Without -n an answer ends at 1,024 tokens, and the statistics say so and what to do."""
    outcome = corral("run", "endless")
    assert FakeModel.last.calls[0][2]["max_tokens"] == 1024
    assert " · stopped at the default limit of 1,024, -n N sets another · " in outcome.err
    assert "stopped" not in corral("run", "endless", "-n", 2).err


def test_ignoring_the_end_has_no_limit(corral):
    """--ignore-eos goes on until the context is full, unless -n says otherwise."""
    corral("run", "hi", "--ignore-eos")
    assert FakeModel.last.calls[0][2]["max_tokens"] is None


def test_one_token_is_singular():
    """A prompt of one token is no tokens."""
    assert statistics_line(STATISTICS, 1024).startswith("1 prompt token at ")


def test_no_token_takes_no_line(corral):
    """-n 0 reads the prompt only: nothing on stdout, and no time of a first token."""
    outcome = corral("run", "nothing", "-n", 0)
    assert outcome.out == ""
    assert outcome.err.endswith("0 generated · memory 1.0 KiB\n")
