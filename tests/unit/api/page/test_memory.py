"""The picture of memory and load: what it shows is what the server says, to the byte."""

import httpx
import pytest

from corral.api.readings import DeviceState
from corral.api.settings import ApiSettings
from corral.contract.worker import WorkerState, WorkerStatus
from served import until

GIB = 1 << 30
DEVICES = (
    DeviceState(name="cpu", title="Two cores", total_bytes=10_000, free_bytes=7_000),
    DeviceState(
        name="cuda:0",
        title="A card",
        total_bytes=80 * GIB,
        free_bytes=50 * GIB,
        foreign_bytes=30 * GIB,
    ),
    DeviceState(name="cuda:1", title="Unread", total_bytes=None, free_bytes=None),
)


def figures(page, device):
    """Return the bytes that the page shows of a device, by kind."""
    found = page.locator(f"[data-device='{device}'] dd").evaluate_all(
        "nodes => nodes.map((node) => [node.dataset.kind, JSON.parse(node.dataset.bytes)])"
    )
    return dict(found)


def expected(device):
    """Return what the page is to show of a device of the status."""
    others = {"foreign": device["foreign_bytes"], "free": device["free_bytes"]}
    return device["held"] | others


def test_every_figure_is_the_servers(served, showing):
    """Of every device each kind of bytes is shown as the API tells it, and the words fit."""
    url = served(devices=lambda: DEVICES).url
    with showing(url) as shown:
        shown.count(shown.page.locator("[data-device]"), 3)
        told = httpx.get(f"{url}/corral/status").json()["devices"]
        assert [device["name"] for device in told] == ["cpu", "cuda:0", "cuda:1"]
        for device in told:
            assert figures(shown.page, device["name"]) == expected(device)
        cpu = shown.page.locator("[data-device='cpu']")
        assert cpu.locator("[data-kind='weights']").text_content() == "1.95 KiB"
        assert cpu.locator(".device-used").text_content() == "2.93 KiB of 9.77 KiB"
        card = shown.page.locator("[data-device='cuda:0']")
        assert card.locator("[data-kind='foreign']").text_content() == "30 GiB"
        unread = shown.page.locator("[data-device='cuda:1']")
        assert unread.locator("[data-kind='free']").text_content() == "unknown"
        assert unread.locator(".device-used").text_content() == "size unknown"


def test_bars_are_to_scale(served, showing):
    """The parts of a bar are as wide as what they stand for, and are told in words, too."""
    with showing(served(devices=lambda: DEVICES).url) as shown:
        whole = shown.page.locator("[data-device='cpu'] .bar").first
        shown.page.wait_for_timeout(600)  # the parts grow to their width
        widths = whole.locator("span:visible").evaluate_all(
            "parts => parts.map((part) => [part.className, part.getBoundingClientRect().width])"
        )
        sizes = {"is-weights": 2000, "is-state": 500, "is-foreign": 500, "is-free": 7000}
        assert [name for name, _ in widths] == [*sizes]
        room = sum(width for _, width in widths)
        for name, width in widths:
            assert width / room == pytest.approx(sizes[name] / 10_000, abs=0.01)
        assert whole.get_attribute("aria-label") == (
            "Two cores: weights 1.95 KiB, state 500 B, foreign 500 B, free 6.84 KiB"
        )


def test_load(shown, service):
    """Requests, blocks and whoever is answered follow the server."""
    page = shown.page
    service.pace_s = 0.01
    shown.sees(page.locator("#running"), "0")
    shown.ask("many 100000")
    shown.sees(page.locator("#running"), "1")
    shown.sees(page.locator("#kv-blocks"), "1 of 8")
    shown.sees(page.locator("#slots"), "2 tokens after 5")
    page.keyboard.press("Escape")
    until(lambda: service.running == 0)
    shown.sees(page.locator("#running"), "0")
    shown.sees(page.locator("#finished"), "1")
    shown.count(page.locator("#slots li"), 0)


def test_states(served, showing):
    """Loading, starting again and failing are told, with how far it is and why."""
    status = WorkerStatus(state=WorkerState.LOADING, stage="read", done=1, total=4)
    with showing(served(worker=lambda: status).url) as shown:
        state, notice = shown.page.locator("#state"), shown.page.locator("#notice")
        shown.sees(state, "loading: read 25 %")
        shown.sees(notice, "The model is loading 25 %.")
        shown.ask("echo a")
        shown.sees(shown.answered().get_by_role("alert"), "Loading model")
        status = WorkerStatus(state=WorkerState.RESTARTING, restarts=1)
        shown.sees(notice, "another is being started")
        status = WorkerStatus(state=WorkerState.READY, restarts=1)
        shown.sees(state, "ready, 1 restart")
        shown.hides(notice)
        status = WorkerStatus(state=WorkerState.FAILED, error_code="out_of_memory")
        shown.sees(notice, "out_of_memory")


def test_a_server_that_ends(served, showing):
    """The page says that nobody answers, and finds the server when it is there again."""
    server = served()
    with showing(server.url) as shown:
        shown.sees(shown.page.locator("#state"), "ready")
        shown.page.context.set_offline(True)
        server.stop()
        server.thread.join(20)
        shown.sees(shown.page.locator("#notice"), "No news from the server")


def test_a_hidden_page_holds_no_connection(shown):
    """Nobody looks: the stream of news ends, and begins again with the next look."""
    hide = """(isHidden) => {
      Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    ended = []
    shown.page.on("requestfailed", lambda request: ended.append(request.url))
    shown.sees(shown.page.locator("#state"), "ready")
    shown.page.evaluate(hide, True)
    shown.page.wait_for_function("true")
    until(lambda: shown.page.wait_for_timeout(5) or ended == [f"{shown.url}/corral/events"])
    with shown.page.expect_request("**/corral/events"):
        shown.page.evaluate(hide, False)
    shown.sees(shown.page.locator("#state"), "ready")


def test_the_name_is_text(served, showing):
    """A model's name is no markup."""
    with showing(served(ApiSettings(model="<b>x</b>")).url) as shown:
        shown.sees(shown.page.locator("#model"), "<b>x</b>")
