"""A loaded model as a service: texts, ends, errors, questions; and nothing left behind."""

import json
import threading
import time

import numpy as np
import pytest

import adapters
import tiny
from corral.contract.events import ContentDelta, FinishReason, TokenEvent
from corral.contract.messages import (
    AdapterScale,
    ChatPrompt,
    Constraint,
    ConstraintKind,
    Message,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)
from corral.contract.questions import (
    AdaptersQuestion,
    DescribeQuestion,
    DetokenizeQuestion,
    EmbedQuestion,
    RenderQuestion,
    StatisticsQuestion,
    TokenizeQuestion,
)
from corral.engine import serving
from corral.engine.model import Model
from corral.engine.opened import Sizes, open_by_name
from corral.engine.serving import EngineService
from corral.engine.targets import Targets
from corral.errors import (
    Closed,
    ContextExceeded,
    DeviceFault,
    InvalidArgument,
    QueueFull,
    TimeLimitExceeded,
    UnsupportedModel,
)
from growth import live_objects
from serving import LIMIT_S, Taker, answer, eventually, request, submit

ALL_BANNED = {"sampling": {"logit_bias": tuple((i, -np.inf) for i in range(tiny.VOCABULARY))}}
CHAT = ChatPrompt((Message("user", "Hi"),))


@pytest.fixture
def serve(paths):
    """Return a function that serves a tiny model; whatever it made is closed at the end."""
    made = []

    def serve_one(path=paths["llama"], *, device="reference", queue_capacity=128, **settings):
        sizes = Sizes(**({"parallel": 2, "context": 128} | settings))
        opened = open_by_name(path, Targets.of(device), sizes)
        made.append(EngineService(opened, queue_capacity=queue_capacity))
        return made[-1]

    yield serve_one
    for service in made:
        service.close()


def test_requests_have_their_adapters(serve, paths, tmp_path):
    """Each request has what it asks for, or what is set for all; an unknown one is an error."""
    opened_path = adapters.write(tmp_path / "a.gguf")
    service = serve(paths["llama"])
    loaded = service._opened.adapters
    loaded.add(loaded.prepare(opened_path), scale=0.0)
    greedy = {"sampling": {"temperature": 0.0}, "max_tokens": 8}
    plain = answer(service, "none", **greedy).text
    changed = answer(service, "some", adapters=(AdapterScale(0, 1.0),), **greedy).text
    assert plain != changed
    scales = (AdapterScale(0, 1.0),)
    (state,) = service.ask(AdaptersQuestion(scales), timeout_s=LIMIT_S).adapters
    assert (state.id, state.scale, state.file) == (0, 1.0, "a.gguf")
    assert answer(service, "default", **greedy).text == changed
    assert answer(service, "still none", adapters=(), **greedy).text == plain
    unknown = answer(service, "unknown", adapters=(AdapterScale(3, 1.0),), **greedy)
    assert unknown.error == "invalid_argument"
    with pytest.raises(InvalidArgument, match="no adapter 3"):
        service.ask(AdaptersQuestion((AdapterScale(3, 1.0),)), timeout_s=LIMIT_S)


@pytest.fixture
def service(serve):
    """Return a service with two slots."""
    return serve()


def statistics(service):
    return service.ask(StatisticsQuestion(), timeout_s=LIMIT_S)


def test_it_says_what_the_library_says(service, paths):
    """Both drive one engine: text and tokens are the same."""
    sampling = request().sampling
    with Model.load(paths["llama"], device="reference", context=128) as model:
        generation = model.generate("Hello", max_tokens=30, sampling=sampling)
        expected = "".join(generation)
        tokens = list(generation.tokens)
        chat = model.chat([{"role": "user", "content": "Hi"}], max_tokens=9, sampling=sampling)
    taker = answer(service, "a", "Hello", 30)
    assert (taker.text, taker.tokens) == (expected, tokens)
    assert answer(service, "b", CHAT, 9).text == chat.text


