"""Acts on the registrations of consumers; durations are microseconds."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, bindparam, delete, exists, insert, literal, select, update

from queue_over_sql.dialects.statements import kinds
from queue_over_sql.durations import instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement, Connection, Insert

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.system import SystemTables

NEVER: Final = 253_402_300_799_999_999
"""When a consumer expires that does not: the last microsecond of the year 9999."""


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

    @property
    def permanent(self) -> bool:
        """Whether it never expires, so that no heartbeat is to be expected: the SQL clients."""
        return self.expires_at == instant(NEVER)


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


def register_for_good(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer: Mapping[str, Any],
) -> None:
    """Write the row of a consumer that never expires, where it is not there.

    Args:
        connection: where.
        system: the shared tables.
        dialect: for the clock.
        consumer: as in ``register``.
    """
    connection.execute(_registration_for_good(system, dialect, consumer))


def registration_for_good(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer: Mapping[str, Any],
) -> str:
    """What ``register_for_good`` runs, as text."""
    statement = _registration_for_good(system, dialect, consumer)
    compiled = statement.compile(
        dialect=connection.dialect,
        compile_kwargs={"literal_binds": True, "render_postcompile": True},
    )
    return str(compiled)


def _registration_for_good(
    system: SystemTables, dialect: QueueDialect, consumer: Mapping[str, Any]
) -> Insert:
    consumers, now = system.consumers, dialect.now()
    times = {"started_at": now, "heartbeat_at": now, "expires_at": literal(NEVER, BigInteger())}
    given = {name: literal(value) for name, value in consumer.items()}
    values: dict[str, ColumnElement[Any]] = {**given, **times}
    there = exists().where(consumers.c.consumer_id == consumer["consumer_id"])
    return insert(consumers).from_select(list(values), select(*values.values()).where(~there))


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
