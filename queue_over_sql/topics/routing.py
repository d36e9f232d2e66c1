"""Routing: which messages a subscription receives, by routing key and by payload."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queue_over_sql.errors import UNREADABLE, QueueError
from queue_over_sql.sql.conditions import check_fields, check_payload_value, payload_path

LONGEST: Final = 255
"""The longest routing key or pattern in bytes of UTF-8, as in AMQP."""

_MISSING: Final = object()


def check_routing_text(argument: str, value: Any) -> str:
    """Check a routing key or a pattern.

    Raises:
        TypeError, ValueError: it is not a ``str``, longer than 255 bytes of UTF-8, or not text that
            every database can store.
    """
    if not isinstance(value, str):
        msg = f"{argument} must be a str such as 'orders.eu.paid', not {type(value).__name__}"
        raise TypeError(msg)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        msg = f"{argument} contains a lone surrogate, which is not valid Unicode: {value[:50]!a}"
        raise ValueError(msg) from error
    if size > LONGEST or "\0" in value:
        msg = (
            f"{argument} must be at most {LONGEST} bytes of UTF-8 without NUL, not {value[:50]!r} "
            f"of {size} bytes"
        )
        raise ValueError(msg)
    return str.__str__(value)


def words(text: str) -> list[str]:
    """The words of a routing key or a pattern; an empty one has none."""
    return text.split(".") if text else []


def pattern_fits(pattern: str, routing_key: str) -> bool:
    """Whether a routing key fits a pattern as AMQP 0-9-1 defines it for topics.

    Both are words joined by dots. In a pattern ``*`` stands for exactly one word, and ``#`` for
    zero or more words.
    """
    given = words(routing_key)
    # reached[n]: whether the pattern so far matches the first n words.
    reached = [True] + [False] * len(given)
    for part in words(pattern):
        if part == "#":
            reached = list(itertools.accumulate(reached, operator.or_))
        else:
            steps = zip(reached, given, strict=False)
            reached = [False, *(before and part in ("*", word) for before, word in steps)]
    return reached[-1]


def check_filter(where: Any) -> dict[str, Any]:
    """Check a payload filter: paths such as ``address.city`` to JSON scalars.

    Raises:
        TypeError, ValueError: it is not valid; the message names the path or value.
    """
    check_fields(where, "where")
    checked = {}
    for path, value in where.items():
        payload_path(path, "where")
        checked[path] = check_payload_value(path, value, "where")
    return checked


def filter_text(where: Mapping[str, Any]) -> str | None:
    """Encode a checked filter for the table; an empty one becomes NULL."""
    return json.dumps(where, sort_keys=True) if where else None


def filter_of(text: str | None) -> dict[str, Any] | None:
    """Decode what ``filter_text`` wrote; QueueError if the row holds something else."""
    try:
        return None if text is None else check_filter(json.loads(text))
    except UNREADABLE as error:
        msg = (
            "The filter of a subscription in queue_over_sql_subscriptions cannot be read: "
            f"{error}. Subscribe the queue again, or unsubscribe it."
        )
        raise QueueError(msg) from error


def pattern_of(stored: Any) -> str:
    """The pattern of a subscription; QueueError if it is not text."""
    if isinstance(stored, str):
        return stored
    msg = f"The pattern of a subscription in queue_over_sql_subscriptions is {stored!r:.50}."
    raise QueueError(f"{msg} Write a pattern into the row, or delete the row.")


def payload_fits(where: Mapping[str, Any], payload: Any) -> bool:
    """Whether the payload has all fields of a filter, equal by type and value; 1 equals 1.0."""
    return all(
        _equal(_field(payload, payload_path(path)), wanted) for path, wanted in where.items()
    )


def _field(payload: Any, path: Sequence[str | int]) -> Any:
    found = payload
    for step in path:
        if isinstance(step, int):
            inside = isinstance(found, list) and step < len(found)
        else:
            inside = isinstance(found, dict) and step in found
        if not inside:
            return _MISSING
        found = found[step]
    return found


def _equal(found: Any, wanted: Any) -> bool:
    return _json_type(found) is _json_type(wanted) and bool(found == wanted)


def _json_type(value: Any) -> type:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float if number else str if isinstance(value, str) else type(value)
