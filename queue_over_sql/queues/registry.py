"""Operations on the records of queues: which queues exist, and their settings."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    Update,
    and_,
    bindparam,
    case,
    delete,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import DBAPIError

from queue_over_sql.consumers import registrations as consumers
from queue_over_sql.errors import UNREADABLE, QueueError, QueueSchemaMismatch, SchemaTooNew
from queue_over_sql.schema import RELEASE
from queue_over_sql.schema.queue_tables import (
    OLDEST_BESIDE,
    OLDEST_BESIDE_EXPIRY,
    OLDEST_BESIDE_GROUPS,
    SCHEMA_VERSION,
)
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.statements.parameters import number
from queue_over_sql.values.durations import stored_number

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from sqlalchemy import Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect


def release_text(oldest: int) -> str:
    """What a queue's record says of this release, and of the oldest one beside it."""
    return json.dumps({"version": SCHEMA_VERSION, "release": RELEASE, "oldest": oldest})


OF_THIS_RELEASE: Final[Mapping[str, Any]] = {
    "schema_version": SCHEMA_VERSION,
    "schema_release": release_text(OLDEST_BESIDE),
}
"""The columns of a queue's record if this release created or upgraded its tables."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue's row of the registry.

    Attributes:
        discarded: messages that ended without a copy in the archive; unchecked, may be no number.
        owner: the consumer that a temporary queue belongs to; None for other queues.
        version: the schema version of its tables; unchecked.
        release: JSON about the release that made this version, and the oldest compatible version;
            unchecked.
        expiring: whether a message of it may expire.
        ruled: whether claims must keep rules of groups or limits, which earlier releases do not
            know.
        title: what it was called when it was created, if its name was made of that.
    """

    name: str
    settings: str
    paused: bool
    discarded: Any
    owner: str | None = None
    version: Any = SCHEMA_VERSION
    release: str | None = None
    expiring: bool = False
    ruled: bool = False
    title: str | None = None


def version_of(record: QueueRecord) -> int:
    """The version of a queue's tables, if this release may use them.

    Raises:
        SchemaTooNew: this release cannot use it.
        QueueSchemaMismatch: the record has no valid version.
    """
    try:
        version = stored_number("schema_version", record.version)
    except QueueError as error:
        raise QueueSchemaMismatch(f"Queue {record.name!r}: {error}") from error
    if version <= SCHEMA_VERSION:
        return version
    release, oldest = _said_by(record, version)
    if oldest is None or oldest > SCHEMA_VERSION:
        raise SchemaTooNew(record.name, version, SCHEMA_VERSION, RELEASE, release)
    return version


def _said_by(record: QueueRecord, version: int) -> tuple[str | None, int | None]:
    try:
        said = json.loads(record.release or "null")
        if said["version"] == version:
            return str(said["release"]), int(said["oldest"])
    except UNREADABLE:
        pass
    return None, None


def queue_record(
    connection: Connection, system: SystemTables, prefix: str, name: str
) -> QueueRecord | None:
    """The record of one queue; None if there is none."""
    found = _records(connection, system, _is_queue(system, prefix, name))
    return found[0] if found else None


def queue_records(
    connection: Connection,
    system: SystemTables,
    prefix: str | None,
    *,
    lacking: Container[str] = (),
) -> list[QueueRecord]:
    """The records of all queues under a table prefix, or under all of them, by name.

    ``lacking``: columns that the table in the database does not have yet.
    """
    of_prefix = true() if prefix is None else system.queues.c.table_prefix == prefix
    return _records(connection, system, of_prefix, lacking)


def _records(
    connection: Connection,
    system: SystemTables,
    condition: ColumnElement[bool],
    lacking: Container[str] = (),
) -> list[QueueRecord]:
    columns = system.queues.c
    wanted = (
        columns.name,
        columns.settings,
        columns.paused_at,
        columns.discarded_count,
        columns.owner_id,
        columns.schema_version,
        columns.schema_release,
        columns.expiring_since,
        columns.groups_at,
        columns.title,
    )
    there = [null().label(column.name) if column.name in lacking else column for column in wanted]
    rows = connection.execute(select(*there).where(condition).order_by(columns.name))
    found = []
    for name, settings, paused, discarded, owner, version, release, *since, title in rows:
        states = (paused is not None, discarded, owner, version, release)
        expiring, ruled = (each is not None for each in since)
        found.append(QueueRecord(name, settings, *states, expiring, ruled, title))
    return found


