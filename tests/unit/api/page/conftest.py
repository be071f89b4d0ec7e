"""The page in a headless Chromium, in front of a scripted service. No Chromium: skipped."""

import shutil
import threading
from contextlib import contextmanager

import pytest

from corral.api.app import make_app
from corral.api.server import RunOptions, Server, bind
from corral.api.settings import ApiSettings
from corral.contract.events import FinishReason
from served import ScriptedService

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
EXPECTED_MS = 60_000
"""How long anything may take to show before it counts as not shown."""


class Speaker(ScriptedService):
    """Says texts that no prompt could hold: `say NAME`, a few characters a token."""

    def __init__(self, **options):
        super().__init__(**options)
        self.texts = {}

    def _answer(self, run, words):
        if words[:1] != ["say"]:
            super()._answer(run, words)
            return
        text = self.texts[words[1]]
        pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
        for piece in pieces:
            self._token(run, piece)
        self._finish(run, FinishReason.STOP, len(pieces))


class Shown:
    """A page in a browser that remembers what it asked of whom, and what went wrong in it."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.asked = []
        self.wrong = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._note)
        page.set_default_timeout(EXPECTED_MS)

    def _note(self, message):
        # Chromium writes a line for each answer that is an error; the page shows those itself.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def ask(self, text):
        """Write something and send it."""
        self.page.get_by_label("What you ask").fill(text)
        self.page.keyboard.press("Enter")

    @property
    def answer(self):
        """The last answer."""
        return self.page.get_by_role("article", name="Answer").last

    def answered(self):
        """Wait for the end of the answer; return the element that shows it."""
        self.page.get_by_role("button", name="Answer again").wait_for()
        return self.answer

    def sees(self, locator, text):
        """Wait until an element holds a text."""
        sync_api.expect(locator).to_contain_text(text, timeout=EXPECTED_MS)

    def hides(self, locator):
        """Wait until an element is not to be seen."""
        sync_api.expect(locator).to_be_hidden(timeout=EXPECTED_MS)

    def count(self, locator, number):
        """Wait until there are so many."""
        sync_api.expect(locator).to_have_count(number, timeout=EXPECTED_MS)


@pytest.fixture(scope="module")
def browser():
    """Return a browser."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def showing(browser):
    """Return what shows a server's page, each time as if to somebody new."""

    @contextmanager
    def show(url, **options):
        context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
        try:
            shown = Shown(context.new_page(), url)
            shown.page.goto(url)
            yield shown
            assert shown.wrong == []
            strangers = [address for address in shown.asked if not address.startswith(url)]
            assert strangers == [], "the page asks nobody but its server"
        finally:
            context.close()

    return show


@pytest.fixture
def service():
    """Return a scripted service that also says texts."""
    return Speaker()


@pytest.fixture
def shown(served, showing):
    """Return the page of a server with default settings."""
    with showing(served().url) as page:
        yield page


@contextmanager
def answering(app):
    """Serve an application on a free port; yield its address."""
    bound = bind("127.0.0.1", 0)
    server = Server(app, RunOptions(drain_s=1.0))
    started = threading.Event()
    arguments = {"on_started": started.set}
    thread = threading.Thread(target=server.run_on, args=(bound,), kwargs=arguments)
    thread.start()
    try:
        assert started.wait(10)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(20)


@pytest.fixture(scope="module")
def opened(browser):
    """Return one page for tests that only call its modules."""
    with answering(make_app(ScriptedService(), ApiSettings(model="scripted"))) as url:
        page = browser.new_page()
        shown = Shown(page, url)
        page.goto(url)
        yield shown
        assert shown.wrong == []
        page.close()
