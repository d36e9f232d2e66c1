"""Acts of the holder of a claim, each under the fence.

Each returns the ids that the claim still held; nothing of the others was changed.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.statements import settle
from queue_over_sql.dialects.statements.parameters import MAX_IDS, batches, bucket_of, id_values
from queue_over_sql.store.acts import Act
from queue_over_sql.store.keys import remember_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.requests import Settlement


def finish(sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool) -> Act[set[int]]:
    """Finish messages of several claims: move them to the archive where ``keep``, else remove."""
    return Act(
        partial(_finish, sql=sql, settlements=settlements, keep=keep),
        atomic=not _finishes_at_once(sql, settlements, keep=keep),
    )


def give_back(sql: StatementCache, settlements: Sequence[Settlement]) -> Act[set[int]]:
    """Give messages of several claims back at their place, uncounted."""
    return Act(
        partial(_each, act=partial(release, sql=sql), settlements=settlements),
        atomic=not updates_at_once(sql, settlements),
    )


def _finish(
    connection: Connection, *, sql: StatementCache, settlements: Sequence[Settlement], keep: bool
) -> set[int]:
    settled: set[int] = set()
    for settlement in settlements:
        end = archive_messages if keep else remove
        settled |= end(connection, sql, settlement)
    return settled


def _each(
    connection: Connection,
    *,
    act: Callable[..., set[int]],
    settlements: Sequence[Settlement],
) -> set[int]:
    settled: set[int] = set()
    for settlement in settlements:
        settled |= act(connection, settlement=settlement)
    return settled


def _finishes_at_once(
    sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool
) -> bool:
    if len(settlements) != 1 or len(settlements[0].ids) > MAX_IDS:
        return False
    if settlements[0].dedup_us is not None:
        return False
    tables = sql.subject
    if keep and not tables.ends_in_place:
        return bool(tables.dialect.archives_at_once)
    return len(settlements[0].ids) == 1 or bool(tables.end_returning)


def updates_at_once(sql: StatementCache, settlements: Sequence[Settlement]) -> bool:
    """Whether giving these back is one statement, which needs no transaction around it."""
    if len(settlements) != 1 or len(settlements[0].ids) > MAX_IDS:
        return False
    return len(settlements[0].ids) == 1 or bool(sql.subject.dialect.update_returning)


def remove(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Remove finished messages."""
    if settlement.dedup_us is not None:
        settlement = remember_keys(connection, sql, settlement)
    returning = sql.subject.end_returning
    values = settlement.archive_values() if sql.subject.ends_in_place else {}
    return _settle(connection, sql, settle.remove, settlement, values, returning=returning)


def archive_messages(
    connection: Connection, sql: StatementCache, settlement: Settlement
) -> set[int]:
    """Move finished messages to the archive, unless they end in place."""
    if sql.subject.ends_in_place:
        return remove(connection, sql, settlement)
    settlement = remember_keys(connection, sql, settlement)
    moved: set[int] = sql.subject.dialect.archive(connection, sql, settlement)
    return moved


def release(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Give messages back at their place, uncounted."""
    return _update(connection, sql, settle.release, settlement, {})


def restore(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Give messages of a dead claim back at their place."""
    values = {"p_error": settlement.error}
    return _update(connection, sql, settle.restore, settlement, values)


def retry(
    connection: Connection, sql: StatementCache, settlement: Settlement, delay: int
) -> set[int]:
    """Give failed messages back after a delay."""
    values = {"p_error": settlement.error, "p_delay": delay}
    return _update(connection, sql, settle.retry, settlement, values)


@dataclasses.dataclass(frozen=True, slots=True)
class Aside:
    """How long a message that does not fit its kind here is set aside, and with which headers.

    Attributes:
        delay: in microseconds.
        headers: as they are stored.
        error: why.
    """

    delay: int
    headers: str | None
    error: str

    def values(self) -> dict[str, Any]:
        """The bind parameters."""
        return {"p_delay": self.delay, "p_headers": self.headers, "p_error": self.error}


def set_aside(
    connection: Connection, sql: StatementCache, settlement: Settlement, aside: Aside
) -> set[int]:
    """Give one message that does not fit its kind here back for a while, uncounted."""
    values = id_values(settlement.ids) | settlement.fence_values() | aside.values()
    statement = sql.get(settle.set_aside)
    result = statement.run(connection, values)
    if sql.subject.dialect.update_returning:
        return {row[0] for row in result}
    return set(settlement.ids) if result.rowcount else set()


def extend(
    connection: Connection, sql: StatementCache, settlement: Settlement, expires_at: int
) -> set[int]:
    """Renew leases up to an instant."""
    return _update(connection, sql, settle.extend, settlement, {"p_expires": expires_at})


def hold(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Lock messages until the transaction ends, and change nothing."""
    sql.subject.dialect.lock_for_writing(connection, sql)
    held: set[int] = set()
    for batch in batches(settlement.ids):
        lock = sql.get(settle.held, bucket_of(len(batch)))
        values = id_values(batch) | settlement.fence_values()
        held.update(row[0] for row in lock.run(connection, values))
    return held


def still_there(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> set[int]:
    """Which of the messages are live."""
    found: set[int] = set()
    for batch in batches(ids):
        look = sql.get(settle.still_there, bucket_of(len(batch)))
        found.update(row[0] for row in look.run(connection, id_values(batch)))
    return found


def _update(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    settlement: Settlement,
    values: Mapping[str, Any],
) -> set[int]:
    returning = sql.subject.dialect.update_returning
    return _settle(connection, sql, builder, settlement, values, returning=returning)


def _settle(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    settlement: Settlement,
    values: Mapping[str, Any],
    *,
    returning: bool,
) -> set[int]:
    settled: set[int] = set()
    for batch in batches(settlement.ids):
        ids: Sequence[int] = batch
        stamp = settlement.fence_values()
        if not returning and len(batch) > 1:
            lock = sql.get(settle.held, bucket_of(len(batch)))
            ids = [row[0] for row in lock.run(connection, id_values(batch) | stamp)]
            if not ids:
                continue
        statement = sql.get(builder, bucket_of(len(ids)))
        result = statement.run(connection, {**id_values(ids), **stamp, **values})
        if returning:
            settled.update(row[0] for row in result)
        elif result.rowcount:
            settled.update(ids)
    return settled
