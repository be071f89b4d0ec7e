"""What becomes of models and requests, event by event, in virtual time."""

from dataclasses import replace

import pytest

from corral.contract.fleet import ExitKind, ModelState, Verdict
from corral.errors import (
    Closed,
    InvalidModelFile,
    MemoryTaken,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    QueueFull,
    WorkerLost,
)
from corral.router.effects import Deny, Find, Grant, Look
from corral.router.entry import HOST, Unusable
from corral.router.placing import Policy
from corral.router.residence import MOVES
from scripted_fleet import World, entry

S = ModelState
PATIENT = Policy(min_residency_s=10.0, idle_s=10.0, max_wait_s=30.0, process_bytes=0)


def three(**options):
    """Return a world with room for two of three models."""
    return World([entry("a", 40), entry("b", 40), entry("c", 40)], **options)


def test_a_model_is_loaded_when_it_is_first_asked_for():
    """Its request waits, is let through, and the bytes are booked meanwhile."""
    world = three()
    world.holds_loads = True
    ticket = world.ask("a")
    assert world.state("a") is S.PLANNING
    world.settle()
    assert world.state("a") is S.LOADING
    assert world.residents.booked() == {HOST: 40}
    assert ticket not in world.granted
    world.finish_load("a")
    world.settle()
    assert world.granted == {ticket: ("a", 1)}
    states = [state for state, _ in world.reasons("a")]
    assert states == [S.PLANNING, S.LOADING, S.LOADING, S.READY]


def test_many_first_requests_lead_to_one_load():
    """Case 46: whoever comes while a model loads waits for that load."""
    world = three()
    world.holds_loads = True
    tickets = [world.ask("a"), world.ask("a")]
    world.settle()
    tickets.append(world.ask("a"))
    world.settle()
    world.finish_load("a")
    world.settle()
    assert world.started == ["a"]
    assert set(tickets) == set(world.granted)


def test_the_least_recently_used_goes_and_is_gone_before_the_next_starts():
    """Case 47: a load begins when the old process has ended, not when it was told to."""
    world = three()
    world.answer("a")
    world.now = 1.0
    world.answer("b")
    world.holds_exits = True
    ticket = world.ask("c")
    world.settle()
    assert (world.state("a"), world.state("b")) == (S.STOPPING, S.READY)
    assert world.state("c") is S.PLANNING
    world.exit("a")
    world.settle()
    assert world.granted == {ticket: ("c", 1)}
    assert world.status("a").exit_kind is ExitKind.EVICTED
    assert world.status("a").evictions == 1
    assert any("evicted for c" in reason for _, reason in world.reasons("a"))


def test_a_model_that_answers_is_not_evicted():
    """Case 40: the newcomer waits until one of them is idle."""
    world = three()
    busy = [world.ask("a"), world.ask("b")]
    world.settle()
    ticket = world.ask("c")
    world.settle()
    assert world.ready() == {"a", "b"}
    assert "waits for room (busy" in world.status("c").reason
    world.end(busy[1])
    world.settle()
    assert world.ready() == {"a", "c"}
    assert ticket in world.granted


def test_a_model_that_loads_is_not_evicted():
    """Case 41: it is let finish, and serves whoever waited for it."""
    world = World([entry("a", 60), entry("b", 60)])
    world.holds_loads = True
    first = world.ask("a")
    world.settle()
    second = world.ask("b")
    world.settle()
    assert (world.state("a"), world.state("b")) == (S.LOADING, S.PLANNING)
    world.finish_load("a")
    world.settle()
    assert first in world.granted
    assert world.state("b") is S.PLANNING
    world.end(first)
    world.settle()
    world.finish_load("b")
    world.settle()
    assert second in world.granted


