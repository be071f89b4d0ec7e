"""Markdown as the page shows it: each rule, texts that grow, and texts that mean harm."""

import pytest

RENDER = """async (text) => {
  const { MarkdownView } = await import("/js/markdown/view.js");
  const root = document.createElement("div");
  new MarkdownView(root).update(text);
  for (const head of root.querySelectorAll(".code-head")) head.remove();
  for (const part of root.querySelectorAll("*")) {
    for (const name of ["class", "tabindex", "aria-label", "role", "target", "rel", "disabled"]) {
      part.removeAttribute(name);
    }
  }
  return root.innerHTML;
}"""
GROW = """async (text) => {
  const { MarkdownView } = await import("/js/markdown/view.js");
  const [grown, differing] = [document.createElement("div"), []];
  const view = new MarkdownView(grown);
  for (let end = 0; end <= text.length; end += 1) {
    const whole = document.createElement("div");
    new MarkdownView(whole).update(text.slice(0, end));
    view.update(text.slice(0, end));
    if (grown.innerHTML !== whole.innerHTML) differing.push(end);
  }
  return differing;
}"""

CASES = {
    "a paragraph\nof two lines": "<p>a paragraph<br>of two lines</p>",
    "one\n\ntwo": "<p>one</p><p>two</p>",
    "**bold** *it* __b__ _i_ ~~no~~": (
        "<p><strong>bold</strong> <em>it</em> <strong>b</strong> <em>i</em> <s>no</s></p>"
    ),
    "***both***": "<p><strong><em>both</em></strong></p>",
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "*a **b** c*": "<p><em>a <strong>b</strong> c</em></p>",
    "2 * 3 * 4, snake_case_name, **open": "<p>2 * 3 * 4, snake_case_name, **open</p>",
    r"\*plain\* \a &lt;b&gt; &amp;": r"<p>*plain* \a &lt;b&gt; &amp;</p>",
    "`a*b*` ``x ` y`` ` z": "<p><code>a*b*</code> <code>x ` y</code> ` z</p>",
    "# One\n## Two ##\n#no": "<h3>One</h3><h4>Two</h4><p>#no</p>",
    "---\n***": "<hr><hr>",
    "> a\n> b\n>\n> > c": (
        "<blockquote><p>a<br>b</p><blockquote><p>c</p></blockquote></blockquote>"
    ),
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "1. a\n   - b\n2. c": "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    "3) a\n4) b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "- a\n  more\nlazy\n\nafter": "<ul><li>a<br>more<br>lazy</li></ul><p>after</p>",
    "1. a\n\n   ```\n   x\n   ```\n2. b": (
        "<ol><li><p>a</p><pre><code>x</code></pre></li><li><p>b</p></li></ol>"
    ),
    "- [x] done\n- [ ] not": (
        '<ul><li><input type="checkbox" checked=""> done</li>'
        '<li><input type="checkbox"> not</li></ul>'
    ),
    "| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |\n| 2 |": (
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>"
        "<td><code>x|y</code></td></tr><tr><td>2</td><td></td></tr></tbody></table></div>"
    ),
    "a | b\nno table": "<p>a | b<br>no table</p>",
    "```\n<b> & *x*\n```": "<div><pre><code>&lt;b&gt; &amp; *x*</code></pre></div>",
    "```py\nif 1: 'x' # y": (
        "<div><pre><code><span>if</span> <span>1</span>: <span>'x'</span> <span># y</span>"
        "</code></pre></div>"
    ),
    "~~~\na\n```\nb\n~~~\nc": "<div><pre><code>a\n```\nb</code></pre></div><p>c</p>",
    "    four\n\n      six": "<div><pre><code>four\n\n  six</code></pre></div>",
    "In 1986.\n1986. was": "<p>In 1986.<br>1986. was</p>",
    "[a *b*](https://x.example/p_(q) 'title')": (
        '<p><a href="https://x.example/p_(q)">a <em>b</em></a></p>'
    ),
    "<https://x.example> or https://y.example/z_1.": (
        '<p><a href="https://x.example/">https://x.example</a> or '
        '<a href="https://y.example/z_1">https://y.example/z_1</a>.</p>'
    ),
    "![picture](https://x.example/p.png)": '<p><a href="https://x.example/p.png">picture</a></p>',
}


@pytest.mark.parametrize("text", CASES, ids=repr)
def test_rules(opened, text):
    """Each mark means what it means elsewhere."""
    shown = opened.page.evaluate(RENDER, text)
    assert plain(shown) == plain(CASES[text])


