"""The router's configuration: one TOML file, checked as a whole before anything starts.

    [server]            where to listen, which folders hold models, how patient to be
    [margins]           bytes to keep free, by device; `default` for the others
    [budgets]           the most bytes that models may hold together, by device
    [models.NAME]       how a model is loaded and kept; "*" says it for all models

Every mistake is reported, each with its line, its key, what it holds and what it may hold.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from corral.contract.checks import refuse
from corral.contract.limits import MAX_ADAPTERS
from corral.contract.sampling import SamplingParams
from corral.contract.worker import MAX_DRAIN_S, MAX_QUEUE, AdapterSpec
from corral.errors import InvalidArgument
from corral.router.config_table import (
    Check,
    Mistakes,
    Table,
    dotted,
    flag,
    integer,
    number,
    one_of,
    several,
    size,
    text,
)
from corral.router.entry import AUTO, HOST, Preset
from corral.router.placing import Policy
from corral.router.toml_lines import key_lines

DEFAULT = "default"
EVERY_MODEL = "*"
DEFAULT_MARGIN_BYTES = 256 << 20
HOST_MARGIN_BYTES = 1 << 30
KV_TYPES = ("f16", "bf16", "f32", "q8_0")
_MAX_FILE_BYTES = 4 << 20
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_SECONDS = 10 * 365 * 86_400.0
_MAX_TOKENS = 2**31 - 1
_POLICY = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What counts for the server as a whole."""

    host: str = "127.0.0.1"
    port: int = 8080
    models: tuple[str, ...] = ()
    """Folders whose GGUF files are served."""
    cache: bool = False
    """Whether the models of the cache directory are served too."""
    api_key_file: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    drain: float = 30.0
    """Seconds that running answers get when the server is to stop."""
    waiting: int = 512
    """Requests that may wait for models to be loaded; more get 503."""
    min_residency: float = _POLICY.min_residency_s
    idle: float = _POLICY.idle_s
    max_wait: float = _POLICY.max_wait_s
    process: int = _POLICY.process_bytes
    """Main memory of a worker beside its model, in bytes."""
    sessions: str | None = None
    """Folder for the conversations of models that go; None is the cache directory's."""
    sessions_quota: int = 8 << 30

    @property
    def policy(self) -> Policy:
        """How eager the router is."""
        return Policy(
            min_residency_s=self.min_residency,
            idle_s=self.idle,
            max_wait_s=self.max_wait,
            process_bytes=self.process,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """All that a configuration says."""

    server: ServerSettings = field(default_factory=ServerSettings)
    margins: Mapping[str, int] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)
    presets: tuple[Preset, ...] = ()
    """Models by name, what counts for every model already in them."""
    others: Preset = field(default_factory=lambda: Preset(name=EVERY_MODEL))
    """For models that have no preset of their own."""

    def margin(self, *names: str | None) -> int:
        """Return the bytes to keep free on a device that has certain names."""
        named = [self.margins[name] for name in names if name and name in self.margins]
        usual = HOST_MARGIN_BYTES if HOST in names else DEFAULT_MARGIN_BYTES
        return named[0] if named else self.margins.get(DEFAULT, usual)

    def budget(self, *names: str | None) -> int | None:
        """Return the most bytes that models may hold together on a device; None is no limit."""
        named = [self.budgets[name] for name in names if name and name in self.budgets]
        return named[0] if named else None


def read_config(path: Path) -> RouterConfig:
    """Read a configuration file.

    Raises:
        InvalidArgument: if it cannot be read, or with every mistake that is in it.
    """
    try:
        return parse_config(_read(path, _MAX_FILE_BYTES), path)
    except OSError as error:
        raise InvalidArgument(f"cannot read the configuration {path}: {error.strerror}") from error


def parse_config(content: str, path: Path) -> RouterConfig:
    """Check the text of a configuration; names of files in it count from the folder of `path`.

    Raises:
        InvalidArgument: with every mistake that is in it.
    """
    try:
        data = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path.name} is no TOML: {error}") from error
    mistakes = Mistakes(path, key_lines(content))
    root = Table(mistakes, (), data)
    root.take(dict.fromkeys(("server", "margins", "budgets", "models"), lambda _name, it: it))
    server = _server(root.table("server"))
    margins = root.table("margins").take_all(size)
    budgets = root.table("budgets").take_all(size)
    presets, others = _presets(root.table("models"))
    mistakes.finish()
    return RouterConfig(
        server=server, margins=margins, budgets=budgets, presets=presets, others=others
    )


