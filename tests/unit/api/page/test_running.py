"""The page of a real `corral serve`, with the worker of a tiny model behind it."""

import pytest

import tiny
from running import serving

CONTEXT = 32_768
"""Long enough that no answer ends while a test looks."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server of a tiny model."""
    folder = tmp_path_factory.mktemp("page")
    path = tiny.write(folder / "tiny.gguf", context_length=CONTEXT)
    with serving(path, folder / "cache") as running:
        yield running


def choose(page, **fields):
    """Choose settings by their labels."""
    page.get_by_role("button", name="Settings").click()
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " ")).fill(value)
    page.get_by_role("button", name="Save").click()


def test_the_page_shows_what_the_api_answers(server, showing):
    """With a seed, the page's answer is the API's, its figures the server's."""
    asked = {"messages": [{"role": "user", "content": "Hi"}], "seed": 5, "max_tokens": 12}
    message = server.post("/v1/chat/completions", **asked).json()["choices"][0]["message"]
    with showing(server.url) as shown:
        page = shown.page
        shown.sees(page.locator("#model"), "tiny")
        choose(page, Seed="5", Most_tokens="12")
        shown.ask("Hi")
        answer = shown.answered()
        kept = page.evaluate("Object.values(localStorage).map((text) => JSON.parse(text))")
        said = next(each["messages"][1] for each in kept if "messages" in each)
        assert said["content"] == message["content"]
        shown.sees(answer.locator(".figures"), "tokens/s")


def test_memory(server, showing):
    """Every byte that the model's process holds is in the picture, by lifetime."""
    devices = server.status()["devices"]
    (held,) = (device["held"] for device in devices if device["held"]["weights"] > 0)
    with showing(server.url) as shown:
        shown.count(shown.page.locator("[data-device]"), len(devices))
        shown.count(shown.page.locator("[data-device='reference'] dd"), len(held) + 2)
        for kind, count in held.items():
            figure = shown.page.locator(f"[data-device='reference'] [data-kind='{kind}']")
            assert figure.get_attribute("data-bytes") == str(count)


def test_stopping(server, showing):
    """Stop ends the answer in the worker, not only on the page."""
    with showing(server.url) as shown:
        choose(shown.page, Temperature="0")
        shown.page.route("**/v1/chat/completions", endless)
        shown.ask("th")
        server.until(lambda: server.status()["requests"]["running"] == 1)
        shown.page.keyboard.press("Escape")
        server.until(lambda: server.status()["requests"]["running"] == 0)
        shown.sees(shown.answered(), "stopped")


def endless(route):
    """Pass a request on, as one for an answer that goes on until the context is full."""
    body = route.request.post_data_json | {"ignore_eos": True, "max_tokens": CONTEXT - 1024}
    route.continue_(post_data=body)


def test_a_lost_worker(server, showing):
    """When the worker dies the page says so, and answers again when there is another."""
    with showing(server.url) as shown:
        shown.sees(shown.page.locator("#state"), "ready")
        server.worker().kill()
        server.until(lambda: server.status()["restarts"] == 1)
        server.until(lambda: server.status()["state"] == "ready")
        shown.sees(shown.page.locator("#state"), "ready, 1 restart")
        choose(shown.page, Most_tokens="4")
        shown.ask("Hi")
        shown.sees(shown.answered().locator(".figures"), "in the prompt")
