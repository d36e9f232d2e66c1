"""Definitions of schedules: what to publish and when; how they are checked and stored."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from queue_over_sql.errors import UNREADABLE, QueueError, shown
from queue_over_sql.message import Publication
from queue_over_sql.payloads import codec as payloads
from queue_over_sql.publishing.column_values import all_columns
from queue_over_sql.publishing.publisher import refuse_options
from queue_over_sql.schedules.calendar import (
    MISSED,
    EveryTrigger,
    Missed,
    Trigger,
    parse_crontab,
    refuse_long_steps,
    wall_trigger,
    zone_name,
)
from queue_over_sql.schedules.store import message_key
from queue_over_sql.values.checks import check_choice, check_whole
from queue_over_sql.values.durations import MICROSECOND, Duration, instant, to_timedelta
from queue_over_sql.values.headers import SCHEDULE
from queue_over_sql.values.limits import LARGEST
from queue_over_sql.values.options import DURATIONS, ScheduleOptions, names_of
from queue_over_sql.values.texts import is_storable, plain

if TYPE_CHECKING:
    from queue_over_sql.publishing.publisher import Publisher


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

    Raises:
        PayloadInvalid: it is not JSON, bytes, a datetime, a date, a time, a duration, a decimal or
            a UUID; the message names ``what``.
    """
    for kind, (tag, write) in _WRITERS.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    payloads.encode_json(value, what)
    return {"json": value}


def untagged(data: Mapping[str, Any]) -> Any:
    """Read what ``tagged`` wrote."""
    [(tag, value)] = data.items()
    return _READERS[tag](value)


# The length that remains in a key beside the time.
_NAME_LENGTH: Final = 150
_SHORTEST: Final = timedelta(seconds=0.1)
# The longest form of a time in a key.
_SOME_INSTANT: Final = instant(1)
_REFUSED: Final = {
    "key": "a schedule gives each message its own key",
    "on_conflict": "a schedule gives each message its own key",
    "at": "use cron= or every=",
    "connection": "a schedule is added in its own transaction",
}
_OF_PUBLICATION: Final = tuple(name for name in names_of(ScheduleOptions) if name != "columns")


