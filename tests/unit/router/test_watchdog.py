"""What counts as a hang, and what the watchdog does about it."""

import threading

import pytest

from corral.contract.questions import ServiceStatistics, StatisticsQuestion
from corral.errors import TimeLimitExceeded, WorkerLost
from corral.router.watchdog import Watchdog, hang
from serving import LIMIT_S


class Script:
    """A worker that answers, one look after another, with ages of its step or with errors."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.looked = threading.Event()

    def ask(self, question, *, timeout_s):
        """Answer the next look; the last answer is given for ever."""
        assert question == StatisticsQuestion()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not self.answers[1:]:
            self.looked.set()
        if isinstance(answer, Exception):
            raise answer
        return ServiceStatistics(step_age_s=answer)


class Ending:
    """Hears of a hang."""

    def __init__(self):
        self.errors = []
        self.happened = threading.Event()

    def __call__(self, error):
        self.errors.append(error)
        self.happened.set()


@pytest.mark.parametrize(
    ("step_age_s", "silent_s", "what"),
    [
        (0.0, 0.0, None),
        (10.0, 10.0, None),
        (10.5, 0.0, "no step of its engine ended for 10 s"),
        (0.0, 11.0, "it did not answer for 11 s"),
    ],
)
def test_what_hangs(step_age_s, silent_s, what):
    """A step or a silence longer than the limit, and nothing shorter."""
    assert hang(step_age_s, silent_s, 10.0) == what


@pytest.mark.parametrize(
    ("answers", "told"),
    [((0.0, 0.1, 99.0), "no step"), ((TimeLimitExceeded("x"),), "did not answer")],
)
def test_a_hang_is_told_once(answers, told):
    """By an error that says what hangs."""
    ending = Ending()
    watchdog = Watchdog(Script(*answers), 0.05, ending)
    assert ending.happened.wait(LIMIT_S)
    watchdog.end()
    (error,) = ending.errors
    assert isinstance(error, WorkerLost)
    assert told in str(error)


@pytest.mark.parametrize("answer", [0.0, WorkerLost("gone")])
def test_who_lives_or_is_gone_is_left_alone(answer):
    """Somebody else sees that a worker is gone."""
    script, ending = Script(answer), Ending()
    watchdog = Watchdog(script, LIMIT_S, ending)
    assert script.looked.wait(LIMIT_S)
    watchdog.end()
    assert not ending.errors
