"""Times for the tests of schedules: far in the future, and in the past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text, update

from queue_over_sql.values.durations import instant_to_microseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, Schedule

MICROSECONDS = 1_000_000
HOUR = timedelta(hours=1)


def hourly() -> str:
    """A crontab line for each hour at a minute that is half an hour away from now."""
    return f"{(datetime.now(UTC).minute + 30) % 60} * * * *"


def next_of(schedule: Schedule) -> datetime:
    """The next instant of a schedule that has one."""
    assert schedule.next_at is not None
    return schedule.next_at


def everything(queue: Queue) -> list[Message]:
    """All live messages, by id."""
    return list(queue.messages().list(limit=10_000))


def instants(messages: Iterable[Message]) -> list[datetime]:
    """When messages are first due, sorted."""
    return sorted(message.scheduled_at for message in messages)


def stored(engine: Engine, name: str) -> Any:
    """The row of a schedule."""
    query = text("SELECT next_at, revision FROM queue_over_sql_schedules WHERE name = :name")
    with engine.connect() as connection:
        return connection.execute(query, {"name": name}).one()


def silence(engine: Engine, queue: Queue, name: str, next_at: datetime) -> None:
    """As if nobody had fired a schedule since before an instant of it, nor published ahead."""
    with engine.begin() as connection:
        connection.execute(queue.table.delete())
        _set_next(connection, name, instant_to_microseconds(next_at, "next_at"))


def _set_next(connection: Connection, name: str, next_at: int) -> None:
    statement = text("UPDATE queue_over_sql_schedules SET next_at = :at WHERE name = :name")
    connection.execute(statement, {"at": next_at, "name": name})


def let_pass(engine: Engine, queue: Queue, seconds: float) -> None:
    """As if the messages of a queue were first due so much earlier; those due then are ready."""
    due = queue.table.c.scheduled_at - int(seconds * MICROSECONDS)
    with engine.begin() as connection:
        connection.execute(update(queue.table).values(scheduled_at=due, available_at=due))


def grid(first: datetime, step: timedelta, count: int) -> list[datetime]:
    """Instants of equal distance."""
    return [first + step * number for number in range(count)]


def on_grid(found: Sequence[datetime], step: timedelta) -> bool:
    """Whether instants follow each other at one distance."""
    return grid(found[0], step, len(found)) == list(found)


def now() -> datetime:
    """This machine's clock, which is the database's too in these tests."""
    return datetime.now(UTC)