def test_two_who_wait_do_not_count_on_the_same_victim():
    """Case 42: each gets room of its own, or waits and is woken."""
    world = World([entry(name, 50) for name in "abcd"])
    world.answer("a")
    world.answer("b")
    world.holds_exits = True
    tickets = [world.ask("c"), world.ask("d")]
    world.settle()
    assert (world.state("a"), world.state("b")) == (S.STOPPING, S.STOPPING)
    world.exit("a")
    world.exit("b")
    world.settle()
    assert set(tickets) == set(world.granted)


def test_two_who_wait_for_one_victim_are_both_served():
    """Case 42: who did not get the place is not forgotten."""
    world = World([entry(name, 60) for name in "abc"])
    world.answer("a")
    first, second = world.ask("b"), world.ask("c")
    world.settle()
    assert (first in world.granted, second in world.granted) == (True, False)
    world.end(first)
    world.settle()
    assert second in world.granted


def test_a_loaded_model_stays_until_its_own_request_was_let_through():
    """Case 43: ready and let through are one step, so nothing comes between."""
    world = World([entry("a", 60), entry("b", 60)])
    world.holds_loads = True
    first, second = world.ask("a"), world.ask("b")
    world.settle()
    world.finish_load("a")
    world.settle()
    assert world.granted == {first: ("a", 1)}
    assert world.state("a") is S.READY
    assert second not in world.granted


@pytest.mark.parametrize("stage", [S.DRAINING, S.STOPPING])
def test_nobody_is_let_through_to_a_model_that_goes(stage):
    """Case 44: the request waits for the next process."""
    world = three()
    world.answer("a")
    world.holds_saves, world.holds_exits = stage is S.DRAINING, True
    world.unload("a")
    world.settle()
    ticket = world.ask("a")
    world.settle()
    assert (world.state("a"), ticket in world.granted) == (stage, False)
    if stage is S.DRAINING:
        world.finish_save("a")
        world.settle()
    world.exit("a")
    world.settle()
    assert world.granted == {ticket: ("a", 2)}


def test_a_model_idle_for_its_time_goes_and_comes_back():
    """Case 45: a request in the moment of the end is served by the next process."""
    world = World([entry("a", 40, ttl_s=60.0)])
    world.answer("a")
    world.holds_exits = True
    world.wait(60.0)
    assert world.state("a") is S.STOPPING
    assert world.status("a").exit_kind is ExitKind.IDLE
    ticket = world.ask("a")
    world.exit("a")
    world.settle()
    assert world.granted == {ticket: ("a", 2)}
    world.end(ticket)
    world.settle()
    world.holds_exits = False
    world.wait(60.0)
    assert (world.state("a"), world.held()) == (S.UNLOADED, 0)


def test_use_puts_the_idle_end_off():
    """The time counts from the last request's end, and never while one runs."""
    world = World([entry("a", 40, ttl_s=60.0)])
    ticket = world.ask("a")
    world.settle()
    world.wait(1000.0)
    assert world.state("a") is S.READY
    world.end(ticket)
    world.wait(59.0)
    assert world.state("a") is S.READY
    world.wait(1.0)
    assert world.state("a") is S.UNLOADED


def test_two_models_in_turns_do_not_cost_a_load_each():
    """Case 48: each stays for a while and serves all who wait for it, then the other does."""
    world = World([entry("a", 60), entry("b", 60)], policy=PATIENT)
    for _ in range(20):
        for model in "ab":
            world.ask(model)
            world.settle()
        for ticket in list(world.granted):
            world.end(ticket)
        world.wait(1.0)
    world.wait(20.0)
    assert not world.denied
    assert len(world.started) <= 4
    assert not [r for r in world.residents.all() if r.waiting]


def test_a_model_in_main_memory_is_placed_by_bytes_like_any_other():
    """Case 49: nothing is evicted for a model that fits beside it."""
    world = World([entry("a", 40), entry("b", 40)])
    for model in ("a", "b", "a", "b"):
        world.answer(model)
    assert world.started == ["a", "b"]


