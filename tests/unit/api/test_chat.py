"""Chat completions: shapes of replies and streams, and what reaches the service."""

import json

from corral.contract.messages import ChatPrompt, Constraint, ConstraintKind, ToolChoice

USER = {"role": "user", "content": "echo one two three"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}


def chat(ask, content="echo one two three", **fields):
    return ask.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": content}], **fields
    )


def chunks(response):
    """Return the JSON of a stream, which must end as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(parts, name):
    """Return what the deltas of one field add up to."""
    deltas = [choice["delta"] for part in parts for choice in part["choices"]]
    return "".join(delta.get(name) or "" for delta in deltas)


def test_an_answer(ask):
    """A reply has OpenAI's shape, the text, and counts that add up."""
    response = chat(ask)
    assert response.status_code == 200
    reply = response.json()
    assert reply["id"].startswith("chatcmpl-")
    assert reply["object"] == "chat.completion"
    assert reply["model"] == "scripted"
    (choice,) = reply["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "one two three"},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert reply["usage"] == {
        "prompt_tokens": 18,
        "completion_tokens": 3,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert reply["timings"]["predicted_per_second"] == 12.0


def test_a_stream_says_the_same(ask):
    """A stream begins with the role, its pieces are the text, and it ends with a reason."""
    parts = chunks(chat(ask, stream=True))
    assert len({part["id"] for part in parts}) == 1
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert joined(parts, "content") == "one two three"
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * 4 + ["stop"]
    assert "usage" not in parts[0]


def test_a_stream_can_tell_its_usage(ask):
    """With include_usage the last chunk has no choices but the counts; the others have null."""
    parts = chunks(chat(ask, stream=True, stream_options={"include_usage": True}))
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 3
    assert {part["usage"] for part in parts[:-1]} == {None}


def test_several_choices_have_seeds_of_their_own(ask, service):
    """Each choice is a request with the next seed; the prompt is counted once."""
    reply = chat(ask, n=3, seed=7).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [request.sampling.seed for request in service.requests] == [7, 8, 9]
    assert reply["usage"]["prompt_tokens"] == 18
    assert reply["usage"]["completion_tokens"] == 9


def test_logprobs(ask):
    """Each token comes with its bytes and the likeliest ones, also in a stream."""
    reply = chat(ask, "echo hé", logprobs=True, top_logprobs=2).json()
    (token,) = reply["choices"][0]["logprobs"]["content"]
    assert token["token"] == "hé"
    assert token["bytes"] == [104, 195, 169]
    assert [top["logprob"] for top in token["top_logprobs"]] == [-0.5, -9999.0]
    parts = chunks(chat(ask, "echo a b", logprobs=True, stream=True))
    told = [part["choices"][0]["logprobs"] for part in parts]
    assert [item["content"][0]["token"] for item in told if item] == ["a", " b"]
    assert [item["content"][0]["top_logprobs"] for item in told if item] == [[], []]


def test_tool_calls(ask, service):
    """A call comes whole in a reply and in pieces in a stream."""
    reply = chat(ask, 'call weather {"city":"Oslo"}', tools=[TOOL]).json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
        }
    ]
    parts = chunks(chat(ask, 'call weather {"city":"Oslo"}', tools=[TOOL], stream=True))
    calls = [c for p in parts for c in p["choices"][0]["delta"].get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0}
    assert [call.get("id") for call in calls] == ["call_0", None, None]
    assert calls[0]["function"]["name"] == "weather"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city":"Oslo"}'
    assert service.requests[0].prompt.tools[0].parameters == '{"type":"object"}'


def test_reasoning(ask):
    """What the model thinks is told apart from what it says."""
    message = chat(ask, "think hard work / done").json()["choices"][0]["message"]
    assert message["reasoning_content"] == "hard work"
    assert message["content"] == "done"
    parts = chunks(chat(ask, "think hard work / done", stream=True))
    assert joined(parts, "reasoning_content") == "hard work"
    assert joined(parts, "content") == "done"


def test_messages_reach_the_service(ask, service):
    """Parts are joined, and calls, results and names kept."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ask.post(
        "/v1/chat/completions",
        messages=[
            {
                "role": "developer",
                "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "12"},
            {"role": "user", "content": "hi", "name": "bob"},
        ],
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        future_field={"a": [1]},
    )
    prompt = service.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    developer, assistant, tool, user = prompt.messages
    assert developer.content == "be brief"
    assert (assistant.tool_calls[0].name, assistant.reasoning) == ("f", "hm")
    assert (tool.role, tool.tool_call_id) == ("tool", "c1")
    assert user.name == "bob"
    assert json.loads(prompt.variables) == {"enable_thinking": False, "reasoning_effort": "low"}


def test_fields_reach_the_service(ask, service):
    """Limits, stops, sampling and biases mean what OpenAI and llama-server say."""
    chat(
        ask,
        max_completion_tokens=2,
        max_tokens=9,
        stop="x",
        temperature=0,
        top_p=0.5,
        top_k=-1,
        seed=-1,
        logit_bias={"5": -100, "6": 1.5},
        repeat_last_n=-1,
        cache_prompt=False,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        response_format={"type": "json_object"},
    )
    (request,) = service.requests
    assert request.max_tokens == 2
    assert request.stop == ("x",)
    assert (request.sampling.temperature, request.sampling.top_p) == (0, 0.5)
    assert (request.sampling.top_k, request.sampling.seed) == (0, None)
    assert request.sampling.repeat_last_n == 65536
    assert request.sampling.logit_bias == ((5, float("-inf")), (6, 1.5))
    assert request.tool_choice == ToolChoice("required", "weather", is_parallel=False)
    assert request.constraint == Constraint(ConstraintKind.JSON)
    assert request.reuse is False
    assert request.is_parsed is True


def test_schemas_reach_the_service(ask, service):
    """OpenAI's and llama-server's ways to give a schema lead to the same constraint."""
    schema = {"type": "object"}
    inner = {"name": "s", "schema": schema, "strict": True}
    chat(ask, response_format={"type": "json_schema", "json_schema": inner})
    chat(ask, response_format={"type": "json_object", "schema": schema})
    chat(ask, json_schema=schema)
    chat(ask, grammar='root ::= "a"')
    chat(ask, response_format={"type": "text"})
    found = [request.constraint for request in service.requests]
    assert {item.kind for item in found[:3]} == {ConstraintKind.SCHEMA}
    assert [json.loads(item.text) for item in found[:3]] == [schema] * 3
    assert found[3] == Constraint(ConstraintKind.GBNF, 'root ::= "a"')
    assert found[4] is None


def test_a_cut_answer_says_so(ask):
    """An answer that reached its limit has the reason length."""
    reply = chat(ask, max_tokens=2).json()
    assert reply["choices"][0]["message"]["content"] == "one two"
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_failure_in_a_stream_is_an_event(ask):
    """An error after the beginning is told in the stream, which then ends without [DONE]."""
    response = chat(ask, "fail", stream=True)
    assert "secret" not in response.text
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal"
    lost = chat(ask, "lose")
    assert lost.status_code == 503
    assert lost.headers["retry-after"] == "5"
    assert lost.json()["error"]["type"] == "unavailable_error"
