"""Where a model goes and who goes for it, on machines of a few bytes."""

from dataclasses import replace

from corral.router.entry import HOST
from corral.router.placement import place
from corral.router.placing import Cause, Evict, Load, Machine, Policy, Refuse, Room, Wait
from machines import FREE_HANDS, PLENTY, holder, machine, uuid, wanted


def decide(model, where, *holders, now=1000.0, policy=FREE_HANDS):
    return place(model, where, holders, now=now, policy=policy)


def test_an_empty_card_takes_what_it_has_room_for():
    """To the byte, and no byte more."""
    assert decide(wanted(10), machine(10)) == Load(decide(wanted(10), machine(10)).need)
    need = decide(wanted(10), machine(10)).need
    assert need.sites == ("cuda:0",)
    assert need.bytes == {HOST: 0, uuid(0): 10}
    assert need.split is None


def test_the_freest_card_is_taken():
    """Models compute beside each other as long as there are cards."""
    assert decide(wanted(10), machine(11, 30, 20)).need.sites == ("cuda:1",)


def test_context_process_and_staging_are_needed_too():
    """What lies beside the model counts where it lies."""
    policy = replace(FREE_HANDS, process_bytes=100)
    decision = decide(wanted(10, host=7), machine(12, context=2), policy=policy)
    assert decision.need.bytes == {HOST: 107, uuid(0): 12}
    tight = machine(12, context=2, host=106)
    assert decide(wanted(10, host=7), tight, policy=policy).cause is Cause.TOO_LARGE


def test_margins_and_budgets_are_kept():
    """A margin stays free of whatever is there; a budget bounds what all models hold together."""
    assert isinstance(decide(wanted(10), machine(12, margin=2)), Load)
    model = wanted(11, devices=("cuda:0",))
    assert decide(model, machine(12, margin=2)).cause is Cause.TOO_LARGE
    limited = machine(20, total=30, budget_bytes=15)
    assert decide(wanted(8), limited, holder("old", 8)) == Evict(
        decide(wanted(8), limited).need,
        ("old",),
        {uuid(0): 8},
        "new needs 8 B of cuda:0: old can go",
    )


def test_why_a_model_goes_is_told_by_the_memory_that_lacks():
    """Main memory by that name; the device too, where another memory than its own lacks."""
    old = holder("old", {HOST: 8})
    full = Machine(machine(20).sites, (Room(HOST, "cpu", 10, 2), *machine(20).rooms[1:]))
    on_cpu = decide(wanted(8, devices=("cpu",)), full, old)
    assert on_cpu.reason == "new needs 8 B of main memory: old can go"
    on_card = decide(wanted(8, host=5, devices=("cuda:0",)), full, old)
    assert on_card.reason == "new needs 5 B of main memory on cuda:0: old can go"


def test_bytes_that_no_reading_shows_yet_are_not_given_twice():
    """A reservation counts from when it is made; once it is seen, it counts no more."""
    booked = holder("old", 10, unseen={uuid(0): 10}, is_loading=True)
    assert isinstance(decide(wanted(10), machine(20), booked), Load)
    assert decide(wanted(11), machine(20), booked).cause is Cause.BUSY
    seen = replace(booked, unseen={})
    assert isinstance(decide(wanted(10), machine(10, total=20), seen), Load)
    # The driver tells too much after an error elsewhere: the ledger knows better.
    assert decide(wanted(11), machine(20, total=20), seen).cause is Cause.BUSY


def test_what_was_observed_counts_on_those_devices():
    """A model that did not fit as planned needs what it was seen to take."""
    model = wanted(10, observed={("cuda:0",): {uuid(0): 15}})
    assert decide(model, machine(14, 12)).need.sites == ("cuda:1",)
    assert decide(model, machine(15)).need.bytes[uuid(0)] == 15


def test_a_model_that_is_leaving_makes_room_without_others():
    """Nobody is evicted for bytes that are being freed already."""
    going, idle = holder("going", 10, is_leaving=True), holder("idle", 10)
    decision = decide(wanted(10), machine(0, total=20), going, idle)
    assert decision.cause is Cause.LEAVING
    assert decision.blockers == ("going",)
    decision = decide(wanted(11), machine(0, total=20), going, idle)
    assert isinstance(decision, Evict)
    assert decision.victims == ("idle",)


def test_pinned_busy_loading_and_reserved_models_stay():
    """The one that may go does, whatever the others would free."""
    for mark in ("is_pinned", "is_busy", "is_loading", "is_reserved"):
        kept = holder("kept", 10, **{mark: True})
        decision = decide(wanted(10), machine(0, total=30), kept, holder("idle", 20, used_s=999))
        assert decision.victims == ("idle",), mark