def test_the_model_that_makes_enough_room_goes_and_not_a_small_one():
    """Case 50: bytes count, not the number of models."""
    world = World([entry("small", 2), entry("chat", 60), entry("new", 70)])
    world.answer("chat")
    world.now = 1.0
    world.answer("small")
    world.answer("new")
    assert world.ready() == {"small", "new"}


def test_a_large_model_makes_room_however_few_models_there_are():
    """Case 51: one model of 90 goes for another of 90."""
    world = World([entry("a", 90), entry("b", 90)])
    for model in ("a", "b", "a"):
        world.answer(model)
    assert world.started == ["a", "b", "a"]


def test_pinned_models_that_hold_everything_are_named():
    """Case 52: the error says who holds what lacks."""
    world = World([entry("a", 60, pinned=True), entry("b", 60)])
    world.answer("a")
    ticket = world.ask("b")
    world.settle()
    error = world.denied[ticket]
    assert isinstance(error, OutOfMemory)
    assert error.holders == ("a",)
    assert (error.needed_bytes, error.available_bytes) == (60, 40)
    world.pin("a", False)
    world.answer("b")


def test_what_never_fits_is_refused_at_once_and_harms_nobody():
    """The request gets bytes needed and available; the others stay."""
    world = World([entry("a", 40), entry("huge", 400)])
    world.answer("a")
    ticket = world.ask("huge")
    world.settle()
    assert world.denied[ticket].code == "out_of_memory"
    assert world.denied[ticket].needed_bytes == 400
    assert (world.state("huge"), world.state("a")) == (S.FAILED, S.READY)


def test_memory_that_others_hold_is_told_and_asked_for_again_later():
    """Cases 31 and 54: nothing is evicted for nothing, and the next request tries anew."""
    world = World([entry("a", 60)])
    world.foreign = {HOST: 70}
    ticket = world.ask("a")
    world.settle()
    assert isinstance(world.denied[ticket], MemoryTaken)
    world.foreign = {}
    world.answer("a")


def test_unknown_memory_admits_nothing():
    """Case 36: who asks is told; no old value is used."""
    world = World([entry("a", 60)])
    world.foreign = {HOST: None}
    ticket = world.ask("a")
    world.settle()
    assert isinstance(world.denied[ticket], MemoryTaken)
    assert not world.started


def test_a_foreign_jump_between_eviction_and_load_is_seen():
    """Case 54: the place is looked at again when the victim is gone."""
    world = World([entry("a", 60), entry("b", 60)])
    world.answer("a")
    world.holds_exits = True
    ticket = world.ask("b")
    world.settle()
    world.foreign = {HOST: 90}
    world.exit("a")
    world.settle()
    assert isinstance(world.denied[ticket], MemoryTaken)
    assert world.residents.booked() == {}


def test_what_planned_evictions_free_is_counted():
    """Case 30: a model that fits once another is gone is not refused."""
    world = World([entry("a", 90), entry("b", 95)])
    world.answer("a")
    world.answer("b")
    assert world.ready() == {"b"}


def test_a_process_that_died_is_not_waited_for_twice():
    """Case 53: what it held is free, and the next load begins."""
    world = World([entry("a", 60), entry("b", 60)])
    world.answer("a")
    world.die("a")
    world.answer("b")
    assert world.status("a").exit_kind is ExitKind.CRASHED


def test_a_model_that_disappears_from_the_list_goes():
    """Case 55: it is neither listed nor held."""
    world = three()
    world.answer("a")
    world.take(world.residents.relist([world.entries["b"]], world.now))
    world.settle()
    with pytest.raises(ModelNotFound):
        world.ask("a")
    assert world.held() == 0
    assert [r.name for r in world.residents.all()] == ["b"]


