"""An application over a scripted service: asked in process, or through a socket."""

import asyncio
import threading

import httpx
import pytest

from corral.api.app import make_app
from corral.api.server import RunOptions, Server, bind
from corral.api.settings import ApiSettings
from served import ScriptedService

BASE = "http://localhost"


class Asked:
    """Asks an application in process, each time as if it had just started."""

    def __init__(self, service, settings, **more):
        self.service = service
        self.settings = settings
        self.more = more

    def __call__(self, method, path, **request):
        """Return the response to a request; a stream comes whole."""
        return asyncio.run(self._ask([(method, path, request)]))[0]

    def post(self, path, **fields):
        """Return the response to a JSON body of these fields."""
        return self("POST", path, json=fields)

    def get(self, path, **request):
        """Return the response to a GET."""
        return self("GET", path, **request)

    def all(self, *requests):
        """Return the responses of requests to one and the same application, one after another."""
        return asyncio.run(self._ask(requests))

    async def _ask(self, requests):
        app = make_app(self.service, self.settings, **self.more)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url=BASE) as client,
        ):
            return [await client.request(m, path, **more) for m, path, more in requests]


@pytest.fixture
def service():
    """Return a scripted service."""
    return ScriptedService()


@pytest.fixture
def ask(service):
    """Return what asks an application with default settings."""
    return Asked(service, ApiSettings(model="scripted"))


@pytest.fixture
def served(service):
    """Return what serves an application on a free port of the loopback, until the test ends."""
    running = []

    def start(settings=None, *, drain_s=5.0, **more):
        settings = settings or ApiSettings(model="scripted")
        app = make_app(service, settings, **more)
        bound = bind("127.0.0.1", 0)
        server = Server(app, RunOptions(drain_s=drain_s, limits=settings.limits))
        started = threading.Event()
        thread = threading.Thread(
            target=server.run_on, args=(bound,), kwargs={"on_started": started.set}
        )
        thread.start()
        running.append((server, thread))
        assert started.wait(10)
        server.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.thread = thread
        return server

    yield start
    for server, thread in running:
        server.stop()
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
