"""Values that JSON does not have, written as JSON under the name of their type."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from queue_over_sql.durations import MICROSECOND
from queue_over_sql.payload import encode_json

_WRITERS: Final[Mapping[type, tuple[str, Callable[[Any], Any]]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode("ascii")),
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    timedelta: ("microseconds", lambda value: value // MICROSECOND),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
}
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "json": lambda value: value,
    "bytes": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "microseconds": lambda value: timedelta(microseconds=value),
    "decimal": Decimal,
    "uuid": UUID,
}


def tagged(value: Any, what: str) -> dict[str, Any]:
    """Write a value as JSON data that says its type.

    Args:
        value: a JSON value, bytes, an instant, a date, a time, a duration, a decimal or a UUID.
        what: its name, for the error.

    Raises:
        PayloadInvalid: it is none of these.
    """
    for kind, (tag, write) in _WRITERS.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    encode_json(value, what)
    return {"json": value}


def untagged(data: Mapping[str, Any]) -> Any:
    """Read what ``tagged`` wrote."""
    [(tag, value)] = data.items()
    return _READERS[tag](value)
