"""What one process knew the next one knows: the same bits, found by every search, or an error."""

import logging
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

import adapters
import tiny
from corral.contract.sessions import SessionCounts
from corral.engine.opened import Sizes, open_by_name
from corral.engine.sessions import restoring
from corral.engine.sessions.blocks import Blocks
from corral.engine.sessions.sessions import NO_BEGINNINGS, Sessions
from corral.engine.targets import Targets
from corral.kv.chains import cut
from loaded import prompt, sampler

QUOTA = 1 << 30


class Process:
    """A tiny model, opened as a worker does, and what it keeps."""

    def __init__(self, path, folder, device, quota, sizes):
        self.opened = open_by_name(path, Targets.of(device), sizes, identifies=True)
        self.engine = self.opened.engine
        self.sessions = Sessions(self.opened, folder, quota_bytes=quota)

    def run(self, tokens, max_tokens=8, **options):
        """Run a prompt to its end and return its sequence."""
        sequence = self.engine.submit(tokens, sampler=sampler(), max_tokens=max_tokens, **options)
        while sequence.finish_reason is None:
            self.engine.step()
        return sequence

    def restore(self):
        return self.sessions.restore(60.0)

    def save(self, **options):
        return self.sessions.save(60.0, **options)


@pytest.fixture
def process(paths, tmp_path):
    """Return a function that gives a process; it ends with the block."""

    @contextmanager
    def one(
        family="llama", *, path=None, folder="sessions", device="reference", quota=QUOTA, **sizes
    ):
        chosen = Sizes(**({"context": 256, "parallel": 2} | sizes))
        made = Process(path or paths[family], tmp_path / folder, device, quota, chosen)
        try:
            yield made
        finally:
            made.opened.close()

    return one


def files(tmp_path):
    return sorted((tmp_path / "sessions").glob("*/*.kv"))


@pytest.mark.parametrize("device", ["reference", "cpu", ("cpu", "reference")])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_a_conversation_goes_on_bit_by_bit(process, device, kv_type):
    """All of its tokens are found, and what follows is what would have followed."""
    with process(device=device, kv_type=kv_type) as first:
        history = first.run(prompt(75), 20).tokens
        report = first.save()
        assert (report.sessions, report.tokens, report.unsaved_sessions) == (1, 94, 0)
        expected = first.run([*history, 5, 6], 30)
        assert expected.num_cached == 94
    with process(device=device, kv_type=kv_type) as second:
        report = second.restore()
        assert (report.sessions, report.tokens, report.lost_sessions) == (1, 94, 0)
        found = second.run([*history, 5, 6], 30)
        assert found.num_cached == 94
        assert found.tokens == expected.tokens
        counts = second.engine.returns.counts
        assert (counts.returned_sessions, counts.returned_tokens, counts.errors) == (1, 94, 0)


def test_the_bytes_of_blocks_are_the_same(process):
    """Not one of them differs, in any layer."""

    def contents(one):
        links = one.engine.prefixes.links
        blocks = Blocks(one.opened.loaded.parts, one.opened.loaded.design.kv)
        order = sorted(links, key=lambda block: links[block].digest)
        return [layer.copy() for layer in blocks.read(order)]

    with process() as first:
        first.run(prompt(70), 4)
        first.run(prompt(64) + prompt(20, seed=1), 4)
        first.save()
        before = contents(first)
    with process() as second:
        second.restore()
        for found, expected in zip(contents(second), before, strict=True):
            assert found.any()
            np.testing.assert_array_equal(found, expected)


def test_conversations_belong_to_their_adapter(process, tmp_path):
    """One that was had with an adapter goes on with the same adapter and scale, whatever its number
    is by then; with another scale, and without, nothing of it is known."""
    path, other = (adapters.write(tmp_path / f"{seed}.gguf", seed) for seed in (0, 1))

    def add(one, *paths):
        owner = one.opened.adapters
        return [owner.add(owner.prepare(each), scale=0.0).id for each in paths]

    with process() as first:
        (number,) = add(first, path)
        history = first.run(prompt(75), 20, adapters=[(number, 0.5)]).tokens
        first.save()
        expected = first.run([*history, 5], 20, adapters=[(number, 0.5)])
        assert expected.num_cached == 94
    with process() as second:
        _, number = add(second, other, path)
        second.restore()
        for given, known in (([], 0), ([(number, 1.0)], 0), ([(0, 0.5)], 0), ([(number, 0.5)], 94)):
            found = second.run([*history, 5], 20, adapters=given)
            assert found.num_cached == known
        assert found.tokens == expected.tokens


def test_namespaces_stay_apart(process):
    """A conversation of one key is not the beginning of another's."""
    with process() as first:
        history = first.run(prompt(70), 4, namespace="mine").tokens
        first.save()
    with process() as second:
        second.restore()
        assert second.run([*history, 1], 2).num_cached == 0
        assert second.run([*history, 1], 2, namespace="yours").num_cached == 0
        assert second.run([*history, 1], 2, namespace="mine").num_cached == 73


