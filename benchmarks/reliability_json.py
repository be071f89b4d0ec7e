"""JSON texts that every reader must take, must refuse, or may treat as it likes.

The cases are ours; `files_of` reads those of the JSONTestSuite (y_, n_, i_) where they are.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class Kind(enum.Enum):
    """What a reader has to do with a text."""

    GOOD = "y"
    BAD = "n"
    EITHER = "i"


@dataclass(frozen=True, slots=True)
class Case:
    """One text."""

    name: str
    kind: Kind
    data: bytes


_GOOD = [
    b"0", b"-0", b"-1", b"1.5", b"1e5", b"1E+5", b"1e-5", b"0e1", b"-0.0", b"123456789",
    b"1.0000000000000000000000000000000000000001", b"true", b"false", b"null", b'""', b'"a"',
    b"[]", b"{}", b" [ ] ", b"\t{\n}\r", b"[1,2]", b'{"a":1}', b'{"":0}', b'{"a":{"b":[]}}',
    b'{"a":1,"a":1}', b'{"a":1,"a":2}', b'"\\u0000"', b'"\\u00e9"', b'"\\ud83d\\ude00"',
    b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', b'"\x7f"', '"é😀"'.encode(), b'"\xef\xbf\xbf"', b'"\\uffff"',
    b'[[[[[[[[[[]]]]]]]]]]', b'"' + b"x" * 10_000 + b'"', b"[" + b"0," * 9999 + b"0]",
    b'"\\u0060\\u012a"', '"\u2028\u2029"'.encode(), b"[1,\n2]", b'"a/*b*/"', b"[null,1,\"1\",{}]",
]  # fmt: skip
_BAD = [
    b"", b" ", b"nul", b"True", b"TRUE", b"nan", b"NaN", b"Infinity", b"-Infinity", b"+1", b"01",
    b"-01", b"1.", b".5", b"1.e1", b"1e", b"1e+", b"0x10", b"1_000", b"--1", b"-", b"1a", b"0.e1",
    b"'a'", b'"a', b'a"', b'"\\x00"', b'"\\u12"', b'"\\u12g4"', b'"\\a"', b'"\\"', b'"\t"', b'"\n"',
    b'"\x00"', b'"\x1f"', b"[1,]", b"[,1]", b"[1 2]", b"[1,,2]", b"[", b"]", b"[1", b"[[]", b"[1]]",
    b"{", b"}", b'{"a"}', b'{"a":}', b'{"a" 1}', b'{"a":1,}', b'{,"a":1}', b"{a:1}", b"{1:1}",
    b'{"a":1 "b":2}', b"{'a':1}", b'{"a":1}}', b"[1]x", b"1 2", b"// x\n1", b"/* x */1", b"#1",
    b"\xef\xbb\xbf1", b"\xff\xfe1\x00", b"\x0c1", b"\xa01", b"\xc2\xa01", b'"\xff"', b'"\xc0\xaf"',
    b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'{"a":"b"', b'["\\', b'{"a":/*x*/1}',
    b'"\\ud800\\"', b"\xe2\x80\x8b1", b"<null>", b"[<null>]", b"\\u005b]", b"[\\n]", b"[1;2]",
    b'["a"', b'{"a":true', b'[true', b"[-]", b"[- 1]", b"[1e1.5]", b'{"\xff":1}', b"undefined",
]  # fmt: skip
_EITHER = [
    b"1e999", b"-1e999", b"1e-999", b"9" * 400, b"-" + b"9" * 400, b"123123e100000", b'"\\ud800"',
    b'"\\udc00"', b'"\\ud800\\ud800"', b"[" * 500 + b"]" * 500, b"0.4e00669999999999999999",
    b'["\\uDADA"]', b'"\\ud800abc"', b"1.5e+9999",
]  # fmt: skip

CASES = [
    Case(f"{kind.value}_{number}", kind, data)
    for kind, texts in ((Kind.GOOD, _GOOD), (Kind.BAD, _BAD), (Kind.EITHER, _EITHER))
    for number, data in enumerate(texts)
]


def files_of(folder: Path) -> Iterator[Case]:
    """Yield the files of a folder whose names begin as the JSONTestSuite's do."""
    for path in sorted(folder.glob("[yni]_*.json")):
        yield Case(path.stem, Kind(path.name[0]), path.read_bytes())
