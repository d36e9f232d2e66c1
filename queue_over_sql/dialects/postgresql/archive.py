"""How PostgreSQL moves messages to the archive: in one statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    and_,
    delete,
    insert,
    select,
)

from queue_over_sql.archive import statements as archive
from queue_over_sql.durable import statements as rounds
from queue_over_sql.message import Claim
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.settling.strategy import Archiving
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.statements.parameters import batches, bucket_of, fence, id_values
from queue_over_sql.statements.requests import Settlement


class PostgreSQLArchiving(Archiving):
    """Moves messages by DELETE … RETURNING inside an INSERT."""

    at_once = True

    def move(self, connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
        moved: set[int] = set()
        for batch in batches(settlement.ids):
            builder = archive_unblocking if settlement.unblocking else archive_at_once
            statement = sql.get(builder, bucket_of(len(batch)))
            values = id_values(batch) | held_values(settlement.claim) | settlement.archive_values()
            moved.update(row[0] for row in statement.run(connection, values))
        return moved


def held_values(held: Claim) -> dict[str, Any]:
    """The bind parameters of ``held_before``."""
    return {"p_held_by": held.consumer_id, "p_held_round": held.consumer_round}


def held_before(tables: QueueTables, size: int) -> ColumnElement[bool]:
    """The fence of a claim beside another claim in one statement."""
    return fence(tables, size, consumer="p_held_by", consumer_round="p_held_round")


def archive_at_once(tables: QueueTables, size: int) -> Insert:
    """Move messages to the archive under the fence; returns the ids that were still held."""
    return archive_held(tables, held_before(tables, size))


def archive_unblocking(tables: QueueTables, size: int) -> Insert:
    """As ``archive_at_once``, but none behind which others of its group may be parked."""
    return archive_held(tables, and_(held_before(tables, size), tables.live.c.blocks.is_(None)))


def archive_held(tables: QueueTables, held: ColumnElement[bool]) -> Insert:
    """Move messages to the archive that a condition with the fence names; returns their ids."""
    return _archived(tables, held).returning(tables.archive.c.id)


def archive_rounds_at_once(tables: QueueTables) -> Insert:
    """Move the messages of rounds to the archive."""
    return _archived(tables, rounds.of_rounds(tables))


def _archived(tables: QueueTables, ending: ColumnElement[bool]) -> Insert:
    gone = delete(tables.live).where(ending).returning(*tables.live.c).cte("gone")
    source = select(*archive.archived_values(tables, gone))
    return insert(tables.archive).from_select(archive.archived_names(tables), source)
