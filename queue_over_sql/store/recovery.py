"""Statements that find claims of dead consumers."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    MetaData,
    Select,
    Table,
    and_,
    delete,
    exists,
    func,
    select,
)
from sqlalchemy.schema import DropTable

from queue_over_sql.dialects.statements.parameters import among_ids, number
from queue_over_sql.message import Claim
from queue_over_sql.store.acts import rows_by_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables


def claims_with_expired_leases(tables: QueueTables, size: int) -> Select[Any]:
    """Claims whose lease has expired."""
    condition = and_(
        tables.dialect.is_claimed(tables.live),
        tables.live.c.lease_expires_at <= tables.dialect.now(),
    )
    return _claims(tables, condition, size)


def claims_of_the_dead(tables: QueueTables, size: int) -> Select[Any]:
    """Claims of consumers that are expired or gone."""
    live, consumers = tables.live, tables.system.consumers
    alive = exists().where(
        consumers.c.consumer_id == live.c.consumer_id,
        consumers.c.expires_at > tables.dialect.now(),
    )
    return _claims(tables, and_(tables.dialect.is_claimed(live), ~alive), size)


def _claims(tables: QueueTables, condition: ColumnElement[bool], size: int) -> Select[Any]:
    """Claims to recover: id, stamp, attempts, allowed attempts, and place in the queue.

    Size 0 finds them. Another size locks those of the given ids that still match.
    """
    live, dialect = tables.live, tables.dialect
    statement = select(
        live.c.id,
        live.c.consumer_id,
        live.c.consumer_round,
        live.c.attempt_count,
        func.coalesce(live.c.max_attempts, number("p_max_attempts")),
        live.c.available_at,
    ).where(condition)
    if size:
        return statement.where(among_ids(live, size)).with_for_update()
    statement = statement.limit(number("p_count"))
    return statement.with_for_update(skip_locked=True) if dialect.skip_locked else statement


@dataclasses.dataclass(frozen=True, slots=True)
class DeadClaim:
    """A claim to recover."""

    message_id: int
    claim: Claim
    attempts: int
    max_attempts: int
    available_at: int | None

    @property
    def out_of_attempts(self) -> bool:
        """Whether the message has used all its attempts."""
        return self.attempts >= self.max_attempts


def expired_leases(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims whose lease has expired, locked if the engine can skip locked rows."""
    bounds, recheck = (max_attempts, limit), not sql.subject.dialect.skip_locked
    return _dead_claims(connection, sql, claims_with_expired_leases, bounds, recheck=recheck)


def orphaned_claims(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims of consumers that are expired or gone, locked in the same way.

    This checks twice. A statement reads the newest version of a row that it locks, but the
    consumers as of its start. So the first look may miss a consumer that registered and claimed
    meanwhile.
    """
    return _dead_claims(connection, sql, claims_of_the_dead, (max_attempts, limit), recheck=True)


def _dead_claims(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    bounds: tuple[int, int],
    *,
    recheck: bool,
) -> list[DeadClaim]:
    values = {"p_max_attempts": bounds[0], "p_count": bounds[1]}
    rows: Sequence[Any] = sql.get(builder, 0).run(connection, values).all()
    if rows and recheck:
        # Check these alone again, under a lock, because a lease may have been renewed.
        rows = rows_by_ids(connection, sql, builder, [row[0] for row in rows], values)
    return [DeadClaim(row[0], Claim(row[1], row[2]), row[3], row[4], row[5]) for row in rows]


# -- what crashed writers of batches left behind

WHOLE: Final = -1
_STAGE_NAME: Final = re.compile(r"queue_over_sql_stage_[0-9a-f]{16}\Z")


def prune_commits(connection: Connection, system: SystemTables, dialect: QueueDialect) -> int:
    """Delete the records of batches that can no longer be repeated; returns how many."""
    commits = system.commits
    over = delete(commits).where(commits.c.expires_at <= dialect.now())
    return connection.execute(over).rowcount


def orphaned_stages(
    connection: Connection, system: SystemTables, dialect: QueueDialect, *, patience: int
) -> list[str]:
    """Staging tables that are too old, or whose batch is published.

    The writer of a batch has ``patience`` microseconds to drop its staging tables.
    """
    stages, commits, now = system.stages, system.commits, dialect.now()
    batch = ("table_prefix", "queue", "writer_id", "batch_id")
    same_batch = [commits.c[name] == stages.c[name] for name in batch]
    over = (commits.c.part == WHOLE, commits.c.committed_at <= now - patience)
    published = select(commits.c.part).where(*same_batch, *over).exists()
    found = connection.execute(select(stages.c.name).where(published))
    late = connection.execute(select(stages.c.name).where(stages.c.expires_at <= now))
    return sorted({row[0] for row in found} | {row[0] for row in late})


def drop_stages(connection: Connection, system: SystemTables, names: Sequence[str]) -> None:
    """Drop staging tables if they exist, and their records. Some engines commit on DROP."""
    for name in names:
        if not _STAGE_NAME.match(str(name)):
            # Anyone may have written a row; it must not make us drop other tables.
            continue
        table = Table(name, MetaData(schema=system.metadata.schema), Column("payload"))
        connection.execute(DropTable(table, if_exists=True))
        connection.execute(delete(system.stages).where(system.stages.c.name == name))
