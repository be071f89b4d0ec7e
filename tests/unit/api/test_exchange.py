"""Requests whose client leaves while they are handed over: the service ends them all the same."""

import asyncio
from types import SimpleNamespace

import pytest

from corral.api.exchange import Exchange
from corral.api.mailroom import Inbox, Mailroom
from corral.api.presence import ClientGone
from corral.errors import QueueFull
from serving import LIMIT_S, request


class SlowModel:
    """Knows a request only when it is let; cancelling one that it does not know does nothing."""

    def __init__(self, refusal=None):
        self.may_know = asyncio.Event()
        self.asked = asyncio.Event()
        self.running = set()
        self.cancelled = []
        self._refusal = refusal

    async def known_vocabulary(self):
        """Leave tokens unchecked."""
        return

    async def submit(self, given, deliver):
        """Take a request, late."""
        self.asked.set()
        await self.may_know.wait()
        if self._refusal is not None:
            raise self._refusal
        self.running.add(given.request_id)

    def cancel(self, request_id):
        """End a request that is known."""
        self.cancelled.append(request_id)
        self.running.discard(request_id)


class Serving:
    """Has what an exchange needs of the rest of the server."""

    def __init__(self):
        self.settings = SimpleNamespace(limits=SimpleNamespace(request_s=60.0))
        self.mailroom = Mailroom()

    def enter(self, exchange):
        """Give an exchange its inbox."""
        return Inbox(self.mailroom, capacity=10, on_overfull=exchange.end_slowly_read)

    def leave(self, exchange):
        """Let it go."""


async def opening(model, leaves):
    """Begin to open an exchange and wait until its request is being handed over."""

    async def receive():
        await leaves.wait()
        return {"type": "http.disconnect"}

    task = asyncio.ensure_future(Exchange.open(Serving(), model, [request()], receive))
    await asyncio.wait_for(model.asked.wait(), LIMIT_S)
    return task


def test_a_client_that_leaves_before_the_service_knows_its_request():
    """The request is ended when the service knows it, and whoever takes events hears why."""

    async def run():
        model, leaves = SlowModel(), asyncio.Event()
        task = await opening(model, leaves)
        leaves.set()
        while not model.cancelled:
            await asyncio.sleep(0)
        model.may_know.set()
        exchange = await task
        with pytest.raises(ClientGone):
            await exchange.take(1.0)
        exchange.close()
        assert model.running == set()

    asyncio.run(run())


def test_a_caller_that_is_cancelled_before_the_service_knows_its_request():
    """What was begun in a thread goes on; what comes of it is taken back."""

    async def run():
        model = SlowModel()
        task = await opening(model, asyncio.Event())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        model.may_know.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert model.cancelled[-1] == "a"
        assert model.running == set()

    asyncio.run(run())


def test_a_refused_request_is_told():
    """What the service says is raised where the exchange is opened."""

    async def run():
        model = SlowModel(QueueFull("full"))
        task = await opening(model, asyncio.Event())
        model.may_know.set()
        with pytest.raises(QueueFull):
            await task
        assert model.running == set()

    asyncio.run(run())
