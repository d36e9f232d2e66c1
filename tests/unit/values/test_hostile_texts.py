"""Texts and bytes from outside: whatever they are, only the documented errors come out."""

from __future__ import annotations

import base64
import contextlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_over_sql import Publication, QueueError
from queue_over_sql.cli.lines import LineFormat, LineReader
from queue_over_sql.cli.values import (
    parse_column,
    parse_duration,
    parse_instant,
    parse_paths,
    parse_retry,
)
from queue_over_sql.database.urls import read_url, shown_place, shown_url
from queue_over_sql.message import Claim
from queue_over_sql.payloads import codec
from queue_over_sql.schedules.calendar import refuse_long_steps, wall_trigger, zone_name
from queue_over_sql.settling import tokens
from queue_over_sql.sql.conditions import check_fields, payload_path
from queue_over_sql.topics.routing import check_routing_text, filter_of, pattern_fits
from queue_over_sql.values.durations import instant_to_microseconds, to_timedelta
from queue_over_sql.values.json_text import check_json_text, read_exactly
from queue_over_sql.values.rates import Rate, rate_text
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Callable


class Reader(NamedTuple):
    """What reads texts from outside, and the errors that it documents."""

    read: Callable[[Any], Any]
    errors: tuple[type[Exception], ...]
    pieces: tuple[str, ...]


WRONG = (ValueError,)
USAGE = (typer.BadParameter,)
NUMBERS = ("0", "1", "-", "+", ".", "9" * 400, "1" * 5_000, "e", "1e1000000", "e9" + "9" * 20, "²")
JSON = (*NUMBERS, "[", "]", "{", "}", '"', ":", ",", "\\", "\\ud800", "NaN", "null", "[" * 5_000)
UNITS = ("s", "ms", "m", "h", "d", "w", " ", "/", "min", "day", "burst", "1" * 50_000 + "x")
OF_URLS = ("sqlite", "postgresql", "://", "/", ":", "@", "?", "=", "&", "%", "[", "]", "#", "..")


def _line(line_format: LineFormat, kind: str) -> Callable[[str], Publication]:
    return LineReader(kind, line_format, {}).read


def _message(text: str) -> None:
    at, option = '"at": "2030-01-31T09:00:00+01:00"', text.replace('"', "")
    for field in (f'"delay": {text}', f'"delay": "{option}"', f'"at": "{option}"', at):
        with contextlib.suppress(ValueError, RecursionError, typer.BadParameter):
            LineReader("json", LineFormat.MESSAGE, {}).read(f'{{"payload": {text}, {field}}}')
            continue
        LineReader("json", LineFormat.MESSAGE, {}).read('{"payload": 1}')


def _rate(text: str) -> None:
    rate = Rate.of(rate_text(text, "rate"))
    assert rate_text(str(rate), "rate")


def _instant(text: str) -> None:
    instant_to_microseconds(parse_instant(text), "at")


def _url(text: str) -> None:
    url = read_url(text)
    assert isinstance(shown_url(url) + shown_place(url), str)


def _routing(text: str) -> None:
    pattern_fits(check_routing_text("pattern", text), text)


def _path(text: str) -> None:
    check_fields({text: 1})
    payload_path(text)


def _crontab(text: str) -> None:
    trigger = wall_trigger(text, "Europe/Zagreb")
    refuse_long_steps(text)
    assert (following := trigger.after(0)) is None or following > 0


def _claim_token(text: str) -> None:
    # What a token holds is read before its signature is checked.
    body = base64.urlsafe_b64encode(b"\1" + text.encode("utf-8", "surrogatepass") * 3).decode()
    for token in (text, body, body.rstrip("="), TOKEN[:-4] + text):
        found = tokens._read(token)
        assert found is None or found.signed("another key") != token


