"""Events from threads reach the task that waits, all of them, in order, in few wake-ups."""

import asyncio
import threading

import pytest

from corral.api.mailroom import Inbox, Mailroom
from corral.contract.events import TokenEvent


def event(number):
    return TokenEvent(request_id="a", token=number)


def fail():
    raise AssertionError("nothing was to overflow")


def test_events_of_threads_come_whole_and_in_order():
    """Two threads deliver to two inboxes; each task gets its own, as they were sent."""
    count = 2000

    async def take_all(inbox):
        got = []
        while len(got) < count:
            got += await inbox.take(10.0)
        return [item.token for item in got]

    async def run():
        room = Mailroom()
        inboxes = [Inbox(room, capacity=count, on_overfull=fail) for _ in range(2)]

        def deliver(inbox):
            for number in range(count):
                inbox.deliver(event(number))

        threads = [threading.Thread(target=deliver, args=(inbox,)) for inbox in inboxes]
        for thread in threads:
            thread.start()
        got = await asyncio.gather(*(take_all(inbox) for inbox in inboxes))
        for thread in threads:
            thread.join()
        return got

    assert asyncio.run(run()) == [list(range(count))] * 2


def test_what_comes_in_one_go_wakes_the_loop_once(monkeypatch):
    """Many events for many inboxes before the loop looks are one call of the loop."""

    async def run():
        room = Mailroom()
        loop = asyncio.get_running_loop()
        calls = []
        real = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *call: (calls.append(call), real(*call))
        )
        inboxes = [Inbox(room, capacity=9, on_overfull=fail) for _ in range(5)]
        for inbox in inboxes:
            inbox.deliver(event(1))
            inbox.deliver(event(2))
        taken = [len(await inbox.take(10.0)) for inbox in inboxes]
        return taken, len(calls)

    assert asyncio.run(run()) == ([2] * 5, 1)


def test_waiting_has_an_end():
    """Where nothing comes, nothing is returned."""

    async def run():
        return await Inbox(Mailroom(), capacity=1, on_overfull=fail).take(0.01)

    assert asyncio.run(run()) == []


def test_more_than_may_wait_is_told():
    """An inbox that nobody empties says so, once the loop looks."""
    told = []

    async def run():
        inbox = Inbox(Mailroom(), capacity=2, on_overfull=lambda: told.append(1))
        for number in range(3):
            inbox.deliver(event(number))
        await asyncio.sleep(0)

    asyncio.run(run())
    assert told == [1]


def test_an_end_counts_before_events_and_the_first_end_before_others():
    """Whoever takes events hears of the end at once, and of its first reason."""

    async def run():
        inbox = Inbox(Mailroom(), capacity=9, on_overfull=fail)
        inbox.deliver(event(1))
        inbox.end(KeyError("first"))
        inbox.end(ValueError("second"))
        with pytest.raises(KeyError):
            await inbox.take(10.0)

    asyncio.run(run())


def test_events_after_the_loop_do_no_harm():
    """A service that is slower to end than the server may still deliver."""

    async def make():
        return Inbox(Mailroom(), capacity=9, on_overfull=fail)

    inbox = asyncio.run(make())
    inbox.deliver(event(1))
    inbox.deliver(event(2))
    assert [item.token for item in asyncio.run(inbox.take(0.0))] == [1, 2]
