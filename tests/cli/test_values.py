"""Option values and lines: parsed exactly, or refused with a clear error."""

from __future__ import annotations

import contextlib
import json

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql import Publication
from queue_over_sql.cli.lines import READERS, LineFormat, LineReader
from queue_over_sql.cli.values import parse_column, parse_duration
from queue_over_sql.values.humanize import format_duration
from queue_over_sql.values.json_text import read_exactly
from tests.refusals import refused


def test_durations() -> None:
    """Seconds, or numbers with units, also several of them."""
    read = {
        "0": 0.0,
        "1.5": 1.5,
        "250ms": 0.25,
        "90s": 90.0,
        "1h30m": 5400.0,
        "1h 30m": 5400.0,
        "7d": 604800.0,
        "2w": 1209600.0,
        "0.5m": 30.0,
    }
    assert pytest.approx(read) == {text: parse_duration(text) for text in read}


def test_what_is_no_duration_is_refused() -> None:
    """Nothing is guessed."""
    for text in ("", "h", "1x", "-1", "1h-30m", "1e3", "ten", "1 2", "nan", "6M"):
        with refused(text, typer.BadParameter, match="not a duration"):
            parse_duration(text)


def test_a_value_of_a_line_that_is_no_duration_is_refused() -> None:
    """A number beyond all floats, and a truth value."""
    for value in (10**400, True, None, [1]):
        with refused(value, typer.BadParameter, match="not a duration"):
            parse_duration(value)


def test_a_number_that_no_float_holds_is_refused() -> None:
    """However large its exponent is, and also where it would become zero."""
    for text in ("1e400", "1e1000000", "-1e-400", "1e-1000000", f"1e{'9' * 20}", f"2e-{'9' * 20}"):
        with refused(text, ValueError, match="write it as a string"):
            read_exactly(text)
    for text in ("0.0", "-0e0", f"0e{'9' * 20}", "0." + "0" * 400):
        assert read_exactly(text) == 0.0, text
    assert 5e-324 == read_exactly("5e-324")


def test_a_length_of_a_column_has_nine_digits_at_most() -> None:
    """A longer one is no column, instead of a traceback."""
    with refused("5,000 digits", typer.BadParameter, match="NAME:TYPE"):
        parse_column(f"a:string({'9' * 5_000})")


def test_durations_for_people() -> None:
    """Two units at most, the larger first."""
    seconds = (None, 0.25, 42, 200, 7500, 90000)
    shown = ["-", "0.2s", "42s", "3m 20s", "2h 05m", "1d 1h"]
    assert shown == [format_duration(each) for each in seconds]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@given(value=JSON_VALUES)
def test_any_json_line_is_that_payload(value: object) -> None:
    """A line of JSON becomes exactly the payload that it says."""
    reader = LineReader("json", LineFormat.PAYLOAD, {"priority": 2})
    assert Publication(value, priority=2) == reader.read(json.dumps(value))


@given(text=st.text())
def test_any_text_is_a_payload_of_text(text: str) -> None:
    """With the format text a line is the payload, whatever it holds."""
    assert Publication(text) == LineReader("text", LineFormat.TEXT, {}).read(text)


def test_a_message_line_overrides_the_options() -> None:
    """What a line says counts over what the options say; null means not said."""
    reader = LineReader("json", LineFormat.MESSAGE, {"kind": "a", "priority": 1})
    line = '{"payload": null, "kind": "b", "priority": null, "delay": "1m", "id": 9}'
    assert Publication(None, kind="b", priority=1, delay=60.0) == reader.read(line)


def test_a_line_that_is_no_message_says_why() -> None:
    """A misspelt field is an error, not ignored."""
    wrong = {
        "[1]": "not a message",
        '{"key": "k"}': "not a message",
        '{"payload": 1, "prio": 2}': "prio",
        '{"payload": 1': "not JSON",
    }
    reader = LineReader("json", LineFormat.MESSAGE, {})
    for line, said in wrong.items():
        with refused(line, ValueError, match=said):
            reader.read(line)


def test_a_line_with_anything_in_its_fields_is_told() -> None:
    """Whatever a file holds: the errors are those after which the line is named."""
    reader = LineReader("json", LineFormat.MESSAGE, {})
    values = (None, [1], {"a": 1}, True, 7, -1, 2**70, 1e300, "x", "\0", "9" * 5_000)
    for field in (*READERS, "payload"):
        for value in values:
            with contextlib.suppress(ValueError, RecursionError, typer.BadParameter):
                assert isinstance(
                    reader.read(json.dumps({"payload": 1, field: value})), Publication
                )
    wrong = {"delay": "not a duration", "lease": "not a duration", "at": "ISO 8601"}
    for field, said in wrong.items():
        with refused(field, typer.BadParameter, match=said):
            reader.read(f'{{"payload": 1, "{field}": [1]}}')


def test_lines_must_fit_the_queue() -> None:
    """A queue of text takes JSON strings, one of bytes JSON strings of Base64."""
    for payload_type, lines in {"text": ["1"], "bytes": ["[]", '"?"']}.items():
        reader = LineReader(payload_type, LineFormat.PAYLOAD, {})
        for line in lines:
            with refused(line, ValueError, match=r"JSON string|Base64"):
                reader.read(line)
