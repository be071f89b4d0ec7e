"""A running `corral serve` of many models, as a process of its own."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import psutil


class FleetServer:
    """A server of many models in a process of its own."""

    def __init__(self, environment, *arguments):
        command = [sys.executable, "-m", "corral", "serve", "--port", "0", "--json", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        told = json.loads("".join(iter(self.process.stdout.readline, "}\n")) + "}")
        self.url, self.num_models = told["url"], told["models"]
        self.notes = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.notes.append(line.strip())

    def complete(self, model, prompt="Hello", **more):
        """Return the response to a completion."""
        body = {"model": model, "prompt": prompt, "max_tokens": 4, "seed": 1, **more}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)

    def post(self, path, **fields):
        """Return the response to a JSON body."""
        return httpx.post(f"{self.url}{path}", json=fields, timeout=60)

    def fleet(self):
        """Return what is told of all models and devices."""
        return httpx.get(f"{self.url}/corral/fleet", timeout=60).json()

    def workers(self):
        """Return the processes below it."""
        return psutil.Process(self.process.pid).children()

    def end(self, number=signal.SIGTERM):
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        self.process.wait(30)
        return self.process.returncode


@contextmanager
def fleets(environment):
    """Give a function that starts a server; what still runs at the end is killed."""
    running = []

    def start(*arguments):
        running.append(FleetServer(environment, *map(str, arguments)))
        return running[-1]

    try:
        yield start
    finally:
        for server in running:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait(30)
            server.process.stdout.close()
            server.process.stderr.close()