@dataclasses.dataclass(frozen=True)
class Definition:
    """The content and the times of a schedule; fields as in ``Schedule``.

    Attributes:
        payload: the payload as plain values.
        start: when ``every`` starts, in microseconds.
    """

    cron: str | None
    every: timedelta | None
    timezone: str
    missed: Missed
    payload: Any
    options: Mapping[str, Any]
    start: int = 0

    @property
    def trigger(self) -> Trigger:
        """The trigger; ValueError if this system does not know the time zone."""
        if self.every is not None:
            return EveryTrigger(self.start, self.every // MICROSECOND)
        return wall_trigger(str(self.cron), self.timezone)

    def counted_from(self, now: int, previous: Definition | None) -> Definition:
        """This definition counted from now, or as before if the times are the same.

        A server with a new payload must not delay a weekly message.
        """
        same = previous is not None and previous.every == self.every
        return dataclasses.replace(self, start=previous.start if previous and same else now)

    def same_as(self, stored: Definition) -> bool:
        """Whether it equals a stored definition."""
        return self.to_json() == dataclasses.replace(stored, start=self.start).to_json()

    def same_times_as(self, other: Definition | None) -> bool:
        """Whether it has the same times, even if they are counted from another start."""
        return other is not None and (self.cron, self.every, self.timezone) == (
            other.cron,
            other.every,
            other.timezone,
        )

    def publication(self, schedule: str) -> Publication:
        """The message for a time, in plain values, without its due time."""
        options = dict(self.options)
        given = {name: options.pop(name) for name in _OF_PUBLICATION if name in options}
        given["headers"] = {**given.get("headers", {}), SCHEDULE: schedule}
        key = message_key(schedule, _SOME_INSTANT)
        return Publication(self.payload, key=key, columns=options, **given)

    def to_json(self) -> str:
        """Encode it for the database; PayloadInvalid if a column's value cannot be stored."""
        every = None if self.every is None else self.every // MICROSECOND
        options = {
            name: tagged(value, f"value of {name}") for name, value in sorted(self.options.items())
        }
        return json.dumps(
            {
                "cron": self.cron,
                "every_us": every,
                "start": self.start,
                "timezone": self.timezone,
                "missed": self.missed,
                "payload": tagged(self.payload, "payload"),
                "options": options,
            },
            ensure_ascii=False,
        )

    @staticmethod
    def from_json(schedule: str, text: str) -> Definition:
        """Decode what ``to_json`` wrote, and check it, because a row may hold anything.

        Raises:
            QueueError: ``to_json`` did not write this.
        """
        try:
            return _read(json.loads(text))
        except UNREADABLE as error:
            msg = (
                f"The definition of schedule {schedule!r} in queue_over_sql_schedules cannot be "
                f"read: {error}. Add the schedule again."
            )
            raise QueueError(msg) from error

    @staticmethod
    def if_readable(schedule: str, text: str) -> Definition | None:
        """As ``from_json``; None if ``to_json`` did not write this."""
        try:
            return Definition.from_json(schedule, text)
        except QueueError:
            return None


def _read(data: Any) -> Definition:
    every, cron = data["every_us"], data["cron"]
    interval = None if every is None else timedelta(microseconds=every)
    _checked_every(cron, interval)
    if cron is not None:
        parse_crontab(cron)
    if not isinstance(data["timezone"], str):
        msg = f"timezone must be a str, not {type(data['timezone']).__name__}"
        raise TypeError(msg)
    check_choice("missed", data["missed"], MISSED)
    return Definition(
        cron=cron,
        every=interval,
        timezone=data["timezone"],
        missed=data["missed"],
        payload=untagged(data["payload"]),
        options={name: untagged(value) for name, value in data["options"].items()},
        start=check_whole("start", data["start"], -LARGEST),
    )


def define(
    name: str,
    publisher: Publisher,
    payload: Any,
    *,
    cron: str | None,
    every: Duration | None,
    timezone: Any,
    missed: Missed,
    options: Mapping[str, Any],
) -> Definition:
    """Check the arguments of ``Schedules.add``.

    Raises:
        PayloadInvalid, PayloadTooLarge: the queue would refuse such a message.
        TypeError, ValueError: an argument has an invalid value.
    """
    name = check_schedule_name(name)
    refuse_options("schedule", options, _REFUSED)
    definition = Definition(
        cron=" ".join(cron.split()) if isinstance(cron, str) else cron,
        every=_checked_every(cron, every),
        timezone=zone_name(timezone),
        missed=missed,
        payload=payload,
        options={},
    )
    check_choice("missed", missed, MISSED)
    _ = definition.trigger
    if definition.cron is not None:
        refuse_long_steps(definition.cron)
    given = {option: value for option, value in options.items() if value is not None}
    columns = given.pop("columns", None)
    own = {option: given.pop(option) for option in list(given) if option not in _OF_PUBLICATION}
    publication = Publication(payload, columns=all_columns(columns, own), **given)
    plain = publisher.plain(publication)
    # Check the caller's values before anything is added, so that errors name them.
    publisher.encode_plain(plain)
    definition = dataclasses.replace(
        definition, payload=_copied(plain.payload), options=_options(plain)
    )
    publisher.encode_plain(definition.publication(name))
    return Definition.from_json(name, definition.to_json())


def check_schedule_name(name: Any) -> str:
    """Check the name of a schedule and return it as a plain ``str``; or TypeError, ValueError."""
    if not isinstance(name, str):
        msg = f"name must be a str, not {type(name).__name__}"
        raise TypeError(msg)
    if not 1 <= len(name) <= _NAME_LENGTH or not is_storable(name):
        msg = (
            f"the name of a schedule must be 1 to {_NAME_LENGTH} characters of text without NUL, "
            f"not {name[:50]!r}"
        )
        raise ValueError(msg)
    text: str = plain(name)
    return text


def _checked_every(cron: Any, every: Any) -> timedelta | None:
    if (cron is None) == (every is None):
        msg = "give either cron, such as '30 6 * * 1-5', or every, such as 60, but not both"
        raise ValueError(msg)
    if every is None:
        return None
    interval = to_timedelta(every, "every")
    if interval < _SHORTEST:
        msg = f"every must be at least {_SHORTEST.total_seconds()} seconds, not {shown(every)}"
        raise ValueError(msg)
    return interval


def _options(plain: Publication) -> dict[str, Any]:
    options = {name: getattr(plain, name) for name in _OF_PUBLICATION} | dict(plain.columns)
    for name in DURATIONS & options.keys():
        if options[name] is not None:
            options[name] = to_timedelta(options[name], name, zero=True)
    if not options["priority"]:
        del options["priority"]
    if options["headers"] is not None:
        options["headers"] = dict(options["headers"])
    return {name: value for name, value in options.items() if value is not None}


def _copied(payload: Any) -> Any:
    return bytes(payload) if isinstance(payload, bytearray | memoryview) else payload
