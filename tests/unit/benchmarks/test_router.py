"""What benchmarks/router.py loads a router with, and what it makes of what it saw."""

import sys
from pathlib import Path

import pytest

import corral
import tiny
from corral.engine.model import Model
from corral.gguf import fingerprint, open_model
from corral.router.config import read_config

FOLDER = Path(__file__).parents[3] / "benchmarks"
MODULES = ("router", "router_clients", "router_models", "router_watch")


@pytest.fixture
def benchmark(monkeypatch):
    """Return the benchmark's modules by name, for this test only."""
    monkeypatch.syspath_prepend(FOLDER)
    yield {name: pytest.importorskip(name) for name in MODULES}
    for name in (*MODULES, "machine"):
        sys.modules.pop(name, None)


@pytest.fixture
def models(benchmark, tmp_path):
    """Return three models made of a tiny one."""
    source = tiny.write(tmp_path / "source.gguf", context_length=2048)
    return benchmark["router_models"].make_models(source, tmp_path)


def test_the_three_are_different_models(models):
    """An answer of one would be a wrong answer of another."""
    answers = []
    for path in models.values():
        with open_model(path) as file:
            answers.append((fingerprint(file), tuple(said(path))))
    assert len({name for name, _ in answers}) == 3
    assert len({tokens for _, tokens in answers}) == 3


def said(path, count=40):
    """Return the likeliest tokens after some others."""
    tokens = [5] * 10
    with Model.load(path, device="reference", context=128) as model:
        while len(tokens) < 10 + count:
            tokens.append(int(model.logits(tokens)[-1].argmax()))
    return tokens


def test_the_configuration_has_room_for_two(benchmark, models, tmp_path):
    """It is one that the router takes, and its budget holds two models and not three."""
    path = benchmark["router_models"].write_config(models, tmp_path, threads=1)
    config = read_config(path)
    assert [preset.name for preset in config.presets] == [*models]
    made = benchmark["router_models"]
    plan = corral.plan(models["amber"], context=made.CONTEXT, parallel=made.PARALLEL, device="cpu")
    each = plan.total_bytes + config.server.process
    assert 2 * each < config.budgets["cpu"] < 3 * each


def test_only_what_was_saved_in_order_counts_as_restored(benchmark):
    """A process that was killed has saved nothing since, so nothing is expected of the next."""
    watch = benchmark["router_watch"].Watch(1)
    assert not watch.was_saved("a", 1, 1)
    assert watch.was_saved("a", 1, 2)
    watch.kill_note("a", 2)
    assert watch.was_saved("a", 1, 2)
    assert not watch.was_saved("a", 2, 3)
    assert not watch.was_saved("a", 1, 4)
    assert watch.was_saved("a", 3, 4)
    assert watch.was_saved("b", 2, 3)


def test_wrong_tokens_are_found(benchmark, models):
    """Every token of an answer is held against its model, and the prompt's are not."""
    (name, path), *_ = models.items()
    talk = benchmark["router_clients"].Conversation(name, said(path, 8), [(10, 18)])
    assert benchmark["router"].wrong_tokens([talk], models) == []
    talk.tokens[13] += 1
    wrong = benchmark["router"].wrong_tokens([talk], models)
    assert wrong[0]["place"] == 13
    assert wrong[0]["behind"] > 0
    talk.tokens[3] += 1
    talk.answers = [(17, 17)]
    assert benchmark["router"].wrong_tokens([talk], models) == []


def test_what_was_seen_is_summed_up(benchmark):
    """Tokens of restored turns that were cached, evictions without a reason, times."""
    clients, watch = benchmark["router_clients"], benchmark["router_watch"].Watch(1)
    seen = clients.Seen()
    for cached, was_restored in ((90, True), (100, True), (0, False)):
        seen.turns.append(clients.Turn("amber", 120, 100, cached, 1.0, was_restored))
    watch.events += [
        {"state": "draining", "reason": "evicted for cedar", "model": "amber"},
        {"state": "draining", "reason": "", "model": "birch"},
        {"state": "ready", "reason": "", "model": "birch"},
    ]
    report = benchmark["router"].report(seen, watch, [])
    assert (report["restored_cached"], report["restored_worst"]) == (0.95, 0.9)
    assert report["restored_turns"] == 2
    assert [event["model"] for event in report["unexplained"]] == ["birch"]
    assert report["turns"] == {"amber": 3, "birch": 0, "cedar": 0}
