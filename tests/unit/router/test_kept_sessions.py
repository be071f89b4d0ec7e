"""Conversations survive that their model makes room for another one."""

import functools
from dataclasses import replace

import psutil
import pytest

import tiny
from corral.contract.events import FinishReason
from corral.router.children import Keeping, Order, WorkerChild, spec_of
from corral.router.entry import HOST
from corral.router.placing import Machine, Need, Room, Site
from corral.router.router import Router
from corral.router.sight import Sight
from machines import FREE_HANDS, machine
from played_router import ListedCatalog
from scripted_fleet import entry
from serving import Taker, request

TOTAL = 100 << 20


@pytest.fixture
def router(tmp_path):
    """Return a router with two models, each too large to be there beside the other."""
    listed = []
    for name in "ab":
        path = tiny.write(tmp_path / f"{name}.gguf", **{"rope.freq_base": 1e4 + ord(name)})
        options = {"devices": ("reference",), "parallel": 2, "context": 128, "drain_s": 5.0}
        listed.append(replace(entry(name, 60 << 20, **options), paths=(str(path),)))
    keeping = Keeping(str(tmp_path / "sessions"))
    one = Router(
        ListedCatalog(*listed),
        functools.partial(WorkerChild, keeping=keeping),
        lambda: Sight(Machine((Site("reference", "cpu"),), (Room(HOST, "cpu", TOTAL, TOTAL),))),
        policy=FREE_HANDS,
    )
    yield one
    one.close()
    assert not psutil.Process().children(recursive=True)


def answer(router, model, name, tokens, max_tokens):
    """Have a model go on from some tokens; return what took its events."""
    taker = Taker()
    router.submit(model, request(name, tokens, max_tokens, ignore_eos=True), taker)
    assert taker.finish().reason is FinishReason.LENGTH
    return taker


def test_two_conversations_go_on_however_often_their_models_change_places(router):
    """Each turn finds all that was computed before, and nothing of the other model's."""
    histories = {"a": [5] * 40, "b": [5] * 40}
    for turn in range(3):
        for model in "ab":
            before = len(histories[model]) - 1
            histories[model] += [6, 7]
            taker = answer(router, model, f"{model}{turn}", histories[model], 6)
            histories[model] += taker.tokens
            assert taker.events[-1].usage.cached_tokens == (before if turn else 0)
            fresh = Taker()
            again = request("fresh", histories[model][:-6], 6, ignore_eos=True, reuse=False)
            router.submit(model, again, fresh)
            fresh.finish()
            assert fresh.tokens == taker.tokens
    totals = router.model_status("a").sessions
    # Three processes of it went; the second and the third began with what was there.
    assert (totals.saved_sessions, totals.restored_sessions, totals.returned_sessions) == (3, 2, 2)
    assert totals.errors == 0
    assert totals.returned_tokens == totals.restored_tokens > 40


def test_a_worker_is_told_where_to_keep_them():
    """And without a place keeps none."""
    order = Order(entry("a", 10), Need(("cpu",), {HOST: 5}), machine(10))
    kept = spec_of(order, Keeping("/somewhere", quota_bytes=7, seconds=3.0))
    assert (kept.sessions, kept.sessions_bytes, kept.sessions_s) == ("/somewhere", 7, 3.0)
    assert spec_of(order).sessions is None