def test_a_killed_process_is_replaced_for_the_next_request():
    """Case 56: the entry does not stay loaded; who comes next waits out the pause."""
    world = three()
    running = world.ask("a")
    world.settle()
    world.die("a")
    world.end(running)
    world.settle()
    assert (world.state("a"), world.held()) == (S.FAILED, 0)
    ticket = world.ask("a")
    world.settle()
    assert world.state("a") is S.PLANNING
    world.wait(1.0)
    assert world.granted == {ticket: ("a", 2)}


def test_a_request_whose_process_did_nothing_for_it_waits_again():
    """It was let through, and the process died before a word."""
    world = three()
    ticket = world.ask("a")
    world.settle()
    world.take(world.residents.put_back(ticket, 1, world.now))
    late = world.ask("a")
    assert not [order for order in world.orders if isinstance(order, Grant)]
    world.die("a")
    world.wait(5.0)
    assert world.granted == {ticket: ("a", 2), late: ("a", 2)}


def test_a_load_may_take_as_long_as_it_takes():
    """Case 57: no limit turns a slow load into a failed one."""
    world = three()
    world.holds_loads = True
    ticket = world.ask("a")
    world.settle()
    world.wait(10_000.0)
    world.finish_load("a")
    world.settle()
    assert ticket in world.granted


@pytest.mark.parametrize(
    ("how", "state", "kind"),
    [
        ("never", S.UNLOADED, ExitKind.NEVER_STARTED),
        ("unload", S.UNLOADED, ExitKind.UNLOADED),
        ("crash", S.FAILED, ExitKind.CRASHED),
    ],
)
def test_ends_are_told_apart(how, state, kind):
    """Case 59: an unload is no crash, and what never started has not failed."""
    world = three()
    if how != "never":
        world.answer("a")
    if how == "unload":
        world.unload("a")
    if how == "crash":
        world.die("a")
    world.settle()
    status = world.status("a")
    assert (status.state, status.exit_kind) == (state, kind)
    assert bool(status.error_code) == (how == "crash")


def test_a_load_that_cannot_be_is_told_and_not_stuck():
    """Case 60: whoever waits gets the worker's own words; soon after it is not tried again."""
    world = three()
    world.holds_loads = True
    tickets = [world.ask("a"), world.ask("a")]
    world.settle()
    world.die("a", InvalidModelFile("no tensors"), is_refused=True)
    world.settle()
    assert {str(world.denied[ticket]) for ticket in tickets} == {"no tensors"}
    assert (world.state("a"), world.status("a").error_code) == (S.FAILED, "invalid_model_file")
    late = world.ask("a")
    world.settle()
    assert (str(world.denied[late]), world.started) == ("no tensors", ["a"])
    world.wait(10.0)
    world.ask("a")
    world.settle()
    assert world.started == ["a", "a"]


def test_a_client_that_leaves_does_not_stop_the_load():
    """Case 64: the next one finds it loaded; it is not begun again and again."""
    world = three()
    world.holds_loads = True
    ticket = world.ask("a")
    world.settle()
    world.end(ticket)
    world.settle()
    assert world.state("a") is S.LOADING
    world.finish_load("a")
    world.settle()
    assert world.ready() == {"a"}
    assert world.started == ["a"]


def test_a_client_that_leaves_before_the_load_takes_its_wish_along():
    """Nothing is loaded, and nothing evicted, for nobody."""
    world = three()
    world.ask("a"), world.ask("b")
    world.settle()
    ticket = world.ask("c")
    world.settle()
    world.end(ticket)
    world.settle()
    assert world.state("c") is S.UNLOADED


def test_bytes_are_booked_once_and_given_back_once():
    """Case 65: the sum is what live processes hold, after any mixture of ends."""
    world = three()
    for model in "abcabc":
        world.answer(model)
        assert world.residents.booked() == {HOST: world.held()}
    world.unload("c")
    world.die("b")
    world.settle()
    assert world.residents.booked() == {}
    assert world.held() == 0


