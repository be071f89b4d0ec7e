"""A check made in a forked child."""

import os
import signal
import time
import warnings


def in_child(check):
    """Return the exit status of a forked child that checks something; it gets ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads beside a fork: the point
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    for _ in range(1000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
