"""A queue from outside: plain SQL over its table, short words for its state, finished messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    func,
    insert,
    select,
    table,
    update,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session

    from queue_over_sql import Message, Queue

ARGUMENT_ERRORS = (ValueError, TypeError)
"""What a verb raises for an argument that can never be right."""

STATE_COLUMNS = (
    "id",
    "priority",
    "available_at",
    "attempt_count",
    "consumer_id",
    "consumer_round",
    "claimed_at",
    "lease_expires_at",
    "last_attempt_at",
)
"""All of a live row that a claim or a settle may change, large texts left out."""

effects = Table(
    "effects",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("note", String(100)),
)
"""A table of the user's own, for effects that commit together with the queue's."""


def live_rows(engine: Engine, queue: Queue) -> list[tuple[Any, ...]]:
    """The committed live rows as another connection sees them, by id."""
    columns = [queue.table.c[name] for name in STATE_COLUMNS]
    with engine.connect() as connection:
        found = connection.execute(select(*columns).order_by(queue.table.c.id))
        return [tuple(row) for row in found]


def set_columns(engine: Engine, queue: Queue, message_id: int, **values: object) -> None:
    """Change a live row behind the library's back."""
    change = update(queue.table).where(queue.table.c.id == message_id).values(**values)
    with engine.begin() as connection:
        connection.execute(change)


def counts(queue: Queue) -> tuple[int, int, int]:
    """``(ready, claimed, archived)``: where the messages are."""
    stats = queue.stats()
    return stats.ready, stats.claimed, stats.archived


def ids(messages: Iterable[Message]) -> list[int]:
    """The ids of messages, in their order."""
    return [message.id for message in messages]


def payloads(messages: Iterable[Message]) -> list[Any]:
    """The payloads of messages, in their order."""
    return [message.payload for message in messages]


def archived(queue: Queue) -> list[Message]:
    """The messages of the archive, by id."""
    return list(queue.archive.messages().list())


def outcomes(queue: Queue) -> list[str]:
    """The outcomes in the archive, by id."""
    return [str(message.outcome) for message in archived(queue)]


def add_effect(connection: Connection | Session, number: int, note: str = "") -> None:
    """Write one effect on the caller's own transaction."""
    connection.execute(insert(effects).values(id=number, note=note))


def effect_count(engine: Engine) -> int:
    """How many effects are committed."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(effects)).scalar_one())


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
