"""On which line a key stands, whatever is written around it."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.router.toml_lines import key_lines, line_of

TEXT = '''# a remark [not.a.table]
top = 1

[server]  # where
host = "a # no remark"
models = [
  "one",   # [neither]
  "two = 2",
]

[models."Qwen 3.5"]
template = """
[fake]
context = 3
"""
sampling = { temperature = 0.5,
  top_k = 3 }
context = 4096
[[list]]
a.'b c'.d = 1
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("top",), 2),
        (("server",), 4),
        (("server", "host"), 5),
        (("server", "models"), 6),
        (("models", "Qwen 3.5"), 11),
        (("models", "Qwen 3.5", "template"), 12),
        (("models", "Qwen 3.5", "sampling"), 16),
        (("models", "Qwen 3.5", "context"), 18),
        (("list",), 19),
        (("list", "a", "b c", "d"), 20),
    ],
)
def test_each_key_has_its_line(key, line):
    """Texts, lists and remarks that look like keys are none."""
    assert key_lines(TEXT)[key] == line


def test_a_key_without_a_line_has_that_of_its_table():
    """Inside of an inline table it is the table's; beyond everything there is none."""
    lines = key_lines(TEXT)
    assert line_of(lines, ("models", "Qwen 3.5", "sampling", "top_k")) == 16
    assert line_of(lines, ("models", "Qwen 3.5", "nothing")) == 11
    assert line_of(lines, ("nothing",)) is None
    assert ("fake",) not in lines


bare = st.text("abcdefg-_0123456789", min_size=1, max_size=5)
values = st.sampled_from(
    ['"x = 1"', "'[a]'", "3", "[\n 1,\n 2]", '"""\nk = 1\n"""', "{ a = 1 }", "'''\n[b]\n'''"]
)


@given(st.dictionaries(bare, st.dictionaries(bare, values, max_size=4), max_size=4))
def test_every_key_of_a_text_is_found(tables):
    """At the line where it was written."""
    lines, expected = [], {}
    for table, keys in tables.items():
        expected[(table,)] = len(lines) + 1
        lines.append(f"[{table}]")
        for key, value in keys.items():
            expected[(table, key)] = len(lines) + 1
            lines += f"{key} = {value}".split("\n")
    text = "\n".join(lines)
    assert set(tomllib.loads(text)) == set(tables)
    assert key_lines(text) == expected
