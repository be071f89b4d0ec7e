"""A service that answers by script: words of its own, at its own pace, with its own troubles.

What a prompt says, it does:

    echo a b c        answers "a b c", a token a word
    many N            answers N words, one every `pace_s`, until it is cancelled
    fail              begins, then fails
    lose              begins, then its worker is lost
    call NAME JSON    calls a tool, its arguments in two pieces
    think A / B       thinks A, then answers B

Anything else it answers with "yes". Every byte of a text is a token; the context holds 64.
"""

import hashlib
import struct
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from corral.contract.events import (
    ContentDelta,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    ReasoningDelta,
    Timings,
    TokenEvent,
    TokenLogprob,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)
from corral.contract.messages import ChatPrompt, TextPrompt, check_adapters
from corral.contract.questions import (
    AdaptersAnswer,
    AdaptersQuestion,
    AdapterState,
    DescribeQuestion,
    Description,
    DetokenizeQuestion,
    EmbeddingAnswer,
    EmbedQuestion,
    MemoryRow,
    RenderQuestion,
    ServiceStatistics,
    SlotState,
    StatisticsQuestion,
    TextAnswer,
    TokenizeQuestion,
    TokensAnswer,
)
from corral.contract.service import awaited
from corral.contract.sessions import SessionCounts
from corral.errors import ContextExceeded, InvalidArgument, QueueFull, WorkerLost

CONTEXT = 64
COLUMNS = 4
SESSIONS = SessionCounts(
    restored_sessions=3,
    restored_tokens=300,
    returned_sessions=2,
    returned_tokens=200,
    errors=1,
)
VOCABULARY = 256


@dataclass
class Run:
    """A request that is being answered."""

    request: object
    deliver: object
    cancelled: threading.Event = field(default_factory=threading.Event)
    failure: tuple | None = None


def is_endless(question):
    """Whether a question is about a text that says "wait"."""
    match question:
        case TokenizeQuestion(text="wait") | EmbedQuestion(prompt=TextPrompt("wait")):
            return True
        case RenderQuestion(prompt=prompt):
            return bool(prompt.messages) and last_text(prompt) == "wait"
        case DetokenizeQuestion(tokens=tokens):
            return bytes(tokens) == b"wait"
    return False