TOKEN = tokens._Token(7, Claim("consumer", 3), 300, "queue_", "jobs").signed("key")
CRON = (
    "*",
    "/",
    "-",
    ",",
    " ",
    "0",
    "5",
    "29",
    "31",
    "59",
    "99",
    "9" * 5_000,
    "²",
    "FEB",
    "sun",
    "7",
)
READERS = {
    "a crontab": Reader(_crontab, WRONG, (*CRON, "@yearly", "0 0 29 2 *", "*/7 0 1,31 * 1-5")),
    "a time zone": Reader(zone_name, WRONG, ("Europe", "/", "Zagreb", "..", "\0", "UTC", "\ud800")),
    "a token of a claim": Reader(_claim_token, (), (TOKEN, TOKEN[:30], "=", "-", "_", "\0", "é")),
    "JSON": Reader(read_exactly, (ValueError, RecursionError), JSON),
    "stored JSON": Reader(codec.decode_json, (ValueError, RecursionError), JSON),
    "JSON of the SQL API": Reader(lambda t: check_json_text(t, "x"), (QueueError,), JSON),
    "headers": Reader(codec.decode_headers, (ValueError, RecursionError), JSON),
    "a payload of text": Reader(lambda t: codec.encode("text", t, 99), (QueueError,), JSON),
    "a payload of JSON": Reader(lambda t: codec.encode("json", [t], 99), (QueueError,), JSON),
    "a line": Reader(_line(LineFormat.PAYLOAD, "json"), (ValueError, RecursionError), JSON),
    "a line of Base64": Reader(
        _line(LineFormat.PAYLOAD, "bytes"), (ValueError, RecursionError), JSON
    ),
    "a message": Reader(_message, (), JSON),
    "a pair": Reader(lambda t: parse_paths([t], "--payload"), USAGE, (*JSON, "a", "=")),
    "a duration": Reader(parse_duration, USAGE, NUMBERS + UNITS),
    "a duration of an argument": Reader(lambda t: to_timedelta(t, "delay"), WRONG, NUMBERS + UNITS),
    "a rate": Reader(_rate, WRONG, NUMBERS + UNITS),
    "a time": Reader(
        _instant,
        (ValueError, *USAGE),
        ("0001-01-01", "9999-12-31", "T00:00:00", "+23:59", "-23:59", "Z"),
    ),
    "a column": Reader(
        parse_column, USAGE, ("a", ":", "string", "integer", "(", ")", ":index", *NUMBERS)
    ),
    "a retry": Reader(
        lambda t: parse_retry(f"exponential:{t}"),
        USAGE,
        ("base=", "factor=", "jitter=", "maximum=", ",", "nan", "inf", *NUMBERS, *UNITS),
    ),
    "delays": Reader(lambda t: parse_retry(f"delays:{t}"), USAGE, (",", *NUMBERS, *UNITS)),
    "a URL": Reader(_url, (ValueError, QueueError), OF_URLS + NUMBERS),
    "a routing key": Reader(_routing, WRONG, ("a", ".", "#", "*", "\0", "\ud800", "a" * 300)),
    "a filter of a subscription": Reader(filter_of, (QueueError,), JSON),
    "a path": Reader(_path, WRONG, ("a", ".", "$", "0", "'", '"', "\\", "\0", "\ud800", "9" * 400)),
}


@pytest.mark.parametrize("name", READERS)
def test_any_text(name: str) -> None:
    """Each reader of texts takes it or refuses it, by the errors that it documents."""
    reader = READERS[name]
    pieces = st.lists(st.sampled_from(reader.pieces), max_size=6).map("".join)

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(text=st.one_of(pieces, st.text(max_size=40)))
    def read(text: str) -> None:
        with contextlib.suppress(*reader.errors):
            reader.read(text)

    for piece in reader.pieces:
        with contextlib.suppress(*reader.errors):
            reader.read(piece)
    read()


def test_a_number_that_no_float_holds_is_refused() -> None:
    """However large its exponent, and also where it would become zero."""
    for text in ("1e400", "1e1000000", "-1e-400", "1e-1000000", f"1e{'9' * 20}", f"2e-{'9' * 20}"):
        with refused(text, ValueError, match="write it as a string"):
            read_exactly(text)
    zeros = ("0.0", "-0e0", f"0e{'9' * 20}", "0." + "0" * 400)
    assert [0.0] * len(zeros) == [read_exactly(text) for text in zeros]
    for text in ("1.2e-323", "-7e-324", "2.3e-323", "4.95e-324"):
        with refused(text, ValueError, match="write it as a string"):
            read_exactly(text)
    # Others write the least one like this.
    for text in ("5e-324", "4.9E-324", "4.9406564584124654e-324"):
        assert 5e-324 == read_exactly(text), text


@given(st.floats(-sys.float_info.min, sys.float_info.min))
@settings(max_examples=200, deadline=None, database=None, derandomize=True)
def test_the_smallest_floats_are_read_as_they_are_written(number: float) -> None:
    """They have fewer digits than others, and none of them is refused."""
    for text in (repr(number), f"{number:.16e}"):
        assert number == read_exactly(text), text


def test_a_duration_of_a_line_that_is_none_is_refused() -> None:
    """A number beyond all floats, and a truth value."""
    for value in (10**400, True, None, [1]):
        with refused(value, typer.BadParameter, match="not a duration"):
            parse_duration(value)
