"""A service in a test: requests with short names, and events collected until their end."""

import queue
import time

from corral.contract.events import ErrorEvent, FinishEvent, TokenEvent
from corral.contract.messages import GenerationRequest, TextPrompt, TokenPrompt
from corral.contract.sampling import SamplingParams

LIMIT_S = 30.0
"""How long anything in a test may take before it counts as stuck."""


def request(name="a", prompt="Hello", max_tokens=8, *, seed=1, **options):
    """Return a request whose answer is the same every time."""
    sampling = {"seed": seed, "temperature": 1.0, "top_k": 0} | options.pop("sampling", {})
    content = TextPrompt(prompt) if isinstance(prompt, str) else prompt
    content = TokenPrompt(tuple(content)) if isinstance(content, list) else content
    return GenerationRequest(
        request_id=name,
        prompt=content,
        sampling=SamplingParams(**sampling),
        max_tokens=max_tokens,
        **options,
    )


class Taker:
    """Takes the events of one request."""

    def __init__(self):
        self.events = []
        self._coming = queue.SimpleQueue()

    def __call__(self, event):
        self._coming.put(event)

    def next(self):
        """Wait for an event."""
        self.events.append(self._coming.get(timeout=LIMIT_S))
        return self.events[-1]

    def finish(self):
        """Wait for the last event and return it."""
        while not self.events or not isinstance(self.events[-1], FinishEvent):
            self.next()
        assert self._coming.empty(), "nothing comes after the last event"
        assert sum(isinstance(event, ErrorEvent) for event in self.events) <= 1
        return self.events[-1]

    @property
    def tokens(self):
        """The tokens so far."""
        return [event.token for event in self.events if isinstance(event, TokenEvent)]

    @property
    def text(self):
        """The text so far."""
        return "".join(e.text for e in self.events if not isinstance(e, ErrorEvent))

    @property
    def error(self):
        """The code of the error that ended the request, or None."""
        return next((e.code for e in self.events if isinstance(e, ErrorEvent)), None)

    @property
    def message(self):
        """What that error says, or None."""
        return next((e.message for e in self.events if isinstance(e, ErrorEvent)), None)


def submit(service, *given, **options):
    """Submit a request and return what takes its events."""
    taker = Taker()
    service.submit(request(*given, **options), taker)
    return taker


def answer(service, *given, **options):
    """Submit a request, wait for its end and return what took its events."""
    taker = submit(service, *given, **options)
    taker.finish()
    return taker


def eventually(condition, seconds=LIMIT_S):
    """Wait until a condition holds; return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