def test_usage_and_times_add_up(service):
    """What was known is counted, and every part of the time is there."""
    answer(service, "a", [5] * 70, 4)
    last = answer(service, "b", [5] * 70, 4).events[-1]
    assert (last.reason, last.usage.prompt_tokens) == (FinishReason.LENGTH, 70)
    assert (last.usage.cached_tokens, last.usage.generated_tokens) == (64, 4)
    times = last.timings
    assert min(times.queue_s, times.prompt_s, times.generation_s) >= 0
    assert times.prompt_s > 0


def test_an_endless_answer_is_counted_whole(serve):
    """Slots and usage count every token, of which the context holds some; cancelling ends it."""
    service = serve(context_shift=True, keep=4)
    taker = submit(service, "a", [5] * 70, None, ignore_eos=True)
    for _ in range(300):
        taker.next()
    (slot,) = statistics(service).slots
    assert slot.prompt_tokens == 70
    assert slot.generated_tokens >= 300
    assert slot.computed_tokens == slot.prompt_tokens + slot.generated_tokens - 1
    assert 0 < slot.computed_tokens - slot.dropped_tokens < 128
    service.cancel("a")
    usage = taker.finish().usage
    assert usage.generated_tokens == len(taker.tokens)
    assert usage.dropped_tokens >= slot.dropped_tokens
    assert (usage.prompt_tokens, usage.cached_tokens) == (70, 0)
    assert answer(service, "b", [5] * 70, 4).events[-1].usage.cached_tokens == 64


@pytest.mark.parametrize("fails", [False, True])
def test_before_the_end_nothing_runs_and_everything_is_there(serve, fails):
    """Whoever has something to save gets the model at rest; it is given back whatever comes."""
    service = serve()
    taker = submit(service, "a", "Hello", None, ignore_eos=True)
    taker.next()
    seen = []

    def look():
        opened = service._opened
        seen.append((opened.engine.statistics().running, opened.allocated_bytes > 0))
        if fails:
            raise OSError("no space")

    if fails:
        with pytest.raises(OSError, match="no space"):
            service.close(before_end=look)
    else:
        service.close(before_end=look)
    assert seen == [(0, True)]
    assert taker.finish().reason in (FinishReason.ERROR, FinishReason.CONTEXT)
    assert service._opened.allocated_bytes == 0
    service.close(before_end=look)
    assert len(seen) == 1


@pytest.mark.parametrize(("max_tokens", "reason"), [(0, "LENGTH"), (None, "CONTEXT")])
def test_no_tokens_and_all_tokens(service, max_tokens, reason):
    """A prompt can be read for later, and an answer go on to the end of the context."""
    last = answer(service, "a", [5] * 40, max_tokens, ignore_eos=True).events[-1]
    assert last.reason is FinishReason[reason]
    assert last.usage.generated_tokens == (0 if max_tokens == 0 else 88)


def test_end_tokens_end_and_are_not_said(service):
    """An end token is counted, but is no event; who ignores it never draws it."""
    bias = {"logit_bias": ((tiny.END, 100.0),)}
    ended = answer(service, "a", "Hello", 20, sampling=bias)
    assert (ended.tokens, ended.events[-1].reason) == ([], FinishReason.STOP)
    assert ended.events[-1].usage.generated_tokens == 1
    ignoring = answer(service, "b", "Hello", 20, sampling=bias, ignore_eos=True)
    assert len(ignoring.tokens) == 20
    assert tiny.END not in ignoring.tokens


def test_stop_texts_end_and_are_not_said(service):
    """Nothing of a stop text is shown, and which it was is told."""
    whole = answer(service, "a", "Hello", 30).text
    stop = whole[10:13]
    taker = answer(service, "b", "Hello", 30, stop=(stop, "never said"))
    last = taker.events[-1]
    assert taker.text == whole[: whole.index(stop)]
    assert (last.reason, last.stop) == (FinishReason.STOP, stop)


def test_logprobs_come_with_their_bytes(service):
    """The drawn token first; the likeliest ones sorted; all spelled."""
    taker = answer(service, "a", "Hello", 6, sampling={"logprobs": 3, "temperature": 0.0})
    tokens = [event for event in taker.events if isinstance(event, TokenEvent)]
    assert len(tokens) == 6
    for event in tokens:
        found = event.logprobs
        assert found.drawn.token == found.top[0].token == event.token
        assert [one.logprob for one in found.top] == sorted(
            (one.logprob for one in found.top), reverse=True
        )
        assert all(one.piece for one in found.top)


