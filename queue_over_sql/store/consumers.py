"""Acts on the registrations of consumers; durations are microseconds."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, insert, select, update

from queue_over_sql.dialects.statements import kinds
from queue_over_sql.durations import instant

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.system import SystemTables


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A running consumer.

    Attributes:
        consumer_id: its identity, the stamp of its claims.
        name: its name for people.
        host, pid: where it runs.
        started_at, heartbeat_at: when it registered, and when it was heard of last.
        expires_at: from when on it counts as dead unless it is heard of again.
    """

    consumer_id: str
    name: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    expires_at: datetime


def register(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer: dict[str, Any],
    timeout: int,
) -> None:
    """Write the row of a consumer, alive for ``timeout`` from now.

    Args:
        connection: where.
        system: the shared tables.
        dialect: for the clock.
        consumer: ``consumer_id``, ``name``, ``host`` and ``pid``.
        timeout: in microseconds.
    """
    now = dialect.now()
    times = {"started_at": now, "heartbeat_at": now, "expires_at": now + timeout}
    connection.execute(insert(system.consumers).values({**consumer, **times}))


def renew(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer_id: str,
    timeout: int,
) -> bool:
    """Renew a heartbeat; False where the consumer has expired, which cannot be undone."""
    consumers, now = system.consumers, dialect.now()
    statement = (
        update(consumers)
        .where(consumers.c.consumer_id == bindparam("p_consumer"), consumers.c.expires_at > now)
        .values(heartbeat_at=now, expires_at=now + timeout)
    )
    return connection.execute(statement, {"p_consumer": consumer_id}).rowcount > 0


def remove(connection: Connection, system: SystemTables, consumer_id: str) -> None:
    """Remove the row of a consumer."""
    consumers = system.consumers
    connection.execute(delete(consumers).where(consumers.c.consumer_id == consumer_id))
    connection.execute(kinds.withdraw(system, consumer_id))


def expired(connection: Connection, system: SystemTables, dialect: QueueDialect) -> list[str]:
    """The ids of consumers whose heartbeat stopped."""
    consumers = system.consumers
    expired = select(consumers.c.consumer_id).where(consumers.c.expires_at <= dialect.now())
    return [row[0] for row in connection.execute(expired)]


def registered(connection: Connection, system: SystemTables) -> list[ConsumerInfo]:
    """All consumers that are registered, the oldest first."""
    columns = system.consumers.c
    rows = connection.execute(
        select(
            columns.consumer_id,
            columns.name,
            columns.host,
            columns.pid,
            columns.started_at,
            columns.heartbeat_at,
            columns.expires_at,
        ).order_by(columns.started_at, columns.consumer_id)
    )
    return [
        ConsumerInfo(row[0], row[1], row[2], row[3], *(instant(int(value)) for value in row[4:]))
        for row in rows
    ]
