"""A client of a router, who notes when the first token of an answer came, and what came before."""

import http.client
import json
import socket
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Self

ANSWER_S = 60.0
HELD = ("loading", "ready", "draining", "stopping")


@dataclass
class Answer:
    """What came of one request; seconds since it was sent."""

    asked_at: float
    """Seconds since the epoch."""
    first_s: float = 0.0
    seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    error: str = ""


class Talk:
    """Asks a router on a port of this machine."""

    def __init__(self, port: int) -> None:
        """Ask the router there."""
        self.port = port

    def is_there(self) -> bool:
        """Whether it answers."""
        try:
            self.models()
        except OSError:
            return False
        return True

    def get(self, path: str) -> dict:
        """Return what it answers to a GET; raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as reply:
            return json.loads(reply.read())

    def post(self, path: str, body: dict) -> dict:
        """Return what it answers to a POST; raises OSError."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def models(self) -> list[dict]:
        """Return what it tells of all models."""
        return self.get("/corral/fleet")["models"]

    def model(self, name: str) -> dict:
        """Return what it tells of one model."""
        return next(one for one in self.models() if one["name"] == name)

    def loaded(self) -> list[str]:
        """Return the models that hold something."""
        return [one["name"] for one in self.models() if one["state"] in HELD]

    def plan(self, name: str) -> dict:
        """Return what would happen if a model were asked for."""
        return self.post("/plan", {"model": name})

    def answer(self, model: str, prompt: list[int], count: int) -> Answer:
        """Have a prompt continued by so many of the likeliest tokens."""
        body = {"model": model, "prompt": prompt, "n_predict": count, "return_tokens": True}
        body |= {"temperature": 0.0, "ignore_eos": True, "stream": True}
        found = Answer(time.time())
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            head = {"Content-Type": "application/json"}
            connection.request("POST", "/completion", json.dumps(body), head)
            reply = connection.getresponse()
            for line in reply:
                if reply.status != 200 or not line.startswith(b"data: {"):
                    found.error += line.decode().strip() if reply.status != 200 else ""
                    continue
                self._take(json.loads(line[6:]), found, time.perf_counter() - began)
        finally:
            connection.close()
        found.seconds = time.perf_counter() - began
        return found

    def _take(self, event: dict, found: Answer, at: float) -> None:
        if "error" in event:
            found.error = str(event["error"])
        elif event.get("stop"):
            found.cached = event["timings"]["cache_n"]
        elif event.get("tokens"):
            found.first_s = found.first_s or at
            found.tokens += event["tokens"]


class Stream:
    """Follows what happens to models, as long as it is open."""

    def __init__(self, port: int) -> None:
        """Follow the router on a port."""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", "/models/events")
        self._reply = self._connection.getresponse()
        self._events: list[dict] = []
        self._reply.readline()  # the first comment: from now on everything is told
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._connection.sock is not None
        self._connection.sock.shutdown(socket.SHUT_RDWR)  # whoever reads sees the end
        self._thread.join()
        self._connection.close()

    def marks_since(self, moment: float) -> dict[str, float]:
        """Return when each model got into each state and stage, in seconds since a moment."""
        marks: dict[str, float] = {}
        for event in list(self._events):
            name = f"{event['model']} {event['state']} {event.get('stage', '')}".strip()
            marks.setdefault(name, round(event["at"] - moment, 3))
        return marks

    def _follow(self) -> None:
        try:
            for line in self._reply:
                if line.startswith(b"data:"):
                    self._events.append(json.loads(line[5:]))
        except (OSError, ValueError, AttributeError):  # closed
            return
