"""The page for everybody: keyboards, screen readers, both colour schemes, phones."""

import pytest

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
CONTRAST = 4.5
PAIRS = (
    ("ink", "ground"),
    ("ink", "raised"),
    ("ink", "accent-soft"),
    ("ink", "hover"),
    ("ink-soft", "ground"),
    ("ink-soft", "raised"),
    ("ink-soft", "sunken"),
    ("ink-soft", "hover"),
    ("accent", "ground"),
    ("accent", "raised"),
    ("on-accent", "accent"),
    ("wrong", "wrong-soft"),
    ("wrong", "raised"),
    ("wrong", "hover"),
)
COLOURS = """(names) => {
  const probe = document.createElement("i");
  document.body.append(probe);
  return names.map((name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  });
}"""
NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, select, a")]
  .filter((part) => part.checkVisibility())
  .filter((part) => !part.getAttribute("aria-label") && !part.textContent.trim()
    && !(part.labels && part.labels.length))
  .map((part) => part.outerHTML)"""


def luminance(colour):
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [value / 255 for value in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(served, showing, scheme):
    """Text stands out from what it stands on, in both schemes, and the user may choose one."""
    with showing(served().url, color_scheme=scheme) as shown:
        page = shown.page
        names = sorted({name for pair in PAIRS for name in pair})
        found = dict(zip(names, page.evaluate(COLOURS, names), strict=True))
        for pair in PAIRS:
            dark, light = sorted(luminance(found[name]) for name in pair)
            assert (light + 0.05) / (dark + 0.05) >= CONTRAST, pair
        page.get_by_role("button", name="Settings").click()
        other = "dark" if scheme == "light" else "light"
        page.get_by_label("Colours").select_option(other)
        page.get_by_role("button", name="Save").click()
        chosen = dict(zip(names, page.evaluate(COLOURS, names), strict=True))
        assert chosen["ink"] != found["ink"]


def test_everything_has_a_name(shown):
    """Whoever hears the page is told what each control is."""
    page = shown.page
    shown.ask("think a / b")
    shown.answered()
    shown.ask('call look {"at":1}')
    shown.sees(shown.answered(), "look")
    assert page.evaluate(NAMELESS) == []
    page.get_by_role("button", name="Settings").click()
    assert page.evaluate(NAMELESS) == []
    assert page.get_by_role("status").filter(has_text="The answer has ended").count() == 1


def test_the_keyboard_reaches_everything(shown):
    """Tab goes through what can be pressed, and one can see where it is."""
    page = shown.page
    page.get_by_role("button", name="New conversation").focus()
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if page.evaluate("document.activeElement.id") not in ("prompt", ""):
            assert outline != "none"
    assert {"prompt", "show-settings", "show-memory", "show-sidebar"} <= reached


def test_a_phone(served, showing, service):
    """On a narrow screen nothing is cut off, and the panels are drawers that Esc closes."""
    service.texts["wide"] = f"| {' | '.join('wide cell' for _ in range(12))} |\n|{'-|' * 12}\n\n"
    service.texts["wide"] += f"```\n{'x' * 300}\n```\n{'y' * 300}"
    with showing(served().url, **PHONE) as shown:
        page = shown.page
        memory, sidebar = page.locator("#memory"), page.locator("#sidebar")
        shown.hides(memory)
        shown.hides(sidebar)
        shown.ask("say wide")
        shown.answered()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate("document.querySelector('#messages').scrollWidth") <= 360
        page.locator("#show-memory").click()
        assert memory.is_visible()
        page.keyboard.press("Escape")
        shown.hides(memory)
        page.locator("#show-sidebar").click()
        page.locator("#conversations .conversation").click()
        shown.hides(sidebar)
        page.locator("#show-sidebar").click()
        page.locator("#shade").click(position={"x": 340, "y": 400})
        shown.hides(sidebar)


def test_the_memory_panel_stays_as_it_was_left(shown):
    """Who closes the panel finds it closed the next time."""
    page = shown.page
    assert page.locator("#memory").is_visible()
    page.locator("#show-memory").click()
    shown.hides(page.locator("#memory"))
    page.reload()
    shown.sees(page.locator("#state"), "ready")
    assert page.locator("#memory").is_hidden()


def test_reduced_motion(served, showing):
    """Nothing moves for those who asked for that."""
    with showing(served().url, reduced_motion="reduce") as shown:
        moving = shown.page.evaluate(
            """() => [...document.querySelectorAll("*")].filter((part) => {
              const style = getComputedStyle(part);
              return style.animationName !== "none" || style.transitionDuration !== "0s";
            }).length"""
        )
        assert moving == 0