def test_parsed_replies_come_in_deltas(service):
    """Whoever wants a reply parsed gets its text there, and nowhere else."""
    plain = answer(service, "a", CHAT, 12)
    parsed = answer(service, "b", CHAT, 12, is_parsed=True)
    deltas = [delta for event in parsed.events for delta in event.deltas]
    assert "".join(delta.text for delta in deltas) == plain.text
    assert {type(delta) for delta in deltas} == {ContentDelta}
    assert parsed.text == ""


def test_a_chat_is_rendered_with_all_it_holds(serve):
    """Roles, tools and variables reach the template; the text is what the model reads."""
    service = serve(context=256)
    prompt = ChatPrompt(
        (
            Message("user", "Hi <|im_end|>"),
            Message("assistant", "", tool_calls=(ToolCall("1", "f", '{"a": 1}'),)),
            Message("tool", "2", tool_call_id="1", name="f"),
        ),
        tools=(Tool("f", "does it"),),
        variables='{"enable_thinking": false}',
    )
    text = service.ask(RenderQuestion(prompt), timeout_s=LIMIT_S).text
    assert text.endswith("<|im_start|>assistant\n")
    assert '{"name": "f", "arguments": {"a": 1}}' in text
    assert "does it" in text
    short = ChatPrompt(prompt.messages)
    text = service.ask(RenderQuestion(short), timeout_s=LIMIT_S).text
    usage = answer(service, "a", short, 1).events[-1].usage
    tokens = service.ask(TokenizeQuestion(text), timeout_s=LIMIT_S).tokens
    assert usage.prompt_tokens > len(tokens), "what users write is no control token"


@pytest.mark.parametrize(
    ("prompt", "options", "code"),
    [
        ([5] * 128, {}, "context_exceeded"),
        ("1" * 10_000_000, {}, "context_exceeded"),
        (ChatPrompt((Message("user", "1" * 10_000_000),)), {}, "context_exceeded"),
        (ChatPrompt((Message("user", "x"),), variables="[]"), {}, "invalid_argument"),
        (ChatPrompt((Message("user", "x"),), variables='{"a"'), {}, "invalid_argument"),
        (ChatPrompt((Message("user", "x"),), variables='{"messages": 1}'), {}, "invalid_argument"),
        ("\ud800", {}, "invalid_argument"),
        (
            [5],
            ALL_BANNED,
            "model",
        ),
    ],
    ids=["long", "text", "chat", "list", "no-json", "own-name", "surrogate", "all-banned"],
)
def test_what_is_wrong_with_a_request_is_its_own_loss(service, prompt, options, code):
    """It ends with a typed error; a neighbour's answer is what it would be alone."""
    expected = answer(service, "alone", "Hello", 20).tokens
    neighbour = submit(service, "neighbour", "Hello", 20)
    wrong = answer(service, "wrong", prompt, 5, **options)
    assert wrong.error == code
    assert wrong.events[-1].reason is FinishReason.ERROR
    neighbour.finish()
    assert neighbour.tokens == expected
    assert statistics(service).kv_blocks_used == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"constraint": Constraint(ConstraintKind.SCHEMA)},
        {"prompt": [tiny.VOCABULARY]},
        {"max_tokens": -1},
        {"sampling": {"logit_bias": ((tiny.VOCABULARY, 1.0),)}},
    ],
)
def test_what_can_be_seen_at_once_is_refused_at_once(service, wrong):
    """Fields out of range, and what is not supported."""
    with pytest.raises(InvalidArgument):
        submit(service, "a", **wrong)
    assert answer(service, "a").error is None, "its id is free again"


def test_ids_are_taken_once(service):
    """An id names one request until its last event."""
    first = submit(service, "a", "Hello", None, ignore_eos=True)
    with pytest.raises(InvalidArgument, match="'a'"):
        submit(service, "a")
    service.cancel("a")
    assert first.finish().reason is FinishReason.CANCELLED
    assert answer(service, "a").error is None


