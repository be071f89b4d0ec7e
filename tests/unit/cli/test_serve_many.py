"""`corral serve --models` and `--config` with real workers, and the commands that ask it."""

import json
import os
import signal
import sys
from pathlib import Path

import httpx
import psutil
import pytest

import tiny
from corral.cli.client import Client
from corral.cli.main import main
from corral.errors import ResourceError, UsageError
from running_fleet import fleets
from served import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are tested on Linux")
BUDGET = "[budgets]\nhost = '600MiB'\n"
FOR_ALL = "[models.'*']\ncontext = 128\nparallel = 2\ndevice = 'cpu'\ndrain = 5\n"


@pytest.fixture
def folder(tmp_path):
    """Return a folder of three tiny models."""
    models = tmp_path / "models"
    models.mkdir()
    for name in "abc":
        tiny.write(models / f"{name}.gguf")
    return models


@pytest.fixture
def start(environment):
    """Return a function that starts a server; what still runs at the end is killed."""
    with fleets(environment) as run:
        yield run


def test_many_models_are_served_from_a_folder(start, folder, tmp_path):
    """Loaded when wanted, evicted for room, killed and back; the commands tell and change it."""
    config = tmp_path / "corral.toml"
    config.write_text(f"[server]\nmodels = ['{folder}']\nmin_residency = 0\n{BUDGET}{FOR_ALL}")
    server = start("--config", config)
    assert server.num_models == 3
    answers = {name: server.complete(name).json()["choices"][0]["text"] for name in "abc"}
    assert len(set(answers.values())) == 1, "three copies of one model"
    until(lambda: any("evicted for" in line for line in server.notes))
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert sum(one["status"]["value"] == "loaded" for one in listed) == 2

    pid = next(one["corral"]["pid"] for one in listed if one["id"] == "c")
    os.kill(pid, signal.SIGKILL)
    assert server.complete("c").json()["choices"][0]["text"] == answers["c"]

    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert not [name for name in ("numpy", "llvmlite", "libcuda") if name in maps]
    assert psutil.Process(server.process.pid).memory_info().rss < 150 << 20

    (folder / "d.gguf").write_bytes((folder / "a.gguf").read_bytes())
    server.process.send_signal(signal.SIGHUP)
    until(lambda: any("d is new" in line for line in server.notes))
    assert server.complete("d").json()["choices"][0]["text"] == answers["a"]

    workers = server.workers()
    assert server.end() == 0
    assert not [one for one in workers if one.is_running()]


def test_workers_die_with_a_server_that_is_killed(start, folder):
    """Nothing is left that could be told to end."""
    server = start("--models", folder, "--device", "cpu", "--context", "128", "--parallel", "1")
    assert server.complete("a").status_code == 200
    workers = server.workers()
    assert workers
    server.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def test_conversations_outlive_their_server(start, folder, tmp_path):
    """Case 61: one that is told to end keeps them all; one that is killed loses none of those."""
    config = tmp_path / "corral.toml"
    kept = f"sessions = '{tmp_path / 'sessions'}'"
    config.write_text(f"[server]\nmodels = ['{folder}']\n{kept}\n{BUDGET}{FOR_ALL}")
    prompt = list(range(97, 97 + 20)) * 4

    def cached(server, name):
        return server.complete(name, prompt).json()["usage"]["prompt_tokens_details"]

    first = start("--config", config)
    for name in "ab":
        assert cached(first, name)["cached_tokens"] == 0
    assert first.end() == 0
    second = start("--config", config)
    assert [cached(second, name)["cached_tokens"] for name in "ab"] == [64, 64]  # full blocks
    workers = second.workers()
    assert second.end(signal.SIGKILL) == -signal.SIGKILL
    psutil.wait_procs(workers, timeout=30)
    third = start("--config", config)
    assert cached(third, "a")["cached_tokens"] == 64


def run(capsys, *arguments):
    """Run a command; return its exit code and what it printed."""
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_commands_ask_a_running_server(start, folder, capsys):
    """ps, load, pin, plan and unload, as text and as JSON."""
    server = start("--models", folder, "--device", "cpu", "--context", "128", "--parallel", "1")
    there = ("--server", server.url)
    code, out, _ = run(capsys, "ps", "--json", *there)
    assert (code, len(json.loads(out)["models"])) == (0, 3)
    assert run(capsys, "load", "a", *there)[:2] == (0, "a is loaded\n")
    code, out, _ = run(capsys, "ps", *there)
    assert "a" in out and "ready" in out and "2 more models" in out
    assert "a is loaded" in run(capsys, "plan", "a", *there)[1]
    assert "b fits" in run(capsys, "plan", "b", *there)[1]
    assert run(capsys, "pin", "a", *there)[1] == "a is pinned\n"
    assert "pinned" in run(capsys, "ps", *there)[1]
    assert run(capsys, "pin", "a", "--off", *there)[1] == "a is not pinned\n"
    assert run(capsys, "unload", "a", *there)[0] == 0
    until(
        lambda: (
            json.loads(run(capsys, "ps", "--json", *there)[1])["devices"][0]["booked_bytes"] == 0
        )
    )
    code, _, err = run(capsys, "load", "nobody", *there)
    assert code == 2
    assert "no model 'nobody'" in err


def test_a_model_that_cannot_be_loaded_is_told_by_the_command(start, folder, capsys):
    """The worker's or the planner's own words."""
    (folder / "broken.gguf").write_bytes(b"GGUF and then nothing")
    server = start("--models", folder, "--device", "cpu")
    code, _, err = run(capsys, "load", "broken", "--server", server.url)
    assert code == 1
    assert "broken" in err
    assert server.complete("broken").status_code == 422


def test_where_nobody_answers_is_told(capsys):
    """And what to do about it."""
    code, _, err = run(capsys, "ps", "--server", "http://127.0.0.1:9")
    assert code == 1
    assert "corral serve starts one" in err


@pytest.mark.parametrize("address", ["ftp://there", "http://", "http://there:port"])
def test_what_is_no_address_is_refused(address):
    """Before anything is sent."""
    with pytest.raises(UsageError):
        Client(address)


def test_a_server_of_something_else_is_no_server():
    """Its reply is not understood, and that is said."""
    with pytest.raises(ResourceError, match="no server of corral"):
        Client("http://there")._read(200, b"<html>")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "demo", "--models", "there"),
        ("--models", "there", "--config", "there.toml"),
        ("--models", "there", "--alias", "name"),
        ("--models", "there", "--gpu-layers", "3"),
        ("--config", "there.toml", "--context", "8192"),
        ("--config", "there.toml", "--kv-type", "q8_0", "--parallel", "2"),
    ],
)
def test_what_cannot_be_said_together_is_refused(arguments, capsys):
    """With a message that names both."""
    code, _, err = run(capsys, "serve", *arguments)
    assert code == 2
    assert err.startswith("corral: ")


def test_a_folder_must_be_there_at_the_start(tmp_path, capsys):
    """A mistyped folder is told, and not served as one without models."""
    code, _, err = run(capsys, "serve", "--models", tmp_path / "modles")
    assert code == 2
    assert "modles: there is no such folder" in err


def test_a_configuration_is_checked_before_anything_starts(tmp_path, capsys):
    """Every mistake with its line."""
    config = tmp_path / "corral.toml"
    config.write_text("[server]\nport = 'x'\n[models.a]\ncontext = -1\n")
    code, _, err = run(capsys, "serve", "--config", config)
    assert code == 2
    assert "port" in err and "context" in err
