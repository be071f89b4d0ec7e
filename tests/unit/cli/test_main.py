"""Exit codes, one-line errors, help, and what `import corral` loads."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import corral as package
from corral.cli import limits
from corral.cli import main as main_module
from corral.cli.main import COMMANDS, main

HEAVY = (
    *("numpy", "llvmlite", "tokenizers", "rich", "huggingface_hub", "msgspec", "jinja2"),
    *("starlette", "uvicorn", "prometheus_client"),
)


def test_help_lists_every_command(corral):
    """`--help` shows each command with its summary on stdout."""
    outcome = corral("--help")
    assert outcome.code == 0
    for name, summary in COMMANDS.items():
        assert f"  {name:<12} {summary}\n" in outcome.out
    assert outcome.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(corral, command):
    """`COMMAND --help` shows usage and options."""
    outcome = corral(command, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"usage: corral {command} ")
    assert "--json" in outcome.out


def test_no_command_shows_help_and_fails(corral):
    """Without a command the help is shown and the exit code is that of usage."""
    outcome = corral()
    assert outcome.code == 2
    assert "commands:" in outcome.out


def test_version(corral):
    """`--version` prints name and version."""
    outcome = corral("--version")
    assert outcome.code == 0
    assert outcome.out == f"corral {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "there is no command 'rnu'; did you mean run?"),
        (["zzz"], "corral --help lists them"),
        (["run", "--nope", "x"], "unrecognized arguments: --nope; see corral run --help"),
        (["run", "x", "-n", "many"], "'many' is no integer from 0"),
        (["run", "x", "--temperature", "-1"], "'-1' is no number from 0 to 100"),
        (["run", "x", "--temperature", "nan"], "'nan' is no number"),
        (["run", "x", "--kv-type", "q2"], "invalid choice: 'q2'"),
        (["run", "x", "--raw", "--system", "s"], "--system needs the chat template"),
        (["run"], "no prompt: give one, pipe it in"),
        (["run", " "], "the prompt is empty"),
        (["run", "--json"], "no prompt"),
        (["run", "a\udcffb"], "argument PROMPT: is not UTF-8"),
        (["run", "a", "--stop", "\udcff"], "argument --stop: is not UTF-8"),
        (["run", "x", "--device", "foo"], "no device 'foo': use one of auto, cpu, reference"),
        (["plan", "m", "--device", "foo"], "no device 'foo': use one of auto, cpu, reference"),
        (["run", "x", "--device", "null"], "the null device counts bytes and computes nothing"),
        (["bench", "m", "--device", "null"], "it is for corral plan, use cpu"),
        (["run", "too long"], "the prompt has 5000 tokens"),
        (["bench", "m", "-p", "0", "-n", "0"], "nothing to measure"),
        (["inspect"], "required: MODEL"),
        (["pull", "./x.gguf"], "expected demo or hf:owner/repo"),
        (["perplexity", "m", "-f", "/nowhere/text"], "No such file"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(corral, arguments, message):
    """A mistake of the user is told on one line of stderr that says what to do."""
    outcome = corral(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert message in outcome.err
    assert outcome.err.startswith("corral: ")
    assert outcome.err.count("\n") == 1


def test_a_fault_of_corral_is_one_line_and_code_1(corral):
    """An unexpected exception is one line that says how to report it."""
    outcome = corral("run", "bug")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert r"unexpected ZeroDivisionError: oh\nno" in outcome.err
    assert "CORRAL_LOG=debug" in outcome.err


def test_little_memory_is_told(environment, tmp_path):
    """Under a limit that the libraries do not fit in, one line names the limit."""
    limited = f"ulimit -v 300000; {sys.executable} -m unit.cli.run_code {shlex.quote(LOADING)}"
    outcome = subprocess.run(
        ["sh", "-c", limited],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "corral: this process may use 292 MiB of address space (ulimit -v) and needs 400 MiB "
        "beside the model: raise the limit\n"
    )


LOADING = """
import sys
from pathlib import Path
from corral.cli.main import main
Path("model.gguf").touch()
sys.exit(main(["run", "-m", "./model.gguf", "hi"]))
"""


def test_running_out_of_memory_is_no_fault_of_corral(monkeypatch, corral):
    """A MemoryError is one line that names the limit, if there is one."""

    def exhausted(arguments):
        raise MemoryError

    monkeypatch.setattr(main_module, "_dispatch", exhausted)
    monkeypatch.setattr(limits, "address_space", lambda: 1 << 30)
    outcome = corral("run", "x")
    assert outcome.code == 1
    assert outcome.err == (
        "corral: out of memory: the system gives this process no more (this process may use "
        "1024 MiB of address space: ulimit -v)\n"
    )


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, 2, "no such file"),
        (b"", 1, "truncated"),
        (b"PK\x03\x04 something else entirely", 1, "not a GGUF file"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, 1, "claims"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "plan", "run"])
def test_bad_files_are_told_on_one_line(process, tmp_path, command, content, code, message):
    """A missing, empty, foreign or damaged file: one line with its path, and the right code."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    arguments = ["-m", path, "hello"] if command == "run" else [path]
    outcome = process("corral", command, *arguments)
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err.startswith("corral: ")
    assert outcome.err.count("\n") == 1
    assert str(path) in outcome.err
    assert message in outcome.err