class ScriptedService:
    """Does what prompts say; remembers what it was asked."""

    def __init__(self, *, pace_s=0.002, capacity=64):
        """Take `pace_s` for each word of "many", and refuse more than `capacity` at once."""
        self.pace_s = pace_s
        self.capacity = capacity
        self.requests = []
        self.cancelled = []
        self.endless = []
        """What nobody answers until it is given up."""
        self.lost = False
        self.step_age_s = 0.0
        self.finished = 0
        self.adapters = (
            AdapterState(0, "style", "style.gguf", 16, 1.0, 4096),
            AdapterState(1, "facts", "facts.gguf", 8, 0.0, 8192),
        )
        self._runs = {}
        self._lock = threading.Lock()

    @property
    def running(self):
        """How many requests have not ended."""
        return len(self._runs)

    def submit(self, request, deliver):
        """Answer a request: short ones at once, long ones from a thread."""
        if self.lost:
            raise WorkerLost("the worker is gone; another one is being started")
        request.validate(vocabulary_size=VOCABULARY)
        size = len(prompt_tokens(request.prompt))
        if size >= CONTEXT:
            raise ContextExceeded("too long", prompt_tokens=size, context=CONTEXT)
        with self._lock:
            if len(self._runs) >= self.capacity:
                raise QueueFull(f"{self.capacity} requests wait already; try again later")
            run = self._runs[request.request_id] = Run(request, deliver)
            self.requests.append(request)
        words = last_text(request.prompt).split()
        if words[:1] == ["many"]:
            threading.Thread(target=self._answer_many, args=(run, int(words[1]))).start()
        else:
            self._answer(run, words)

    def cancel(self, request_id):
        """End a request."""
        with self._lock:
            self.cancelled.append(request_id)
            run = self._runs.get(request_id)
        if run is not None:
            run.cancelled.set()

    def fail_all(self, code, message):
        """Have everything that runs fail."""
        for run in list(self._runs.values()):
            run.failure = (code, message)
            run.cancelled.set()

    def inquire(self, question):
        """Answer every question there is at once, but those about a text that says "wait"."""
        coming = Future()
        if is_endless(question):
            self.endless.append(coming)
        else:
            coming.set_result(self._known(question))
        return coming

    def ask(self, question, *, timeout_s):
        """Wait for an answer."""
        return awaited(self.inquire(question), question, timeout_s)

    def _known(self, question):
        match question:
            case TokenizeQuestion():
                data = question.text.encode()
                return TokensAnswer((*data,), tuple(bytes([byte]) for byte in data))
            case DetokenizeQuestion():
                return TextAnswer(bytes(question.tokens).decode(errors="replace"))
            case RenderQuestion():
                lines = [f"{m.role}: {m.content}" for m in question.prompt.messages]
                return TextAnswer("\n".join(lines))
            case EmbedQuestion():
                return embedding(prompt_tokens(question.prompt))
            case AdaptersQuestion(scales=scales):
                return self._adapters(scales)
            case DescribeQuestion():
                return DESCRIPTION
            case StatisticsQuestion():
                return self._statistics()

    def _adapters(self, scales):
        known = {one.id: one for one in self.adapters}
        if scales is not None:
            check_adapters("scales", scales)
            for one in scales:
                if one.id not in known:
                    raise InvalidArgument(f"there is no adapter {one.id}")
            wanted = {one.id: one.scale for one in scales}
            self.adapters = tuple(
                msgspec.structs.replace(one, scale=wanted.get(one.id, 0.0)) for one in self.adapters
            )
        return AdaptersAnswer(self.adapters)

    def _statistics(self):
        slots = tuple(SlotState(name, 5, 1, 5, 2) for name in self._runs)
        return ServiceStatistics(
            running_requests=self.running,
            finished_requests=self.finished,
            prompt_tokens=50,
            cached_tokens=10,
            generated_tokens=30,
            kv_blocks_used=self.running,
            kv_blocks_total=8,
            steps=7,
            step_age_s=self.step_age_s,
            slots=slots,
            sessions=SESSIONS,
        )

    def _answer(self, run, words):
        match words:
            case ["echo", *rest]:
                self._say(run, rest)
            case ["fail"]:
                self._token(run, "oh")
                self._error(run, "internal", "at /home/someone/secret.py")
            case ["lose"]:
                self._token(run, "oh")
                self._error(run, "worker_lost", "the worker is gone; its answers are lost")
            case ["call", name, arguments]:
                self._call(run, name, arguments)
            case ["think", *rest]:
                middle = rest.index("/")
                self._delta(run, ReasoningDelta(" ".join(rest[:middle])))
                self._delta(run, ContentDelta(" ".join(rest[middle + 1 :])))
                self._finish(run, FinishReason.STOP, 2)
            case _:
                self._say(run, ["yes"])

    def _say(self, run, words):
        limit = run.request.max_tokens
        said = words if limit is None else words[:limit]
        for place, word in enumerate(said):
            self._token(run, word if place == 0 else f" {word}")
        reason = FinishReason.STOP if len(said) == len(words) else FinishReason.LENGTH
        self._finish(run, reason, len(said))

    def _answer_many(self, run, count):
        said = 0
        while said < count and not run.cancelled.wait(self.pace_s):
            self._token(run, f"{said} ")
            said += 1
        if run.failure is not None:
            self._error(run, *run.failure)
            return
        reason = FinishReason.CANCELLED if run.cancelled.is_set() else FinishReason.STOP
        self._finish(run, reason, said)

    def _call(self, run, name, arguments):
        half = len(arguments) // 2
        self._delta(run, ToolCallDelta(0, id="call_0", name=name))
        self._delta(run, ToolCallDelta(0, arguments=arguments[:half]))
        self._delta(run, ToolCallDelta(0, arguments=arguments[half:]))
        self._finish(run, FinishReason.STOP, 3, has_tool_calls=True)

    def _token(self, run, text):
        if run.request.is_parsed:
            self._delta(run, ContentDelta(text))
            return
        run.deliver(
            TokenEvent(
                request_id=run.request.request_id,
                token=1,
                text=text,
                logprobs=logprobs(run.request, text),
            )
        )

    def _delta(self, run, delta):
        text = getattr(delta, "text", "")
        run.deliver(
            TokenEvent(
                request_id=run.request.request_id,
                token=1,
                deltas=(delta,),
                logprobs=logprobs(run.request, text),
            )
        )

    def _error(self, run, code, message):
        name = run.request.request_id
        run.deliver(ErrorEvent(request_id=name, code=code, message=message))
        self._finish(run, FinishReason.ERROR, 1)

    def _finish(self, run, reason, tokens, *, has_tool_calls=False):
        with self._lock:
            del self._runs[run.request.request_id]
            self.finished += 1
        run.deliver(
            FinishEvent(
                request_id=run.request.request_id,
                reason=reason,
                has_tool_calls=has_tool_calls,
                usage=Usage(
                    prompt_tokens=len(prompt_tokens(run.request.prompt)),
                    cached_tokens=1,
                    generated_tokens=tokens,
                ),
                timings=Timings(queue_s=0.0, prompt_s=0.5, generation_s=0.25),
            )
        )


def until(condition, seconds=60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become so"
        time.sleep(0.005)


DESCRIPTION = Description(
    model="scripted.gguf",
    architecture="script",
    device="cpu",
    context=CONTEXT,
    parallel=4,
    vocabulary_size=VOCABULARY,
    num_parameters=1000,
    weights_bytes=2000,
    embedding_columns=COLUMNS,
    chat_template="{{ messages }}",
    bos="<s>",
    eos="</s>",
    kv_type="f16",
    memory=(MemoryRow("cpu", "weights", 2000, 2000), MemoryRow("cpu", "state", 500, 500)),
)


def last_text(prompt):
    """Return the text that says what to do."""
    match prompt:
        case TextPrompt():
            return prompt.text
        case ChatPrompt():
            return prompt.messages[-1].content
        case _:
            return bytes(prompt.tokens).decode()


def prompt_tokens(prompt):
    """Return the tokens of a prompt: bytes."""
    return last_text(prompt).encode() or b"\n"


def logprobs(request, text):
    """Return what a request wants to know of a token."""
    if request.sampling.logprobs is None:
        return None
    top = [TokenLogprob(2, -0.5, text.encode()), TokenLogprob(3, float("-inf"), b"\xff")]
    drawn = TokenLogprob(2, -0.5, text.encode())
    return TokenLogprobs(drawn, tuple(top[: request.sampling.logprobs]))


def embedding(tokens):
    """Return a vector of length 1 that depends on all tokens."""
    values = [byte + 1 for byte in hashlib.sha256(bytes(tokens)).digest()[:COLUMNS]]
    length = sum(value * value for value in values) ** 0.5
    data = struct.pack(f"<{COLUMNS}f", *(value / length for value in values))
    return EmbeddingAnswer(data, len(tokens))
