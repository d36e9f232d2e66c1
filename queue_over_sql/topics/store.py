"""Statements about topics."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Select, Update, and_, delete, false, insert, select, update
from sqlalchemy.exc import DBAPIError

from queue_over_sql.errors import DuplicateKey
from queue_over_sql.message import Published
from queue_over_sql.publishing.operations import publish, without_own
from queue_over_sql.queues.tables import insert_unless_there
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.publishing.new_messages import NewMessage
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect


def subscriptions_of_topic(system: SystemTables) -> Select[Any]:
    """The subscriptions of a topic, by the primary keys of the tables.

    One row of NULLs if it has no subscriptions; no row if there is no such topic.
    """
    topics, bound, queues = system.topics, system.subscriptions, system.queues
    of_topic = and_(
        bound.c.table_prefix == topics.c.table_prefix,
        bound.c.topic == topics.c.name,
    )
    of_queue = and_(
        queues.c.table_prefix == bound.c.table_prefix,
        queues.c.name == bound.c.queue,
    )
    columns = bound.c.queue, bound.c.pattern, bound.c.filter, bound.c.created_at
    return (
        select(*columns, queues.c.groups_at)
        .select_from(topics.outerjoin(bound, of_topic).outerjoin(queues, of_queue))
        .where(topics.c.table_prefix == words("p_prefix"), topics.c.name == words("p_topic"))
    )


def change_nothing(system: SystemTables) -> Update:
    """What a server or a transaction that only reads refuses; publishers may do it."""
    queues = system.queues
    same = {"expiring_since": queues.c.expiring_since}
    return update(queues).where(false()).values(same)


class SubscriptionRow(NamedTuple):
    """A row of the subscriptions, and since when the queue has groups.

    Times are microseconds since the epoch.
    """

    queue: str
    pattern: str
    filter: str | None
    created_at: int
    groups_at: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """One queue's copy of a message to a topic, encoded by the queue's rules."""

    queue: str
    sql: StatementCache
    message: NewMessage


# -- topics


def topic_names(connection: Connection, system: SystemTables, prefix: str) -> list[str]:
    """The names of all topics under a table prefix, sorted."""
    columns = system.topics.c
    found = connection.execute(select(columns.name).where(columns.table_prefix == prefix))
    return sorted(row[0] for row in found)


def has_topic(connection: Connection, system: SystemTables, prefix: str, name: str) -> bool:
    """Whether a topic with this name exists."""
    found = select(system.topics.c.name).where(_is_topic(system, prefix, name))
    return connection.execute(found).first() is not None


def add_topic(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str, name: str
) -> bool:
    """Insert a new topic; False if it exists. Do not call it inside a transaction."""
    if has_topic(connection, system, prefix, name):
        return False
    values = {"table_prefix": prefix, "name": name, "created_at": dialect.expressions.now()}
    return insert_unless_there(connection, dialect, system.topics, values)


@operation(atomic=True, counts=True)
def remove_topic(connection: Connection, system: SystemTables, prefix: str, name: str) -> bool:
    """Remove a topic and its subscriptions; False if there is none.

    The topic goes first, because a subscriber locks it. So new subscriptions are visible next.
    """
    removed = connection.execute(delete(system.topics).where(_is_topic(system, prefix, name)))
    columns = system.subscriptions.c
    of_topic = and_(columns.table_prefix == prefix, columns.topic == name)
    connection.execute(delete(system.subscriptions).where(of_topic))
    return removed.rowcount > 0


def _is_topic(system: SystemTables, prefix: str, name: str) -> ColumnElement[bool]:
    return and_(system.topics.c.table_prefix == prefix, system.topics.c.name == name)


# -- subscriptions


def subscriptions(
    connection: Connection, sql: StatementCache, prefix: str, topic: str
) -> list[SubscriptionRow] | None:
    """The subscriptions of a topic by queue and pattern; None if there is no such topic."""
    values = {"p_prefix": prefix, "p_topic": topic}
    found = sql.get(subscriptions_of_topic).run(connection, values).all()
    if not found:
        return None
    rows = [SubscriptionRow._make(row) for row in found if row[0] is not None]
    # A row may hold anything. Those of one queue are adjacent.
    return sorted(rows, key=lambda row: (str(row.queue), str(row.pattern)))


def hold_topic(connection: Connection, system: SystemTables, prefix: str, name: str) -> bool:
    """Keep a topic from being dropped until the transaction ends; False if there is none."""
    statement = select(system.topics.c.name).where(_is_topic(system, prefix, name))
    return connection.execute(statement.with_for_update()).first() is not None


def put_subscription(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    *,
    prefix: str,
    topic: str,
    queue: str,
    pattern: str,
    where: str | None,
) -> None:
    """Subscribe a queue, or replace the filter of its subscription, which is JSON.

    Lock the topic first, so that no other process subscribes at the same time.
    """
    table = system.subscriptions
    key = {"table_prefix": prefix, "topic": topic, "queue": queue, "pattern": pattern}
    same = and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(update(table).where(same).values(filter=where)).rowcount:
        return
    new = {**key, "filter": where, "created_at": dialect.expressions.now()}
    connection.execute(insert(table).values(new))


@operation(counts=True)
def remove_subscriptions(
    connection: Connection,
    system: SystemTables,
    prefix: str,
    topic: str,
    *,
    queue: str,
    pattern: str | None,
) -> bool:
    """Remove all subscriptions of a queue, or that of a pattern; False if there is none."""
    columns = system.subscriptions.c
    wanted = [columns.table_prefix == prefix, columns.topic == topic, columns.queue == queue]
    if pattern is not None:
        wanted.append(columns.pattern == pattern)
    return connection.execute(delete(system.subscriptions).where(*wanted)).rowcount > 0


# -- copies


def publish_copies(
    connection: Connection, messages: Sequence[Sequence[Copy]], on_conflict: str
) -> list[list[Published]]:
    """Insert each message into its queues, all or none; raises as ``publish_many``."""
    published: list[list[Published]] = [[] for _ in messages]
    for copies, done in zip(messages, published, strict=True):
        for copy in copies:
            try:
                new = publish(connection, copy.sql, copy.message, on_conflict)
            except DuplicateKey as error:
                there = [each for some in published for each in some if each.queue == copy.queue]
                raise without_own(error, there) from None
            done.append(dataclasses.replace(new, queue=copy.queue))
    return published


def publish_copies_within(
    connection: Connection, messages: Sequence[Sequence[Copy]], on_conflict: str
) -> list[list[Published]]:
    """Do so in the caller's transaction, which stays usable after an error.

    On SQLite it must have written already, because the driver begins none for a savepoint.
    """
    savepoint = connection.begin_nested()
    try:
        published = publish_copies(connection, messages, on_conflict)
    except DBAPIError:
        # After an error such as a deadlock, the savepoint may be gone as well.
        with contextlib.suppress(DBAPIError):
            savepoint.rollback()
        raise
    except BaseException:
        # Our own error must not hide that the undoing failed.
        savepoint.rollback()
        raise
    savepoint.commit()
    return published
