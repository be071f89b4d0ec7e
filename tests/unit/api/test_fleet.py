"""A server of many models over HTTP: requests lead to models, and commands to changes."""

import asyncio
import json
import threading
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.api import fleet_watch
from corral.api.app import make_fleet_app
from corral.api.settings import ApiSettings
from corral.api.status import Rates
from corral.contract.fleet import FleetStatus, ModelState
from corral.contract.questions import ServiceStatistics, SlotState
from corral.errors import WorkerLost
from played_router import Played
from scripted_fleet import entry
from served import until

BASE = "http://localhost"


class Asked:
    """Asks an application of a played router, in process."""

    def __init__(self, played, **settings):
        self.played = played
        self.app = make_fleet_app(played.router, ApiSettings(model="", **settings))

    def __call__(self, *requests):
        """Return the responses of requests, all at once."""
        return asyncio.run(self._ask(requests))

    def post(self, path, **fields):
        """Return the response to a JSON body."""
        return self(("POST", path, {"json": fields}))[0]

    def get(self, path):
        """Return the response to a GET."""
        return self(("GET", path, {}))[0]

    async def _ask(self, requests):
        transport = httpx.ASGITransport(self.app)
        async with (
            self.app.router.lifespan_context(self.app),
            httpx.AsyncClient(transport=transport, base_url=BASE, timeout=30) as client,
        ):
            asked = (client.request(m, path, **more) for m, path, more in requests)
            return await asyncio.gather(*asked)


@pytest.fixture
def fleet():
    """Return a played router of three models in a place for two, and what asks it."""
    models = entry("a", 40, aliases=("first",)), entry("b", 40), entry("c", 40)
    with Played(*models, entry("huge", 400)) as played:
        yield played, Asked(played)


