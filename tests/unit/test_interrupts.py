"""Ctrl-C waits within, comes at the end, and is lost never."""

import signal
import threading

import pytest

from corral.interrupts import Deferral, deferred


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_until_the_end():
    """What is within is done whole."""
    done = []
    with pytest.raises(KeyboardInterrupt), deferred:
        interrupt()
        done.append(1)
    assert done == [1]


def test_the_outermost_ends_the_waiting():
    """Deferrals nest."""
    done = []
    with pytest.raises(KeyboardInterrupt), deferred:
        with deferred:
            interrupt()
        done.append(1)
    assert done == [1]


def test_handlers_are_as_they_were():
    """Whether there was a signal, an error, or nothing."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with deferred:
        pass
    with pytest.raises(ValueError, match="mine"), deferred:
        raise ValueError("mine")
    with pytest.raises(KeyboardInterrupt), deferred:
        interrupt()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_every_signal_is_passed_on():
    """Handlers of a program of its own are called, as often as there were signals."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with deferred:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert seen == []
        assert seen == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_ignored_stays_ignored():
    """Signals without a handler of Python are left alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred:
            interrupt()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_pass_freely():
    """Only the main thread is ever interrupted."""
    deferral, seen = Deferral(), []

    def use():
        with deferral:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
