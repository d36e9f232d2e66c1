"""A queue from outside: plain SQL on its table, its counts, and its finished messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import func, select, table

from queue_over_sql.testing.contract.state import (
    STATE_COLUMNS,
    add_effect,
    archived,
    counts,
    effect_count,
    effects,
    ids,
    live_rows,
    payloads,
    set_columns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing import Clock

__all__ = [
    "ARGUMENT_ERRORS",
    "STATE_COLUMNS",
    "add_effect",
    "archived",
    "close",
    "counts",
    "effect_count",
    "effects",
    "finished",
    "has_json_paths",
    "ids",
    "isolates_snapshots",
    "live_rows",
    "outcomes",
    "payloads",
    "row_count",
    "set_columns",
    "start_through_steps_of_the_clock",
]

ARGUMENT_ERRORS = (ValueError, TypeError)
"""What a verb raises for an argument that can never be right."""


def outcomes(queue: Queue) -> list[str]:
    """The outcomes in the archive, by id."""
    return [str(message.outcome) for message in archived(queue)]


def isolates_snapshots(connection: Connection) -> bool:
    """Whether a transaction may not change what was changed after its snapshot: MariaDB 11.6."""
    if connection.dialect.name != "mariadb":
        return False
    shown = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
    return ("innodb_snapshot_isolation", "ON") in map(tuple, connection.exec_driver_sql(shown))


def finished(
    queue: Queue, outcome: str, count: int = 1, *, reason: str = "no good"
) -> list[Message]:
    """Claim the next messages and finish them all; returns what was claimed."""
    messages = queue.consume(count)
    assert count == len(messages)
    if outcome == "done":
        queue.ack(messages)
    elif outcome == "rejected":
        queue.reject(messages, reason)
    else:
        queue.nack(messages, error=reason)
    return messages


def row_count(engine: Engine, name: str) -> int:
    """How many rows a table has, as another connection sees it."""
    with engine.connect() as connection:
        counted = connection.execute(select(func.count()).select_from(table(name)))
        return int(counted.scalar_one())


def has_json_paths(engine: Engine) -> bool:
    """Whether the engine can look into payloads: all but H2 before 2.2.220."""
    with engine.connect() as connection:
        version = connection.dialect.server_version_info or ()
        return connection.dialect.name != "h2" or version >= (2, 2, 220)


def close(one: datetime | None, other: datetime, seconds: float = 60) -> bool:
    """Whether two instants are about the same."""
    return one is not None and abs(one - other) < timedelta(seconds=seconds)


def start_through_steps_of_the_clock(
    service: QueueService, start: Callable[[int], None], clock: Clock
) -> None:
    """Step the clock; ``start`` checks that so many start, at a rate of "60/h burst 2"."""
    start(2)
    clock.advance(3600)
    start(2)
    # Set the clock back by an hour.
    clock._time.microseconds = 0
    service.reap()
    start(0)
    clock.advance(61)
    start(1)
    clock.advance(3600)
    start(2)