def chat(model, text="echo one two", **more):
    """Return a request of a chat."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


class Left:
    """Asks something of an application and leaves when it is told to."""

    def __init__(self, app, path, **fields):
        self._app, self._path, self._fields = app, path, fields
        self.status = None

    async def ask_until(self, is_time):
        """Send the request; leave when it is time, and return when it was answered."""
        body = json.dumps(self._fields).encode()
        messages = [{"type": "http.request", "body": body}]
        scope = {
            "type": "http",
            "method": "POST",
            "path": self._path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }

        async def receive():
            if messages:
                return messages.pop()
            while not is_time():
                await asyncio.sleep(0.005)
            return {"type": "http.disconnect"}

        async def send(message):
            self.status = message.get("status", self.status)

        async with self._app.router.lifespan_context(self._app):
            await self._app(scope, receive, send)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize"])
def test_who_leaves_while_a_model_loads_waits_for_it_no_more(path):
    """The load goes on, and the model counts as unused: it may go."""
    with Played(entry("a", 40), loads_at_once=False) as played:
        left = Left(Asked(played).app, path, model="a", input="x", content="x")
        waits = lambda: played.router.model_status("a").waiting == 1  # noqa: E731
        asyncio.run(left.ask_until(lambda: waits() and played.children))
        assert left.status == 499
        until(lambda: played.router.model_status("a").waiting == 0)
        played.children[0].load()
        until(lambda: played.state("a") is ModelState.READY)
        assert played.router.model_status("a").running == 0


def test_who_leaves_while_a_question_is_answered_lets_the_model_go(fleet):
    """The question is given up, and its model is held no longer."""
    played, ask = fleet
    left = Left(ask.app, "/v1/embeddings", model="a", input="wait")
    running = lambda: played.router.model_status("a").running  # noqa: E731
    endless = lambda: played.children and played.children[0].service.endless  # noqa: E731
    asyncio.run(left.ask_until(endless))
    assert left.status == 499
    until(lambda: not running())
    assert all(coming.cancelled() for coming in endless())


def test_the_page_is_told_of_bytes_by_lifetime(fleet):
    """As each process says what it allocated."""
    _played, ask = fleet
    ask.post("/v1/completions", model="a", prompt="echo x")
    (held,) = ask.get("/corral/status").json()["devices"]
    assert {life: size for life, size in held["held"].items() if size} == {
        "weights": 20,
        "state": 20,
    }


def test_the_model_of_a_request_answers_it(fleet):
    """By name or alias, for every kind of request; each reply names the model."""
    played, ask = fleet
    reply = ask.post("/v1/chat/completions", **chat("first")).json()
    assert reply["model"] == "a"
    assert reply["choices"][0]["message"]["content"] == "one two"
    assert ask.post("/v1/completions", model="b", prompt="echo x").json()["model"] == "b"
    assert ask.post("/completion", model="c", prompt="echo x").json()["model"] == "c"
    assert len(ask.post("/v1/embeddings", model="a", input="x").json()["data"]) == 1
    assert ask.post("/tokenize", model="b", content="xy").json() == {"tokens": [120, 121]}
    assert ask.get("/props?model=c").json()["model_alias"] == "c"
    assert len(played.children) >= 5, "there is room for two"


def test_many_clients_of_many_models_all_get_answers(fleet):
    """More models than fit: they take turns, and nobody is lost."""
    _, ask = fleet
    requests = [
        ("POST", "/v1/chat/completions", {"json": chat("abc"[n % 3], f"echo {n}")})
        for n in range(24)
    ]
    responses = ask(*requests)
    assert [response.status_code for response in responses] == [200] * 24
    said = [r.json()["choices"][0]["message"]["content"] for r in responses]
    assert said == [str(n) for n in range(24)]


def test_a_stream_shows_that_its_model_is_loading(fleet):
    """Comments come before the first event; then the answer as ever."""
    played, ask = fleet
    played.loads_at_once = False

    def load_later():
        until(lambda: played.children)
        threading.Timer(0.6, played.children[0].load).start()

    threading.Thread(target=load_later).start()
    response = ask.post("/v1/chat/completions", **chat("a", stream=True))
    assert response.status_code == 200
    assert response.text.startswith(": ping\n\n")
    assert response.text.endswith("data: [DONE]\n\n")
    assert '"content":"one"' in response.text


def test_what_fits_never_is_told_with_bytes(fleet):
    """507: needed, available, and nobody who could go."""
    _, ask = fleet
    for stream in (False, True):
        response = ask.post("/v1/chat/completions", **chat("huge", stream=stream))
        assert response.status_code == 507
        error = response.json()["error"]
        assert (error["code"], error["needed_bytes"]) == ("out_of_memory", 400)
        assert error["available_bytes"] == 100


def test_pinned_models_are_named_as_holders(fleet):
    """507 with the names of those that hold what lacks."""
    _, ask = fleet
    for model in "ab":
        ask.post("/v1/completions", model=model, prompt="echo x")
        assert ask.post("/models/pin", model=model).json()["model"]["corral"]["is_pinned"]
    response = ask.post("/v1/completions", model="c", prompt="echo x")
    assert response.status_code == 507
    assert sorted(response.json()["error"]["holders"]) == ["a", "b"]


def test_unknown_models_and_missing_names_are_refused(fleet):
    """404 and 400, before anything is loaded."""
    played, ask = fleet
    unknown = ask.post("/v1/chat/completions", **chat("nobody"))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    missing = ask.post("/v1/completions", prompt="x")
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    assert ask.get("/v1/models/nobody").status_code == 404
    assert ask.post("/models/load", model="nobody").status_code == 404
    assert not played.children


def test_models_are_listed_with_their_states(fleet):
    """Loaded or not; by name too."""
    _, ask = fleet
    listed = {one["id"]: one for one in ask.get("/v1/models").json()["data"]}
    assert {one["status"]["value"] for one in listed.values()} == {"unloaded"}
    ask.post("/v1/completions", model="a", prompt="echo x")
    one = ask.get("/v1/models/first").json()
    assert (one["id"], one["status"]["value"]) == ("a", "loaded")
    assert one["corral"]["held"][0]["planned_bytes"] == 40


def test_models_are_loaded_and_unloaded_by_command(fleet):
    """The reply does not wait; the state follows."""
    played, ask = fleet
    assert ask.post("/models/load", model="a").json()["success"] is True
    until(lambda: played.state("a") is ModelState.READY)
    assert ask.post("/models/unload", model="a").status_code == 200
    until(lambda: played.state("a") is ModelState.UNLOADED)
    told = ask.get("/corral/fleet").json()
    assert told["devices"][0]["booked_bytes"] == 0
    assert ask.post("/models/reload").json()["changes"] == ["4 models"]


def test_what_needs_no_field_needs_no_body(fleet):
    """`curl -X POST` sends none; where a field is required, and from a page, it is refused."""
    _played, ask = fleet
    (told,) = ask(("POST", "/models/reload", {}))
    assert told.json() == {"success": True, "changes": ["4 models"]}
    (told,) = ask(("POST", "/models/load", {}))
    assert (told.status_code, told.json()["error"]["code"]) == (400, "invalid_json")
    (told,) = ask(("POST", "/models/reload", {"content": b"{"}))
    assert (told.status_code, told.json()["error"]["code"]) == (400, "invalid_json")
    (told,) = ask(("POST", "/models/reload", {"headers": {"Origin": BASE}}))
    assert told.status_code == 415
    paths = ask.get("/openapi.json").json()["paths"]
    bodies = {path: paths[path]["post"]["requestBody"] for path in ("/models/reload", "/plan")}
    assert {path: body["required"] for path, body in bodies.items()} == {
        "/models/reload": False,
        "/plan": True,
    }


def test_who_waits_for_a_model_that_is_unloaded_is_told_to_come_again():
    """The command wins; the next request has the model loaded again."""
    with Played(entry("a", 40), loads_at_once=False) as played:
        ask, replies = Asked(played), []
        asking = threading.Thread(
            target=lambda: replies.append(ask.post("/v1/completions", model="a", prompt="x"))
        )
        asking.start()
        until(lambda: played.children and played.router.model_status("a").waiting == 1)
        played.router.unload("a")
        asking.join(30)
        (reply,) = replies
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        error = reply.json()["error"]
        assert (error["code"], error["message"]) == ("model_unloaded", "a was unloaded meanwhile")


def test_a_plan_says_what_would_go(fleet):
    """And nothing does."""
    played, ask = fleet
    for model in "ab":
        ask.post("/v1/completions", model=model, prompt="echo x")
    answer = ask.post("/plan", model="c").json()
    assert (answer["verdict"], answer["evicts"]) == ("evicts", ["a"])
    assert ask.post("/plan", model="huge").json()["verdict"] == "never"
    assert len(played.children) == 2


def test_events_tell_of_a_load_in_order(fleet):
    """Server-sent events, a comment at once; they end with the server."""
    played, ask = fleet

    async def listen():
        transport = httpx.ASGITransport(ask.app)
        async with (
            ask.app.router.lifespan_context(ask.app),
            httpx.AsyncClient(transport=transport, base_url=BASE, timeout=30) as client,
        ):
            listening = asyncio.create_task(client.get("/models/events"))
            while not len(played.router._listeners) > 1:
                await asyncio.sleep(0.01)
            await client.post("/v1/completions", json={"model": "a", "prompt": "echo x"})
            ask.app.state.serving.stop()
            return await listening

    response = asyncio.run(listen())
    assert response.text.startswith(": ping\n\n")
    told = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data")]
    assert [one["state"] for one in told] == ["planning", "loading", "loading", "ready"]
    assert [one["number"] for one in told] == [1, 2, 3, 4]


def test_what_is_counted_survives_the_processes(fleet):
    """Counters of a model go on when its process is another."""
    played, ask = fleet

    async def scrape():
        transport = httpx.ASGITransport(ask.app)
        async with (
            ask.app.router.lifespan_context(ask.app),
            httpx.AsyncClient(transport=transport, base_url=BASE, timeout=30) as client,
        ):
            for _ in range(2):
                await client.post("/v1/completions", json={"model": "a", "prompt": "echo x y"})
                await asyncio.to_thread(played.router.unload, "a")
                await asyncio.to_thread(until, lambda: played.state("a") is ModelState.UNLOADED)
            return (await client.get("/metrics")).text

    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(asyncio.run(scrape()))
        for sample in family.samples
    }
    assert samples["corral:tokens_total", "a", "generated"] == 4
    assert samples["corral:requests_finished_total", "a", "stop"] == 2
    assert samples["corral:model_loads_total", "a"] == 2
    assert samples["corral:model_saved_sessions_total", "a"] == 2
    assert samples["corral:model_saved_tokens_total", "a"] == 10
    assert samples["corral:model_session_errors_total", "a"] == 4
    assert samples["corral:device_booked_bytes", "cpu", "host"] == 0


def test_health_says_when_a_request_waits_and_nothing_happens(fleet):
    """Case 45: a queue that nobody works on is no health."""
    played, ask = fleet
    assert ask.get("/health").json() == {"status": "ok"}
    status = played.router.status

    def stuck():
        from msgspec.structs import replace

        return replace(status(), waiting=1, longest_wait_s=1e6)

    played.router.status = stuck
    assert ask.get("/health").status_code == 503


def test_a_worker_that_dies_is_told_as_such(fleet):
    """503 with when to come again; the next request is answered."""
    played, ask = fleet
    response = ask.post("/v1/completions", model="a", prompt="lose")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_lost")
    assert "retry-after" in response.headers
    played.children[0].end(WorkerLost("killed"))
    assert ask.post("/v1/completions", model="a", prompt="echo x").status_code == 200


def test_the_page_counts_what_still_runs_and_looks_once_for_all(monkeypatch):
    """Rates of all models are added up; whoever looks a moment later gets the same."""
    writing = SlotState("s", 30, 10, 36, 7)
    looks = [
        {"a": ServiceStatistics(steps=1), "b": ServiceStatistics(generated_tokens=5, steps=9)},
        {
            "a": ServiceStatistics(steps=9, slots=(writing,)),
            "b": ServiceStatistics(generated_tokens=8, steps=12),
        },
    ]

    async def statistics(_serving, _told):
        return looks.pop(0)

    async def told(_serving, _call):
        return FleetStatus(models=())

    async def newest():
        return ()

    monkeypatch.setattr(fleet_watch, "_statistics", statistics)
    monkeypatch.setattr(fleet_watch, "in_thread", told)
    fleet = SimpleNamespace(status=None)
    feed = fleet_watch.FleetFeed(
        SimpleNamespace(fleet=fleet, readings=SimpleNamespace(newest=newest))
    )

    async def look():
        first = await feed.newest()
        assert await feed.newest() is first
        feed._made_at -= 2.0
        return first, await feed.newest()

    first, second = asyncio.run(look())
    assert first.tokens_per_s == Rates()
    assert second.tokens_per_s.generation == pytest.approx((7 + 3) / 2, rel=0.2)
    assert second.tokens_per_s.prompt == pytest.approx(20 / 2, rel=0.2)


def test_the_page_shows_all_that_is_loaded(fleet):
    """Its status has the form of a server of one model, and the models beside."""
    _, ask = fleet
    ask.post("/v1/completions", model="a", prompt="echo x")
    told = ask.get("/corral/status").json()
    assert (told["model"], told["state"]) == ("a", "ready")
    assert [one["name"] for one in told["models"]] == ["a"]