def _server(table: Table) -> ServerSettings:
    folder, names = _folder(table.mistakes), several(text(256), longest=1000, what="names")
    seconds = number(0.0, _MAX_SECONDS)
    checks: dict[str, Check] = {
        "host": text(256),
        "port": integer(0, 65_535),
        "models": several(folder, longest=1000, what="folders"),
        "cache": flag,
        "api_key_file": _path(table.mistakes),
        "allowed_hosts": names,
        "cors_origins": names,
        "drain": number(0.0, MAX_DRAIN_S),
        "waiting": integer(0, MAX_QUEUE),
        "min_residency": seconds,
        "idle": seconds,
        "max_wait": seconds,
        "process": size,
        "sessions": _path(table.mistakes),
        "sessions_quota": size,
    }
    return ServerSettings(**table.take(checks))


def _presets(table: Table) -> tuple[tuple[Preset, ...], Preset]:
    """Return the presets by name, and the one for models without."""
    checks = _preset_checks(table.mistakes)
    for_all = {name: check for name, check in checks.items() if name not in ("path", "aliases")}
    common: dict[str, object] = {}
    if EVERY_MODEL in table.values:
        common = table.table(EVERY_MODEL).take(for_all)
    others = _preset(EVERY_MODEL, common)
    presets = []
    for own in table.tables():
        name = own.key[-1]
        if name == EVERY_MODEL:
            continue
        taken = own.take(checks)
        try:
            text(256)(f"the name of [{dotted(own.key)}]", name)
            presets.append(_preset(name, {**_common_for(taken, common), **taken}))
            _check_together(presets[-1])
        except InvalidArgument as error:
            table.mistakes.add(own.key, str(error))
    _check_names(table, presets)
    return tuple(presets), others


def _common_for(own: Mapping[str, object], common: Mapping[str, object]) -> dict[str, object]:
    """Return what all models have, without what contradicts a model's own keys."""
    left_out = set()
    if own.get("pinned") is True:
        left_out.add("ttl")
    if "device" in own:
        left_out.add("split")
    return {key: value for key, value in common.items() if key not in left_out}


_FIELDS = {
    "path": "source",
    "device": "devices",
    "drain": "drain_s",
    "ttl": "ttl_s",
}
"""Fields of a preset whose keys are called otherwise."""


def _preset(name: str, taken: Mapping[str, object]) -> Preset:
    named = {_FIELDS.get(key, key): value for key, value in taken.items()}
    return replace(Preset(name=name), **named)  # type: ignore[arg-type]  # each was checked


def _preset_checks(mistakes: Mistakes) -> dict[str, Check]:
    device = several(text(256), shortest=1, longest=64, what="devices")
    return {
        "path": _source(mistakes),
        "aliases": several(text(256), longest=100, what="names"),
        "device": device,
        "split": several(
            number(0.0, 1e18, is_low_excluded=True), shortest=2, longest=64, what="numbers"
        ),
        "context": integer(1, _MAX_TOKENS),
        "parallel": integer(1, 256),
        "kv_type": one_of(*KV_TYPES),
        "kv_blocks": integer(1, _MAX_TOKENS),
        "context_shift": flag,
        "keep": integer(0, _MAX_TOKENS),
        "embeddings": flag,
        "threads": integer(1, 1024),
        "chunk_beside": integer(1, _MAX_TOKENS),
        "queue": integer(0, MAX_QUEUE),
        "drain": number(0.0, MAX_DRAIN_S),
        "sampling": _sampling,
        "template": _template(mistakes),
        "adapters": _adapters(mistakes),
        "pinned": flag,
        "preload": flag,
        "ttl": number(0.0, _MAX_SECONDS, is_low_excluded=True),
        "priority": integer(-1000, 1000),
    }


