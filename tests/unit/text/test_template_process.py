"""Tests of `corral.text.template_process`: a template that misbehaves costs its own process."""

import os
import signal
import sys
from datetime import datetime
from pathlib import Path

import pytest

from corral.errors import Closed, InvalidArgument, TemplateError
from corral.text.template import ChatTemplate
from corral.text.template_process import ProcessRenderer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits need POSIX")

SOURCE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if spin %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    "{% endif %}{% if year %}{{ strftime_now('%Y') }}{% endif %}"
)
MESSAGES = [{"role": "user", "content": "é 😀 <|im_end|>"}]


@pytest.fixture(scope="module")
def renderer():
    with ProcessRenderer(SOURCE) as opened:
        yield opened


def pid(renderer):
    return renderer._child.pid


def test_texts_are_those_of_the_process_itself(renderer):
    """A template renders there as it does here, again and again, in the same process."""
    here = ChatTemplate(SOURCE)
    there = ChatTemplate(SOURCE, compiler=lambda source: renderer)
    first = pid(renderer)
    for messages in (MESSAGES, [{"role": "user", "content": "x" * 300_000}], MESSAGES * 3):
        assert there.render(messages) == here.render(messages)
    assert there.facts == here.facts
    assert there.render([], year=True) == str(datetime.now().year)
    assert pid(renderer) == first


def test_errors_come_back(renderer):
    """What the template refuses is told as in process; the process lives on."""
    with pytest.raises(TemplateError, match="fails with TypeError"):
        renderer.render({"messages": 1}, 1.0)
    with pytest.raises(TemplateError, match="takes too long"):
        renderer.render({"messages": [], "spin": True}, 0.05)
    assert renderer.render({"messages": MESSAGES}, 1.0).startswith("user")


def test_broken_templates_are_refused_at_once():
    """A template that does not compile leaves no process behind."""
    with pytest.raises(TemplateError, match="line 1"):
        ProcessRenderer("{% if %}")


def test_what_takes_too_long_is_killed_and_started_again():
    """Where the template does not keep to its time, its process is ended; the next one renders."""
    with ProcessRenderer(SOURCE, slack_s=-29.9) as renderer:
        first = pid(renderer)
        with pytest.raises(TemplateError, match="too long"):
            renderer.render({"messages": [], "spin": True}, 30.0)
        assert not Path(f"/proc/{first}").exists()
        assert renderer.render({"messages": MESSAGES}, 60.0).startswith("user")
        assert pid(renderer) != first


def test_what_takes_too_much_memory_is_refused():
    """Memory ends within the child; what serves has lost nothing."""
    source = "{% set ns = namespace(x='a' * 4000000, l=[]) %}" + (
        "{% for i in range(40) %}{% set ns.l = ns.l + [ns.x ~ i] %}{% endfor %}{{ ns.l | length }}"
    )
    with ProcessRenderer(source) as renderer:
        assert renderer.render({}, 10.0) == "40"
    with ProcessRenderer(source, memory_bytes=128 << 20) as renderer:
        with pytest.raises(TemplateError, match="memory"):
            renderer.render({}, 10.0)
        with pytest.raises(TemplateError, match="memory"):
            renderer.render({}, 10.0)


def test_a_process_that_died_is_replaced():
    """Whoever ended it: the next text is rendered."""
    with ProcessRenderer(SOURCE) as renderer:
        os.kill(pid(renderer), signal.SIGKILL)
        renderer._child.wait()
        assert renderer.render({"messages": MESSAGES}, 5.0).startswith("user")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_the_process_has_nothing_of_ours():
    """No file is inherited but its pipes, no variable of the environment, and it ends with us."""
    with open("/dev/null") as file:  # noqa: PTH123
        os.set_inheritable(file.fileno(), True)
        with ProcessRenderer(SOURCE) as renderer:
            place = Path(f"/proc/{pid(renderer)}")
            assert {int(link.name) for link in (place / "fd").iterdir()} == {0, 1, 2}
            assert (place / "environ").read_bytes() == b""
    assert not place.exists()


def test_use_after_close_and_deep_messages(renderer):
    """A closed renderer says so; nesting that JSON cannot hold is the caller's fault."""
    closed = ProcessRenderer("a")
    closed.close()
    closed.close()
    with pytest.raises(Closed):
        closed.render({}, 1.0)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgument):
        renderer.render({"messages": deep}, 1.0)
    while deep:
        deep = deep[0]
