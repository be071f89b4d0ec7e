"""Loads a model for a command, showing what takes time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.arguments import LoadOptions
from corral.cli.limits import require_room
from corral.cli.progress import ProgressDisplay
from corral.errors import ModelError
from corral.log import logger
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral import Model

_log = logger(__name__)


@contextmanager
def blamed(path: Path, *others: Path) -> Iterator[None]:
    """Begin the message of every error of a model file with its path, or that of another it names.

    The library names the file only: its messages may reach those whom no path concerns.
    """
    try:
        yield
    except ModelError as error:
        told = str(error)
        named = [other for other in (path, *others) if told.startswith(f"{other.name}: ")]
        at_fault = named[0] if named else path
        error.args = (f"{at_fault}: {told.removeprefix(f'{at_fault.name}: ')}",)
        raise


@contextmanager
def loaded(options: LoadOptions, *, watch_growth: bool = False) -> Iterator["Model"]:
    """Load a model and close it at the end; it may watch its own memory."""
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        # The file first: a name that is wrong is told before the engine is imported.
        path = resolve(options.model, progress=display)
        _log.info("%s is %s", options.model, path)
        require_room()
        began = time.monotonic()
        from corral import Model

        with blamed(path):
            model = Model.load(
                path,
                device=options.devices,
                split=options.split,
                gpu_layers=options.gpu_layers,
                context=options.context,
                kv_type=options.kv_type,
                context_shift=options.context_shift,
                keep=options.keep,
                threads=options.threads,
                progress=display,
                watch_growth=watch_growth,
            )
    _log.info(
        "loaded %s on %s in %.2f s: context %d, %s",
        *(model.name, model.device, time.monotonic() - began, model.context),
        format_bytes(model.memory().total_bytes),
    )
    with model:
        for file, scale in options.adapters:
            with blamed(Path(file)):
                adapter = model.adapters.load(file, scale=scale)
            _log.info("attached %s with scale %g", adapter.name, scale)
        yield model