def plain(html):
    """Return markup without the frame around a block of code."""
    return html.replace("<div><pre>", "<pre>").replace("</pre></div>", "</pre>")


HOSTILE = (
    "<script>hacked = 1</script>",
    "<img src=x onerror='hacked = 1'>",
    "<svg onload='hacked = 1'>",
    "[x](javascript:hacked=1)",
    "[x](JaVaScRiPt:hacked=1)",
    "[x](java\tscript:hacked=1)",
    "[x](data:text/html,<script>hacked=1</script>)",
    "[x](vbscript:hacked)",
    "[x](//elsewhere.example/)",
    "[x](/corral/status)",
    "<javascript:hacked=1>",
    "![x](javascript:hacked=1)",
    "![x](https://elsewhere.example/?secret)",
    '[x](https://a.example/"onmouseover="hacked=1)',
    "```\"><img src=x onerror='hacked = 1'>\ny\n```",
    "| <img src=x onerror='hacked=1'> |\n| --- |\n| <script>hacked=1</script> |",
    "# <iframe srcdoc='<script>parent.hacked=1</script>'>",
    "&lt;script&gt;hacked = 1&lt;/script&gt;",
    "- <style>*{display:none}</style>",
    "`<base href=//elsewhere.example>`",
)
ALLOWED = {
    *("P", "BR", "STRONG", "EM", "S", "CODE", "PRE", "A", "UL", "OL", "LI", "H3", "DIV", "SPAN"),
    *("TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "BUTTON", "SVG", "USE"),
}
LOOK = """async (text) => {
  const { MarkdownView } = await import("/js/markdown/view.js");
  const root = document.createElement("div");
  document.body.append(root);
  new MarkdownView(root).update(text);
  const parts = [...root.querySelectorAll("*")];
  const attributes = parts.flatMap((part) => part.getAttributeNames());
  const links = [...root.querySelectorAll("a")].map((link) => link.protocol + link.rel);
  root.querySelectorAll("a").forEach((link) => link.dispatchEvent(new MouseEvent("mouseover")));
  return { names: parts.map((part) => part.tagName.toUpperCase()), attributes, links };
}"""


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_harm(opened, text):
    """Markup in a text is text; links lead to the web or nowhere; nothing is loaded or run."""
    found = opened.page.evaluate(LOOK, text)
    assert set(found["names"]) <= ALLOWED
    assert [name for name in found["attributes"] if name.startswith("on")] == []
    assert {"src", "srcdoc", "style"}.isdisjoint(found["attributes"])
    assert set(found["links"]) <= {"https:noopener noreferrer nofollow"}
    opened.page.wait_for_timeout(20)
    assert opened.page.evaluate("typeof hacked") == "undefined"


TRY = """() => {
  const made = document.createElement("div");
  const tried = [
    () => (made.innerHTML = "<b>x</b>"),
    () => made.setAttribute("onclick", "hacked = 1"),
    () => document.write("<b>x</b>"),
    () => (document.createElement("script").text = "hacked = 1"),
  ];
  return tried.map((act) => {
    try {
      act();
      return "done";
    } catch (error) {
      return error.name;
    }
  });
}"""


def test_markup_is_refused_by_the_browser_too(opened):
    """Even code that tried could not turn a text into markup or a script."""
    assert opened.page.evaluate(TRY) == ["TypeError"] * 4
    opened.wrong.clear()


@pytest.mark.parametrize("text", [case for case in CASES if len(case) > 20], ids=repr)
def test_growth(opened, text):
    """A text that grows letter by letter looks at each moment as if it had come at once."""
    assert opened.page.evaluate(GROW, f"{text}\n\nand **after** it\n- x") == []


@pytest.mark.parametrize(
    "text",
    [
        *(
            mark * 20_000
            for mark in ("*", "_", "`", "[", "![", "<", "~", "|", "&", "\\", "*a ", "[](")
        ),
        *(f"{mark}x" for mark in (">" * 20_000, "> " * 5000, "- " * 5000, "1. " * 5000)),
        "a\n" * 20_000,
        "- a\n" * 5000,
        "**a _b `c " * 5000,
        "https://" * 5000,
        "|a|\n|-|\n" * 5000,
        f"```js\n{'/*' * 20_000}",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_texts_without_end(opened, text):
    """However many marks are open, the page goes on."""
    shown = opened.page.evaluate(
        """async (text) => {
          const { MarkdownView } = await import("/js/markdown/view.js");
          const root = document.createElement("div");
          new MarkdownView(root).update(text);
          return root.textContent.length + root.childElementCount;
        }""",
        text,
    )
    assert shown > 0
