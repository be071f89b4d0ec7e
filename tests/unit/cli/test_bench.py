"""`corral bench`: what is measured, how it is summed up, and llama-bench's names."""

import json

import pytest

from corral.cli.bench import Case, Result
from corral.devices.cpu.traits import cpu_traits
from unit.cli.fake_model import FakeModel
from unit.cli.small_file import write_small_file


@pytest.fixture
def path(tmp_path):
    """Write a small model file; return its path without the suffix, as the fake resolver wants."""
    return write_small_file(tmp_path / "small.gguf").with_suffix("")


def test_measures_each_test_after_a_warm_up(corral, path):
    """Each test runs once uncounted, then as often as asked, each with only its own tokens."""
    outcome = corral("bench", path, "-p", 64, "-n", 16, "--repeat", 3)
    assert outcome.code == 0
    assert FakeModel.last.calls == [(64, 0)] * 4 + [(0, 16)] * 4
    assert FakeModel.last.options["context"] >= 64


def test_prints_a_table(corral, path):
    """The table has one row a test with mean, deviation and median."""
    rows = corral("bench", path, "-p", 64, "-n", 16, "--repeat", 3).out.splitlines()
    assert rows[0].split()[-5:] == ["device", "threads", "test", "t/s", "median"]
    assert rows[1].endswith("pp64  361.11 ± 127.29  333.33")
    assert [row.split()[-5] for row in rows[1:]] == ["pp64", "tg16"]


def test_a_count_of_zero_leaves_a_test_out(corral, path):
    """-p 0 measures generation only."""
    out = corral("bench", path, "-p", 0, "-n", 16, "--repeat", 1).out
    assert "pp" not in out
    assert "tg16" in out


def test_json_has_the_names_of_llama_bench(corral, path):
    """JSON can be laid beside that of llama-bench."""
    outcome = corral("bench", path, "-p", 64, "-n", 16, "--repeat", 2, "--json")
    prompt, generated = json.loads(outcome.out)
    assert (prompt["n_prompt"], prompt["n_gen"]) == (64, 0)
    assert (generated["n_prompt"], generated["n_gen"]) == (0, 16)
    assert prompt["model_type"] == "llama 64 F32"
    assert prompt["samples_ns"] == [128_000_000, 192_000_000]
    assert prompt["samples_ts"] == pytest.approx([500, 1000 / 3])
    assert prompt["avg_ts"] == pytest.approx(1250 / 3)
    assert {"avg_ns", "stddev_ns", "stddev_ts", "n_threads", "test_time"} < prompt.keys()


def test_says_what_it_measured_on(corral, path):
    """Device and threads are those that were used, also where the user left them open."""
    few = ("-p", 1, "-n", 0, "--repeat", 1)
    columns = corral("bench", path, *few, "--threads", 3).out.splitlines()[1].split()
    assert columns[-7:-5] == ["cpu", "3"]
    [row] = json.loads(corral("bench", path, *few, "--json").out)
    assert row["backends"] == "cpu"
    assert row["n_threads"] == cpu_traits().workers


def test_one_pass_has_no_spread():
    """The deviation of a single pass is 0."""
    result = Result(Case(0, 10), "now", (2.0,))
    assert (result.mean, result.deviation, result.median) == (5.0, 0.0, 5.0)