def _check_together(preset: Preset) -> None:
    """Check what one key says against another."""
    name, devices = f"models.{preset.name}", preset.devices
    if len(set(devices)) < len(devices):
        refuse(f"{name}.device", ", ".join(devices), "each device once")
    if AUTO in devices and len(devices) > 1:
        refuse(f"{name}.device", ", ".join(devices), f"{AUTO} alone, or devices by name")
    if preset.split is not None and len(preset.split) != len(devices):
        refuse(f"{name}.split", preset.split, f"a number for each of {len(devices)} devices")
    if preset.keep and not preset.context_shift:
        refuse(f"{name}.keep", preset.keep, "0 without context_shift, which alone drops tokens")
    if preset.pinned and preset.ttl_s is not None:
        refuse(f"{name}.ttl", preset.ttl_s, "none for a pinned model, which is never unloaded")


def _check_names(table: Table, presets: list[Preset]) -> None:
    """Check that each name and alias stands for one model."""
    owners: dict[str, str] = {}
    for preset in presets:
        for name in (preset.name, *preset.aliases):
            owner = owners.setdefault(name.lower(), preset.name)
            if owner != preset.name:
                key = (*table.key, preset.name, "aliases")
                table.mistakes.add(key, f"{name!r} stands for {owner} already, and for one only")


def _sampling(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        refuse(name, value, "a table, such as { temperature = 0.7 }")
    known = SamplingParams.__struct_fields__
    for field_name in value:
        if field_name not in known:
            raise InvalidArgument(
                f"{name} has no field {field_name[:60]!r}: expected one of {', '.join(known)}"
            )
    try:
        SamplingParams(**value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}.{error}", field=error.field) from error
    return value


def _adapters(mistakes: Mistakes) -> Check:
    """Accept files of adapters, each with what it counts behind a colon if that is not 1."""

    def check(name: str, value: object) -> tuple[tuple[str, float], ...]:
        listed = several(text(4096), longest=MAX_ADAPTERS, what="adapters")(name, value)
        assert isinstance(listed, tuple), "several() gives one"
        return tuple(_adapter(mistakes, f"{name}[{n}]", each) for n, each in enumerate(listed))

    return check


def _adapter(mistakes: Mistakes, name: str, given: str) -> tuple[str, float]:
    spec = AdapterSpec.parse(given)
    path = _path(mistakes)(name, spec.path)
    if not Path(path).is_file():
        refuse(name, given, "the file of an adapter that is there, or that and :SCALE")
    return path, spec.scale


def _path(mistakes: Mistakes) -> Check:
    def check(name: str, value: object) -> str:
        try:
            return str(mistakes.folder / Path(str(text(4096)(name, value))).expanduser())
        except RuntimeError:  # nobody is called so, or has no home
            return refuse(name, value, "a path with a home directory that is there")

    return check


def _folder(mistakes: Mistakes) -> Check:
    def check(name: str, value: object) -> object:
        path = _path(mistakes)(name, value)
        if not Path(path).is_dir():
            refuse(name, value, "a folder that is there")
        return path

    return check


def _source(mistakes: Mistakes) -> Check:
    """Accept the path of a file, or a name as for --model, which is looked up by others."""

    def check(name: str, value: object) -> object:
        source = str(text(4096)(name, value))
        if source.startswith("hf:") or not ("/" in source or source.endswith(".gguf")):
            return source
        path = _path(mistakes)(name, source)
        if not Path(path).is_file():
            refuse(name, value, "a GGUF file that is there")
        return path

    return check


def _template(mistakes: Mistakes) -> Check:
    """Accept the path of a template, and keep what is in the file."""

    def check(name: str, value: object) -> str:
        path = Path(_path(mistakes)(name, value))
        try:
            return _read(path, _MAX_TEMPLATE_BYTES)
        except OSError as error:
            return refuse(name, value, f"a template that can be read ({error.strerror})")

    return check


def _read(path: Path, most: int) -> str:
    """Return the text of a file.

    Raises:
        OSError: if it cannot be read.
        InvalidArgument: if it is too large, or not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InvalidArgument(f"{path.name} has more than {most} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path.name} is not UTF-8: {error}") from error