def test_what_was_said_without_reuse_is_not_kept(process, tmp_path):
    """Who wants nothing left for others leaves nothing on disk."""
    with process() as first:
        first.run(prompt(70), 4, reuse=False)
        assert first.save().sessions == 0
    assert files(tmp_path) == []


def test_another_model_or_setting_finds_nothing(process, tmp_path):
    """Keys and values of other weights, types, templates or devices are never used."""
    other = tiny.write(tmp_path / "other.gguf", table=changed())
    with process() as first:
        history = first.run(prompt(70), 4).tokens
        first.save()
    for others in ({"path": other}, {"kv_type": "f32"}, {"device": "cpu"}, {"family": "qwen2"}):
        with process(**others) as second:
            assert second.restore().sessions == 0
            assert second.run([*history, 1], 2).num_cached == 0
    assert len(files(tmp_path)) == 1


def changed():
    """Return the tensors of a tiny model, one value of one of them changed."""
    table = tiny.tensors()
    kind, shape, values = table["token_embd.weight"]
    values = np.array(values)
    values.reshape(-1)[0] += 1.0
    table["token_embd.weight"] = (kind, shape, values)
    return table


def test_a_copy_of_the_file_finds_them(process, paths, tmp_path):
    """Where a model lies, and with what context it is served, does not matter."""
    copy = shutil.copyfile(paths["llama"], tmp_path / "copy.gguf")
    with process() as first:
        history = first.run(prompt(70), 4).tokens
        first.save()
    with process(path=copy, context=128, parallel=1) as second:
        assert second.restore().sessions == 1
        assert second.run([*history, 1], 2).num_cached == 73


def test_an_unchanged_conversation_is_not_written_again(process, tmp_path):
    """One that went on takes the place of what it was."""
    with process() as first:
        history = first.run(prompt(40), 4).tokens
        assert first.save().written_bytes == sum(one.stat().st_size for one in files(tmp_path))
        assert first.save().written_bytes == 0
        (before,) = files(tmp_path)
    with process() as second:
        second.restore()
        second.run([*history, 1], 20)
        report = second.save()
        assert (report.sessions, report.tokens) == (1, 64)
        (after,) = files(tmp_path)
        assert after != before


def test_those_that_did_not_fit_stay_on_disk(process, tmp_path):
    """A smaller cache takes the newest, and the others wait for a larger one."""
    with process(parallel=4) as first:
        for seed in range(4):
            first.run(prompt(200, seed), 2)
        first.save()
    with process(parallel=1) as second:
        report = second.restore()
        assert (report.sessions, report.skipped_sessions) == (1, 3)
        assert second.run([*prompt(200, 3), 1], 2).num_cached == 192
        second.save()
    with process(parallel=4) as third:
        assert third.restore().sessions >= 4


def test_the_newest_are_saved_first(process, tmp_path):
    """A quota that holds one conversation holds the one that was used last."""
    with process() as first:
        first.run(prompt(70, 1), 2)
        first.run(prompt(70, 2), 2)
        first.save()
        size = files(tmp_path)[0].stat().st_size
    with process(quota=size, folder="small") as second:
        for seed in (1, 2):
            second.run(prompt(70, seed), 2)
        report = second.save()
        assert (report.sessions, report.unsaved_sessions) == (1, 1)
        assert "quota" in report.reason
    with process(folder="small") as third:
        third.restore()
        assert third.run([*prompt(70, 1), 3], 2).num_cached == 0
        assert third.run([*prompt(70, 2), 3], 2).num_cached == 64


def test_a_save_that_is_cut_short_keeps_what_it_has(process):
    """Whoever has no time gets whole conversations, or none of them."""
    with process() as first:
        for seed in range(3):
            first.run(prompt(70, seed), 2)
        asked = iter([False, True])
        report = first.save(is_cut=lambda: next(asked, True))
        assert (report.sessions, report.unsaved_sessions) == (1, 2)
        assert "time" in report.reason
    with process() as second:
        assert second.restore().sessions == 1


def test_a_full_disk_is_told_and_harms_nothing(process, tmp_path, monkeypatch):
    """No half file is left, and the report says what was refused."""

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    with process() as first:
        history = first.run(prompt(70), 4).tokens
        with monkeypatch.context() as patch:
            patch.setattr("corral.engine.sessions.file.os.fsync", refuse)
            report = first.save()
        assert (report.sessions, report.unsaved_sessions) == (0, 1)
        assert "No space left" in report.reason
        assert [*(tmp_path / "sessions").glob("*/*")] == []
        assert first.run([*history, 1], 2).num_cached == 73


