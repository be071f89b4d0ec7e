"""The catalog with scripted plans: what is listed, what is read first, what a reload changes."""

import threading
from pathlib import Path

import pytest

import adapters
import tiny
from corral.errors import Closed, InvalidArgument, ModelNotFound
from corral.router.catalog import Catalog
from corral.router.config import RouterConfig, ServerSettings
from corral.router.entry import Planned, Preset, Unusable
from corral.router.header_index import HeaderIndex
from corral.router.planner import NOT_READ, Planner
from machines import footprint

LIMIT_S = 60.0


class Script:
    """Plans that are let through one by one; it keeps which files were asked for."""

    def __init__(self, *, is_open=True, code=""):
        self.asked = []
        self.code = code
        self.is_closed = False
        self._gate = threading.Semaphore(0)
        self._started = threading.Semaphore(0)
        self._is_open = is_open

    def plan(self, job):
        self.asked.append(Path(job.path).name)
        self._started.release()
        if not self._is_open:
            assert self._gate.acquire(timeout=LIMIT_S)
        if self.code:
            return Unusable(self.code, "it is bad")
        return Planned(job.path, "llama", job.context or 1, 9, 4, (footprint(4, kind="cpu"),))

    def close(self):
        self.is_closed = True

    def wait_for_start(self):
        assert self._started.acquire(timeout=LIMIT_S)

    def let(self, count=1):
        self._gate.release(count)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.gguf").write_bytes(b"x")
    return folder


def config(folder, *presets, **server):
    return RouterConfig(server=ServerSettings(models=(str(folder),), **server), presets=presets)


def open_catalog(folder, planner, *presets, index=None, **options):
    index = index or HeaderIndex(folder.parent / "headers.json")
    given = options.pop("config", None) or config(folder, *presets)
    return Catalog(lambda: given, planner, index, **options)


def names(catalog):
    return [entry.name for entry in catalog.entries()]


def until(catalog, holds):
    with catalog._changed:
        assert catalog._changed.wait_for(holds, LIMIT_S)


