"""What crashed writers of batches left behind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, MetaData, Table, delete, select
from sqlalchemy.schema import DropTable

from queue_over_sql.sql.operation import operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.expressions import Expressions


WHOLE: Final = -1


_STAGE_NAME: Final = re.compile(r"queue_over_sql_stage_[0-9a-f]{16}\Z")


def prune_commits(connection: Connection, system: SystemTables, expressions: Expressions) -> int:
    """Delete the records of batches that can no longer be repeated; returns how many."""
    commits = system.commits
    over = delete(commits).where(commits.c.expires_at <= expressions.now())
    return connection.execute(over).rowcount


def orphaned_stages(
    connection: Connection, system: SystemTables, expressions: Expressions, *, timeout: int
) -> list[str]:
    """Staging tables that are too old, or whose batch is published.

    The writer of a batch has ``timeout`` microseconds to drop its staging tables.
    """
    stages, commits, now = system.stages, system.commits, expressions.now()
    batch = ("table_prefix", "queue", "writer_id", "batch_id")
    same_batch = [commits.c[name] == stages.c[name] for name in batch]
    over = (commits.c.part == WHOLE, commits.c.committed_at <= now - timeout)
    published = select(commits.c.part).where(*same_batch, *over).exists()
    found = connection.execute(select(stages.c.name).where(published))
    late = connection.execute(select(stages.c.name).where(stages.c.expires_at <= now))
    return sorted({row[0] for row in found} | {row[0] for row in late})


@operation(atomic=True)
def drop_stages(connection: Connection, system: SystemTables, names: Sequence[str]) -> None:
    """Drop staging tables if they exist, and their records. Some engines commit on DROP."""
    for name in names:
        if not _STAGE_NAME.match(str(name)):
            # Anyone may have written a row; it must not make us drop other tables.
            continue
        table = Table(name, MetaData(schema=system.metadata.schema), Column("payload"))
        connection.execute(DropTable(table, if_exists=True))
        connection.execute(delete(system.stages).where(system.stages.c.name == name))
