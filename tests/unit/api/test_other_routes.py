"""Embeddings, tokens, models, properties, metrics, status and documentation."""

import asyncio
import base64
import json
import struct

import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.api.app import make_app
from corral.api.readings import DeviceState, Readings
from corral.api.settings import ApiSettings
from corral.api.status import Rates, held_devices, rates_between
from corral.contract.questions import MemoryRow, ServiceStatistics, SlotState
from corral.contract.worker import WorkerState, WorkerStatus
from served import COLUMNS, ScriptedService


def test_embeddings_as_numbers_and_as_bytes(ask):
    """Both formats hold the same vector of length 1; a text and its tokens have the same."""
    plain = ask.post("/v1/embeddings", input=["ab", [97, 98]]).json()
    first, second = (entry["embedding"] for entry in plain["data"])
    assert first == second
    assert len(first) == COLUMNS
    assert sum(value * value for value in first) == pytest.approx(1)
    assert plain["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    packed = ask.post("/v1/embeddings", input="ab", encoding_format="base64").json()
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack(f"<{COLUMNS}f", data)) == first


def test_embeddings_can_be_shortened(ask):
    """Fewer dimensions are the first ones, again of length 1; more than there are is refused."""
    whole = ask.post("/v1/embeddings", input="ab").json()["data"][0]["embedding"]
    short = ask.post("/v1/embeddings", input="ab", dimensions=2).json()["data"][0]["embedding"]
    assert sum(value * value for value in short) == pytest.approx(1)
    assert short[0] / short[1] == pytest.approx(whole[0] / whole[1])
    refusal = ask.post("/v1/embeddings", input="ab", dimensions=COLUMNS + 1)
    assert refusal.json()["error"]["param"] == "dimensions"


