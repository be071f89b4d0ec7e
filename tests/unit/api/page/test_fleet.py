"""The page of a server of many models: what each holds, what happens to them, and the buttons."""

import httpx
import pytest

from corral.api.app import make_fleet_app
from corral.api.readings import DeviceState
from corral.api.settings import ApiSettings
from corral.contract.fleet import ModelState
from played_router import Played
from scripted_fleet import entry
from served import until
from unit.api.page.conftest import answering


@pytest.fixture
def played():
    """Return a router of three models in a place for two, and one that never fits."""
    models = entry("alpha", 40), entry("beta", 40), entry("gamma", 40), entry("huge", 400)
    with Played(*models) as router:
        yield router


@pytest.fixture
def fleet(played, showing):
    """Return the page of a server of these models."""

    def devices():
        held = sum(sum(sizes.values()) for sizes in list(played.held.values()))
        return [DeviceState(name="cpu", title="Host", total_bytes=100, free_bytes=100 - held)]

    app = make_fleet_app(played.router, ApiSettings(model=""), devices=devices)
    with answering(app) as url, showing(url) as shown:
        shown.count(shown.page.locator(".model"), 4)
        yield shown


def row(shown, model):
    """Return the line of a model."""
    return shown.page.locator(f"[data-model='{model}'].model")


def test_the_chosen_model_is_asked(fleet, played):
    """A choice of models stands where one name would; the answer comes from the chosen one."""
    fleet.page.get_by_label("Model", exact=True).select_option("beta")
    fleet.ask("echo hello")
    fleet.sees(fleet.answered(), "hello")
    assert played.state("beta") is ModelState.READY
    assert played.state("alpha") is ModelState.UNLOADED
    fleet.sees(row(fleet, "beta"), "ready")
    fleet.sees(fleet.page.locator("#state"), "ready")
    fleet.page.reload()
    fleet.count(fleet.page.locator(".model"), 4)
    assert fleet.page.get_by_label("Model", exact=True).input_value() == "beta"


def test_models_are_loaded_and_unloaded(fleet, played):
    """The buttons do what they say, and the line follows."""
    fleet.page.get_by_role("button", name="Load alpha", exact=True).click()
    fleet.sees(row(fleet, "alpha"), "ready · 40 B")
    fleet.page.get_by_role("button", name="Unload alpha").click()
    fleet.sees(row(fleet, "alpha"), "unloaded")
    until(lambda: played.state("alpha") is ModelState.UNLOADED)


def test_a_model_is_pinned(fleet, played):
    """A pinned model says so, and is no longer when the button is pressed again."""
    pin = fleet.page.get_by_role("button", name="Pin alpha")
    pin.click()
    until(lambda: played.router.model_status("alpha").is_pinned)
    pressed = fleet.page.get_by_role("button", name="Pin alpha", pressed=True)
    pressed.click()
    until(lambda: not played.router.model_status("alpha").is_pinned)


def test_shares_are_the_routers(fleet):
    """The bar of a device has a part for each model, as large as the router booked."""
    for name in ("alpha", "beta"):
        fleet.page.get_by_role("button", name=f"Load {name}", exact=True).click()
        fleet.sees(row(fleet, name), "ready")
    shares = fleet.page.locator("[data-device='cpu'] .is-shares dd")
    fleet.count(shares, 2)
    shown = shares.evaluate_all(
        "parts => parts.map((part) => [part.dataset.model, Number(part.dataset.bytes)])"
    )
    told = httpx.get(f"{fleet.url}/corral/fleet").json()["models"]
    held = {one["name"]: sum(h["planned_bytes"] for h in one["held"]) for one in told}
    assert dict(shown) == {name: count for name, count in held.items() if count}
    whole = fleet.page.locator("[data-device='cpu'] [data-kind='held']")
    fleet.sees(whole, "80 B")
    assert whole.get_attribute("data-bytes") == "80"


def test_an_eviction_is_explained(fleet, played):
    """Who had to go for whom stands in the list of events."""
    for name in ("alpha", "beta", "gamma"):
        fleet.page.get_by_role("button", name=f"Load {name}", exact=True).click()
        fleet.sees(row(fleet, name), "ready")
    fleet.sees(row(fleet, "alpha"), "unloaded")
    fleet.page.get_by_text("Events", exact=True).click()
    evicted = next(
        event for event in played.events if event.model == "alpha" and "gamma" in event.reason
    )
    fleet.sees(fleet.page.locator("#fleet-events"), evicted.reason)


def test_a_model_that_never_fits(fleet):
    """The error is in the answer as the server words it; the others go on."""
    fleet.page.get_by_label("Model", exact=True).select_option("huge")
    fleet.ask("echo a")
    alert = fleet.answered().get_by_role("alert")
    told = httpx.post(
        f"{fleet.url}/v1/chat/completions",
        json={"model": "huge", "messages": [{"role": "user", "content": "echo a"}]},
    )
    fleet.sees(alert, told.json()["error"]["message"])
    fleet.sees(row(fleet, "huge"), "failed")


def test_settings_load_nothing(fleet, played):
    """Looking at the settings asks no model for its defaults: that would have it loaded."""
    fleet.page.get_by_role("button", name="Settings").click()
    fleet.page.get_by_role("button", name="Save").click()
    fleet.page.wait_for_timeout(100)
    assert played.children == []
    assert [path for path in fleet.asked if path.endswith("/props")] == []


def test_folders_are_read_again(fleet, played):
    """A model that was added appears."""
    played.catalog.listed.append(entry("delta", 10))
    fleet.page.get_by_role("button", name="Read folders").click()
    fleet.count(fleet.page.locator(".model"), 5)
    fleet.sees(row(fleet, "delta"), "unloaded")


def test_many_models_can_be_searched(showing):
    """Where there are too many to see at once, a field finds those with a word."""
    with Played(*(entry(f"model-{n}", 10) for n in range(30))) as played:
        app = make_fleet_app(played.router, ApiSettings(model=""))
        with answering(app) as url, showing(url) as shown:
            shown.count(shown.page.locator(".model"), 30)
            shown.page.get_by_label("Find a model").fill("MODEL-7")
            shown.count(shown.page.locator(".model"), 1)
            shown.sees(row(shown, "model-7"), "unloaded")