def test_memory_that_lacks_at_the_load_costs_another_its_place_and_is_tried_once_more():
    """The plan was too small: what was free was not enough, so the next victim goes."""
    world = World([entry("a", 30), entry("b", 40)], host=100)
    world.answer("a")
    world.holds_loads = True
    ticket = world.ask("b")
    world.settle()
    world.die("b", OutOfMemory("no memory", needed_bytes=75))
    world.settle()
    assert world.state("a") is S.UNLOADED
    assert world.state("b") is S.LOADING
    world.finish_load("b")
    world.settle()
    assert ticket in world.granted


def test_memory_that_lacks_twice_is_told_in_the_workers_words():
    """Whoever waits gets the inner error; nobody else is tried."""
    world = World([entry("a", 30), entry("b", 40)])
    world.answer("a")
    world.holds_loads = True
    ticket = world.ask("b")
    world.settle()
    for _ in range(2):
        world.die("b", OutOfMemory("the driver has no memory"))
        world.settle()
    assert str(world.denied[ticket]) == "the driver has no memory"
    assert world.status("b").exit_kind is ExitKind.OUT_OF_MEMORY
    assert world.started == ["a", "b", "b"]


def test_memory_that_lacks_where_nobody_can_go_is_told_in_the_workers_words():
    """There is no victim left: the inner error, not a sentence about placement."""
    world = World([entry("a", 40)])
    world.holds_loads = True
    ticket = world.ask("a")
    world.settle()
    world.die("a", OutOfMemory("the driver has no memory"))
    world.settle()
    assert str(world.denied[ticket]) == "the driver has no memory"
    world.holds_loads = False
    world.wait(10.0)
    world.answer("a")


def test_more_than_was_planned_is_booked_from_then_on():
    """Measured is more than planned: the next load counts with it."""
    world = World([entry("a", 40), entry("b", 55)])
    world.holds_loads = True
    world.ask("a")
    world.settle()
    process = world.process("a")
    process.is_ready, process.held = True, {HOST: 50}
    measured = {HOST: {"weights": 30, "state": 20}}
    world.take(world.residents.loaded("a", 1, measured, world.now))
    world.settle()
    assert world.residents.booked() == {HOST: 50}
    (held,) = world.status("a").held
    assert (held.planned_bytes, held.measured_bytes) == (40, 50)
    assert held.lifetimes == measured[HOST]
    assert world.status("a").reason == "loaded; it holds 10 B more than was planned"
    world.ask("b")
    world.settle()
    assert world.state("b") is S.PLANNING


def test_starts_after_crashes_come_later_and_later_and_end():
    """Each pause is twice the one before; then whoever asks is told so."""
    world = World([entry("a", 40, preload=True)])
    world.load("a")
    world.settle()
    pauses = []
    for _ in range(4):
        world.die("a")
        world.settle()
        crashed = world.now
        while world.state("a") is not S.READY:
            world.wait(0.25)
        pauses.append(world.now - crashed)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    world.die("a")
    world.settle()
    ticket = world.ask("a")
    world.settle()
    assert isinstance(world.denied[ticket], WorkerLost)
    assert "5 times" in str(world.denied[ticket])
    world.wait(200.0)
    world.answer("a")


def test_a_pinned_model_is_not_idle():
    """It stays whatever its time."""
    world = World([entry("a", 40, ttl_s=10.0, pinned=True)])
    world.answer("a")
    world.wait(1000.0)
    assert world.ready() == {"a"}


def test_an_unload_lets_what_runs_end():
    """The answer that runs ends first, up to the time it may take."""
    world = World([entry("a", 40, drain_s=30.0)])
    ticket = world.ask("a")
    world.settle()
    world.unload("a")
    world.settle()
    assert world.state("a") is S.DRAINING
    world.end(ticket)
    world.settle()
    assert world.state("a") is S.UNLOADED
    world.ask("a")
    world.settle()
    world.unload("a")
    world.wait(29.0)
    assert world.state("a") is S.DRAINING
    world.wait(1.0)
    assert world.state("a") is S.UNLOADED