def record_upgrade(system: SystemTables, prefix: str, name: str) -> Update:
    """Record that a queue's tables have this release's version, unless theirs is newer."""
    queues = system.queues
    older = queues.c.schema_version < SCHEMA_VERSION
    return update(queues).where(_is_queue(system, prefix, name), older).values(OF_THIS_RELEASE)


def add_queue(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    *,
    prefix: str,
    name: str,
    settings: str,
    owner: str | None = None,
    oldest: int = OLDEST_BESIDE,
    ruled: bool = False,
    ends_unused: bool = False,
    title: str | None = None,
) -> bool:
    """Insert the record of a new queue; False if another process created it first.

    ``oldest``: the oldest schema version whose releases can use it.
    ``ends_unused``: whether it is dropped if nobody uses it.
    """
    values = {
        "table_prefix": prefix,
        "name": name,
        "settings": settings,
        "owner_id": owner,
        "schema_version": SCHEMA_VERSION,
        "schema_release": release_text(oldest),
        "created_at": dialect.expressions.now(),
        **(with_rules(dialect) if ruled else {}),
        **({"used_at": dialect.expressions.now()} if ends_unused else {}),
        **({} if title is None else {"title": title}),
    }
    try:
        connection.execute(insert(system.queues).values(values))
    except DBAPIError as error:
        if (
            dialect.errors.classify(error) is ErrorKind.DUPLICATE
            and not dialect.features.aborts_on_error
        ):
            return False
        raise
    return True


def change_settings(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    *,
    prefix: str,
    name: str,
    settings: str,
    of_rules: bool = False,
    ruled: bool | None = None,
) -> bool:
    """Store new settings of a queue; False if there is no such queue.

    ``of_rules``: claims that know the earlier settings must find nothing, and read them anew.
    ``ruled``: whether the queue has groups or limits from now on; None: as before.
    """
    values: dict[str, Any] = {"settings": settings}
    if of_rules:
        values["edit_count"] = system.queues.c.edit_count + 1
    if ruled is not None:
        values |= with_rules(dialect) if ruled else {"groups_at": None}
    return change_queue(connection, system, prefix, name, **values)


def held_settings(
    connection: Connection, system: SystemTables, prefix: str, name: str
) -> str | None:
    """The settings of a queue, which nobody changes until the transaction ends; None: no queue."""
    statement = select(system.queues.c.settings).where(_is_queue(system, prefix, name))
    found: str | None = connection.execute(statement.with_for_update()).scalar()
    return found


def shares_of_groups(connection: Connection, tables: QueueTables) -> tuple[int, bool]:
    """How many messages of a group may be in hand by the queue's settings, and if shares are fair.

    As the database has them now: another process may have changed them.
    """
    settings = tables.system.queues.c.settings
    of_queue = _is_queue(tables.system, tables.prefix, tables.queue)
    stored = json.loads(connection.execute(select(settings).where(of_queue)).scalar() or "{}")
    return stored.get("group_limit") or 1, bool(stored.get("group_fair"))


def with_rules(dialect: QueueDialect) -> dict[str, Any]:
    """The values of a queue's record that say that it has groups or limits."""
    return {
        "groups_at": dialect.expressions.now(),
        "schema_release": release_text(OLDEST_BESIDE_GROUPS),
    }


def change_queue(
    connection: Connection, system: SystemTables, prefix: str, name: str, **values: Any
) -> bool:
    """Change columns of a queue's record; False if there is none."""
    statement = update(system.queues).where(_is_queue(system, prefix, name)).values(values)
    return connection.execute(statement).rowcount > 0


def count_discarded(connection: Connection, tables: QueueTables, count: int) -> None:
    """Count messages that ended without a copy, because the queue keeps no archive."""
    system, prefix, discarded = tables.system, tables.prefix, tables.system.queues.c.discarded_count
    change_queue(connection, system, prefix, tables.queue, discarded_count=discarded + count)


def select_edit_count(tables: QueueTables) -> Select[Any]:
    """Read ``edit_count``."""
    columns = tables.system.queues.c
    return select(columns.edit_count).where(_is_queue(tables.system, tables.prefix, tables.queue))