def test_a_full_queue_refuses_and_recovers(serve):
    """As many wait as may; when one has ended there is room again."""
    service = serve(queue_capacity=1, parallel=1)
    takers = [submit(service, str(n), "Hello", None, ignore_eos=True) for n in range(2)]
    with pytest.raises(QueueFull):
        submit(service, "2")
    service.cancel("0")
    takers[0].finish()
    takers.append(submit(service, "3", "Hello", 2))
    service.cancel("1")
    assert [taker.finish().reason.value for taker in takers[1:]] == ["cancelled", "length"]


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancel_at_any_moment(service, after):
    """In preparation, in the prompt, in the answer: one last event, and no block is kept."""
    taker = submit(service, "a", "x" * 100, None, ignore_eos=True)
    for _ in range(after):
        taker.next()
    service.cancel("a")
    service.cancel("a")
    service.cancel("unknown")
    assert taker.finish().reason is FinishReason.CANCELLED
    assert eventually(lambda: statistics(service).kv_blocks_used == 0)


def test_whoever_takes_no_events_harms_nobody(service):
    """A consumer that raises is logged and served on."""

    def broken(event):
        raise ZeroDivisionError

    service.submit(request("a"), broken)
    assert answer(service, "b").error is None
    assert eventually(lambda: statistics(service).finished_requests == 2)


def test_statistics_tell_what_runs(service):
    """Slots, totals and steps are those of the requests there are."""
    held = submit(service, "a", [5] * 40, None, ignore_eos=True)
    waiting = [submit(service, str(n), [6] * 3, None, ignore_eos=True) for n in range(3)]
    held.next()
    assert eventually(lambda: statistics(service).running_requests == 2)
    found = statistics(service)
    assert (found.waiting_requests, found.kv_blocks_total) == (2, 8)
    assert found.slots[0].request_id == "a"
    assert found.slots[0].prompt_tokens == 40
    for name in ("a", "0", "1", "2"):
        service.cancel(name)
    for taker in (held, *waiting):
        taker.finish()
    assert eventually(lambda: statistics(service).kv_blocks_used == 0)
    assert statistics(service).step_age_s == 0


def test_a_prompt_that_is_prepared_for_ever_is_noticed(service, monkeypatch):
    """What hangs before the first step grows as old as a step that hangs."""
    go_on = threading.Event()

    def wait(*_, **__):
        assert go_on.wait(LIMIT_S)
        return [1]

    monkeypatch.setattr(serving, "prompt_tokens", wait)
    taker = submit(service, "a", "Hello", 1)
    assert eventually(lambda: statistics(service).step_age_s > 0.05)
    go_on.set()
    taker.finish()
    assert statistics(service).step_age_s == 0


def test_questions(service):
    """Tokens, texts and the model itself."""
    tokens = service.ask(TokenizeQuestion("the <|im_end|>"), timeout_s=LIMIT_S)
    assert b"".join(tokens.pieces) == b"the <|im_end|>"
    assert tokens.tokens[-1] == tiny.END
    text = service.ask(DetokenizeQuestion(tokens.tokens), timeout_s=LIMIT_S).text
    assert text == "the <|im_end|>"
    described = service.ask(DescribeQuestion(), timeout_s=LIMIT_S)
    assert (described.context, described.parallel, described.kv_type) == (128, 2, "f16")
    assert described.num_parameters == sum(int(np.prod(s)) for s in tiny.shapes().values())
    assert described.weights_bytes == sum(
        row.allocated_bytes for row in described.memory if row.lifetime == "weights"
    )
    with pytest.raises(InvalidArgument):
        service.ask(DetokenizeQuestion((10**6,)), timeout_s=LIMIT_S)


def test_a_template_may_stand_in_for_the_files_own(paths):
    """Prompts are rendered by it, and whoever asks is told it."""
    mine = "mine: {{ messages[0]['content'] }}"
    sizes = Sizes(parallel=2, context=128)
    opened = open_by_name(paths["llama"], Targets.of("reference"), sizes, template=mine)
    service = EngineService(opened, queue_capacity=4)
    try:
        assert service.ask(RenderQuestion(CHAT), timeout_s=LIMIT_S).text == "mine: Hi"
        assert service.ask(DescribeQuestion(), timeout_s=LIMIT_S).chat_template == mine
    finally:
        service.close()


