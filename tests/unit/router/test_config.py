"""A configuration is taken whole or not at all, and each mistake is told with its line."""

import re
from pathlib import Path

import pytest

from corral.errors import InvalidArgument
from corral.router.config import DEFAULT_MARGIN_BYTES, HOST_MARGIN_BYTES, parse_config, read_config

GIB = 1 << 30
HOW_TO = Path(__file__).parents[3] / "docs" / "howto" / "configure-router.md"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "small.gguf").write_bytes(b"")
    (tmp_path / "style.gguf").write_bytes(b"")
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    return tmp_path


def parse(folder, text):
    return parse_config(text, folder / "corral.toml")


def mistakes(folder, text):
    with pytest.raises(InvalidArgument) as caught:
        parse(folder, text)
    return str(caught.value).split("\n")


def test_nothing_is_a_configuration(folder):
    """Every key has a default."""
    config = parse(folder, "")
    assert config.presets == ()
    assert config.server.port == 8080
    assert config.margin("cuda:0", "GPU-1") == DEFAULT_MARGIN_BYTES
    assert config.margin("host", "cpu") == HOST_MARGIN_BYTES
    assert config.budget("cuda:0") is None


def test_everything_that_may_be_said(folder):
    """Paths count from the file's folder, sizes have units."""
    config = parse(
        folder,
        """
        [server]
        port = 0
        models = ["models"]
        cache = true
        min_residency = 3
        process = "100MiB"
        [margins]
        default = "1GiB"
        "cuda:1" = 5
        [budgets]
        GPU-1 = "24 GiB"
        [models."*"]
        parallel = 2
        ttl = 60
        [models.small]
        path = "small.gguf"
        aliases = ["tiny", "other"]
        device = ["cuda:0", "cuda:1"]
        split = [3, 1]
        context = 100
        parallel = 4
        kv_type = "q8_0"
        context_shift = true
        keep = 4
        template = "chat.jinja"
        adapters = ["style.gguf:0.5", "small.gguf"]
        preload = true
        priority = 7
        sampling = { temperature = 0.5, top_k = 3 }
        [models.named]
        path = "hf:owner/repo"
        """,
    )
    small, named = config.presets
    assert small.source == str(folder / "small.gguf")
    assert small.aliases == ("tiny", "other")
    assert small.devices == ("cuda:0", "cuda:1")
    assert small.split == (3.0, 1.0)
    assert (small.context, small.parallel, small.kv_type) == (100, 4, "q8_0")
    assert (small.context_shift, small.keep) == (True, 4)
    assert small.template == "{{ messages }}"
    assert small.adapters == ((str(folder / "style.gguf"), 0.5), (str(folder / "small.gguf"), 1.0))
    assert (small.preload, small.pinned, small.priority, small.ttl_s) == (True, False, 7, 60.0)
    assert small.sampling == {"temperature": 0.5, "top_k": 3}
    assert (named.source, named.parallel) == ("hf:owner/repo", 2)
    assert (config.others.parallel, config.others.ttl_s) == (2, 60.0)
    assert config.server.models == (str(folder / "models"),)
    assert config.server.policy.min_residency_s == 3.0
    assert config.server.policy.process_bytes == 100 << 20
    assert config.margin("cuda:0", "GPU-0") == GIB
    assert config.margin("cuda:1", "GPU-1") == 5
    assert config.margin("host", "cpu") == GIB
    assert config.budget("cuda:1", "GPU-1") == 24 * GIB


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(folder):
    """With line, key, what it holds and what it may hold."""
    text = """[server]
port = 70000
prot = 1

[models.small]
path = "nothing.gguf"
context = "many"
sampling = { temperature = -1 }
[models.other]
parallel = true
[margins]
host = "12 parsecs"
"""
    assert mistakes(folder, text) == [
        "corral.toml:2: server.port is 70000; expected an integer from 0 to 65535",
        "corral.toml:3: [server] has no key 'prot': did you mean port?",
        "corral.toml:6: models.small.path is 'nothing.gguf'; expected a GGUF file that is there",
        "corral.toml:7: models.small.context is 'many'; expected an integer from 1 to 2147483647",
        "corral.toml:8: models.small.sampling.temperature is -1; expected a number from 0 to 100",
        "corral.toml:10: models.other.parallel is True; expected an integer from 1 to 256",
        "corral.toml:12: margins.host is '12 parsecs'; expected a size such as \"24GiB\" or "
        '"512MiB"',
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model.a]", "corral.toml:1: the file has no key 'model': did you mean models?"),
        ("server = 3", "corral.toml:1: server is 3; expected a table"),
        ("[models]\na = 3", "corral.toml:2: models.a is 3; expected a table"),
        (
            '[models.a]\ndevice = ["cpu", "cpu"]',
            "corral.toml:1: models.a.device is 'cpu, cpu'; expected each device once",
        ),
        (
            '[models.a]\ndevice = ["auto", "cpu"]',
            "corral.toml:1: models.a.device is 'auto, cpu'; expected auto alone, or devices by "
            "name",
        ),
        (
            "[models.a]\nsplit = [1, 2]",
            "corral.toml:1: models.a.split is a tuple of 2; expected a number for each of 1 "
            "devices",
        ),
        (
            "[models.a]\npinned = true\nttl = 3",
            "corral.toml:1: models.a.ttl is 3.0; expected none for a pinned model, which is never "
            "unloaded",
        ),
        (
            '[models.a]\naliases = ["X"]\n[models.x]',
            "corral.toml:3: 'x' stands for a already, and for one only",
        ),
        (
            '[models.a]\nadapters = ["x.gguf"]',
            "corral.toml:2: models.a.adapters[0] is 'x.gguf'; expected the file of an adapter that "
            "is there, or that and :SCALE",
        ),
        (
            '[models.a]\nadapters = ["style.gguf:much"]',
            "corral.toml:2: scale is 'much'; expected a number behind style.gguf:",
        ),
        (
            '[models.a]\ntemplate = "none.jinja"',
            "corral.toml:2: models.a.template is 'none.jinja'; expected a template that can be "
            "read (No such file or directory)",
        ),
        (
            "[models.a]\nkeep = 4",
            "corral.toml:1: models.a.keep is 4; expected 0 without context_shift, which alone "
            "drops tokens",
        ),
        (
            '[models."*"]\npath = "small.gguf"',
            "corral.toml:2: [models.*] has no key 'path': expected one of device, split, context, "
            "parallel, kv_type, kv_blocks, context_shift, keep, embeddings, threads, chunk_beside, "
            "queue, drain, sampling, template, adapters, pinned, preload, ttl, priority",
        ),
        (
            '[server]\nmodels = ["nowhere"]',
            "corral.toml:2: server.models[0] is 'nowhere'; expected a folder that is there",
        ),
        (
            "[models.a]\nsampling = { heat = 1 }",
            "corral.toml:2: models.a.sampling has no field 'heat': expected one of temperature, "
            "top_k, top_p, min_p, typical_p, top_n_sigma, xtc_probability, xtc_threshold, "
            "repeat_penalty, repeat_last_n, frequency_penalty, presence_penalty, dry_multiplier, "
            "dry_base, dry_allowed_length, dry_last_n, dry_breakers, seed, logit_bias, logprobs",
        ),
    ],
)
def test_each_mistake_says_what_is_expected(folder, text, expected):
    """One at a time."""
    assert mistakes(folder, text) == [expected]


