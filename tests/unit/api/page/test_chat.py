"""Chatting on the page: what streams, what stops, what is kept, what is refused."""

import json

from corral.api.security import digest
from corral.api.settings import ApiSettings
from served import until

MARKED = """# Result

Some **bold** and `code`.

```python
print("<hi>")
```
"""


def test_an_answer_grows_and_stops_with_escape(shown, service):
    """Text is shown while it comes; Esc ends the request at the service, and what came stays."""
    service.pace_s = 0.01
    shown.ask("many 100000")
    shown.sees(shown.answer, "0 1 2 3")
    assert service.running == 1
    shown.page.keyboard.press("Escape")
    until(lambda: service.running == 0)
    assert service.cancelled == [service.requests[0].request_id]
    shown.sees(shown.answered(), "stopped")
    shown.sees(shown.answer, "0 1 2 3")


def test_an_answer_stops_with_its_button(shown, service):
    """The button that sends becomes the one that stops, and is itself again afterwards."""
    service.pace_s = 0.01
    shown.ask("many 100000")
    shown.hides(shown.page.get_by_role("button", name="Send"))
    shown.page.get_by_role("button", name="Stop").click()
    until(lambda: service.running == 0)
    shown.answered()
    shown.hides(shown.page.get_by_role("button", name="Stop"))
    assert shown.page.evaluate("document.activeElement.id") == "prompt"


def test_markdown_and_figures(shown, service):
    """An answer is rendered; below it stand the server's own figures."""
    service.texts["it"] = MARKED
    shown.ask("say it")
    answer = shown.answered()
    assert answer.get_by_role("heading", name="Result").is_visible()
    assert answer.locator("strong").text_content() == "bold"
    assert answer.locator("pre").text_content() == 'print("<hi>")'
    tokens = (len(MARKED) + 4) // 5
    shown.sees(answer.locator(".figures"), f"{tokens / 0.25:.1f} tokens/s")
    shown.sees(answer.locator(".figures"), "to the first")
    shown.sees(answer.locator(".figures"), f"{tokens} tokens · 6 in the prompt, 1 cached")


def test_code_is_copied(shown, service):
    """The button at a block copies the block, without colours."""
    service.texts["it"] = MARKED
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.ask("say it")
    shown.answered().get_by_role("button", name="Copy code").click()
    shown.sees(shown.answer.get_by_role("status").first, "Copied")
    assert shown.page.evaluate("navigator.clipboard.readText()") == 'print("<hi>")'


def test_thoughts_are_folded(shown):
    """Reasoning is there, closed, and apart from the answer."""
    shown.ask("think first this / then that")
    answer = shown.answered()
    assert answer.locator(".text").text_content() == "then that"
    thought = answer.locator(".thought")
    assert not thought.is_visible()
    answer.get_by_text("Thoughts").click()
    shown.sees(thought, "first this")
    assert thought.is_visible()


def test_calls_are_shown_and_answered(shown, service):
    """A call shows its name and arguments; the result that the user gives goes to the model."""
    shown.ask('call weather {"city":"Rome"}')
    answer = shown.answered()
    shown.sees(answer.locator(".call"), "weather")
    shown.sees(answer.locator(".call pre"), '"city": "Rome"')
    answer.get_by_label("Result of weather").fill("echo sunny")
    answer.get_by_role("button", name="Give results").click()
    shown.sees(shown.answer, "sunny")
    asked, called, result = service.requests[1].prompt.messages
    assert (asked.role, called.role, result.role) == ("user", "assistant", "tool")
    assert called.tool_calls[0].name == "weather"
    assert (result.content, result.tool_call_id) == ("echo sunny", called.tool_calls[0].id)


def test_an_answer_is_asked_for_again(shown, service):
    """Answering again forgets the last answer, and nothing else."""
    shown.ask("echo one")
    shown.answered()
    shown.ask("echo two")
    shown.count(shown.page.get_by_role("article", name="Answer"), 2)
    shown.answered().get_by_role("button", name="Answer again").click()
    until(lambda: len(service.requests) == 3)
    shown.answered()
    assert service.requests[2].prompt.messages == service.requests[1].prompt.messages
    assert [m.role for m in service.requests[2].prompt.messages] == ["user", "assistant", "user"]
    shown.count(shown.page.get_by_role("article", name="Answer"), 2)


def test_a_message_is_edited(shown, service):
    """Editing takes a message and what followed back into the field, to be asked anew."""
    shown.ask("echo one")
    shown.answered()
    shown.page.get_by_role("article", name="You").hover()
    shown.page.get_by_role("button", name="Edit, and ask from here").click()
    field = shown.page.get_by_label("What you ask")
    assert field.input_value() == "echo one"
    shown.count(shown.page.get_by_role("article"), 0)
    shown.ask("echo other")
    shown.sees(shown.answered(), "other")
    assert len(service.requests[1].prompt.messages) == 1


def test_conversations_are_kept(shown):
    """Conversations outlive the page, open again where they were, and are removed on demand."""
    page = shown.page
    shown.ask("echo first")
    shown.answered()
    page.get_by_role("button", name="New conversation").click()
    shown.ask("echo second")
    shown.answered()
    page.reload()
    listed = page.locator("#conversations .conversation")
    shown.count(listed, 2)
    assert listed.all_text_contents() == ["echo second", "echo first"]
    listed.last.click()
    shown.sees(shown.answer, "first")
    remove = page.get_by_role("button", name="Remove echo first")
    remove.click()
    shown.count(listed, 2)
    remove.click()
    shown.count(listed, 1)
    page.reload()
    shown.count(listed, 1)