def test_draining_ends_what_runs_and_takes_nothing_new(service):
    """A stop that waits loses no answer."""
    taker = submit(service, "a", "Hello", 20)
    assert service.drain(LIMIT_S)
    assert taker.finish().reason is FinishReason.LENGTH
    with pytest.raises(Closed):
        submit(service, "b")


def test_closing_ends_everything(service):
    """Whatever runs or waits gets its last event, and a second close does nothing."""
    takers = [submit(service, str(n), "Hello", None, ignore_eos=True) for n in range(5)]
    assert not service.drain(0.01)
    service.close()
    service.close()
    assert {taker.finish().reason for taker in takers} == {FinishReason.ERROR}
    assert {taker.error for taker in takers} == {"closed"}
    for late in (lambda: submit(service), lambda: service.ask(TokenizeQuestion("x"), timeout_s=1)):
        with pytest.raises(Closed):
            late()
    assert not [t for t in threading.enumerate() if t.name.startswith("corral-")]


def test_a_fault_of_the_device_ends_the_service(service, monkeypatch):
    """All requests are told, no other is taken, and whoever keeps the service sees why."""

    are_there = threading.Event()

    def fail(*_args, **_options):
        are_there.wait(LIMIT_S)
        raise DeviceFault("the device fell off the bus")

    monkeypatch.setattr(service._opened.engine._runner, "start", fail)
    takers = [submit(service, str(n)) for n in range(3)]
    are_there.set()
    assert {taker.finish().reason for taker in takers} == {FinishReason.ERROR}
    assert {taker.error for taker in takers} == {"device_fault"}
    assert isinstance(service.fault, DeviceFault)
    with pytest.raises(Closed):
        submit(service)


def test_many_mixed_requests_leave_nothing(serve):
    """Hundreds of them, with cancels, errors and preemption: blocks and objects are as before."""
    service = serve(parallel=4, context=64, kv_blocks=3, chunk_beside=7)
    random = np.random.RandomState(0)

    def wave(count):
        takers = []
        for number in range(count):
            prompt = random.randint(0, 250, random.randint(1, 50)).tolist()
            stop = {"stop": ("e",)} if number % 3 else {}
            options = ALL_BANNED if random.rand() < 0.05 else stop
            where = {"namespace": str(number % 3), "reuse": bool(number % 4)}
            taker = submit(service, str(number), prompt, random.randint(0, 20), **where, **options)
            takers.append(taker)
            if random.rand() < 0.3:
                service.cancel(str(random.randint(number + 1)))
        return {taker.finish().reason for taker in takers}

    wave(40)
    before = live_objects()
    reasons = wave(100) | wave(100) | wave(100)
    assert {FinishReason.CANCELLED, FinishReason.ERROR, FinishReason.LENGTH} <= reasons
    assert eventually(lambda: statistics(service).kv_blocks_used == 0)
    assert statistics(service).finished_requests == 340
    assert statistics(service).preemptions > 0
    after = live_objects()
    grown = {kind.__name__: n for kind, n in after.items() if n > before.get(kind, 0) + 3}
    assert not grown, json.dumps(grown)


def test_a_taker_takes_only_its_own(service):
    """Events of many requests at once go where they belong."""
    takers = {name: submit(service, name, "Hello", 5, seed=ord(name)) for name in "abcdef"}
    for name, taker in takers.items():
        taker.finish()
        assert {event.request_id for event in taker.events} == {name}
    assert isinstance(takers["a"], Taker)