def test_everything_pinned_is_said_and_not_waited_for():
    """The answer names what is needed, what could be had, and who holds the rest."""
    pins = [holder("a", 12, is_pinned=True), holder("b", 8, is_pinned=True)]
    decision = decide(wanted(10), machine(2, total=22), *pins)
    assert isinstance(decision, Refuse)
    assert decision.cause is Cause.PINNED
    assert decision.is_permanent
    (shortage,) = decision.shortages
    assert (shortage.needed_bytes, shortage.available_bytes) == (10, 2)
    assert shortage.held == {"a": 12, "b": 8}
    assert decision.message == (
        "new does not fit on cuda:0: it needs 10 B of cuda:0, 2 B can be had, held are: a 12 B, "
        "b 8 B: unpin one of them, or lower the context of this model"
    )


def test_what_never_fits_is_refused_at_once():
    """No model is evicted for one that does not fit an empty machine."""
    decision = decide(wanted(PLENTY + 1), machine(20), holder("idle", 5))
    assert decision.cause is Cause.TOO_LARGE
    assert decision.is_permanent


def test_what_others_hold_is_named():
    """Others may free memory: it is no permanent refusal."""
    decision = decide(wanted(15, devices=("cuda:0",)), machine(5, total=20), holder("old", 5))
    assert decision.cause is Cause.FOREIGN
    assert not decision.is_permanent
    assert decision.shortages[0].foreign_bytes == 10
    assert "others 10 B" in decision.message


def test_unknown_memory_admits_nothing():
    """Neither on a card whose memory nobody tells, nor anywhere if main memory is unknown."""
    where = machine(None, total=100)
    decision = decide(wanted(1), where)
    assert decision.cause is Cause.MEMORY_UNKNOWN
    assert not decision.is_permanent
    hidden = replace(where, rooms=(Room(HOST, "cpu", PLENTY, None),))
    assert decide(wanted(1, devices=("cpu",)), hidden).cause is Cause.MEMORY_UNKNOWN
    assert decide(wanted(1), machine(None, 5, total=100)).need.sites == ("cuda:1",)


def test_busy_models_are_waited_for():
    """Who waits is told for whom."""
    decision = decide(wanted(10), machine(0, total=10), holder("old", 10, is_busy=True))
    assert isinstance(decision, Wait)
    assert decision.cause is Cause.BUSY
    assert decision.blockers == ("old",)
    assert decision.retry_s is None


def test_a_model_that_came_just_now_stays_a_while_if_it_is_used():
    """A model that others want back at once does not chase the one it was chased by."""
    policy = Policy(min_residency_s=10, idle_s=1, process_bytes=0)
    fresh = holder("fresh", 10, ready_s=995.0, used_s=999.5)
    where = machine(0, total=10)
    decision = decide(wanted(10), where, fresh, policy=policy)
    assert decision.cause is Cause.RESIDENCY
    assert decision.retry_s == 1000.5
    assert isinstance(decide(wanted(10), where, fresh, now=1000.5, policy=policy), Evict)
    used = replace(fresh, used_s=1005.0)
    assert isinstance(decide(wanted(10), where, used, now=1005.0, policy=policy), Evict)


def test_a_split_is_preferred_to_an_eviction():
    """Two cards with room do what one has no room for."""
    decision = decide(wanted(16, layers=8), machine(9, 10, total=10), holder("idle", 1))
    assert isinstance(decision, Load)
    assert decision.need.sites == ("cuda:0", "cuda:1")
    assert decision.need.bytes == {HOST: 0, uuid(0): 8, uuid(1): 8}
    assert decision.need.split == (8.0, 8.0)
    assert not decision.need.is_exact


def test_a_split_follows_the_room_there_is():
    """And each part has what it holds for itself."""
    decision = decide(wanted(18, layers=8, fixed=2), machine(6, 16, 1, total=16))
    assert decision.need.sites == ("cuda:0", "cuda:1")
    assert decision.need.bytes == {HOST: 0, uuid(0): 6, uuid(1): 14}


def test_a_split_takes_no_more_cards_than_it_must():
    """The freest first."""
    decision = decide(wanted(16, layers=8), machine(4, 8, 8, 8))
    assert len(decision.need.sites) == 2
    assert decide(wanted(24, layers=12), machine(4, 8, 8, 8)).need.sites == (
        "cuda:1",
        "cuda:2",
        "cuda:3",
    )


