"""The page of a real router, with workers of two tiny models behind it."""

import os
import sys

import psutil
import pytest

import tiny
from running_fleet import fleets
from served import until

CONFIG = """
[server]
models = ['{folder}']
sessions = '{folder}/sessions'
min_residency = 0
[models.'*']
device = 'cpu'
context = 128
parallel = 2
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server of two models that lie in a folder."""
    folder = tmp_path_factory.mktemp("fleet")
    for name in ("ash", "yew"):
        tiny.write(folder / f"{name}.gguf")
    (folder / "corral.toml").write_text(CONFIG.format(folder=folder))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CORRAL_CACHE": str(folder / "cache"),
        "CORRAL_LOG": "",
    }
    with fleets(environment) as start:
        yield start("--config", folder / "corral.toml")


def states(server):
    """Return the state of each model."""
    return {one["name"]: one["state"] for one in server.fleet()["models"]}


def workers(server):
    """Return the processes that hold models, by number: one may have ended since it was listed."""
    return [one["pid"] for one in server.fleet()["models"] if one["pid"]]


def press(shown, name):
    """Press a button of the page."""
    shown.page.get_by_role("button", name=name, exact=True).click()


def row(shown, model):
    """Return the line of a model."""
    return shown.page.locator(f"[data-model='{model}'].model")


def test_buttons_load_pin_and_unload_processes(server, showing):
    """Each press reaches a process, and the page follows what becomes of it."""
    with showing(server.url) as shown:
        press(shown, "Load ash")
        shown.sees(row(shown, "ash"), "ready")
        (worker,) = workers(server)
        (held,) = next(one for one in server.fleet()["models"] if one["name"] == "ash")["held"]
        assert held["lifetimes"]["weights"] > 0
        press(shown, "Pin ash")
        until(lambda: [one["is_pinned"] for one in server.fleet()["models"]] == [True, False])
        press(shown, "Load yew")
        shown.sees(row(shown, "yew"), "ready")
        shown.page.get_by_label("Model", exact=True).select_option("yew")
        shown.ask("Hi")
        shown.sees(shown.answered().locator(".figures"), "in the prompt")
        press(shown, "Pin ash")
        press(shown, "Unload ash")
        shown.sees(row(shown, "ash"), "unloaded")
        until(lambda: states(server) == {"ash": "unloaded", "yew": "ready"})
        assert not psutil.pid_exists(worker)
        press(shown, "Unload yew")
        shown.sees(row(shown, "yew"), "unloaded")
        until(lambda: not workers(server))


def test_a_killed_process_is_seen_and_replaced(server, showing):
    """The log of the page tells of it, and the next question is answered by another."""
    with showing(server.url) as shown:
        shown.page.get_by_label("Model", exact=True).select_option("yew")
        shown.ask("Hi")
        shown.answered()
        (worker,) = workers(server)
        psutil.Process(worker).kill()
        until(lambda: worker not in workers(server))
        shown.ask("Again")
        shown.answered()
        shown.sees(row(shown, "yew"), "ready")
        assert worker not in workers(server)