def test_tokens_and_text(ask):
    """A text becomes tokens, with pieces where wanted, and text again."""
    assert ask.post("/tokenize", content="hé").json() == {"tokens": [104, 195, 169]}
    pieces = ask.post("/tokenize", content="hé", with_pieces=True).json()["tokens"]
    assert pieces == [
        {"id": 104, "piece": "h"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]
    assert ask.post("/detokenize", tokens=[104, 195, 169]).json() == {"content": "hé"}
    assert ask.post("/detokenize", tokens=[256]).json()["error"]["param"] == "tokens[0]"
    messages = [{"role": "user", "content": "hi"}]
    assert ask.post("/apply-template", messages=messages).json() == {"prompt": "user: hi"}


def test_models(ask):
    """The one model is listed, and found by its name only."""
    (entry,) = ask.get("/v1/models").json()["data"]
    assert entry["id"] == "scripted"
    assert entry["meta"]["n_ctx"] == 64
    assert ask.get("/v1/models/scripted").json()["object"] == "model"
    missing = ask.get("/v1/models/other/one")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_properties_and_slots(ask):
    """llama-server's clients find the context, the template and who is being answered."""
    props = ask.get("/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 64
    assert props["chat_template"] == "{{ messages }}"
    slots = ask.get("/slots").json()
    assert [slot["is_processing"] for slot in slots] == [False] * 4
    assert ask.get("/slots?fail_on_no_slot=1").status_code == 200


def test_slots_count_a_prompt_apart_from_its_answer(ask, service, monkeypatch):
    """No more of a prompt is processed than it has, however long the answer, shifted or not."""
    runs = (SlotState("reads", 40, 10, 20, 0), SlotState("shifted", 3, 0, 448, 446, 384))
    monkeypatch.setattr(service, "_statistics", lambda: ServiceStatistics(slots=runs))
    reads, shifted, *_ = ask.get("/slots").json()
    assert (reads["n_prompt_tokens"], reads["n_prompt_tokens_processed"]) == (40, 20)
    assert (shifted["n_prompt_tokens"], shifted["n_prompt_tokens_processed"]) == (3, 3)
    assert (shifted["n_past"], shifted["n_decoded"], shifted["truncated"]) == (64, 446, True)


def test_metrics_can_be_parsed_and_add_up(ask):
    """Prometheus reads every series, under the names that dashboards know."""
    chat = ("POST", "/v1/completions", {"json": {"prompt": "echo a b"}})
    _, response = ask.all(chat, ("GET", "/metrics", {}))
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples["llamacpp:tokens_predicted_total"] == 30
    assert samples["llamacpp:prompt_tokens_total"] == 40
    assert samples["vllm:generation_tokens_total"] == 30
    assert samples["vllm:num_requests_running"] == 0
    assert samples["vllm:time_to_first_token_seconds_count"] == 1
    assert samples["corral:inter_token_latency_seconds_count"] == 1
    assert samples["corral:requests_finished_total"] == 1
    assert samples["corral:kv_blocks_total"] == 8
    assert samples["corral:sessions_restored_total"] == 3
    assert samples["corral:session_tokens_restored_total"] == 300
    assert samples["corral:sessions_returned_total"] == 2
    assert samples["corral:session_tokens_returned_total"] == 200
    assert samples["corral:session_errors_total"] == 1


def test_health_tells_the_truth(ask, service):
    """Ok while steps end; 503 when none does for too long."""
    assert ask.get("/health").json() == {"status": "ok"}
    service.step_age_s = 1000.0
    assert ask.get("/health").status_code == 503


@pytest.mark.parametrize("state", [s for s in WorkerState if s is not WorkerState.READY])
def test_nothing_is_answered_before_the_worker_is_ready(ask, state):
    """Requests get 503 and when to come again; the models and the status are told all the same."""
    ask.more = {
        "worker": lambda: WorkerStatus(
            state=state, stage="read", done=1, total=4, error="/secret/path", error_code="model"
        )
    }
    for path in ("/health", "/metrics", "/props"):
        assert ask.get(path).status_code == 503
    refusal = ask.post("/v1/completions", prompt="echo a")
    assert refusal.status_code == 503
    assert int(refusal.headers["retry-after"]) > 0
    assert refusal.json()["error"]["type"] == "unavailable_error"
    assert ask.get("/v1/models").json()["data"][0]["status"]["value"] == state.value
    status = ask.get("/corral/status")
    assert status.json()["state"] == state.value
    assert "secret" not in status.text + refusal.text
    loads = state in (WorkerState.LOADING, WorkerState.RESTARTING)
    expected = {"stage": "read", "done": 1, "total": 4} if loads else None
    assert status.json()["progress"] == expected


def test_the_status_has_what_the_page_shows(ask):
    """Devices with what is held of them, requests, speed and blocks."""
    device = DeviceState(name="cpu", title="CPU", total_bytes=10_000, free_bytes=6_000)
    other = DeviceState(name="cuda:0", title="Card", total_bytes=9, free_bytes=4, foreign_bytes=5)
    ask.more = {"devices": lambda: [device, other]}
    status = ask.get("/corral/status").json()
    cpu, card = status["devices"]
    assert cpu["held"] == {
        "weights": 2000,
        "state": 500,
        "scratch": 0,
        "records": 0,
        "staging": 0,
        "context": 0,
    }
    assert cpu["foreign_bytes"] == 10_000 - 6_000 - 2500
    assert (card["foreign_bytes"], sum(card["held"].values())) == (5, 0)
    assert status["requests"] == {"running": 0, "waiting": 0, "finished": 0}
    assert status["kv"] == {"used_blocks": 0, "total_blocks": 8}
    assert status["tokens_per_s"] == {"prompt": 0.0, "generation": 0.0}


def test_devices_that_cannot_be_read_are_listed_all_the_same():
    """What is held is known even where nobody can read the device."""
    (device,) = held_devices((), (MemoryRow("cuda:1", "weights", 7, 7),))
    assert (device.name, device.total_bytes, device.held["weights"]) == ("cuda:1", None, 7)


def test_rates():
    """Tokens a second are differences; a new worker, which counts from zero, has none yet."""
    before = ServiceStatistics(prompt_tokens=10, cached_tokens=2, generated_tokens=4, steps=5)
    now = ServiceStatistics(prompt_tokens=40, cached_tokens=12, generated_tokens=10, steps=9)
    assert rates_between(before, now, 2.0) == Rates(10.0, 3.0)
    assert rates_between(now, before, 2.0) == Rates()
    assert rates_between(None, now, 2.0) == Rates()


def test_rates_count_what_still_runs():
    """An answer counts while it is made, and not again when it has ended."""
    idle = ServiceStatistics(prompt_tokens=10, generated_tokens=4, steps=5)
    reading = ServiceStatistics(
        prompt_tokens=10, generated_tokens=4, steps=6, slots=(SlotState("a", 30, 10, 20, 0),)
    )
    writing = ServiceStatistics(
        prompt_tokens=10, generated_tokens=4, steps=9, slots=(SlotState("a", 30, 10, 36, 7),)
    )
    ended = ServiceStatistics(prompt_tokens=40, cached_tokens=10, generated_tokens=12, steps=10)
    assert rates_between(idle, reading, 1.0) == Rates(10.0, 0.0)
    assert rates_between(reading, writing, 2.0) == Rates(5.0, 3.5)
    assert rates_between(writing, ended, 1.0) == Rates(0.0, 1.0)


def test_readings_are_shared_and_survive_failures():
    """Many looks at once read the devices once; a failing driver leaves the last reading."""
    calls = []

    def read():
        calls.append(1)
        if len(calls) > 1:
            raise OSError("driver")
        return [DeviceState(name="cpu", title="", total_bytes=1, free_bytes=1)]

    async def look():
        readings = Readings(read)
        seen = await asyncio.gather(*(readings.newest() for _ in range(20)))
        readings.forget()
        return seen, await readings.newest()

    seen, later = asyncio.run(look())
    assert len(calls) == 2
    assert {states[0].name for states in [*seen, later]} == {"cpu"}


def test_every_route_is_documented(ask):
    """OpenAPI has each route with a summary and each body; the page shows them without scripts."""
    described = ask.get("/openapi.json").json()
    app = make_app(ScriptedService(), ApiSettings(model="m"))
    paths = {path for path in (getattr(route, "path", "") for route in app.routes) if path}
    assert {p.replace("{id}", "{id:path}") for p in described["paths"]} == paths
    operations = [op for path in described["paths"].values() for op in path.values()]
    assert all(operation["summary"].endswith(".") for operation in operations)
    assert "messages" in described["components"]["schemas"]["ChatBody"]["required"]
    page = ask.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in page.text
    assert "<script" not in page.text
    assert "http:" not in page.text and "https:" not in page.text
    assert ask.get("/docs.css").headers["content-type"].startswith("text/css")
    assert json.dumps(described).count("$ref") > 5