def edit_count(connection: Connection, sql: StatementCache) -> int:
    """How often edits moved messages of a queue to another place."""
    found = sql.get(select_edit_count).run(connection).scalar()
    return stored_number("edit_count", found or 0)


def count_edit(connection: Connection, tables: QueueTables) -> None:
    """Let the next claim of every consumer notice that messages moved to another place."""
    system, prefix, edits = tables.system, tables.prefix, tables.system.queues.c.edit_count
    change_queue(connection, system, prefix, tables.queue, edit_count=edits + 1)


def select_expiring(tables: QueueTables) -> Select[Any]:
    """Read ``expiring_since``."""
    columns = tables.system.queues.c
    wanted = _is_queue(tables.system, tables.prefix, tables.queue)
    return select(columns.expiring_since).where(wanted)


def is_expiring(connection: Connection, sql: StatementCache) -> bool:
    """Whether a message of the queue may expire."""
    return sql.get(select_expiring).run(connection).scalar() is not None


def note_expiring(connection: Connection, sql: StatementCache) -> None:
    """Note, once for each queue, that messages of it may expire; earlier releases refuse it then.

    Only the first publish with an expiry writes, because publishers must not wait for each other.
    """
    if is_expiring(connection, sql):
        return
    release = {"p_release": release_text(OLDEST_BESIDE_EXPIRY)}
    sql.get(set_expiring).run(connection, release)


def set_expiring(tables: QueueTables) -> Update:
    """Note that messages of the queue may expire, unless that is known."""
    queues = tables.system.queues
    of_queue = _is_queue(tables.system, tables.prefix, tables.queue)
    noted = {
        "expiring_since": tables.expressions.now(),
        "schema_release": bindparam("p_release", None, type_=queues.c.schema_release.type),
    }
    return update(queues).where(of_queue, queues.c.expiring_since.is_(None)).values(noted)


def remove_queue(connection: Connection, system: SystemTables, prefix: str, name: str) -> bool:
    """Remove the record of a queue and what belongs to it; False if there is none.

    The record goes first, because whoever adds something to the queue locks it. So those additions
    are committed and visible to the next statements.
    """
    statement = delete(system.queues).where(_is_queue(system, prefix, name))
    removed = connection.execute(statement).rowcount > 0
    for bound in (system.schedules, system.subscriptions, system.commits, system.attempts):
        of_queue = and_(bound.c.table_prefix == prefix, bound.c.queue == name)
        connection.execute(delete(bound).where(of_queue))
    _remove_durable_consumers(connection, system, prefix, name)
    return removed


def _remove_durable_consumers(
    connection: Connection, system: SystemTables, prefix: str, name: str
) -> None:
    """Remove the queue's durable consumers, since a later queue of this name is another one."""
    c = system.consumers.c
    of_queue = and_(c.durable == 1, c.table_prefix == prefix, c.queue == name)
    found = connection.execute(select(c.consumer_id).where(of_queue)).scalars().all()
    for consumer_id in found:
        consumers.remove(connection, system, consumer_id)


def hold_queue(connection: Connection, system: SystemTables, prefix: str, name: str) -> bool:
    """Keep a queue from being dropped until the transaction ends; False if there is none."""
    statement = select(system.queues.c.name).where(_is_queue(system, prefix, name))
    return connection.execute(statement.with_for_update()).first() is not None


def _is_queue(system: SystemTables, prefix: str, name: str) -> ColumnElement[bool]:
    return and_(system.queues.c.table_prefix == prefix, system.queues.c.name == name)


def may_claim(tables: QueueTables) -> ColumnElement[bool]:
    """The queue is not paused, has rules as known, and a bounded claim knows all its edits.

    The claim itself checks this, so that a pause or an edit takes effect at once. If an edit moved
    a message below a consumer's watermark, the consumer's very next claim finds nothing here and
    makes a full look.
    """
    columns = tables.system.queues.c
    unaware = and_(number("p_edits") >= 0, columns.edit_count != number("p_edits"))
    groups_at = columns.groups_at
    # Whoever does not know that there are groups or limits would not keep them.
    mistaken = groups_at.is_(None) if tables.has_rules else groups_at.is_not(None)
    objections = or_(columns.paused_at.is_not(None), mistaken, unaware)
    objection = (
        select(case((objections, literal_column("1"))))
        .where(columns.table_prefix == tables.prefix, columns.name == tables.queue)
        .scalar_subquery()
    )
    return objection.is_(None)
