"""Completions, OpenAI's and llama-server's: shapes, streams, prompts of every kind."""

import json

import pytest

from corral.contract.messages import TextPrompt, TokenPrompt


def chunks(response):
    """Return the JSON of a stream's events."""
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_completion(ask):
    """A reply has OpenAI's older shape."""
    reply = ask.post("/v1/completions", prompt="echo a b").json()
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    expected = {"index": 0, "text": "a b", "logprobs": None, "finish_reason": "stop"}
    assert reply["choices"] == [expected]
    assert reply["usage"]["completion_tokens"] == 2


def test_prompts_and_choices_are_numbered_in_order(ask, service):
    """Two prompts with two choices make four answers; each prompt is counted once."""
    reply = ask.post("/v1/completions", prompt=["echo a", "echo b"], n=2).json()
    assert [choice["text"] for choice in reply["choices"]] == ["a", "a", "b", "b"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["prompt_tokens"] == 12
    assert len({request.request_id for request in service.requests}) == 4


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("echo a", [TextPrompt("echo a")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
        (["a", [3]], [TextPrompt("a"), TokenPrompt((3,))]),
    ],
)
def test_prompts_are_text_or_tokens(ask, service, given, expected):
    """Every form of a prompt that OpenAI has is understood."""
    assert ask.post("/v1/completions", prompt=given).status_code == 200
    assert [request.prompt for request in service.requests] == expected


def test_echo(ask):
    """With echo an answer begins with its prompt, tokens too, streamed or not."""
    tokens = list(b"echo a")
    assert ask.post("/v1/completions", prompt=tokens, echo=True).json()["choices"][0]["text"] == (
        "echo aa"
    )
    response = ask.post("/v1/completions", prompt="echo a b", echo=True, stream=True)
    assert "".join(c["choices"][0]["text"] for c in chunks(response)) == "echo a ba b"


def test_older_logprobs(ask):
    """Logprobs come as parallel lists, with the offset of each token in the text."""
    reply = ask.post("/v1/completions", prompt="echo ab c", logprobs=1).json()
    logprobs = reply["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["ab", " c"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert logprobs["top_logprobs"] == [{"ab": -0.5}, {" c": -0.5}]
    assert logprobs["text_offset"] == [0, 2]
    response = ask.post("/v1/completions", prompt="echo ab c", logprobs=0, stream=True)
    told = [c["choices"][0]["logprobs"] for c in chunks(response)]
    assert [item["text_offset"] for item in told if item] == [[0], [2]]


def test_a_stream_tells_usage_at_the_end(ask):
    """The last chunk of a stream that is to tell its usage has no choices."""
    options = {"include_usage": True}
    response = ask.post("/v1/completions", prompt="echo a", stream=True, stream_options=options)
    parts = chunks(response)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["total_tokens"] == 7
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    assert response.text.endswith("data: [DONE]\n\n")


def test_llama_completion(ask, service):
    """llama-server's route has its own names for everything."""
    reply = ask.post(
        "/completion", prompt="echo a b c", n_predict=2, n_probs=1, return_tokens=True
    ).json()
    assert reply["content"] == "a b"
    assert reply["stop"] is True
    assert reply["stop_type"] == "limit"
    assert reply["tokens"] == [1, 1]
    assert reply["tokens_predicted"] == 2
    assert reply["tokens_evaluated"] == 10
    assert reply["timings"]["prompt_n"] == 9
    (first, _) = reply["completion_probabilities"]
    assert (first["token"], first["top_logprobs"][0]["id"]) == ("a", 2)
    assert service.requests[0].max_tokens == 2


def test_llama_stream(ask):
    """Its stream says in each chunk whether it is the last, and has no mark of the end."""
    response = ask.post("/completion", prompt="echo a b", stream=True, n_predict=-1)
    parts = chunks(response)
    assert "".join(part["content"] for part in parts) == "a b"
    assert [part["stop"] for part in parts] == [False, False, True]
    assert parts[-1]["stop_type"] == "eos"
    assert "[DONE]" not in response.text


def test_llama_prompts_may_mix_tokens_and_text(ask, service):
    """Tokens and texts in one list are one prompt; lists of texts are several."""
    assert ask.post("/completion", prompt=[104, "i", 33]).json()["content"] == "yes"
    assert service.requests[0].prompt == TokenPrompt((104, 105, 33))
    several = ask.post("/completion", prompt=["echo a", "echo b"]).json()
    assert [reply["content"] for reply in several] == ["a", "b"]


def test_llama_biases(ask, service):
    """Biases may be pairs, and false bans a token."""
    ask.post("/completion", prompt="x", logit_bias=[[5, 1.5], [6, False]])
    assert service.requests[0].sampling.logit_bias == ((5, 1.5), (6, float("-inf")))
