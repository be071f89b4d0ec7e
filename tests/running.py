"""A running `corral serve` of a file, as a process of its own."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import psutil


class Served:
    """A running `corral serve`."""

    def __init__(self, process, url):
        self.process = process
        self.url = url

    def post(self, path, **fields):
        """Return the response to a JSON body."""
        return httpx.post(f"{self.url}{path}", json=fields, timeout=60)

    def status(self):
        """Return what the page is told."""
        return httpx.get(f"{self.url}/corral/status", timeout=60).json()

    def worker(self):
        """Return the worker's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def until(self, is_so, seconds=60.0):
        """Wait until something is so."""
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, "it did not become so"
            time.sleep(0.02)


@contextmanager
def serving(path, cache, *more):
    """Serve a file on the device that needs no compiler, until the end of the block."""
    command = [sys.executable, "-m", "corral", "serve", "-m", str(path), "--device", "reference"]
    found = os.pathsep.join(part for part in sys.path if part)
    environment = os.environ | {"PYTHONPATH": found, "CORRAL_CACHE": str(cache), "CORRAL_LOG": ""}
    process = subprocess.Popen(
        [*command, "--port", "0", "--parallel", "2", "--json", *more],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        yield Served(process, told["url"])
    finally:
        process.terminate()
        process.communicate(timeout=60)
