"""Decisions on random machines: what each promises holds, and none is missed."""

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.router.entry import HOST
from corral.router.placement import place
from corral.router.placing import (
    Cause,
    Evict,
    Holder,
    Load,
    Machine,
    Policy,
    Refuse,
    Room,
    Site,
    Wait,
)
from machines import uuid, wanted

NOW = 100.0
POLICY = Policy(min_residency_s=10.0, idle_s=1.0, process_bytes=2)
MARKS = ("is_pinned", "is_busy", "is_loading", "is_reserved", "is_leaving")


@st.composite
def situations(draw):
    """Return a machine of up to three cards, models on it, and one that is to come."""
    cards = draw(st.integers(0, 3))
    memories = [HOST, *map(uuid, range(cards))]
    holders = []
    for number in range(draw(st.integers(0, 5))):
        where = draw(st.sets(st.sampled_from(memories), min_size=1, max_size=2))
        held = {memory: draw(st.integers(1, 12)) for memory in sorted(where)}
        unseen = {memory: draw(st.integers(0, size)) for memory, size in held.items()}
        marks = {mark: draw(st.booleans()) and draw(st.booleans()) for mark in MARKS}
        times = {name: draw(st.sampled_from((0.0, 95.0, 99.5))) for name in ("ready_s", "used_s")}
        holders.append(Holder(name=f"m{number}", bytes=held, unseen=unseen, **marks, **times))
    rooms, sites = [], [Site("cpu", "cpu")]
    for place_, memory in enumerate(memories):
        seen = sum(h.bytes.get(memory, 0) - h.unseen.get(memory, 0) for h in holders)
        total = seen + draw(st.integers(0, 30))
        free = draw(st.one_of(st.none(), st.integers(0, total - seen)))
        budget = draw(st.one_of(st.none(), st.integers(0, 40)))
        name = f"cuda:{place_ - 1}" if place_ else "cpu"
        rooms.append(Room(memory, name, total, free, draw(st.integers(0, 3)), budget))
        if place_:
            sites.append(Site(name, "cuda", memory, memory, draw(st.integers(0, 2))))
    preset = {}
    if draw(st.booleans()):
        names = [site.name for site in sites]
        preset["devices"] = tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    layers = draw(st.integers(1, 6))
    size = layers * draw(st.integers(1, 6))
    model = wanted(size, layers=layers, host=draw(st.integers(0, 2)), **preset)
    return Machine(tuple(sites), tuple(rooms)), holders, model


def can_be_had(where, holders, gone=()):
    """Return bytes by memory when some have gone, by the book; None is unknown."""
    sizes = {}
    for room in where.rooms:
        booked = sum(h.bytes.get(room.memory, 0) for h in holders)
        unseen = sum(h.unseen.get(room.memory, 0) for h in holders)
        back = sum(h.bytes.get(room.memory, 0) for h in gone)
        if room.free_bytes is None:
            sizes[room.memory] = None
            continue
        size = min(room.free_bytes - unseen, room.total_bytes - booked) - room.margin_bytes
        if room.budget_bytes is not None:
            size = min(size, room.budget_bytes - booked)
        sizes[room.memory] = size + back
    return sizes


def has_room(need, sizes):
    known = {m: sizes[m] for m in need.bytes}
    return all(size is not None and need.bytes[m] <= max(size, 0) for m, size in known.items())


def may_go(model):
    idle = not (model.is_pinned or model.is_busy or model.is_loading or model.is_reserved)
    rested = min(model.ready_s + 10, model.used_s + 1) <= NOW
    return idle and rested and not model.is_leaving


@settings(max_examples=300, deadline=None)
@given(situations())
def test_decisions_keep_their_promise(situation):
    """A load has room; an eviction makes it, of models that may go, none of them needlessly."""
    where, holders, model = situation
    decision = place(model, where, holders, now=NOW, policy=POLICY)
    leaving = [h for h in holders if h.is_leaving]
    if isinstance(decision, Load):
        assert has_room(decision.need, can_be_had(where, holders))
    elif isinstance(decision, Evict):
        gone = [h for h in holders if h.name in decision.victims]
        assert gone
        assert all(map(may_go, gone))
        assert not has_room(decision.need, can_be_had(where, holders, leaving))
        assert has_room(decision.need, can_be_had(where, holders, [*leaving, *gone]))
        for kept in gone:
            others = [h for h in gone if h is not kept]
            assert not has_room(decision.need, can_be_had(where, holders, [*leaving, *others]))
    elif isinstance(decision, Wait):
        by_name = {h.name: h for h in holders}
        assert all(
            not by_name[name].is_pinned or by_name[name].is_leaving for name in decision.blockers
        )
        assert decision.blockers
        assert (decision.retry_s is not None) == (decision.cause is Cause.RESIDENCY)
        assert decision.retry_s is None or decision.retry_s > NOW
    else:
        assert decision.message


@settings(max_examples=300, deadline=None)
@given(situations())
def test_no_room_is_missed_on_a_single_device(situation):
    """If the model could be on one device, now or after evictions, that is what is decided."""
    where, holders, model = situation
    if model.preset.devices != ("auto",) and len(model.preset.devices) > 1:
        return
    decision = place(model, where, holders, now=NOW, policy=POLICY)
    named = model.preset.devices
    cards = [s for s in where.sites if s.kind == "cuda"]
    sites = (
        [s for s in where.sites if s.name in named] if named != ("auto",) else cards or where.sites
    )
    leaving = [h for h in holders if h.is_leaving]
    free = [h for h in holders if may_go(h)]
    subsets = list(chain.from_iterable(combinations(free, n) for n in range(len(free) + 1)))
    fewest = None
    for site in sites:
        kind = next(f for f in model.footprints if f.kind == site.kind)
        sizes = {HOST: 2}
        sizes[site.memory] = sizes.get(site.memory, 0) + kind.own_bytes + site.context_bytes
        sizes[HOST] += kind.host_bytes
        for gone in subsets:
            had = can_be_had(where, holders, [*leaving, *gone])
            if all(had[m] is not None and size <= max(had[m], 0) for m, size in sizes.items()):
                fewest = len(gone) if fewest is None else min(fewest, len(gone))
    if fewest is None:
        return
    assert not isinstance(decision, Refuse)
    if fewest == 0:
        assert isinstance(decision, Load) or decision.cause is Cause.LEAVING
    elif isinstance(decision, Evict):
        assert len(decision.victims) <= fewest
    else:
        assert isinstance(decision, Load) or decision.cause is Cause.LEAVING
