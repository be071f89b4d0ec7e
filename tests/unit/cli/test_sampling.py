"""How tokens are chosen: options before advice, advice before defaults."""

from corral.contract.sampling import SamplingParams
from corral.hub.demo import DEMO
from unit.cli.fake_model import FakeModel


def sampling():
    """Return what the fake model was asked with."""
    return FakeModel.last.calls[0][2]["sampling"]


def test_without_advice_the_defaults_hold(corral):
    """A file that advises nothing is sampled with corral's defaults."""
    corral("run", "hi", "-m", "other")
    assert sampling() == SamplingParams()


def test_the_file_advises(corral):
    """`general.sampling.*` takes the place of the defaults, as the numbers that were meant."""
    corral("run", "hi", "-m", "advised")
    assert sampling() == SamplingParams(temperature=0.6, top_k=20, top_p=0.95)


def test_options_go_before_advice(corral):
    """An option changes its own field only."""
    corral("run", "hi", "-m", "advised", "--temperature", 0)
    assert sampling() == SamplingParams(temperature=0, top_k=20, top_p=0.95)


def test_advice_that_cannot_be_is_told_and_left_out(corral):
    """A value of the file that is out of range or no number stops nobody."""
    outcome = corral("run", "hi", "-m", "advised")
    assert outcome.code == 0
    assert "general.sampling.min_p of advised.gguf is '7.0', which cannot be" in outcome.err
    assert "general.sampling.penalty_repeat of advised.gguf is 'much'" in outcome.err


def test_the_demo_is_sampled_as_its_makers_advise(corral):
    """The demo model, known by its file, has advice of its own."""
    corral("run", "hi", "-m", DEMO.file_name.removesuffix(".gguf"))
    assert (sampling().temperature, sampling().top_p, sampling().repeat_penalty) == (0.2, 0.9, 1.15)
    SamplingParams(**DEMO.sampling).validate()