def test_an_unload_ends_a_load():
    """Whoever waits for it is told, and the process is ended."""
    world = three()
    world.holds_loads = True
    ticket = world.ask("a")
    world.settle()
    world.unload("a")
    world.settle()
    assert isinstance(world.denied[ticket], ModelUnloaded)
    assert (world.state("a"), world.processes) == (S.UNLOADED, {})


def test_a_pinned_model_is_unloaded_by_command_and_stays_pinned():
    """A pin is for those that need room, not for who says what is to go."""
    world = three()
    world.pin("a")
    for _ in range(2):
        world.load("a")
        world.settle()
        assert world.state("a") is S.READY
        assert world.status("a").is_pinned
        world.unload("a")
        world.settle()
        assert world.state("a") is S.UNLOADED


def test_only_so_many_may_wait():
    """The next one is told to come again."""
    world = World([entry("a", 40, queue=2)])
    world.holds_loads = True
    for _ in range(3):
        world.ask("a")
    with pytest.raises(QueueFull):
        world.ask("a")


def test_whoever_waited_too_long_comes_next_though_the_model_in_its_place_is_asked_for():
    """A stream of requests for one model does not keep another away for ever."""
    world = World([entry("a", 60), entry("b", 60)], policy=PATIENT)
    running = world.ask("a")
    world.settle()
    waiting = world.ask("b")
    for _ in range(60):
        follower = world.ask("a")
        world.settle()
        if running in world.granted:
            world.end(running)
        running = follower
        world.wait(1.0)
        if waiting in world.granted:
            break
    assert waiting in world.granted
    world.end(waiting)
    world.wait(60.0)
    assert running in world.granted


def test_a_cold_header_is_read_before_anything_is_decided():
    """It is asked for once, however many want the model."""
    world = World([entry("a", 10, is_cold=True)])
    tickets = [world.ask("a"), world.ask("a")]
    orders = list(world.orders)
    assert [type(order).__name__ for order in orders].count("Find") == 1
    world.settle()
    assert set(tickets) == set(world.granted)


def test_a_reading_from_before_bytes_came_free_does_not_count():
    """Case 37: what a model gave back meanwhile would look as if others held it."""
    world = World([entry("a", 60), entry("b", 60), entry("c", 60)])
    world.answer("a")
    world.holds_exits = True
    ticket = world.ask("b")
    world.settle()
    world.ask("c")
    (look,) = [order for order in world.orders if isinstance(order, Look)]
    world.orders.clear()
    before = world.reading(), world.seen()
    world.exit("a")
    world.take(world.residents.looked(look.number, *before, world.now))
    world.settle()
    assert not world.denied
    assert ticket in world.granted


def test_bytes_that_no_reading_shows_yet_are_not_given_twice():
    """Case 37: a model that loads has its bytes though the device still shows them as free."""
    world = World([entry("a", 40), entry("b", 40)])
    world.holds_loads = True
    world.foreign = {HOST: 30}
    world.ask("a")
    world.settle()
    assert world.reading().rooms[0].free_bytes == 70
    world.ask("b")
    world.settle()
    assert (world.state("a"), world.state("b")) == (S.LOADING, S.PLANNING)


def test_room_beside_a_place_that_is_coming_free_can_be_used_meanwhile():
    """Who waits for a victim takes its place, and no other room."""
    world = World([entry("a", 50), entry("b", 30), entry("c", 50), entry("d", 30)], host=110)
    world.answer("a")
    world.ask("b")
    world.settle()
    world.holds_exits = True
    world.ask("c")
    world.settle()
    assert world.state("a") is S.STOPPING
    ticket = world.ask("d")
    world.settle()
    assert (world.state("a"), world.state("b")) == (S.STOPPING, S.READY)
    assert ticket in world.granted


