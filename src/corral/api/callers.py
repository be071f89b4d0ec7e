"""Threads that call services, and what becomes of a call whose caller is cancelled.

A call into a service may wait for a lock or a socket of its own, so it happens in a thread; what
comes of it is waited for without one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from corral.errors import CorralError
from corral.log import logger

_log = logger(__name__)
_T = TypeVar("_T")
_SUBMIT_THREADS = 4
_ASK_THREADS = 4
_MOST_QUESTIONS = 16
"""Questions under way at once; those for vectors are computed together."""


class Callers:
    """Threads that call services, for all models of one event loop."""

    def __init__(self) -> None:
        """Start none yet."""
        self.submit = ThreadPoolExecutor(_SUBMIT_THREADS, "corral-api-submit")
        self.ask = ThreadPoolExecutor(_ASK_THREADS, "corral-api-ask")
        self.look = ThreadPoolExecutor(1, "corral-api-look")
        """What tells how a service is does not wait for long questions to it."""
        self.questions = asyncio.Semaphore(_MOST_QUESTIONS)

    def close(self) -> None:
        """Let the threads go."""
        self.ask.shutdown(wait=False, cancel_futures=True)
        self.look.shutdown(wait=False, cancel_futures=True)
        self.submit.shutdown(wait=False)


def _nothing(_: object) -> None:
    """Take nothing back."""


async def begun(
    threads: ThreadPoolExecutor,
    begin: Callable[[], "Future[_T]"],
    *,
    take_back: Callable[[_T], None] = _nothing,
) -> _T:
    """Begin something in a thread, and wait for what comes of it.

    Whoever is cancelled while it waits gives up what was begun, at whatever moment; what had come
    of it by then is taken back.
    """
    starting = asyncio.get_running_loop().run_in_executor(threads, begin)

    def give_up(started: "asyncio.Future[Future[_T]]") -> None:
        if started.cancelled() or started.exception() is not None:
            return
        coming = started.result()
        if not coming.cancel():  # it is there, or nobody can stop it
            coming.add_done_callback(return_it)

    def return_it(came: "Future[_T]") -> None:
        if not came.cancelled() and came.exception() is None:
            take_back(came.result())

    try:
        return await asyncio.wrap_future(await asyncio.shield(starting))
    except asyncio.CancelledError:
        starting.add_done_callback(give_up)
        raise


def cancel_in_thread(callers: Callers, cancel: Callable[[str], None], request_id: str) -> None:
    """Have a request ended soon, without waiting for it."""

    def end() -> None:
        try:
            cancel(request_id)
        except CorralError as error:
            _log.debug("cannot cancel %s: %s", request_id, error)

    try:
        callers.submit.submit(end)
    except RuntimeError:  # closed: the service ends everything by itself
        _log.debug("request %s is left to the service, which closes", request_id)