def test_debug_shows_the_traceback(process, environment):
    """CORRAL_LOG=debug adds the traceback to the line."""
    outcome = process("corral", "inspect", "./no", env=environment | {"CORRAL_LOG": "debug"})
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("corral: ")


def test_debug_tells_what_is_done(process, environment):
    """CORRAL_LOG=debug tells on stderr what is loaded, how tokens are chosen, and each piece."""
    outcome = process("unit.cli.fake_model", "run", "hi", env=environment | {"CORRAL_LOG": "debug"})
    assert outcome.out == "1: you said hi\n"
    for told in ("demo is demo.gguf", "read: 10 in", "loaded demo.gguf on cpu", "piece 2 after"):
        assert told in outcome.err
    assert "sampling of demo.gguf: {} advised, {} given" in outcome.err
    quiet = process("unit.cli.fake_model", "run", "hi", env=environment | {"CORRAL_LOG": "info"})
    assert "loaded demo.gguf" in quiet.err
    assert "piece" not in quiet.err


def test_a_wrong_setting_is_told(process, environment):
    """A variable with a wrong value is a usage error of its own."""
    outcome = process("corral", "--help", env=environment | {"CORRAL_LOG": "loud"})
    assert outcome.code == 2
    assert "CORRAL_LOG" in outcome.err
    assert outcome.err.count("\n") == 1


def test_interrupt_is_130(monkeypatch, corral):
    """Ctrl-C ends quietly with the shell's code."""

    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_dispatch", interrupted)
    outcome = corral("run", "x")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


def test_a_closed_pipe_is_quiet(environment):
    """A reader that goes away ends the command without a word."""
    child = subprocess.Popen(
        [sys.executable, "-m", "unit.cli.fake_model", "run", "slow"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    child.stdout.readline(2)
    child.stdout.close()
    error = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=30) == 141
    assert error == b""


@pytest.mark.parametrize(
    "arguments", [["run", "hi"], ["run", "hi", "--json"], ["--help"], ["--version"]]
)
def test_a_full_disk_is_told(environment, arguments):
    """Output that cannot be written is one line with the reason, and nothing at exit."""
    outcome = shell(environment, arguments, "> /dev/full")
    assert outcome.returncode == 1
    assert outcome.stderr.startswith(b"corral: cannot write the ")
    assert outcome.stderr.endswith(b": No space left on device\n")
    assert outcome.stderr.count(b"\n") == 1


def test_a_closed_output_is_told(environment):
    """Without a standard output nothing is computed."""
    outcome = shell(environment, ["run", "hi"], ">&-")
    assert outcome.returncode == 1
    assert outcome.stderr == b"corral: cannot write the answer: standard output is closed (>&-)\n"


def test_closed_messages_do_no_harm(environment):
    """Without a standard error the answer is as ever, and no message gets into it."""
    outcome = shell(environment, ["run", "hi"], "2>&-")
    assert (outcome.returncode, outcome.stdout) == (0, b"1: you said hi\n")


def shell(environment, arguments, redirection):
    command = shlex.join([sys.executable, "-m", "unit.cli.fake_model", *arguments])
    return subprocess.run(
        ["sh", "-c", f"{command} {redirection}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=30,
        env=environment,
    )


def test_interrupt_of_a_run_keeps_what_was_said(environment):
    """Ctrl-C while `run` answers ends the answer, prints the statistics and returns 130."""
    child = subprocess.Popen(
        [sys.executable, "-m", "unit.cli.fake_model", "run", "slow"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.read(child.stdout.fileno(), 2)
    child.send_signal(signal.SIGINT)
    out, error = child.communicate(timeout=30)
    assert child.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in error
    assert b"tokens/s" in error


def test_termination_unwinds(environment):
    """SIGTERM closes what is open and returns the shell's code."""
    child = subprocess.Popen(
        [sys.executable, "-m", "unit.cli.fake_model", "run", "slow"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.read(child.stdout.fileno(), 2)
    child.terminate()
    _, error = child.communicate(timeout=30)
    assert child.returncode == 143
    assert error == b""


def test_help_imports_nothing_heavy(process):
    """`corral --help` and `import corral` load none of the large libraries."""
    code = (
        "import sys, corral, corral.cli.main as m; m.main(['--help']); "
        f"print([n for n in {HEAVY!r} if n in sys.modules], file=sys.stderr)"
    )
    outcome = process("unit.cli.run_code", code)
    assert outcome.err == "[]\n"


def test_importing_a_command_imports_nothing_heavy(process):
    """Parsing the options of a command loads none of the large libraries."""
    code = (
        "import sys, importlib\n"
        f"for name in {list(COMMANDS)!r}: importlib.import_module('corral.cli.' + name)\n"
        f"print([n for n in {HEAVY!r} if n in sys.modules])"
    )
    assert process("unit.cli.run_code", code).out == "[]\n"


def test_help_is_fast(process):
    """`corral --help` answers at once, interpreter start included."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        process("corral", "--help")
        times.append(time.perf_counter() - began)
    assert min(times) < 1.0  # measured 0.06 s; the bound leaves room for a loaded machine


def test_main_takes_the_programs_arguments(monkeypatch, capsys):
    """Without arguments `main` reads those of the process."""
    monkeypatch.setattr(sys, "argv", ["corral", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("corral ")
