"""Queues that end by themselves: with their consumer, or when nobody uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import ColumnElement, and_, case, exists, literal_column, null, or_, select, update

from queue_over_sql.consumers.registrations import lives
from queue_over_sql.queues.registry import change_queue
from queue_over_sql.sql.operation import operation

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect


class Ending(NamedTuple):
    """A queue that may have to end; times are microseconds, as the database holds them.

    Attributes:
        owner: the consumer that it belongs to, if any.
        orphaned: whether that consumer is declared dead or gone.
        orphaned_at: since when reapers have known that.
        used_at: when it was last seen in use, if it ends unused.
        used: whether a living consumer has asked for its messages, or a durable one belongs to it.
    """

    name: str
    settings: str
    owner: str | None
    used_at: int | None
    orphaned_at: int | None
    orphaned: bool
    used: bool
    now: int


def ending_queues(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str
) -> list[Ending]:
    """The temporary queues without their consumers, and all that end unused; by name.

    And those that were once seen without one: earlier releases leave that note when they hand over.
    """
    queues, consumers = system.queues.c, system.consumers
    owner_lives = exists().where(consumers.c.consumer_id == queues.owner_id, lives(consumers))
    is_orphaned = and_(queues.owner_id.is_not(None), ~owner_lives)
    columns = (queues.name, queues.settings, queues.owner_id, queues.used_at, queues.orphaned_at)
    facts = (_flag(is_orphaned), _flag(_used(system)), dialect.expressions.now())
    wanted = or_(is_orphaned, queues.orphaned_at.is_not(None), queues.used_at.is_not(None))
    found = connection.execute(
        select(*columns, *facts).where(queues.table_prefix == prefix, wanted).order_by(queues.name)
    )
    return [
        Ending(name, settings, owner, used_at, orphaned_at, bool(orphaned), bool(used), now)
        for name, settings, owner, used_at, orphaned_at, orphaned, used, now in found
    ]


@operation()
def note_use(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str, name: str
) -> bool:
    """Note that a queue that ends unused is in use; False if there is no such queue."""
    return change_queue(connection, system, prefix, name, used_at=dialect.expressions.now())


@operation()
def note_orphaned(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    prefix: str,
    *,
    seen: Ending,
) -> None:
    """Note whether a temporary queue is without its consumer, unless others did meanwhile."""
    c = system.queues.c
    of_queue = (c.table_prefix == prefix, c.name == seen.name, c.owner_id == seen.owner)
    # With None it is IS NULL.
    as_seen = update(system.queues).where(*of_queue, c.orphaned_at == seen.orphaned_at)
    since = dialect.expressions.now() if seen.orphaned else null()
    connection.execute(as_seen.values(orphaned_at=since))


@operation()
def hand_over(
    connection: Connection, system: SystemTables, prefix: str, name: str, *, former: str, owner: str
) -> bool:
    """Let a temporary queue end with another consumer; False if it no longer ends with the former.

    The two are registrations of one service.
    """
    c = system.queues.c
    mine = (c.table_prefix == prefix, c.name == name, c.owner_id == former)
    changed = update(system.queues).where(*mine).values(owned_by(owner))
    return connection.execute(changed).rowcount > 0


def owned_by(owner: str) -> dict[str, str | None]:
    """The values of a temporary queue's record that say that it ends with this consumer."""
    return {"owner_id": owner, "orphaned_at": None}


def has_ended(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    prefix: str,
    *,
    seen: Ending,
    tables: QueueTables | None,
) -> bool:
    """Lock a queue's record; False if it is gone, somebody uses it, or took it over meanwhile.

    A transaction that is sending a reply to it holds the lock, too. Who holds a message uses the
    queue, which is noted.
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
    if row[1] != seen.used_at or connection.execute(used).first() is not None:
        return False
    if tables is not None:
        claimed = select(tables.live.c.id).where(tables.live.c.consumer_id.is_not(None)).limit(1)
        if connection.execute(claimed).first() is not None:
            note_use(connection, system, dialect, prefix, seen.name)
            return False
    return True


def _used(system: SystemTables) -> ColumnElement[bool]:
    """Whether a living consumer has asked for the messages of a queue, or is durable and of it.

    Other consumers note their uses in the queue's record.
    """
    queues, kinds, consumers = system.queues.c, system.kinds, system.consumers
    has_asked = exists().where(
        kinds.c.table_prefix == queues.table_prefix,
        kinds.c.queue == queues.name,
        consumers.c.consumer_id == kinds.c.consumer_id,
        lives(consumers),
    )
    is_durable = exists().where(
        consumers.c.durable == 1,
        consumers.c.table_prefix == queues.table_prefix,
        consumers.c.queue == queues.name,
        lives(consumers),
    )
    return or_(has_asked, is_durable)


def _flag(condition: ColumnElement[bool]) -> ColumnElement[int]:
    # Not every driver returns a truth value as one.
    return case((condition, literal_column("1")), else_=literal_column("0"))
