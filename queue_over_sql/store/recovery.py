"""Recovery: claims of dead consumers, what crashed writers left, and kinds that nobody knows."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    MetaData,
    Select,
    Table,
    and_,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
)
from sqlalchemy.schema import DropTable

from queue_over_sql.dialects.requests import ANY_EDITS, read_rows
from queue_over_sql.dialects.statements import settle
from queue_over_sql.dialects.statements.claim import may_claim
from queue_over_sql.dialects.statements.parameters import among_ids, id_values, number
from queue_over_sql.message import Claim
from queue_over_sql.store.acts import apart, rows_by_ids
from queue_over_sql.store.claim import Disposition, end_locked
from queue_over_sql.store.settle import refusal
from queue_over_sql.values.durations import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
WHOLE: Final = -1
_STAGE_NAME: Final = re.compile(r"queue_over_sql_stage_[0-9a-f]{16}\Z")
ANY_KIND = ""
"""Stored for a consumer without kinds, which reads every message as plain JSON."""


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
        consumers.c.expires_at > tables.dialect.heartbeat_now(),
    )
    return _claims(tables, and_(tables.dialect.is_claimed(live), ~alive), size)


def _claims(tables: QueueTables, condition: ColumnElement[bool], size: int) -> Select[Any]:
    """Claims to recover: id, stamp, attempts, allowed attempts, place in the queue, last error.

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
        live.c.last_error,
    ).where(condition)
    if size:
        among = statement.where(among_ids(live, size))
        return among.with_for_update(skip_locked=dialect.skip_locked)
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
    last_error: str | None

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
    return [DeadClaim(row[0], Claim(row[1], row[2]), *row[3:]) for row in rows]


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A consumer that holds claims to recover.

    Attributes:
        late: whether it has missed a heartbeat, or has expired.
    """

    name: str
    host: str
    pid: int
    durable: bool
    late: bool


def holders(
    connection: Connection, sql: StatementCache, consumer_ids: Collection[str]
) -> dict[str, Holder]:
    """The consumers of these ids that are registered."""
    consumers, now = sql.subject.system.consumers, sql.subject.dialect.heartbeat_now()
    names = ("consumer_id", "name", "host", "pid", "durable", "heartbeat_at", "expires_at")
    columns = [consumers.c[name] for name in names]
    registered = select(*columns, now).where(consumers.c.consumer_id.in_(consumer_ids))
    return {row[0]: _holder(row) for row in connection.execute(registered)}


def _holder(row: Sequence[Any]) -> Holder:
    _, name, host, pid, durable, heartbeat_at, expires_at, now = row
    # It sends three heartbeats in its timeout.
    late = (now - heartbeat_at) * 2 > expires_at - heartbeat_at
    return Holder(name, host, pid, bool(durable), late)


# -- what crashed writers of batches left behind


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


# -- kinds


def unknown(tables: QueueTables) -> Select[Any]:
    """Lock the next long overdue messages of one level that no living consumer can read.

    It finds none while the queue is paused. As in ``claim.pick_rows``, an index may give the order.
    """
    live, dialect = tables.live, tables.dialect
    statement = (
        select(*tables.message_columns(live))
        .where(
            live.c.consumer_id.is_(None),
            live.c.priority == number("p_priority"),
            live.c.available_at <= dialect.now() - number("p_due_for"),
            live.c.kind.is_not(None),
            live.c.kind.not_in(tables.known_kinds),
            ~_readable_by_living(tables),
            may_claim(tables),
        )
        .limit(number("p_count"))
        .with_for_update(of=live, skip_locked=dialect.skip_locked)
    )
    hint = dialect.claim_index_hint(tables.base_name)
    if hint is None:
        return statement.order_by(live.c.available_at, live.c.id)
    return statement.with_hint(live, hint)


def _readable_by_living(tables: QueueTables) -> ColumnElement[bool]:
    kinds, consumers = tables.system.kinds, tables.system.consumers
    return exists().where(
        kinds.c.consumer_id == consumers.c.consumer_id,
        consumers.c.expires_at > tables.dialect.heartbeat_now(),
        # Nobody knows whether clients of the consumer of HTTP are still there.
        consumers.c.expires_at != literal(NEVER, BigInteger()),
        kinds.c.table_prefix == tables.prefix,
        kinds.c.queue == tables.queue,
        or_(kinds.c.kind == tables.live.c.kind, kinds.c.kind == ANY_KIND),
    )


def declare_kinds(
    connection: Connection, sql: StatementCache, consumer_id: str, names: Collection[str]
) -> None:
    """Store which kinds of a queue a consumer knows; those already stored stay.

    An empty ``names`` stands for all kinds.
    """
    tables: QueueTables = sql.subject
    kinds = tables.system.kinds
    known = {"consumer_id": consumer_id, "table_prefix": tables.prefix, "queue": tables.queue}
    declared = select(kinds.c.kind).where(*[kinds.c[name] == known[name] for name in known])
    noted = set(connection.execute(declared).scalars())
    if missing := sorted(set(names or (ANY_KIND,)) - noted):
        connection.execute(insert(kinds).values([known | {"kind": name} for name in missing]))


def dead_letter_unknown(
    connection: Connection,
    sql: StatementCache,
    *,
    level: int,
    due_for: int,
    limit: int,
    disposition: Callable[[MessageRow], Disposition],
) -> int:
    """End messages of one level that were due for ``due_for`` and that no consumer can read."""
    sql.subject.dialect.lock_for_writing(connection, sql)
    wanted = {"p_priority": level, "p_due_for": due_for, "p_count": limit, "p_edits": ANY_EDITS}
    found: Sequence[Any] = sql.get(unknown).run(connection, wanted).all()
    rows = read_rows(connection, sql, found)
    groups: dict[Disposition, list[MessageRow]] = {}
    for row in rows:
        groups.setdefault(disposition(row), []).append(row)
    for end, same in groups.items():
        _end_apart(connection, sql, end, {row.id: row for row in same})
    return len(rows)


def _end_apart(
    connection: Connection,
    sql: StatementCache,
    disposition: Disposition,
    rows: dict[int, MessageRow],
) -> None:
    def end(ids: Sequence[int]) -> set[int]:
        end_locked(connection, sql, [(disposition, [rows[id_] for id_ in ids])])
        return set(ids)

    def hold(ids: Sequence[int], reason: str) -> None:
        text = refusal(disposition.outcome, disposition.error, reason)
        sql.get(settle.hold_locked).run(connection, id_values(ids) | {"p_error": text})

    apart(connection, sql, list(rows), end, hold)
