"""Option values and lines: read exactly, or refused in words."""

from __future__ import annotations

import json

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql import Publication
from queue_over_sql.cli.values import format_duration, parse_duration
from queue_over_sql.cli.wire import LineFormat, LineReader


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
        ("0.5m", 30.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Seconds, or numbers with units, also several of them."""
    assert seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["", "h", "1x", "-1", "1h-30m", "1e3", "ten", "1 2", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(typer.BadParameter, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.25, "0.2s"), (42, "42s"), (200, "3m 20s"), (7500, "2h 05m"), (90000, "1d 1h")],
)
def test_durations_for_people(seconds: float | None, shown: str) -> None:
    """Two units at most, the larger first."""
    assert shown == format_duration(seconds)


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


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "not a message"),
        ('{"key": "k"}', "not a message"),
        ('{"payload": 1, "prio": 2}', "prio"),
        ('{"payload": 1', "not JSON"),
    ],
)
def test_a_line_that_is_no_message_says_why(line: str, reason: str) -> None:
    """A misspelt field is an error, not ignored."""
    with pytest.raises(ValueError, match=reason):
        LineReader("json", LineFormat.MESSAGE, {}).read(line)


@pytest.mark.parametrize(
    ("payload_type", "line"), [("text", "1"), ("bytes", "[]"), ("bytes", '"?"')]
)
def test_lines_must_fit_the_queue(payload_type: str, line: str) -> None:
    """A queue of text takes JSON strings, one of bytes JSON strings of Base64."""
    with pytest.raises(ValueError, match=r"JSON string|Base64"):
        LineReader(payload_type, LineFormat.PAYLOAD, {}).read(line)