@pytest.mark.parametrize("damage", ["truncated", "turned", "version"])
def test_damaged_files_are_refused_and_removed(process, tmp_path, damage):
    """Serving goes on, as if nothing had been saved."""
    with process() as first:
        history = first.run(prompt(70), 4).tokens
        first.save()
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[8 if damage == "version" else len(content) // 2] ^= 1
    path.write_bytes(content)
    with process() as second:
        report = second.restore()
        assert (report.sessions, report.refused_files) == (0, 1)
        assert not path.exists()
        statistics = second.engine.statistics()
        assert statistics.known_blocks == (0,)
        assert statistics.free_blocks == statistics.num_blocks
        assert second.run([*history, 1], 2).num_cached == 0


def test_windowed_models_say_that_nothing_is_kept(process):
    """No success is told where nothing would be reused."""
    with process("gemma3") as first:
        first.run(prompt(70), 4)
        report = first.save()
        assert (report.sessions, report.reason) == (0, NO_BEGINNINGS)
        report = first.restore()
        assert (report.sessions, report.reason) == (0, NO_BEGINNINGS)


def test_what_is_read_and_not_found_is_an_error(process, monkeypatch, caplog):
    """A restore is proven by the search that prompts go through, not by having read a file."""
    with process() as first:
        first.run(prompt(70), 4)
        first.save()
    with process() as second, caplog.at_level(logging.ERROR, "corral"):
        monkeypatch.setattr(type(second.engine.prefixes), "find", lambda *_: [])
        report = second.restore()
        assert (report.sessions, report.lost_sessions) == (0, 1)
        assert second.engine.returns.counts.errors == 1
    assert "was restored, but only" in caplog.text


def test_a_prompt_that_finds_nothing_of_its_past_is_an_error(process, monkeypatch, caplog):
    """A conversation was restored, goes on, and is computed from its beginning: that is told."""
    with process() as first:
        history = first.run(prompt(70), 4).tokens
        first.save()
    with process() as second, caplog.at_level(logging.ERROR, "corral"):
        second.restore()
        monkeypatch.setattr(type(second.engine.prefixes), "find", lambda *_: [])
        second.run([*history, 1], 2)
        assert second.engine.returns.counts == SessionCounts(
            restored_sessions=1, restored_tokens=73, errors=1
        )
    assert "found 0 of them" in caplog.text


def test_a_past_whose_blocks_were_needed_is_no_error(process, caplog):
    """What had to go for others is computed again, as ever."""
    with process(parallel=1) as first:
        history = first.run(prompt(70), 4).tokens
        first.save()
    with process(parallel=1) as second, caplog.at_level(logging.ERROR, "corral"):
        second.restore()
        second.run(prompt(200, 9), 50)
        assert second.run([*history, 1], 2).num_cached < 73
        assert second.engine.returns.counts.errors == 0
    assert caplog.text == ""


def test_sequences_under_way_are_saved_as_far_as_they_are(process):
    """What was cancelled is history too, and its last block as well."""
    with process() as first:
        sequence = first.engine.submit(prompt(70), sampler=sampler(), max_tokens=90)
        while sequence.num_generated < 9:
            first.engine.step()
        first.engine.cancel(sequence)
        computed = sequence.num_computed
        assert first.save().tokens == computed
    with process() as second:
        second.restore()
        assert second.run([*sequence.tokens, 1], 2).num_cached == computed


def test_long_conversations_go_in_pieces(process, tmp_path, monkeypatch):
    """What goes on rewrites its end only."""
    monkeypatch.setattr("corral.kv.chains.PIECE_BLOCKS", 2)
    with process() as first:
        history = first.run(prompt(150), 4).tokens
        first.save()
        before = set(files(tmp_path))
        assert len(before) == 3
        first.run([*history, 1], 4)
        first.save()
        assert len(before & set(files(tmp_path))) == 2
    with process() as second:
        assert second.restore().tokens == 158


def test_restoring_takes_no_more_time_than_it_may(process):
    """Those for which there is none are skipped, and told."""
    with process() as first:
        first.run(prompt(70), 4)
        first.save()
    with process() as second:
        report = second.sessions.restore(0.0)
        assert (report.sessions, report.skipped_sessions) == (0, 1)
        assert second.engine.statistics().known_blocks == (0,)


def test_blocks_of_a_file_that_vanished_are_given_back(process, tmp_path, monkeypatch):
    """Others may make room at any moment."""
    with process() as first:
        first.run(prompt(70), 4)
        first.save()
    with process() as second:
        found = restoring.newest_first

        def vanish(*given):
            for path in files(tmp_path):
                path.unlink()
            return found(*given)

        monkeypatch.setattr(restoring, "newest_first", vanish)
        assert second.restore().sessions == 0
        statistics = second.engine.statistics()
        assert statistics.free_blocks == statistics.num_blocks


def test_everything_known_is_in_some_piece(process):
    """No block that a prompt could find is left out."""
    with process() as one:
        for seed in range(3):
            one.run(prompt(70, seed), 4)
        links = one.engine.prefixes.links
        assert sum(len(piece.links) for piece in cut(links.values())) == len(links) == 9
