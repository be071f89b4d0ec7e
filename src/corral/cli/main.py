"""Finds the command and turns every error into one line and an exit code.

    0    done
    1    the model, the machine or corral is at fault
    2    the command line is
    130  stopped with Ctrl-C        141  the reader of a pipe is gone        143  terminated

Imports nothing heavy: `corral --help` and a misspelt command must answer at once.
"""

import difflib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import cast

from corral.cli import limits
from corral.cli.output import discard, finish, say
from corral.config import settings
from corral.errors import CorralError, ResourceError, UsageError
from corral.log import configure, escape, verbosity_of

COMMANDS = {
    "run": "answer a prompt, or chat when there is none",
    "serve": "serve a model, or many, over HTTP, with OpenAI's API",
    "ps": "show the models of a running server",
    "load": "have a running server load a model",
    "unload": "have a running server let a model go",
    "pin": "have a running server keep a model",
    "pull": "fetch a model into the cache",
    "inspect": "show what is in a model file",
    "lora": "show what is in a LoRA adapter, or merge it",
    "devices": "show the devices and their memory",
    "plan": "show the memory a model would need, without loading it",
    "bench": "measure prompt and generation speed",
    "perplexity": "measure how well a model predicts a text",
    "quantize": "write a model with fewer bits",
}

_USAGE = """\
usage: corral COMMAND [OPTIONS]
       corral COMMAND --help

Run GGUF language models.

commands:
{commands}

options:
  -h, --help   show this text
  --version    show the version

MODEL is a path, a name in the cache, hf:owner/repo[/file], or demo (a small model,
fetched once). Without -m, run takes the demo:

  corral run "What is the capital of France?"
"""

_INTERRUPTED, _PIPE_CLOSED, _TERMINATED = 130, 141, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        _require_streams()
        with _termination_cleans_up():
            code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
            finish()
            return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        discard()
        return _PIPE_CLOSED
    except CorralError as error:
        return _report(str(error), error.exit_code)
    except MemoryError:
        return _report(f"out of memory: the system gives this process no more{limits.hint()}", 1)
    except OSError as error:
        return _report(f"the system refused: {error}{limits.hint()}", 1)
    except Exception as error:
        return _report(
            f"unexpected {type(error).__name__}: {error}{limits.hint()}. This is a fault of "
            "corral: please report it with what CORRAL_LOG=debug prints",
            1,
        )


def _dispatch(arguments: list[str]) -> int:
    configure(verbosity_of(settings().log_level))
    _survive_any_character()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(usage().rstrip("\n"))
        return 0 if arguments else UsageError.exit_code
    if arguments[0] == "--version":
        import corral

        say(f"corral {corral.__version__}")
        return 0
    return _command(arguments[0])(arguments[1:])


def usage() -> str:
    """Return the text of `corral --help`."""
    commands = "\n".join(f"  {name:<12} {summary}" for name, summary in COMMANDS.items())
    return _USAGE.format(commands=commands)


def _command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; corral --help lists them"
        raise UsageError(f"there is no command {name[:40]!r}{hint}")
    module = importlib.import_module(f"corral.cli.{name}")
    return cast(Callable[[Sequence[str]], int], module.execute)


def _require_streams() -> None:
    """Refuse to compute what cannot be shown; messages may be lost without harm.

    Raises:
        ResourceError: stdout is closed.
    """
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process lives
    if sys.stdout is None:
        raise ResourceError("cannot write the answer: standard output is closed (>&-)")


def _survive_any_character() -> None:
    """Print a replacement for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@contextmanager
def _termination_cleans_up() -> Iterator[None]:
    """Let SIGTERM unwind, so that downloads are stopped and temporary files removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(message: str, code: int) -> int:
    if _is_debugging():
        traceback.print_exc()
    with suppress(OSError):
        print(f"corral: {escape(message)}", file=sys.stderr)
    return code


def _is_debugging() -> bool:
    try:
        return settings().log_level == "debug"
    except CorralError:  # the setting itself is what is reported
        return False
