"""Clients that hold conversations with several models, turn by turn, and write down what came.

A turn that fails with a typed error is asked again; a connection that breaks, a reply that is none
or a turn that never ends is a request lost.
"""

import http.client
import json
import random
import threading
import time
from dataclasses import dataclass, field

from router_models import CONTEXT, NAMES
from router_watch import Watch

LONGEST = CONTEXT // 2
"""Tokens after which a conversation ends and another begins."""
TURN_S = 300.0
PAUSE_S = 0.5
VOCABULARY = (1000, 40_000)
"""From where tokens of prompts are drawn: words and parts of words."""


@dataclass
class Conversation:
    """What was said with one model, in tokens."""

    model: str
    tokens: list[int] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    """Where answers lie in the tokens."""
    generation: int = 0
    """Which process of the model answered last."""


@dataclass
class Turn:
    """One answer, as its client saw it."""

    model: str
    prompt: int
    known: int
    """Tokens of the prompt that were computed in turns before."""
    cached: int
    seconds: float
    was_restored: bool
    """Whether the model was saved, ended and loaded again since the turn before."""


@dataclass
class Seen:
    """What all clients saw; each appends its own."""

    turns: list[Turn] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    """Typed errors by code."""
    lost: list[str] = field(default_factory=list)
    ended: list[Conversation] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client(threading.Thread):
    """One user with a conversation for each model."""

    def __init__(self, port: int, number: int, until: float, watch: Watch, seen: Seen) -> None:
        super().__init__(name=f"client-{number}")
        self._port = port
        self._chance = random.Random(number)
        self._until = until
        self._watch = watch
        self._seen = seen
        self._open = {name: Conversation(name) for name in NAMES}

    def run(self) -> None:
        """Take turns until it is time."""
        while time.monotonic() < self._until:
            self._turn(self._open[self._chance.choice(NAMES)])
            time.sleep(self._chance.random() * PAUSE_S)
        with self._seen.lock:
            self._seen.ended += self._open.values()

    def _turn(self, talk: Conversation) -> None:
        new = [self._chance.randrange(*VOCABULARY) for _ in range(self._chance.randrange(8, 60))]
        length = self._chance.randrange(4, 24)
        prompt, known = [*talk.tokens, *new], max(0, len(talk.tokens) - 1)
        began = time.monotonic()
        reply = self._answered(talk.model, prompt, length)
        if reply is None:
            return
        cached = reply["timings"]["cache_n"]
        generation = self._watch.generation(talk.model)
        was_restored = bool(known) and self._watch.was_saved(
            talk.model, talk.generation, generation
        )
        took = time.monotonic() - began
        turn = Turn(talk.model, len(prompt), known, cached, took, was_restored)
        talk.tokens, talk.generation = prompt + reply["tokens"], generation
        talk.answers.append((len(prompt), len(talk.tokens)))
        with self._seen.lock:
            self._seen.turns.append(turn)
        if len(talk.tokens) > LONGEST:
            with self._seen.lock:
                self._seen.ended.append(talk)
            self._open[talk.model] = Conversation(talk.model)

    def _answered(self, model: str, prompt: list[int], length: int) -> dict | None:
        """Ask until there is an answer; None if a request was lost."""
        deadline = time.monotonic() + TURN_S
        while time.monotonic() < deadline:
            try:
                status, reply = self._post(model, prompt, length)
            except (OSError, http.client.HTTPException, ValueError) as error:
                return self._lose(f"{model}: {type(error).__name__}: {error}")
            if status == 200 and len(reply.get("tokens", ())) == length:
                return reply
            code = reply.get("error", {}).get("code")
            if not code:
                return self._lose(f"{model}: status {status}: {str(reply)[:200]}")
            with self._seen.lock:
                self._seen.errors[code] = self._seen.errors.get(code, 0) + 1
            time.sleep(PAUSE_S)
        return self._lose(f"{model}: no answer in {TURN_S:g} s")

    def _post(self, model: str, prompt: list[int], length: int) -> tuple[int, dict]:
        body = {"model": model, "prompt": prompt, "n_predict": length, "return_tokens": True}
        body |= {"temperature": 0.0, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TURN_S)
        try:
            connection.request(
                "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
            )
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def _lose(self, what: str) -> None:
        with self._seen.lock:
            self._seen.lost.append(what)
