"""A loaded model as a `Service`: requests from any thread, one thread that drives the engine.

    submit ──▶ preparing thread: template, tokens ──┐
    cancel ─────────────────────────────────────────┼──▶ inbox ──▶ engine's thread: step, deliver
    close  ─────────────────────────────────────────┘
    ask    ──▶ asking threads

Only the engine's thread touches the engine and delivers events. What it is to do comes as calls in
the inbox and is done between two steps, so a cancel takes effect before the next one.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Self

from corral.contract.events import Event, FinishReason, error_event
from corral.contract.messages import ChatPrompt, GenerationRequest, Prompt
from corral.contract.questions import (
    Answer,
    DescribeQuestion,
    EmbedQuestion,
    Question,
    ServiceStatistics,
    StatisticsQuestion,
)
from corral.contract.service import Deliver, awaited, settled
from corral.engine.answering import Answering
from corral.engine.asking import answer, describe
from corral.engine.counts import Counts
from corral.engine.embedding import embedding, require_embeddings
from corral.engine.flight import Emission
from corral.engine.opened import OpenedModel
from corral.engine.reply_plan import plan_reply
from corral.engine.sequence import Sequence, SequenceState
from corral.engine.templates import prompt_tokens
from corral.errors import Closed, InternalError, InvalidArgument, QueueFull
from corral.log import logger
from corral.sampling.sampler import Sampler

_ASKING_THREADS = 2
_log = logger(__name__)


def _nothing() -> None:
    """Stand for a caller who does not want to be told."""


class EngineService:
    """Answers requests with one model, whose parts are the service's from then on."""

    def __init__(
        self,
        opened: OpenedModel,
        *,
        name: str = "",
        queue_capacity: int = 128,
        after_step: Callable[[], None] = _nothing,
    ) -> None:
        """Begin to serve.

        Args:
            name: of the model, for whoever asks; by default that of its file.
            queue_capacity: how many requests may wait.
            after_step: called when all events of a step were delivered, by the same thread.
        """
        self._opened = opened
        self._after_step = after_step
        self._most_live = opened.parallel + queue_capacity
        self.description = describe(opened, name)
        self.fault: BaseException | None = None
        """What ended the engine's thread, if something did: nothing is answered any more."""
        self._samplers = opened.samplers
        self._live: dict[str, Answering] = {}
        self._changed = Condition()
        """Guards `_live`, `_asked` and `_is_open`; notified when a request ends."""
        self._is_open = True
        self._is_closed = False
        self._asked: dict[Future[Answer], Sequence | None] = {}
        """Questions for vectors, each with its sequence once there is one."""
        self._of: dict[int, Answering] = {}
        """By sequence; the engine's thread's own."""
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._counts = Counts(queue_capacity)
        self._preparing = ThreadPoolExecutor(1, "corral-prepare")
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, "corral-ask")
        self._thread = Thread(target=self._drive, name="corral-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request and return; its events go to `deliver`.

        Raises:
            InvalidArgument: a field is out of range, or the id belongs to a live request.
            QueueFull: as many requests wait as may.
            Closed: the service is closed, or about to be.
        """
        request.validate(vocabulary_size=self._opened.vocabulary_size)
        answering = Answering(request, deliver, self._opened.tokenizer)
        with self._changed:
            self._require_open()
            if request.request_id in self._live:
                raise InvalidArgument(
                    f"request_id {request.request_id!r} belongs to a request that is not finished; "
                    "expected a new one"
                )
            if len(self._live) + len(self._asked) >= self._most_live:
                raise self._full()
            self._live[request.request_id] = answering
            self._preparing.submit(self._prepare, answering)

    def cancel(self, request_id: str) -> None:
        """End a request before the next step; an unknown or finished one is no error."""
        self._inbox.put(partial(self._cancel, request_id))

    def inquire(self, question: Question) -> Future[Answer]:
        """Ask a question; raises as `contract.service.Service` says."""
        match question:
            case StatisticsQuestion():
                return settled(self.statistics())
            case DescribeQuestion():
                return settled(self.description)
        with self._changed:
            if self._is_closed:
                raise Closed(f"model {self._opened.name} was closed")
            if isinstance(question, EmbedQuestion):
                return self._ask_vector(question)
            return self._asking.submit(answer, question, self._opened)

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        """Wait for the answer to a question; raises as `contract.service.Service` says."""
        return awaited(self.inquire(question), question, timeout_s)

    def _ask_vector(self, question: EmbedQuestion) -> Future[Answer]:
        """Queue a prompt whose hidden state is wanted; the lock is held."""
        require_embeddings(self._opened)
        self._require_open()
        if len(self._live) + len(self._asked) >= self._most_live:
            raise self._full()
        coming: Future[Answer] = Future()
        self._asked[coming] = None
        self._preparing.submit(self._prepare_vector, question, coming)
        coming.add_done_callback(self._forget_vector)
        return coming

    def _forget_vector(self, coming: Future[Answer]) -> None:
        """Compute no more for a question that was given up."""
        if coming.cancelled():
            self._inbox.put(partial(self._drop_vector, coming))

    def statistics(self) -> ServiceStatistics:
        """Return what the service holds and has done, as it was after the last step."""
        return self._counts.statistics(len(self._live) + len(self._asked))

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for those there are; return whether all have ended."""
        with self._changed:
            self._is_open = False
            return self._changed.wait_for(lambda: not (self._live or self._asked), timeout_s)

    def close(self, *, before_end: Callable[[], None] = _nothing) -> None:
        """End what runs, and give every byte of the model back; a second call does nothing.

        Args:
            before_end: called when nothing runs any more and the model is still there.
        """
        with self._changed:
            self._is_open = False
            if self._is_closed:
                return
            self._is_closed = True
        self._preparing.shutdown(cancel_futures=True)
        self._inbox.put(None)
        self._thread.join()
        self._asking.shutdown(cancel_futures=True)
        try:
            before_end()
        finally:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _full(self) -> QueueFull:
        count = len(self._live) + len(self._asked)
        return QueueFull(
            f"{count} requests run or wait, the most there may be: try again later, or serve with "
            "a larger queue"
        )

    def _require_open(self) -> None:
        if not self._is_open:
            raise Closed(
                f"model {self._opened.name} is closed, or about to be: it takes no request"
            )

    # What follows runs in the preparing thread.

    def _prepare(self, answering: Answering) -> None:
        """Do for a request what takes time and needs no engine."""
        opened, request = self._opened, answering.request
        if self._live.get(request.request_id) is not answering:
            return  # it was cancelled meanwhile
        self._counts.preparing()
        try:
            tokens = self._tokens(request.prompt)
            is_chat = isinstance(request.prompt, ChatPrompt)
            source = opened.template.source if is_chat else ""
            plan = plan_reply(request, tokens, opened.tokenizer, source)
            answering.read_as(plan)
            sampler = self._samplers.make(
                request.sampling,
                ignore_eos=request.ignore_eos,
                grammar=None if plan.grammar is None else opened.grammars.compile(plan.grammar),
            )
        except Exception as error:
            self._inbox.put(partial(self._fail, answering, error))
        else:
            self._inbox.put(partial(self._begin, answering, tokens, sampler))
        finally:
            self._counts.prepared()

    def _tokens(self, prompt: Prompt) -> list[int]:
        model = self._opened
        return prompt_tokens(prompt, model.tokenizer, lambda: model.template, context=model.context)

    def _prepare_vector(self, question: EmbedQuestion, coming: Future[Answer]) -> None:
        if coming.cancelled():
            return  # nobody waits any more
        self._counts.preparing()
        try:
            tokens = self._tokens(question.prompt)
        except Exception as error:
            self._inbox.put(partial(self._settle_vector, coming, error))
        else:
            self._inbox.put(partial(self._begin_vector, coming, tokens, question.namespace))
        finally:
            self._counts.prepared()

    # What follows runs in the engine's thread.

    def _drive(self) -> None:
        engine, error = self._opened.engine, None
        try:
            self._counts.stepped(engine, self._of)
            while self._do_jobs():
                for emission in engine.step() if engine.has_work else ():
                    self._take(emission)
                self._counts.stepped(engine, self._of)
                self._after_step()
        except BaseException as found:  # a fault of the device, or of this code: nothing goes on
            _log.error("the engine stops", exc_info=True)
            self.fault = error = found
        with self._changed:
            self._is_open = False
        for answering in tuple(self._live.values()):
            self._fail(answering, error or Closed(f"model {self._opened.name} was closed"))
        for coming in tuple(self._asked):
            self._settle_vector(coming, error or Closed(f"model {self._opened.name} was closed"))
        self._after_step()

    def _do_jobs(self) -> bool:
        """Do what is in the inbox, and wait for something if there is nothing to compute."""
        is_idle = not self._opened.engine.has_work
        for _ in range(self._inbox.qsize() or int(is_idle)):
            job = self._inbox.get()
            if job is None:
                return False
            if is_idle:
                self._counts.woke()
            job()
        return True

    def _begin(self, answering: Answering, tokens: list[int], sampler: Sampler) -> None:
        """Give a prompt to the engine, unless it was cancelled meanwhile."""
        request = answering.request
        if self._live.get(request.request_id) is not answering:
            return
        try:
            answering.sequence = self._opened.engine.submit(
                tokens,
                sampler=sampler,
                max_tokens=request.max_tokens,
                end_tokens=self._samplers.end_tokens(ignore_eos=request.ignore_eos),
                reuse=request.reuse,
                namespace=request.namespace,
                adapters=request.adapter_pairs,
            )
        except Exception as error:
            self._fail(answering, error)
        else:
            self._of[answering.sequence.id] = answering

    def _cancel(self, request_id: str) -> None:
        answering = self._live.get(request_id)
        if answering is not None:
            self._end(answering, FinishReason.CANCELLED)

    def _take(self, emission: Emission) -> None:
        """Tell a request of its token, or of its end; what goes wrong there is its own loss."""
        answering = self._of.get(emission.sequence.id)
        if answering is None:
            self._take_vector(emission)
            return
        try:
            self._advance(answering, emission)
        except Exception as error:
            self._fail(answering, error)

    def _begin_vector(self, coming: Future[Answer], tokens: list[int], namespace: str) -> None:
        if coming not in self._asked:
            return  # nobody waits any more
        try:
            self._asked[coming] = self._opened.engine.submit(
                tokens, sampler=None, max_tokens=0, namespace=namespace, wants_vector=True
            )
        except Exception as error:
            self._settle_vector(coming, error)

    def _take_vector(self, emission: Emission) -> None:
        sequence = emission.sequence
        with self._changed:
            found = [coming for coming, asked in self._asked.items() if asked is sequence]
        for coming in found:
            try:
                if emission.error is not None or emission.vector is None:
                    raise emission.error or InternalError("a vector was wanted, and none came")
                answer = embedding(emission.vector, sequence.num_prompt, sequence.adapters)
                self._settle_vector(coming, answer)
            except Exception as error:
                self._settle_vector(coming, error)

    def _settle_vector(self, coming: Future[Answer], result: Answer | BaseException) -> None:
        self._drop_vector(coming)
        if not coming.set_running_or_notify_cancel():
            return  # nobody waits any more
        if isinstance(result, BaseException):
            coming.set_exception(result)
        else:
            coming.set_result(result)

    def _drop_vector(self, coming: Future[Answer]) -> None:
        """Take a question for a vector out of the engine and of the books."""
        with self._changed:
            sequence = self._asked.pop(coming, None)
            self._changed.notify_all()
        if sequence is not None:
            self._opened.engine.cancel(sequence)

    def _advance(self, answering: Answering, emission: Emission) -> None:
        sequence = emission.sequence
        if emission.error is not None:
            raise emission.error
        if emission.token is None or emission.token in sequence.end_tokens:
            answering.note_time()
        else:
            self._deliver(answering, answering.token(emission.token, emission.logprobs))
        if answering.has_stopped:
            self._end(answering, FinishReason.STOP)
        elif sequence.state is SequenceState.FINISHED:
            self._end(answering, sequence.finish_reason or FinishReason.CANCELLED)

    def _fail(self, answering: Answering, error: BaseException) -> None:
        if self._live.get(answering.request.request_id) is answering:
            event = error_event(answering.request.request_id, error)
            if event.code == InternalError.code:
                _log.error("a request failed", exc_info=error)
            self._deliver(answering, event)
            self._end(answering, FinishReason.ERROR)

    def _end(self, answering: Answering, reason: FinishReason) -> None:
        """Take a request out of the engine and of the books, and deliver its last event."""
        if answering.sequence is not None:
            self._opened.engine.cancel(answering.sequence)
            self._of.pop(answering.sequence.id, None)
        with self._changed:
            del self._live[answering.request.request_id]
            self._changed.notify_all()
        self._counts.finished(answering.usage)
        try:
            last = answering.finished(reason)
        except Exception as error:  # what was held back means nothing
            _log.error("an answer has no end", exc_info=True)
            if reason is not FinishReason.ERROR:
                self._deliver(answering, error_event(answering.request.request_id, error))
            last = answering.lost()
        self._deliver(answering, last)

    def _deliver(self, answering: Answering, event: Event) -> None:
        try:
            answering.deliver(event)
        except Exception:  # whoever takes events broke the promise not to raise
            _log.error("an event was not taken", exc_info=True)