def test_a_split_evicts_the_least():
    """A model too large for one card takes two, from those who lose the fewest models."""
    models = [holder("a", {0: 5}), holder("b", {0: 5}), holder("c", {1: 10}), holder("d", {2: 4})]
    decision = decide(wanted(16, layers=8), machine(0, 0, 6, total=10), *models)
    assert isinstance(decision, Evict)
    assert len(decision.victims) == 2
    assert "cuda:2" in decision.need.sites


def test_shares_are_the_users():
    """A split that a preset names is kept to, whatever is free."""
    model = wanted(16, layers=8, devices=("cuda:1", "cuda:0"), split=(3.0, 1.0))
    decision = decide(model, machine(20, 20))
    assert decision.need.sites == ("cuda:1", "cuda:0")
    assert decision.need.split == (12.0, 4.0)


def test_devices_are_as_named():
    """By name or by the beginning of a UUID, and never another one."""
    where = machine(5, 20)
    assert decide(wanted(10, devices=("cuda:0",)), where).cause is Cause.TOO_LARGE
    assert decide(wanted(10, devices=("GPU-1",)), where).need.sites == ("cuda:1",)
    assert decide(wanted(10, devices=("cpu",)), where).need.sites == ("cpu",)
    missing = decide(wanted(10, devices=("cuda:7",)), where)
    assert missing.cause is Cause.NO_DEVICE
    assert missing.message == (
        "new is for cuda:7, and no device here is called so: there are cpu, cuda:0, cuda:1"
    )


def test_two_devices_with_one_memory_are_refused():
    """A card whose memory is the host's shares it with the CPU."""
    where = machine(host=100)
    unified = replace(where.sites[0], name="cuda:0", kind="cuda")
    where = replace(where, sites=(*where.sites, unified))
    assert decide(wanted(10, devices=("cpu", "cuda:0")), where).cause is Cause.NO_DEVICE
    assert decide(wanted(10, host=5), where).need.bytes == {HOST: 15}


def test_cpu_only_is_a_device_like_others():
    """Host memory has a margin, and models make room in it for each other."""
    where = machine(host=20)
    assert decide(wanted(20), where).need.sites == ("cpu",)
    full = replace(where, rooms=(Room(HOST, "cpu", 20, 5, 2),))
    assert decide(wanted(10), full, holder("old", {HOST: 15})).victims == ("old",)
    assert decide(wanted(19), full, holder("old", {HOST: 15})).cause is Cause.TOO_LARGE


def test_a_model_larger_than_all_cards_goes_to_the_cpu():
    """But not one for which cards are only full."""
    assert decide(wanted(100), machine(20, 20)).need.sites == ("cpu",)
    busy = holder("busy", 20, is_busy=True)
    assert decide(wanted(20), machine(0, total=20), busy).cause is Cause.BUSY


def test_a_large_idle_model_goes_and_not_the_small_ones():
    """An embedder of a few bytes does not pay for a model that only the large one's place fits."""
    small, large = holder("embedder", 1, used_s=1.0), holder("chat", 13, used_s=900.0)
    decision = decide(wanted(12), machine(0, total=14), small, large)
    assert decision.victims == ("chat",)


def test_bytes_count_and_not_models():
    """However few models there are, those that are in the way go, as many as it takes."""
    models = [holder("a", 6, used_s=2.0), holder("b", 6, used_s=1.0), holder("c", 2, used_s=3.0)]
    assert decide(wanted(7), machine(1, total=15), *models).victims == ("b",)
    assert set(decide(wanted(13), machine(1, total=15), *models).victims) == {"a", "b"}


def test_a_decision_is_the_same_however_often_it_is_made():
    """Nothing is added up from one decision to the next."""
    where, models = machine(3, 9, total=20), [holder("a", 12, used_s=5.0), holder("b", {1: 11})]
    first = decide(wanted(18), where, *models)
    assert [decide(wanted(18), where, *models) for _ in range(3)] == [first] * 3


def test_a_model_takes_the_place_it_makes():
    """Once those who were chosen have gone, the same question is answered with the same place."""
    models = [holder("a", 12, used_s=5.0), holder("b", 6, used_s=1.0)]
    decision = decide(wanted(15), machine(2, total=20), *models)
    assert isinstance(decision, Evict)
    rest = [model for model in models if model.name not in decision.victims]
    freed = sum(m.bytes[uuid(0)] for m in models if m.name in decision.victims)
    assert decide(wanted(15), machine(2 + freed, total=20), *rest) == Load(decision.need)
