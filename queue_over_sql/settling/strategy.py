"""How an engine moves finished messages to the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from queue_over_sql.archive.statements import copy_to_archive
from queue_over_sql.settling.statements import held, remove
from queue_over_sql.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.statements.requests import Settlement


class Archiving:
    """Moves messages in several statements: it locks, copies and removes them."""

    at_once: ClassVar[bool] = False
    """The move to the archive is one statement."""

    def __init__(self, dialect: QueueDialect) -> None:
        self._sessions = dialect.sessions

    def move(self, connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
        """Move messages to the archive under the fence; returns the ids that were still held.

        It locks the rows first, so that exactly the copied rows are removed.
        """
        moved: set[int] = set()
        self._sessions.lock_for_writing(connection, sql)
        for batch in batches(settlement.ids):
            fence = settlement.fence_values()
            present = list(batch)
            if not settlement.locked:
                lock = sql.get(held, bucket_of(len(batch)))
                present = [row[0] for row in lock.run(connection, id_values(batch) | fence)]
            if not present:
                continue
            size, values = bucket_of(len(present)), id_values(present) | fence
            copy = sql.get(copy_to_archive, size)
            copy.run(connection, values | settlement.archive_values())
            sql.get(remove, size).run(connection, values)
            moved.update(present)
        return moved