def test_what_had_come_is_kept_when_the_page_goes(shown, service):
    """Leaving in the middle of an answer cancels it and keeps its beginning."""
    service.pace_s = 0.01
    shown.ask("many 100000")
    shown.sees(shown.answer, "0 1 2 3")
    shown.page.reload()
    until(lambda: service.running == 0)
    shown.page.locator("#conversations .conversation").click()
    shown.sees(shown.answered(), "0 1 2 3")
    shown.sees(shown.answer, "stopped")


def test_answers_go_on_while_another_conversation_is_open(shown, service):
    """Looking elsewhere stops nothing, and nothing appears where it does not belong."""
    service.pace_s = 0.01
    shown.ask("many 100000")
    shown.sees(shown.answer, "0 1 2")
    shown.page.get_by_role("button", name="New conversation").click()
    shown.ask("echo other")
    assert shown.answered().locator(".text").text_content() == "other"
    assert service.running == 1
    shown.page.get_by_role("button", name="many 100000", exact=True).click()
    shown.sees(shown.answer, "0 1 2")
    shown.page.keyboard.press("Escape")
    until(lambda: service.running == 0)
    shown.sees(shown.answered(), "stopped")


def test_settings_are_sent(shown, service):
    """The system prompt, sampling and tools reach the model; the server chooses what is empty."""
    page = shown.page
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Most tokens").fill("2")
    page.get_by_label("Functions that may be called").fill(json.dumps(tools))
    page.get_by_role("button", name="Save").click()
    shown.ask("echo a b c")
    shown.sees(shown.answered(), "cut at the limit")
    request = service.requests[0]
    first = request.prompt.messages[0]
    assert (first.role, first.content) == ("system", "Be brief.")
    assert (request.sampling.temperature, request.sampling.seed) == (0.25, 7)
    assert request.sampling.top_k == ApiSettings(model="m").sampling.top_k
    assert request.max_tokens == 2
    assert [tool.name for tool in request.prompt.tools] == ["look"]


def test_tools_that_are_no_json_are_not_taken(shown):
    """The dialog says what is wrong and stays."""
    page = shown.page
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Functions that may be called").fill("[{")
    page.get_by_role("button", name="Save").click()
    shown.sees(page.locator("#offered-wrong"), "This is no JSON")
    page.get_by_label("Functions that may be called").fill("{}")
    page.get_by_role("button", name="Save").click()
    shown.sees(page.locator("#offered-wrong"), "Expected a list")
    page.keyboard.press("Escape")
    shown.hides(page.get_by_role("dialog"))


def test_keys_write_lines_and_letters(shown, service):
    """Shift+Enter begins a line; Enter that ends the composing of a letter sends nothing."""
    field = shown.page.get_by_label("What you ask")
    field.fill("echo one")
    field.press("Shift+Enter")
    field.press_sequentially("two")
    assert field.input_value() == "echo one\ntwo"
    field.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    assert service.requests == []
    field.press("Enter")
    shown.sees(shown.answered(), "one two")
    assert service.requests[0].prompt.messages[0].content == "echo one\ntwo"


def test_a_refusal_is_shown_as_worded(shown):
    """What the server says of a request stands where the answer would."""
    shown.ask("x" * 100)
    assert shown.answered().get_by_role("alert").text_content() == "too long"


def test_an_error_in_the_middle(shown, service):
    """What had come stays, with the server's words under it; then the user can ask on."""
    service.pace_s = 0.01
    shown.ask("many 100000")
    shown.sees(shown.answer, "0 1 2")
    service.fail_all("worker_lost", "the worker is gone; its answers are lost")
    answer = shown.answered()
    shown.sees(answer, "0 1 2")
    assert "its answers are lost" in answer.get_by_role("alert").text_content()
    shown.ask("echo again")
    shown.sees(shown.answer, "again")
    roles = [message.role for message in service.requests[1].prompt.messages]
    assert roles == ["user", "assistant", "user"]


def test_a_stream_that_ends_early(shown):
    """An answer whose connection ends before it does is no whole answer."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "half"}}]}
    body = f"data: {json.dumps(chunk)}\n\n"
    shown.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    shown.ask("echo whole")
    answer = shown.answered()
    shown.sees(answer, "half")
    shown.sees(answer.get_by_role("alert"), "ended before the answer did")


def test_a_server_that_is_gone(shown):
    """The page says that nobody answers."""
    shown.page.route("**/v1/chat/completions", lambda route: route.abort())
    shown.ask("echo a")
    shown.sees(shown.answered().get_by_role("alert"), "the server does not answer")


def test_a_key_is_asked_for(served, showing):
    """Where a key is needed the page asks for it in the server's words, and then works."""
    settings = ApiSettings(model="guarded", key_digests=(digest("sk-one"),))
    with showing(served(settings).url) as shown:
        page = shown.page
        dialog = page.get_by_role("dialog")
        shown.sees(dialog, "a valid API key is needed")
        page.get_by_label("API key").fill("sk-wrong")
        page.get_by_role("button", name="Save").click()
        shown.sees(dialog, "a valid API key is needed")
        page.get_by_label("API key").fill("sk-one")
        page.get_by_label("Keep the key").check()
        page.get_by_role("button", name="Save").click()
        shown.sees(page.locator("#model"), "guarded")
        shown.ask("echo hello")
        shown.sees(shown.answered(), "hello")
        page.reload()
        shown.sees(page.locator("#model"), "guarded")
        shown.hides(dialog)
        kept = page.evaluate("JSON.stringify({...localStorage})")
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Keep the key").uncheck()
        page.get_by_role("button", name="Save").click()
        assert "sk-one" in kept
        assert "sk-one" not in page.evaluate("JSON.stringify({...localStorage})")
