"""The reliability table: its rows are complete, and what must hold for every reply can fail."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import reliability
import reliability_json
from reliability_rows import Result, Row, expect, refusing, said_by
from reliability_server import Broken, Reply, check_reply
from reliability_wire import Answer

ERROR = b'{"error":{"message":"%b","type":"server_error","param":null,"code":"x"}}'


def reply(status=200, body=b"{}", seconds=0.1):
    return Reply(status, {}, body, seconds)


class Server:
    """Gives replies in turn, and remembers what it was asked."""

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def post(self, path, body, **headers):
        """Return the next reply."""
        self.asked.append((path, body))
        return self.replies.pop(0)


def test_every_row_is_there_once():
    """R001 to R084, S001 to S017, T001 to T024 and H001 to H033, each with a rule."""
    rows = reliability.chosen([])
    ids = [row.id for row in rows]
    expected = {
        f"{letter}{number:03}"
        for letter, count in (("R", 84), ("S", 17), ("T", 24), ("H", 33), ("W", 6))
        for number in range(1, count + 1)
    }
    assert sorted(ids) == sorted(expected)
    assert all(row.what and row.rule for row in rows)


def test_rows_are_chosen_by_the_beginning_of_their_ids():
    """One row, or all of a letter."""
    assert [row.id for row in reliability.chosen(["R018", "W00"])] == [
        "R018",
        *(f"W00{n}" for n in range(1, 7)),
    ]


@pytest.mark.parametrize(
    ("status", "body", "broken"),
    [
        (200, b"{}", None),
        (400, ERROR % b"no", None),
        (503, ERROR % b"busy", None),
        (507, ERROR % b"full", None),
        (500, ERROR % b"oh", "status 500"),
        (502, ERROR % b"oh", "status 502"),
        (404, b"not here", "without a typed error"),
        (404, b'{"error":{"message":"x"}}', "without a typed error"),
        (400, ERROR % b"at /home/someone/x", "tells"),
        (400, ERROR % b"Traceback (most recent call last)", "tells"),
        (400, ERROR % b"in site-packages/x", "tells"),
    ],
)
def test_what_holds_for_every_reply(status, body, broken):
    """Typed errors, no status that nobody declared, nothing of the server's insides."""
    if broken is None:
        check_reply(reply(status, body))
    else:
        with pytest.raises(Broken, match=broken):
            check_reply(reply(status, body))


def test_an_attempt_fails_where_a_body_is_taken():
    """Every body of an attempt must be refused, and by the name of its field."""
    named = ERROR.replace(b"null", b'"stop[0]"') % b"no"
    refusing("/x", {}, {}, param="stop")(Server(reply(400, named), reply(400, named)))
    with pytest.raises(Broken, match="got 200"):
        refusing("/x", {}, {}, param="stop")(Server(reply(400, named), reply(200)))
    with pytest.raises(Broken, match="names"):
        refusing("/x", {}, param="n")(Server(reply(400, named)))
    with pytest.raises(Broken, match="got code"):
        expect(reply(400, named), (400,), "y")


def test_the_table():
    """A row of it says what failed, and what the server answered."""
    row = Row("R001", "NaN", "400", print)
    assert (
        reliability.line(Result(row, None, 0.1, "400 x")) == "| R001 | NaN | 400 | holds (400 x) |"
    )
    assert "**fails**: got 200" in reliability.line(Result(row, "got 200", 0.1, ""))
    assert said_by([reply(), reply(), reply(400, ERROR % b"no")]) == "200, 400 x"


def test_statuses_are_found_behind_one_another():
    """The next response begins right behind the body of the one before."""
    answer = Answer(b"HTTP/1.1 200 OK\r\n\r\n{}HTTP/1.1 400 Bad\r\n\r\n", True, 0.1)
    assert answer.statuses == [200, 400]


@pytest.mark.parametrize("case", reliability_json.CASES, ids=lambda case: case.name)
def test_json_cases_are_what_they_say(case):
    """A strict reader that shares no code with the server's agrees."""

    def refuse(text):
        raise ValueError(text)

    def is_json():
        try:
            json.loads(case.data.decode(), parse_constant=refuse)
        except (ValueError, RecursionError):
            return False
        return True

    if case.kind is not reliability_json.Kind.EITHER:
        assert is_json() == (case.kind is reliability_json.Kind.GOOD)


def test_files_of_a_suite_are_read_by_their_names(tmp_path):
    """The first letter says what a reader has to do."""
    for name in ("y_a.json", "n_b.json", "i_c.json", "other.txt"):
        (tmp_path / name).write_bytes(name.encode())
    found = [(case.name, case.kind.value) for case in reliability_json.files_of(tmp_path)]
    assert found == [("i_c", "i"), ("n_b", "n"), ("y_a", "y")]