def test_folders_presets_and_the_cache_are_one_list(folder, tmp_path):
    """Presets first; a file that a preset names, or is named like one, is not listed twice."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kept.gguf").write_bytes(b"x")
    presets = [
        Preset(name="own", source=str(folder / "a.gguf"), context=5),
        Preset(name="b", context=7),
        Preset(name="nothing"),
        Preset(name="lost", source=str(folder / "lost.gguf")),
    ]
    given = config(folder, *presets, cache=True)
    with open_catalog(folder, Script(), config=given, cache_folder=cache) as catalog:
        assert names(catalog) == ["own", "b", "nothing", "lost", "c", "kept"]
        entries = {entry.name: entry for entry in catalog.entries()}
        assert entries["own"].paths == (str(folder / "a.gguf"),)
        assert catalog.planned("own").header.context == 5
        assert catalog.planned("b").header.context == 7
        assert catalog.planned("c").header.context == 1
        assert entries["nothing"].header.code == "model_not_found"
        assert "no path" in catalog.planned("nothing").header.message
        assert entries["lost"].header.code == "model_not_found"
        with pytest.raises(ModelNotFound):
            catalog.planned("a")


def test_adapters_in_folders_are_no_models(folder, caplog):
    """They are not listed, nor read; the log names each once, however often folders are read."""
    adapters.write(folder / "style.gguf")
    with open_catalog(folder, script := Script()) as catalog:
        assert names(catalog) == ["a", "b", "c"]
        assert catalog.reload() == ()
        assert catalog.wait_until_read(LIMIT_S)
        with pytest.raises(ModelNotFound):
            catalog.planned("style")
    assert sorted(script.asked) == ["a.gguf", "b.gguf", "c.gguf"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert str(folder / "style.gguf") in told
    assert "--lora" in told and "adapters = [...]" in told


def test_an_adapter_that_a_preset_takes_for_a_model_is_refused(folder):
    """It stays in the list, for its header says what is wrong with the configuration."""
    path = adapters.write(folder / "style.gguf")
    presets = [Preset(name="mine", source=str(path)), Preset(name="style")]
    with open_catalog(folder, Planner(), *presets) as catalog:
        header = catalog.planned("mine").header
    assert (header.code, header.message) == (
        "invalid_model_file",
        "style.gguf is a LoRA adapter: give a model, and this with --lora",
    )


def test_names_are_looked_up_by_whoever_can(folder):
    """And what that says is told of the model."""

    def resolve(name):
        if name == "demo":
            return folder / "a.gguf"
        raise ModelNotFound(f"no {name}")

    presets = Preset(name="one", source="demo"), Preset(name="two", source="hf:x/y")
    with open_catalog(folder, Script(), *presets, resolve=resolve) as catalog:
        one, two, *_ = catalog.entries()
        assert one.paths == (str(folder / "a.gguf"),)
        assert two.header == Unusable("model_not_found", "no hf:x/y")


def test_what_is_asked_for_is_read_first(folder):
    """Then what is to be preloaded, then the others."""
    script = Script(is_open=False)
    presets = Preset(name="c", preload=True), Preset(name="a", source=str(folder / "a.gguf"))
    with open_catalog(folder, script, *presets) as catalog:
        script.wait_for_start()
        found = []
        asking = threading.Thread(target=lambda: found.append(catalog.planned("b")))
        asking.start()
        until(catalog, lambda: "b" in catalog._urgent)
        script.let(3)
        asking.join(LIMIT_S)
        assert found[0].name == "b"
        assert isinstance(found[0].header, Planned)
        assert catalog.wait_until_read(LIMIT_S)
        assert catalog.unread == 0
    assert script.asked == ["c.gguf", "b.gguf", "a.gguf"]
    assert script.is_closed


def test_a_known_header_is_there_at_once(folder):
    """Nothing is planned a second time until a file or a preset changes."""
    with open_catalog(folder, Script()) as catalog:
        assert catalog.wait_until_read(LIMIT_S)
    script = Script()
    with open_catalog(folder, script) as catalog:
        assert all(isinstance(entry.header, Planned) for entry in catalog.entries())
    assert script.asked == []
    (folder / "b.gguf").write_bytes(b"another")
    with open_catalog(folder, script, Preset(name="c", context=3)) as catalog:
        assert catalog.wait_until_read(LIMIT_S)
    assert sorted(script.asked) == ["b.gguf", "c.gguf"]


def test_a_header_that_was_not_read_is_tried_again_the_next_time(folder):
    """A file that is bad is not."""
    for code, again in ((NOT_READ, 3), ("invalid_model_file", 0)):
        index = folder.parent / f"{code}.json"
        with open_catalog(folder, Script(code=code), index=HeaderIndex(index)) as catalog:
            assert catalog.wait_until_read(LIMIT_S)
            assert catalog.planned("a").header.code == code
        script = Script()
        with open_catalog(folder, script, index=HeaderIndex(index)) as catalog:
            assert catalog.wait_until_read(LIMIT_S)
        assert len(script.asked) == again


def test_reloading_tells_what_changed(folder):
    """New, gone, other files, other presets; what is the same is not read again."""
    given = [config(folder, Preset(name="a", ttl_s=1.0))]
    script = Script()
    index = HeaderIndex(folder.parent / "headers.json")
    with Catalog(lambda: given[0], script, index) as catalog:
        assert catalog.wait_until_read(LIMIT_S)
        assert catalog.reload() == ()
        (folder / "b.gguf").unlink()
        (folder / "c.gguf").write_bytes(b"another")
        (folder / "d.gguf").write_bytes(b"x")
        given[0] = config(folder, Preset(name="a", ttl_s=2.0))
        assert sorted(catalog.reload()) == [
            "a is kept otherwise",
            "b is gone",
            "c has another file, or other sizes",
            "d is new",
        ]
        assert catalog.config is given[0]
        assert catalog.wait_until_read(LIMIT_S)
        assert names(catalog) == ["a", "c", "d"]
    assert sorted(script.asked) == ["a.gguf", "b.gguf", "c.gguf", "c.gguf", "d.gguf"]


def test_a_wrong_configuration_changes_nothing(folder):
    """Everything goes on as it was."""
    answers = [config(folder)]

    def read():
        if not answers:
            raise InvalidArgument("it is wrong")
        return answers.pop()

    with Catalog(read, Script(), HeaderIndex(folder.parent / "headers.json")) as catalog:
        (folder / "a.gguf").unlink()
        with pytest.raises(InvalidArgument):
            catalog.reload()
        assert names(catalog) == ["a", "b", "c"]


def test_a_folder_that_went_changes_nothing(folder):
    """A disk that is not there for a moment takes no model along; nor is a slip served."""
    with Catalog(
        lambda: config(folder), Script(), HeaderIndex(folder.parent / "headers.json")
    ) as catalog:
        folder.rename(folder.parent / "elsewhere")
        with pytest.raises(InvalidArgument, match="no such folder of models"):
            catalog.reload()
        assert names(catalog) == ["a", "b", "c"]
    with pytest.raises(InvalidArgument, match="no such folder of models"):
        Catalog(lambda: config(folder), Script(), HeaderIndex(folder.parent / "headers.json"))


def test_closing_ends_whoever_waits(folder):
    """The header that is being read is kept."""
    script = Script(is_open=False)
    catalog = open_catalog(folder, script)
    script.wait_for_start()
    errors = []

    def ask():
        try:
            catalog.planned("c")
        except Closed as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    closing = threading.Thread(target=catalog.close)
    closing.start()
    until(catalog, lambda: catalog._is_closed)
    script.let(3)
    closing.join(LIMIT_S)
    asking.join(LIMIT_S)
    assert len(errors) == 1
    assert script.asked == ["a.gguf"]
    catalog.close()
    assert script.is_closed
    with open_catalog(folder, Script()) as again:
        assert isinstance(again.planned("a").header, Planned)


def test_a_model_that_went_while_it_was_waited_for_is_told(folder):
    """Nobody waits for a header that will never be read."""
    script = Script(is_open=False)
    with open_catalog(folder, script) as catalog:
        script.wait_for_start()
        (folder / "c.gguf").unlink()
        catalog.reload()
        with pytest.raises(ModelNotFound):
            catalog.planned("c")
        script.let(3)


def test_real_files_are_planned_by_a_real_process(folder):
    """Good ones and bad ones."""
    tiny.write(folder / "a.gguf")
    with open_catalog(folder, Planner()) as catalog:
        found = catalog.planned("a").header
        assert found.footprint("cpu").own_bytes > 0
        assert catalog.planned("b").header.code == "invalid_model_file"
