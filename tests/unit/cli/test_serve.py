"""`corral serve`: what it takes, what it says, and how it begins and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest

from corral.cli.main import main
from corral.cli.serve import _tell_saved
from corral.cli.serve_options import is_loopback, url
from corral.config import read_settings
from corral.contract.sessions import SessionsSaved
from unit.cli.small_file import write_small_file


@pytest.fixture
def small(tmp_path):
    """Return a model file."""
    path = tmp_path / "small.gguf"
    write_small_file(path)
    return path


class Running:
    """A `corral serve` in a process of its own."""

    def __init__(self, environment, *arguments, **more):
        command = [sys.executable, "-m", "unit.cli.scripted_serve", "serve", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment | more, **pipes)

    def line(self):
        """Return the next line of stdout."""
        return self.process.stdout.readline()

    def end(self, *signals):
        """Send signals, and return the exit code and what was written to stderr."""
        for number in signals:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@pytest.fixture
def start(environment):
    """Return a function that starts a server; what still runs at the end is killed."""
    running = []

    def run(*arguments, **more):
        running.append(Running(environment, *arguments, **more))
        return running[-1]

    yield run
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_lets_answers_end(start, small, number):
    """One line tells the address; a signal lets what runs end, ends the worker, and is no error."""
    server = start("-m", small, "--port", 0, "--json")
    told = json.loads("".join(iter(server.line, "}\n")) + "}")
    assert told["model"] == str(small)
    body = {"prompt": "many 20", "stream": True}
    with httpx.stream("POST", f"{told['url']}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(number)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    code, err = server.end()
    assert code == 0
    assert "worker closed" in err
    assert "Traceback" not in err


def test_a_second_signal_ends_it_at_once(start, small):
    """Whoever does not want to wait for what runs says so again."""
    server = start("-m", small, "--port", 0)
    address = server.line().split()[-1]
    body = {"prompt": "many 100000", "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        while is_open(address):
            next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = []
        with suppress(httpx.RemoteProtocolError):  # told why, or cut off
            rest = list(lines)
    assert "data: [DONE]" not in rest
    assert server.end()[0] == 0


def test_it_answers_503_while_it_loads(start, small, tmp_path):
    """The port is there at once; who asks is told that the model is loading."""
    go = tmp_path / "go"
    port = free_port()
    server = start("-m", small, "--port", port, SCRIPT="slow", SCRIPT_GO=str(go))
    assert "loading" in server.process.stderr.readline()
    response = httpx.get(f"http://127.0.0.1:{port}/health")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "Loading model"
    go.touch()
    assert server.line() == f"{small} is served at http://127.0.0.1:{port}\n"
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    assert server.end(signal.SIGTERM)[0] == 0


def is_open(address):
    """Whether a server takes connections."""
    try:
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()
    except OSError:
        return False
    return True


def free_port():
    """Return a port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_model_that_cannot_be_loaded_ends_it(start, small):
    """Why there will be no worker is the last line, and the exit code says whose fault it is."""
    server = start("-m", small, "--port", 0, SCRIPT="fails")
    code, err = server.end()
    assert code == 1
    assert err.splitlines()[-1] == "corral: needs 9 GiB, 1 free"


def test_keys_and_names_come_from_the_command_line(start, small, tmp_path):
    """Keys of options, of a file and of the environment count; aliases name the model."""
    keys = tmp_path / "keys"
    keys.write_text("sk-file\n\n")
    more = [
        "--api-key",
        "sk-option",
        "--api-key-file",
        keys,
        "--alias",
        "gpt-4",
        "--parallel",
        "2",
        "--queue",
        "1",
    ]
    server = start("-m", small, "--port", 0, *more, CORRAL_API_KEY="sk-environment")
    address = server.line().split()[-1]
    assert httpx.get(f"{address}/v1/models").status_code == 401
    for key in ("sk-file", "sk-option", "sk-environment"):
        headers = {"Authorization": f"Bearer {key}"}
        (model,) = httpx.get(f"{address}/v1/models", headers=headers).json()["data"]
        assert model["id"] == "small"
        assert "gpt-4" in model["aliases"]
        body = {"prompt": "hi", "n": 4}
        refused = httpx.post(f"{address}/v1/completions", json=body, headers=headers)
        assert refused.json()["error"]["param"] == "n"  # never could so many run and wait at once
    code, err = server.end(signal.SIGTERM)
    assert code == 0
    assert "anybody" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "'70000' is no integer from 0 to 65535"),
        (["--parallel", "0"], "'0' is no integer from 1"),
        (["--api-key", ""], "an API key is empty"),
        (["--api-key", " x"], "or has spaces around it"),
        (["--api-key-file", "/nowhere/keys"], "cannot read keys from /nowhere/keys"),
        (["--api-key-file", os.devnull], "there is no key in"),
        (["--device", "null"], "the null device counts bytes"),
        (["-m", "./missing.gguf"], "missing.gguf"),
    ],
)
def test_wrong_usage(corral, arguments, message):
    """A mistake is told on one line before anything is started."""
    outcome = corral("serve", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_an_address_of_elsewhere_is_told(small, capsys):
    """Where nobody can listen is an error of one line, after the warning."""
    assert main(["serve", "-m", str(small), "--host", "203.0.113.1", "--port", "0"]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert "anybody who reaches 203.0.113.1 may use this server" in warning
    assert "cannot listen on 203.0.113.1:0" in error


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.5.5.5", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("192.0.2.1", False),
        ("box.example", False),
    ],
)
def test_loopback(host, is_local):
    """Only addresses that this machine alone reaches are safe without a key."""
    assert is_loopback(host) is is_local


def test_addresses_can_be_opened():
    """What is printed is an address to click at, also for all interfaces and IPv6."""
    assert url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert url("::1", 80) == "http://[::1]:80"
    assert url("::", 80) == "http://[::1]:80"
    assert url("box", 80) == "http://box:80"


def test_the_environments_key_is_not_shown():
    """Settings that are printed hide the key."""
    found = read_settings({"CORRAL_API_KEY": "sk-secret"})
    assert found.api_key == "sk-secret"
    assert "sk-secret" not in repr(found)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (SessionsSaved(sessions=3, tokens=4000), "conversations saved: 3 (4,000 tokens)"),
        (
            SessionsSaved(sessions=1, unsaved_sessions=2, reason="the disk refused it: full"),
            "conversations saved: 1; others were not: the disk refused it: full",
        ),
        (None, "no conversation was saved: the model's process ended before"),
    ],
)
def test_what_became_of_conversations_is_said(saved, said, capsys):
    """No success is told where there was none."""

    class Ended:
        def drain(self):
            return saved

    _tell_saved(Ended())
    assert capsys.readouterr().err == f"corral: {said}\n"