class TestEmbeddings:
    """Vectors of texts, from a model that also answers."""

    def vector(self, service, prompt, **options):
        """Return the vector of a prompt."""
        found = service.ask(EmbedQuestion(prompt, **options), timeout_s=LIMIT_S)
        return np.frombuffer(found.values, "<f4"), found.prompt_tokens

    @pytest.mark.parametrize("device", ["reference", "cpu"])
    def test_a_vector_is_what_logits_are_made_of(self, serve, device):
        """Times the output matrix it points where the logits of the prompt do."""
        service = serve(device=device, embeddings=True)
        tokens = [5, 9, 200, 7] * 12
        found, count = self.vector(service, TokenPrompt(tuple(tokens)))
        assert (found.shape, count) == ((tiny.WIDTH,), 48)
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
        taker = answer(service, "a", tokens, 1, sampling={"logprobs": 20, "temperature": 0.0})
        top = {one.token: one.logprob for one in taker.events[0].logprobs.top}
        made = tiny.values("output.weight", (tiny.VOCABULARY, tiny.WIDTH)) @ found
        ids = list(top)
        steps = np.diff([top[i] for i in ids]), np.diff(made[ids])
        assert ids == np.argsort(-made)[: len(ids)].tolist()
        np.testing.assert_allclose(steps[0] * steps[1].sum() / steps[0].sum(), steps[1], atol=1e-3)

    def test_vectors_and_answers_run_beside_each_other(self, serve):
        """One batch computes both, and neither is another for it; known beginnings are used."""
        service = serve(embeddings=True)
        alone = answer(service, "a", "Hello", 30).tokens
        vector, _ = self.vector(service, TextPrompt("x" * 70))
        takers = [submit(service, str(n), "Hello", 30) for n in range(3)]
        again, _ = self.vector(service, TextPrompt("x" * 70), namespace="other")
        np.testing.assert_allclose(again, vector, atol=1e-4)
        for taker in takers:
            taker.finish()
            assert taker.tokens == alone
        assert eventually(lambda: statistics(service).kv_blocks_used == 0)

    def test_what_cannot_be_embedded_is_refused(self, serve, tmp_path):
        """A model loaded for texts, a prompt too long, and a pooling that corral has not."""
        with pytest.raises(UnsupportedModel, match="load it with embeddings"):
            self.vector(serve(), TextPrompt("x"))
        with pytest.raises(ContextExceeded):
            self.vector(serve(embeddings=True), TextPrompt("x" * 128))
        path = tiny.write(tmp_path / "mean.gguf", pooling_type=1)
        with pytest.raises(UnsupportedModel, match="'mean'"):
            self.vector(serve(path, embeddings=True), TextPrompt("x"))

    def test_nobody_waits_for_a_closed_service(self, serve, monkeypatch):
        """A question that waits when the service closes is answered so."""
        service = serve(embeddings=True, parallel=1)
        start = service._opened.engine._runner.start
        slow = lambda *given, **options: (time.sleep(0.02), start(*given, **options))  # noqa: E731
        monkeypatch.setattr(service._opened.engine._runner, "start", slow)
        submit(service, "a", "x", None, ignore_eos=True).next()
        failed = []

        def ask():
            try:
                self.vector(service, TextPrompt("x"))
            except Closed as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert eventually(lambda: service._asked or not asking.is_alive())
        service.close()
        asking.join()
        assert len(failed) == 1
        assert not service._asked

    def test_a_question_given_up_leaves_nothing(self, serve):
        """When time is up its sequence goes, too."""
        service = serve(embeddings=True, parallel=1, context=256)
        held = submit(service, "a", "x", None, ignore_eos=True)
        held.next()
        with pytest.raises(TimeLimitExceeded):
            service.ask(EmbedQuestion(TextPrompt("y" * 9)), timeout_s=0.001)
        assert eventually(lambda: not service._asked)
        service.cancel("a")
        held.finish()
        assert eventually(lambda: statistics(service).kv_blocks_used == 0)

    def test_a_question_given_up_is_not_prepared(self, serve, monkeypatch):
        """What is cancelled while others are prepared costs nothing; neither does a request."""
        service = serve(embeddings=True)
        go_on, prepared = threading.Event(), []
        plain = service._tokens

        def slow(prompt):
            prepared.append(prompt)
            assert go_on.wait(LIMIT_S)
            return plain(prompt)

        monkeypatch.setattr(service, "_tokens", slow)
        first = submit(service, "a", "first", 1)
        waiting = submit(service, "b", "second", 1)
        coming = service.inquire(EmbedQuestion(TextPrompt("third")))
        coming.cancel()
        service.cancel("b")
        assert waiting.finish().reason is FinishReason.CANCELLED
        assert eventually(lambda: not service._asked)
        go_on.set()
        first.finish()
        answer(service, "c", "fourth", 1)
        assert [prompt.text for prompt in prepared] == ["first", "fourth"]
