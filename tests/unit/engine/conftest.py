"""Tiny models on devices, closed and counted at the end of each test."""

from contextlib import ExitStack

import pytest

import tiny
from corral.devices.reference.device import ReferenceDevice
from corral.models.footprint import Limits
from loaded import Loaded


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    """Return the file of each family."""
    folder = tmp_path_factory.mktemp("tiny")
    return {name: tiny.write(folder / f"{name}.gguf", name) for name in tiny.FAMILIES}


@pytest.fixture
def load(paths):
    """Return a function that loads a family, or a file, with an engine."""
    with ExitStack() as stack:

        def load_one(model="llama", *, device=None, keep=None, **limits):
            on = stack.enter_context(device or ReferenceDevice())
            chosen = {"context": 128, "parallel": 3, "chunk": 32} | limits
            chosen["context_shift"] = keep is not None
            loaded = Loaded(paths.get(model, model), on, Limits(**chosen), keep=keep)
            stack.callback(loaded.close)
            return loaded

        yield load_one