def test_what_counts_for_all_gives_way_to_a_models_own(folder):
    """A pinned model has no time to live, and a split belongs to the devices it was written for."""
    config = parse(
        folder,
        """
        [models."*"]
        ttl = 60
        device = ["cuda:0", "cuda:1"]
        split = [1, 2]
        [models.pinned]
        pinned = true
        [models.small]
        device = "cpu"
        """,
    )
    pinned, small = config.presets
    assert (pinned.ttl_s, pinned.split) == (None, (1.0, 2.0))
    assert (small.ttl_s, small.split, small.devices) == (60.0, None, ("cpu",))


def test_the_how_to_shows_what_there_is(folder):
    """Its example is a configuration, and its tables name every key."""
    text = HOW_TO.read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (folder / "Qwen3-8B-Q4_K_M.gguf").write_bytes(b"")
    config = parse(folder, example.replace("/srv/models", str(folder)))
    assert [preset.name for preset in config.presets] == ["chat", "small"]
    for table in ("server", "models.x"):
        (told,) = mistakes(folder, f"[{table}]\n_ = 1")
        known = told.split("expected one of ")[1].split(", ")
        assert [key for key in known if f"`{key}`" not in text] == []


def test_what_is_no_toml_is_told_with_its_place(folder):
    """As Python's parser says it."""
    (told,) = mistakes(folder, "a = 1\nb = ?\n")
    assert told.startswith("corral.toml is no TOML: ")
    assert "line 2" in told


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b" " * (4 << 20) + b"#"])
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content):
    """Missing, not text, or too large."""
    path = tmp_path / "corral.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"corral\.toml"):
        read_config(path)


def test_a_file_is_read(folder):
    """And its folder is what paths count from."""
    path = folder / "corral.toml"
    path.write_text('[models.small]\npath = "small.gguf"')
    assert read_config(path).presets[0].source == str(folder / "small.gguf")
    assert Path(read_config(path).presets[0].source).is_absolute()
