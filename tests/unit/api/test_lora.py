"""Adapters over HTTP, with llama-server's route and field."""

import pytest

from corral.contract.messages import AdapterScale


def test_adapters_are_listed_and_scaled(ask):
    """GET lists them; POST sets every scale, 0 for those left out, and lists them again."""
    first = ask.get("/lora-adapters").json()
    assert [(one["id"], one["path"], one["scale"]) for one in first] == [
        (0, "style.gguf", 1.0),
        (1, "facts.gguf", 0.0),
    ]
    changed = ask("POST", "/lora-adapters", json=[{"id": 1, "scale": 0.5}]).json()
    assert [one["scale"] for one in changed] == [0.0, 0.5]
    assert ask.get("/lora-adapters").json() == changed
    assert [one["scale"] for one in ask("POST", "/lora-adapters", json=[]).json()] == [0.0, 0.0]


@pytest.mark.parametrize(
    "body",
    [
        [{"id": 7, "scale": 1.0}],
        [{"id": 0, "scale": 1e9}],
        [{"id": 0}],
        [{"id": -1, "scale": 1.0}],
        [{"id": 0, "scale": 1.0}, {"id": 0, "scale": 2.0}],
        {"id": 0, "scale": 1.0},
        "all",
    ],
)
def test_refuses_scales_of_nothing(ask, body):
    """What is no list of adapters and scales changes nothing."""
    before = ask.get("/lora-adapters").json()
    assert ask("POST", "/lora-adapters", json=body).status_code == 400
    assert ask.get("/lora-adapters").json() == before


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/completion", {"prompt": "hi"}),
    ],
)
def test_a_request_says_what_counts_for_it(ask, service, path, fields):
    """`lora` names adapters and scales; without it the request says nothing, with [] none count."""
    for given, expected in (
        ([{"id": 1, "scale": 0.25}], (AdapterScale(1, 0.25),)),
        ([], ()),
        (None, None),
    ):
        more = {} if given is None else {"lora": given}
        assert ask.post(path, **fields, **more).status_code == 200
        assert service.requests[-1].adapters == expected


@pytest.mark.parametrize("lora", ["style", [{"id": 0, "scale": "much"}], [{"id": 0, "scale": 1e9}]])
def test_refuses_a_request_by_name(ask, lora):
    """A wrong `lora` is told as such."""
    refused = ask.post("/completion", prompt="hi", lora=lora)
    assert refused.status_code == 400
    assert "lora" in str(refused.json()["error"]["param"])


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ([{"id": 0, "scale": 1e9}], "[0].scale"),
        ([{"id": 0, "scale": 1.0}, {"id": -1, "scale": 1.0}], "[1].id"),
        ([{"id": 0, "scale": 1.0}, {"id": 0, "scale": 2.0}], "[1].id"),
    ],
)
def test_fields_are_called_as_clients_write_them(ask, wrong, param):
    """What sets scales is a list; what a request has is a list under `lora`."""
    place, _, key = param.partition(".")
    refused = ask("POST", "/lora-adapters", json=wrong).json()["error"]
    assert refused["param"] == param
    assert refused["message"].startswith(f"{place} {key} is ")
    refused = ask.post("/completion", prompt="hi", lora=wrong).json()["error"]
    assert refused["param"] == f"lora{param}"
    assert refused["message"].startswith(f"lora{place} {key} is ")
