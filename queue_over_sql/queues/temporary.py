"""Queues that end by themselves: with their consumer, or when nobody uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import ColumnElement, and_, case, exists, literal_column, or_, select

from queue_over_sql.consumers.registrations import lives
from queue_over_sql.queues.registry import change_queue

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect


class Ending(NamedTuple):
    """A queue that may have to end; times are microseconds, as the database holds them.

    Attributes:
        owner: the consumer that it belongs to, if any.
        orphaned: whether that consumer is declared dead or gone.
        used_at: when it was last seen in use, if it ends unused.
        used: whether a living consumer has asked for its messages.
    """

    name: str
    settings: str
    owner: str | None
    used_at: int | None
    orphaned: bool
    used: bool
    now: int


def ending_queues(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str
) -> list[Ending]:
    """The temporary queues without their consumers, and all that end unused; by name."""
    queues, consumers = system.queues.c, system.consumers
    owner_lives = exists().where(consumers.c.consumer_id == queues.owner_id, lives(consumers))
    is_orphaned = and_(queues.owner_id.is_not(None), ~owner_lives)
    columns = (queues.name, queues.settings, queues.owner_id, queues.used_at)
    facts = (_flag(is_orphaned), _flag(_used(system)), dialect.expressions.now())
    wanted = or_(is_orphaned, queues.used_at.is_not(None))
    found = connection.execute(
        select(*columns, *facts).where(queues.table_prefix == prefix, wanted).order_by(queues.name)
    )
    return [
        Ending(name, settings, owner, used_at, bool(orphaned), bool(used), now)
        for name, settings, owner, used_at, orphaned, used, now in found
    ]


def note_use(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str, name: str
) -> bool:
    """Note that a queue that ends unused is in use; False if there is no such queue."""
    return change_queue(connection, system, prefix, name, used_at=dialect.expressions.now())


def has_ended(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str, seen: Ending
) -> bool:
    """Lock a queue's record; False if it is gone, somebody uses it, or took it over meanwhile.

    A transaction that is sending a reply to it holds the lock, too.
    """
    columns = system.queues.c
    record = select(columns.owner_id, columns.used_at).where(
        columns.table_prefix == prefix, columns.name == seen.name
    )
    locking = record.with_for_update(skip_locked=dialect.features.skip_locked)
    row = connection.execute(locking).first()
    if row is None or row[0] != seen.owner:
        return False
    if seen.orphaned:
        return True
    used = select(columns.name).where(
        columns.table_prefix == prefix, columns.name == seen.name, _used(system)
    )
    return row[1] == seen.used_at and connection.execute(used).first() is None


def _used(system: SystemTables) -> ColumnElement[bool]:
    """Whether a living consumer has asked for the messages of a queue since it registered."""
    queues, kinds, consumers = system.queues.c, system.kinds, system.consumers
    return exists().where(
        kinds.c.table_prefix == queues.table_prefix,
        kinds.c.queue == queues.name,
        consumers.c.consumer_id == kinds.c.consumer_id,
        lives(consumers),
    )


def _flag(condition: ColumnElement[bool]) -> ColumnElement[int]:
    # Not every driver returns a truth value as one.
    return case((condition, literal_column("1")), else_=literal_column("0"))
