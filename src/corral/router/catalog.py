"""The models there are: those of the configuration, of folders and of the cache, with footprints.

    configuration ─┐
    folders ───────┼─▶ entries, at once ──▶ headers known from the index, at once
    cache ─────────┘                   └──▶ the others: one after the other, by the planning process
                                            (asked for › to be preloaded › by name)

Headers are read in the background; whoever needs one waits for it, and it comes next. Adapters
that lie in the folders are no models, and are left out.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from corral.errors import Closed, CorralError, InvalidArgument, ModelNotFound
from corral.log import logger
from corral.lora.adapter import looks_like_adapter
from corral.router.config import RouterConfig
from corral.router.entry import ModelEntry, Planned, Preset, Unusable
from corral.router.header_index import HeaderIndex, header_key
from corral.router.plan_job import PlanJob
from corral.router.planned_text import Header
from corral.router.planner import NOT_READ
from corral.router.scan import FoundModel, look_at, scan

SAVE_S = 5.0
"""How often the index is written while headers are read."""
_log = logger(__name__)

Resolve = Callable[[str], Path]
"""A name or path → the path of the file; raises CorralError."""


class Plans(Protocol):
    """`planner.Planner`, or a script in a test."""

    def plan(self, job: PlanJob) -> Header:
        """Return what a file's header told."""
        ...

    def close(self) -> None:
        """End."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """A model with what it takes to know its header."""

    entry: ModelEntry
    job: PlanJob | None = None
    key: str = ""


class Catalog:
    """Which models there are; from any thread."""

    def __init__(
        self,
        read_config: Callable[[], RouterConfig],
        planner: Plans,
        index: HeaderIndex,
        *,
        kinds: Sequence[str] = ("cpu",),
        resolve: Resolve = Path,
        cache_folder: Path | None = None,
    ) -> None:
        """List all models and begin to read the headers that are not known.

        Args:
            read_config: reads the configuration, now and at each reload.
            kinds: of devices that are here.
            resolve: finds the file of a model that the configuration names.
            cache_folder: where models of the cache lie, for configurations that serve them.

        Raises:
            InvalidArgument: with what is wrong in the configuration.
        """
        self._read_config = read_config
        self._planner, self._index = planner, index
        self._kinds, self._resolve, self._cache_folder = tuple(kinds), resolve, cache_folder
        self._changed = threading.Condition()
        """Guards all that follows; notified when something is to be read, or was."""
        self._urgent: deque[str] = deque()
        self._is_closed = False
        self._told_adapters: set[str] = set()
        self.config = read_config()
        self._listed = self._list(self.config)
        self._thread = threading.Thread(target=self._read_all, name="corral-catalog", daemon=True)
        self._thread.start()

    def entries(self) -> tuple[ModelEntry, ...]:
        """Return every model, those of the configuration first."""
        with self._changed:
            return tuple(listed.entry for listed in self._listed.values())

    def planned(self, name: str) -> ModelEntry:
        """Return a model with its header read, before those that nobody asks for.

        Raises:
            ModelNotFound: if no model is called so, or it went meanwhile.
            Closed: if the catalog was closed.
        """
        with self._changed:
            while True:
                listed = self._listed.get(name)
                if listed is None:
                    raise ModelNotFound(f"there is no model {name[:60]!r} any more")
                if listed.entry.header is not None:
                    return listed.entry
                if self._is_closed:
                    raise Closed("the catalog was closed")
                if name not in self._urgent:
                    self._urgent.append(name)
                self._changed.notify_all()
                self._changed.wait()

    def reload(self) -> tuple[str, ...]:
        """Read the configuration and look into the folders again; return what changed.

        Raises:
            InvalidArgument: with what is wrong in the configuration, or which of its folders is not
                there, such as that of a disk that went; nothing has changed then.
        """
        config = self._read_config()
        listed = self._list(config)
        with self._changed:
            changes = tuple(_changes(self._listed, listed))
            self.config, self._listed = config, listed
            self._changed.notify_all()
        return changes

    @property
    def unread(self) -> int:
        """How many headers are still to be read."""
        with self._changed:
            return sum(one.entry.header is None for one in self._listed.values())

    def wait_until_read(self, timeout_s: float) -> bool:
        """Wait until every header was read, for so many seconds at most; return whether it was."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(one.entry.header is not None for one in self._listed.values()),
                timeout_s,
            )

    def close(self) -> None:
        """Stop reading, and keep what was read; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Listing: what there is, and what the index knows of it.

    def _list(self, config: RouterConfig) -> dict[str, Listed]:
        folders = [*config.server.models]
        _require(folders)
        if config.server.cache and self._cache_folder is not None:
            folders.append(str(self._cache_folder))
        found = {model.name: model for model in scan(folders)}
        listed = {preset.name: self._of_preset(preset, found) for preset in config.presets}
        taken = {path for one in listed.values() for path in one.entry.paths}
        for name, model in found.items():
            if not taken & set(model.paths) and name not in listed:
                one = self._of_file(replace(config.others, name=name), model)
                if not self._is_adapter(one.entry):
                    listed[name] = one
        return listed

    def _is_adapter(self, entry: ModelEntry) -> bool:
        """Whether a file is an adapter, which the log says once; known models are not opened."""
        path = entry.paths[0]
        if isinstance(entry.header, Planned) or not looks_like_adapter(Path(path)):
            return False
        if path not in self._told_adapters:
            self._told_adapters.add(path)
            _log.warning(
                "%s is a LoRA adapter and is not listed as a model: name it with --lora, or in "
                "adapters = [...] of a model in the configuration",
                path,
            )
        return True

    def _of_preset(self, preset: Preset, found: Mapping[str, FoundModel]) -> Listed:
        """Return the model of a preset: its own file, or the one of its name in the folders."""
        if not preset.source:
            model = found.get(preset.name)
            if model is not None:
                return self._of_file(preset, model)
            text = f"{preset.name} has no path, and no file of the folders is called so"
            return Listed(ModelEntry(preset, header=Unusable(ModelNotFound.code, text)))
        try:
            return self._of_file(preset, look_at(self._resolve(preset.source)))
        except CorralError as error:
            return Listed(ModelEntry(preset, header=Unusable(error.code, str(error))))

    def _of_file(self, preset: Preset, model: FoundModel) -> Listed:
        job = PlanJob.of(model.paths[0], preset, self._kinds)
        key = header_key(model.paths, model.sizes, model.modified_ns, job)
        with self._changed:
            header = self._index.get(key)
        entry = ModelEntry(preset, model.paths, model.size_bytes, model.modified_s, header)
        return Listed(entry, job, key)

    # Reading, in a thread of its own.

    def _read_all(self) -> None:
        saved_s = time.monotonic()
        try:
            while (listed := self._next()) is not None:
                assert listed.job is not None, "what cannot be read has a header that says so"
                self._take(listed, self._planner.plan(listed.job))
                if time.monotonic() - saved_s > SAVE_S:
                    self._save()
                    saved_s = time.monotonic()
        except Exception:  # of this code: models are not found, and the log says why
            _log.error("headers are read no more", exc_info=True)
        finally:
            self._planner.close()
            self._save()
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()

    def _next(self) -> Listed | None:
        """Wait for a model whose header is to be read; None when there are to be no more."""
        with self._changed:
            while not self._is_closed:
                while self._urgent:
                    listed = self._listed.get(self._urgent.popleft())
                    if listed is not None and listed.entry.header is None:
                        return listed
                unread = [one for one in self._listed.values() if one.entry.header is None]
                if unread:
                    return min(unread, key=lambda one: not one.entry.preset.preload)
                self._save()
                self._changed.wait()
            return None

    def _take(self, listed: Listed, header: Header) -> None:
        """Keep what was read, if the model is still there as it was."""
        with self._changed:
            if not isinstance(header, Unusable) or header.code != NOT_READ:
                self._index.put(listed.key, header)
            now = self._listed.get(listed.entry.name)
            if now is not None and now.key == listed.key:
                entry = replace(now.entry, header=header)
                self._listed[entry.name] = Listed(entry, now.job, now.key)
            self._changed.notify_all()

    def _save(self) -> None:
        with self._changed:
            self._index.save()


def _require(folders: Iterable[str]) -> None:
    for folder in folders:
        if not Path(folder).is_dir():
            raise InvalidArgument(
                f"{folder}: there is no such folder of models",
                field="server.models",
            )


def _changes(old: Mapping[str, Listed], new: Mapping[str, Listed]) -> Iterable[str]:
    """Say what is different, for people."""
    for name in new:
        if name not in old:
            yield f"{name} is new"
        elif old[name].key != new[name].key:
            yield f"{name} has another file, or other sizes"
        elif old[name].entry.preset != new[name].entry.preset:
            yield f"{name} is kept otherwise"
    yield from (f"{name} is gone" for name in old if name not in new)
