"""`corral perplexity`: windows, scores and their sums, against values worked out by hand."""

import json
import math

import pytest

from corral.cli.perplexity import Estimate, chunked, estimates
from corral.errors import UsageError
from unit.cli.fake_model import BOS, VOCABULARY, FakeModel

HIT = math.log(math.e + VOCABULARY - 1) - 1
"""−ln p of the token the fake model favours."""
MISS = math.log(math.e + VOCABULARY - 1)


@pytest.fixture
def model(tmp_path):
    """Return the fake model."""
    return FakeModel(tmp_path / "x.gguf", {"context": None})


def test_cuts_whole_chunks_and_begins_each_with_bos(model):
    """Chunks do not overlap, the rest is left out, BOS takes the first place."""
    chunks = chunked(model, "abcdefghij", 4)  # BOS and ten letters: eleven tokens
    assert chunks == [[BOS, *b"abc"], [BOS, *b"efg"]]


def test_without_bos_nothing_is_replaced(model, monkeypatch):
    """A model that wants no BOS gets the text as it is."""
    monkeypatch.setattr(model, "tokenize", lambda text, *, add_special=True: list(text.encode()))
    assert chunked(model, "abcdefgh", 4) == [list(b"abcd"), list(b"efgh")]


def test_scores_the_second_half_only(model):
    """Of a chunk of 8 the tokens 5, 6 and 7 are scored: those with half a chunk before them."""
    (estimate,) = estimates(model, [[0, 50, 9, 9, 100, 101, 102, 9]])
    assert estimate.tokens == 3
    assert estimate.nll == pytest.approx(2 * HIT + MISS, rel=1e-6)


def test_sums_up_over_chunks(model):
    """Each estimate holds all chunks so far, also when rows are scored in several parts."""
    chunk = [token % 200 for token in range(150)]
    first, second = estimates(model, [chunk, chunk])
    assert (first.tokens, second.tokens) == (74, 148)
    assert second.perplexity == pytest.approx(math.exp(HIT), rel=1e-6)
    assert second.error == pytest.approx(0.0, abs=0.2)


def test_the_error_is_that_of_llama_perplexity():
    """The interval is the standard error of the mean, scaled to the perplexity."""
    estimate = Estimate().plus([1.0, 2.0, 3.0, 2.0])
    assert estimate.perplexity == pytest.approx(math.exp(2.0))
    assert estimate.error == pytest.approx(math.sqrt(0.5 / 3) * math.exp(2.0))
    assert Estimate().plus([1.0]).error == 0.0


def test_refuses_a_text_that_is_too_short(model):
    """A text that does not fill a chunk says how long it is and what would do."""
    with pytest.raises(UsageError, match="has 4 tokens and one chunk needs 8"):
        chunked(model, "abc", 8)


def test_prints_the_estimate(corral, tmp_path):
    """The result goes to stdout, with its interval and what was scored."""
    path = tmp_path / "text"
    path.write_text("abcdefghijklmnop" * 4 + "\n")
    outcome = corral("perplexity", "m", "-f", path, "--context", 16, "--chunks", 2)
    assert outcome.code == 0
    assert outcome.out.startswith("PPL = ")
    assert " ± " in outcome.out
    assert outcome.out.endswith("(14 tokens of 2 chunks)\n")
    assert FakeModel.last.options["context"] == 16


def test_prints_json(corral, tmp_path):
    """JSON names perplexity, error, tokens and chunks."""
    path = tmp_path / "text"
    path.write_text("abcdefghijklmnxy" * 4)
    outcome = corral("perplexity", "m", "-f", path, "--context", 16, "--json")
    value = json.loads(outcome.out)
    assert (value["chunks"], value["tokens"], value["context"]) == (4, 28, 16)
    assert value["perplexity"] > 1
    assert value["standard_error"] > 0


def test_refuses_what_is_no_text(corral, tmp_path):
    """A file that is not UTF-8 says where."""
    path = tmp_path / "text"
    path.write_bytes(b"abc\xff")
    outcome = corral("perplexity", "m", "-f", path)
    assert outcome.code == 2
    assert "not UTF-8 at byte 3" in outcome.err
