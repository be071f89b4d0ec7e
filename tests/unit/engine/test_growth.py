"""The leak sentinel: what it samples and when, and that a model's memory tells it."""

import sys

import pytest

from corral.engine import growth
from corral.engine.growth import GrowthWatch, held_bytes
from corral.engine.model import Model
from corral.errors import InvalidArgument
from corral.memory.growth import FEWEST


class Played:
    """A host, a device and a clock that move as they are told."""

    def __init__(self, *, host=0, device=0, seconds=0.1):
        self.per_token = (host, device)
        self.seconds = seconds
        self.tokens = self.reads = self.now = 0
        self.watch = GrowthWatch(self._device, host_bytes=self._host, clock=lambda: self.now)
        self.reads = 0

    def _host(self):
        self.reads += 1
        return 10**9 + self.per_token[0] * self.tokens

    def _device(self):
        return 10**6 + self.per_token[1] * self.tokens

    def generate(self, tokens):
        """Let so many steps of one token pass."""
        for _ in range(tokens):
            self.tokens += 1
            self.now += self.seconds
            self.watch.generated(1)


class TestWatch:
    """Sampling against tokens."""

    def test_growth_is_told_a_token(self):
        """Host and device have a slope each, in bytes a token."""
        played = Played(host=64, device=3)
        played.generate(200)
        found = played.watch.growth()
        assert found.generated_tokens == 200
        assert (found.host.value, found.device.value) == pytest.approx((64, 3))
        assert found.host.num_samples == found.device.num_samples <= found.num_samples

    def test_sampling_is_rare(self):
        """At most 20 samples a second, and at most one in 8 tokens."""
        fast, slow = Played(seconds=0.001), Played(seconds=10)
        fast.generate(1000)
        slow.generate(80)
        assert 10 < fast.reads <= 20
        assert slow.reads == 10

    def test_a_long_run_keeps_few(self):
        """A hundred thousand tokens are as many samples as a few thousand."""
        played = Played(host=1)
        played.generate(100_000)
        assert played.watch.growth().num_samples <= 256
        assert played.watch.growth().host.value == pytest.approx(1)

    def test_too_few_tokens_say_nothing(self):
        """A short answer has samples and no slope."""
        played = Played(host=64)
        played.generate(8 * (FEWEST - 1))
        found = played.watch.growth()
        assert (found.host, found.device) == (None, None)
        assert 0 < found.num_samples < FEWEST

    def test_evaluations_without_tokens_do_not_count(self):
        """A prompt is no work that memory is held against."""
        played = Played()
        for _ in range(100):
            played.now += 1
            played.watch.generated(0)
        assert played.watch.growth().num_samples == 0

    def test_a_system_that_tells_nothing(self):
        """Without the host's figures there are still the device's."""
        watch = GrowthWatch(lambda: 5, host_bytes=lambda: None, clock=iter(range(10**6)).__next__)
        for _ in range(200):
            watch.generated(1)
        found = watch.growth()
        assert found.host is None
        assert (found.device.value, found.device.half_width) == (0, 0)


class TestHeldBytes:
    """What the system says this process holds."""

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_memory_is_counted(self):
        """Bytes that are written are held, and given back they are not."""
        before = held_bytes()
        block = bytearray(b"x") * (64 << 20)
        assert held_bytes() - before > 60 << 20
        del block
        assert held_bytes() - before < 4 << 20

    @pytest.mark.parametrize("text", [None, "", "VmSwap:\t0 kB\n"])
    def test_a_system_without_it(self, text, tmp_path, monkeypatch):
        """No such file, and a file without such lines, are unknown."""
        path = tmp_path / "status"
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(growth, "_STATUS", str(path))
        assert held_bytes() is None

    def test_kinds_are_added(self, tmp_path, monkeypatch):
        """Anonymous, shared and swapped memory count; what files back does not."""
        path = tmp_path / "status"
        path.write_text(
            "VmRSS:\t9 kB\nRssAnon:\t  40 kB\nRssFile:\t700 kB\nRssShmem:\t2 kB\nVmSwap:\t1 kB\n"
        )
        monkeypatch.setattr(growth, "_STATUS", str(path))
        assert held_bytes() == 43 * 1024


class TestModel:
    """`memory().growth`."""

    def test_it_is_off_unless_asked(self, paths):
        """A model that is not watched has no growth, and no file is read for it."""
        with Model.load(paths["llama"], device="reference", context=128) as model:
            list(model.generate("Once", max_tokens=20, ignore_eos=True))
            assert model.memory().growth is None

    def test_a_watched_model_tells(self, paths, monkeypatch):
        """Tokens of all answers count, and the device does not grow; the ledger is as ever."""
        monkeypatch.setattr(growth, "_SPACING_S", 0.0)
        with Model.load(
            paths["llama"], device="reference", context=128, watch_growth=True
        ) as model:
            for _ in range(2):
                list(model.generate("Once", max_tokens=60, ignore_eos=True))
            memory = model.memory()
            assert memory.growth.generated_tokens == 120
            assert memory.growth.num_samples == 15
            assert (memory.growth.device.value, memory.growth.device.half_width) == (0, 0)
            assert memory.total_bytes == sum(row.planned_bytes for row in memory.rows) > 0
        assert model.memory().growth == memory.growth

    def test_only_yes_or_no(self, paths):
        """What only counts as true is refused."""
        with pytest.raises(InvalidArgument, match="watch_growth"):
            Model.load(paths["llama"], watch_growth="no")