def test_a_place_that_somebody_made_room_for_goes_to_nobody_else():
    """A newcomer, however urgent, does not let a model have gone in vain."""
    world = World([entry("a", 60), entry("b", 60), entry("c", 60, priority=9)])
    world.answer("a")
    world.holds_exits = True
    first = world.ask("b")
    world.settle()
    second = world.ask("c")
    world.settle()
    world.exit("a")
    world.settle()
    assert (first in world.granted, second in world.granted) == (True, False)


def test_a_model_that_is_configured_anew_while_its_header_is_read_is_not_forgotten():
    """What was read for the old preset does not count; the header is read for the new one."""
    world = World([entry("a", 10, is_cold=True)])
    ticket = world.ask("a")
    (find,) = [order for order in world.orders if isinstance(order, Find)]
    old = entry("a", 10)
    world.entries["a"] = entry("a", 10, is_cold=True, context=64)
    world.take(world.residents.relist(world.entries.values(), world.now))
    world.orders.remove(find)
    world.take(world.residents.found(old, world.now))
    world.settle()
    assert world.granted == {ticket: ("a", 1)}
    assert world.residents.residence("a").entry.preset.context == 64


def test_a_model_that_is_found_unusable_is_told_to_whoever_waits():
    """When it is read, and when it is listed anew."""
    world = World([entry("a", 10, is_cold=True), entry("b", 10)])
    ticket = world.ask("a")
    world.orders.clear()
    broken = replace(world.entries["a"], header=Unusable("invalid_model_file", "no tensors"))
    world.take(world.residents.found(broken, world.now))
    assert [order.error.code for order in world.orders if isinstance(order, Deny)] == [
        "invalid_model_file"
    ]
    world.settle()
    assert (world.state("a"), ticket in world.denied) == (S.FAILED, True)
    late = world.ask("a")
    world.settle()
    assert str(world.denied[late]) == "no tensors"


def test_a_header_that_cannot_be_looked_for_is_told():
    """The catalog was closed, or the model went: nobody waits for ever."""
    world = World([entry("a", 10, is_cold=True)])
    ticket = world.ask("a")
    world.orders.clear()
    world.take(world.residents.not_found("a", ModelNotFound("it went"), world.now))
    world.settle()
    assert str(world.denied[ticket]) == "it went"


def test_what_would_happen_is_told_and_does_not():
    """Loaded, fits, evicts, waits or never; with bytes and names."""
    world = World([entry("a", 40), entry("b", 40), entry("c", 40), entry("huge", 400)])

    def would(model):
        return world.residents.would(model, world.reading(), world.seen())

    assert would("a").verdict is Verdict.FITS
    world.answer("a")
    running = world.ask("b")
    world.settle()
    assert would("a").verdict is Verdict.LOADED
    answer = would("c")
    assert (answer.verdict, answer.evicts) == (Verdict.EVICTS, ("a",))
    world.ask("a")
    world.settle()
    assert would("c").verdict is Verdict.WAITS
    never = would("huge")
    assert (never.verdict, never.needed_bytes) == (Verdict.NEVER, 400)
    assert running in world.granted
    assert world.ready() == {"a", "b"}


def test_closing_tells_everybody_and_leaves_nothing():
    """Waiting requests get an error, running ones end, nothing new comes in."""
    world = three()
    running = world.ask("a")
    world.settle()
    world.holds_loads = True
    waiting = world.ask("b")
    world.settle()
    world.take(world.residents.close(world.now))
    world.settle()
    assert isinstance(world.denied[waiting], Closed)
    with pytest.raises(Closed):
        world.ask("c")
    assert not world.residents.is_closed
    world.end(running)
    world.settle()
    assert world.residents.is_closed
    assert (world.processes, world.residents.booked()) == ({}, {})


def test_every_state_can_be_left():
    """No state is a trap, and none leads into itself."""
    assert set(MOVES) == set(S)
    assert all(targets and state not in targets for state, targets in MOVES.items())
