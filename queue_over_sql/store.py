"""One function per SQL act, on a ``Connection``: the only caller of the dialects.

Nothing here opens, commits or rolls back; the queue opens transactions around these acts, or the
caller's own transaction is around them. Instants and durations are microseconds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.base import ClaimRequest, ErrorKind, Settlement, Where
from queue_over_sql.dialects.rows import read_rows
from queue_over_sql.dialects.statements import administration, archive, claim, reaper, settle
from queue_over_sql.dialects.statements import publish as publishing
from queue_over_sql.dialects.statements.parameters import MAX_IDS, batches, bucket_of, id_values
from queue_over_sql.errors import DuplicateKey, QueueError
from queue_over_sql.message import Claim, Published, PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema import QueueTables

__all__ = ["ClaimRequest", "Settlement", "Where"]

# How many rows one INSERT carries at most.
_ROWS_PER_INSERT = 256
# A live message with the key may finish between our INSERT and our look at it; then we go again.
_KEY_RACES = 50


@dataclasses.dataclass(frozen=True, slots=True)
class NewMessage:
    """A publication, checked and encoded; ``at`` and ``delay`` in microseconds."""

    key: str | None
    content: Mapping[str, Any]
    delay: int
    at: int | None

    def values(self) -> dict[str, Any]:
        """The bind parameters of a publish by the database's clock."""
        given = {f"p_{name}": value for name, value in self.content.items()}
        return given | {"p_message_key": self.key, "p_delay": self.delay, "p_at": self.at}

    def row(self, now: int) -> dict[str, Any]:
        """The values of its row, published at ``now``."""
        due = now + self.delay if self.at is None else self.at
        times = {"published_at": now, "scheduled_at": due, "available_at": due}
        return {**self.content, **times, "message_key": self.key}


def server_now(connection: Connection, sql: StatementCache) -> int:
    """The database's clock in microseconds since the epoch."""
    return int(sql.get(administration.clock).run(connection).scalar_one())


# -- publish


def publish(
    connection: Connection, sql: StatementCache, message: NewMessage, on_conflict: str
) -> Published:
    """Insert one message, or do what ``on_conflict`` says about the one that has its key.

    Raises:
        DuplicateKey: ``on_conflict`` is ``"raise"`` and the key is taken.
    """
    if message.key is None:
        return Published(_insert(connection, sql, message))
    for _ in range(_KEY_RACES):
        try:
            message_id = _insert_keyed(connection, sql, message)
        except DBAPIError as error:
            if sql.subject.dialect.classify(error) is not ErrorKind.DUPLICATE:
                raise
            message_id, refused = None, error
        else:
            refused = None
        if message_id is not None:
            return Published(message_id)
        existing = _live_by_key(connection, sql, message.key)
        if existing is not None:
            return _resolve_conflict(connection, sql, message, existing, on_conflict)
    text = f"Queue {sql.subject.queue!r}: the key {message.key!r} is neither free nor taken."
    raise QueueError(text) from refused


def publish_many(
    connection: Connection, sql: StatementCache, messages: Sequence[NewMessage], on_conflict: str
) -> list[Published]:
    """Insert messages in their order; all or, where a key is taken and that is an error, none.

    Raises:
        DuplicateKey: as in ``publish``; what this call had inserted is removed again.
    """
    now = server_now(connection, sql)
    published: list[Published] = []
    try:
        for chunk in _chunks(messages):
            _publish_chunk(connection, sql, chunk, on_conflict, now, published)
    except DuplicateKey:
        created = [p.id for p in published if p.outcome is PublishOutcome.CREATED]
        for batch in batches(created):
            remove = sql.get(claim.remove_ids, bucket_of(len(batch)))
            remove.run(connection, id_values(batch))
        raise
    return published


def load(connection: Connection, sql: StatementCache, messages: Sequence[NewMessage]) -> None:
    """Insert messages by the engine's fastest path.

    Raises:
        DuplicateKey: a key is taken; nothing of these messages was published.
    """
    now = server_now(connection, sql)
    if not sql.subject.dialect.load(connection, sql, [message.row(now) for message in messages]):
        publish_many(connection, sql, messages, "raise")


def _insert(connection: Connection, sql: StatementCache, message: NewMessage) -> int:
    result = sql.get(publishing.publish, False).run(connection, message.values())  # noqa: FBT003
    if sql.subject.dialect.insert_returning:
        return int(result.scalar_one())
    return int(result.lastrowid)


def _insert_keyed(connection: Connection, sql: StatementCache, message: NewMessage) -> int | None:
    dialect = sql.subject.dialect
    statement = sql.get(publishing.publish, True)  # noqa: FBT003
    if dialect.aborts_on_error and not dialect.conflict_clause:
        with connection.begin_nested():
            result = statement.run(connection, message.values())
    else:
        result = statement.run(connection, message.values())
    if dialect.insert_returning:
        row = result.first()
        return None if row is None else int(row[0])
    return int(result.lastrowid)


def _live_by_key(connection: Connection, sql: StatementCache, key: str) -> MessageRow | None:
    rows = read_rows(sql, sql.get(publishing.live_by_key).run(connection, {"p_key": key}))
    return rows[0] if rows else None


def _resolve_conflict(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    existing: MessageRow,
    on_conflict: str,
) -> Published:
    if on_conflict == "skip":
        return Published(existing.id, PublishOutcome.SKIPPED)
    if on_conflict == "raise":
        raise DuplicateKey(sql.subject.queue, str(message.key), existing.id)
    if _same(message, existing):
        return Published(existing.id, PublishOutcome.UNCHANGED)
    values = message.values() | {"p_id_0": existing.id}
    del values["p_message_key"]
    sql.get(publishing.replace).run(connection, values)
    return Published(existing.id, PublishOutcome.REPLACED)


def _same(message: NewMessage, existing: MessageRow) -> bool:
    """Whether a replace would change nothing; a delay always names another instant."""
    if message.delay or (message.at is not None and message.at != existing.scheduled_at):
        return False
    present = existing._asdict() | dict(existing.columns)
    return all(present[name] == value for name, value in message.content.items())


def _chunks(messages: Sequence[NewMessage]) -> Iterator[Sequence[NewMessage]]:
    """Cut into powers of two, so that few statements have to be compiled."""
    start = 0
    while start < len(messages):
        left = len(messages) - start
        size = min(_ROWS_PER_INSERT, 1 << (left.bit_length() - 1))
        yield messages[start : start + size]
        start += size


def _publish_chunk(
    connection: Connection,
    sql: StatementCache,
    chunk: Sequence[NewMessage],
    on_conflict: str,
    now: int,
    published: list[Published],
) -> None:
    ids = _insert_chunk(connection, sql, chunk, now)
    for message in chunk:
        created = ids.get(message.key) if ids is not None else None
        if created:
            published.append(Published(created.pop(0)))
        else:
            published.append(publish(connection, sql, message, on_conflict))


def _insert_chunk(
    connection: Connection, sql: StatementCache, chunk: Sequence[NewMessage], now: int
) -> dict[str | None, list[int]] | None:
    """Insert in one statement; the new ids by key, in order. None where it has to go singly."""
    dialect = sql.subject.dialect
    keyed = any(message.key is not None for message in chunk)
    clean_failure = dialect.undoes_failed_insert and not dialect.aborts_on_error
    if not (dialect.insert_returning or dialect.consecutive_ids) or (
        keyed and not dialect.conflict_clause and not clean_failure
    ):
        return None
    values = {
        f"p_{name}_{index}": value
        for index, message in enumerate(chunk)
        for name, value in message.row(now).items()
    }
    try:
        result = sql.get(publishing.publish_many, len(chunk)).run(connection, values)
    except DBAPIError as error:
        # The statement as a whole was undone; which key is taken shows when they go singly.
        if keyed and dialect.classify(error) is ErrorKind.DUPLICATE:
            return None
        raise
    ids: dict[str | None, list[int]] = {}
    if dialect.insert_returning:
        for message_id, key in sorted((row[0], row[1]) for row in _id_first(result)):
            ids.setdefault(key, []).append(message_id)
    else:
        step = dialect.id_step
        for index, message in enumerate(chunk):
            ids.setdefault(message.key, []).append(result.lastrowid + index * step)
    return ids


def _id_first(rows: Any) -> list[tuple[int, str | None]]:
    return [(row[0], row[1]) for row in rows]


# -- claim


def claim_messages(
    connection: Connection, sql: StatementCache, request: ClaimRequest
) -> list[MessageRow]:
    """Claim up to ``request.count`` messages of one level, oldest first."""
    return oldest_first(sql.subject.dialect.claim(connection, sql, request))


def anything_to_claim(connection: Connection, sql: StatementCache, request: ClaimRequest) -> bool:
    """Whether a claim would find something; writes nothing."""
    found = sql.get(claim.anything_eligible, request.where).run(connection, request.wanted()).first()
    return found is not None


def exchanges_at_once(sql: StatementCache, settlements: Sequence[Settlement]) -> bool:
    """Whether ack and claim are one statement, which needs no transaction around it."""
    single = len(settlements) == 1 and len(settlements[0].ids) <= MAX_IDS
    return single and sql.subject.dialect.exchanges_at_once


def exchange(
    connection: Connection,
    sql: StatementCache,
    settlement: Settlement,
    request: ClaimRequest,
    *,
    keep: bool,
) -> tuple[set[int], list[MessageRow]]:
    """Ack and claim in one statement; only where ``exchanges_at_once`` says so.

    Args:
        connection: where.
        sql: the queue's statements.
        settlement: what is finished.
        request: what is wanted next; nothing is claimed unless all finished ones were held.
        keep: whether finished messages go to the archive.

    Returns:
        The finished ids that were still held, and the claimed messages, oldest first.
    """
    dialect = sql.subject.dialect
    settled, rows = dialect.exchange(connection, sql, settlement, request, keep=keep)
    return settled, oldest_first(rows)


def take(
    connection: Connection,
    sql: StatementCache,
    values: Mapping[str, Any],
    *,
    keep: bool,
    where: Where | None,
) -> list[MessageRow]:
    """Remove the oldest messages in the caller's transaction, which holds their row locks."""
    sql.subject.dialect.lock_for_writing(connection, sql)
    rows = read_rows(sql, sql.get(claim.pick_rows, where).run(connection, values).all())
    for batch in batches([row.id for row in rows]):
        size, ids = bucket_of(len(batch)), id_values(batch)
        if keep:
            done = {"p_outcome": "done", "p_error": None, "p_attempted": None}
            sql.get(archive.copy_ids_to_archive, size).run(connection, ids | done)
        sql.get(claim.remove_ids, size).run(connection, ids)
    taken = [row._replace(attempt_count=row.attempt_count + 1, listed=True) for row in rows]
    return oldest_first(taken)


def unclaim_round(connection: Connection, sql: StatementCache, stamp: Claim) -> int:
    """Give back what one claim stamped; returns how many."""
    values = {"p_consumer": stamp.consumer_id, "p_round": stamp.consumer_round}
    return sql.get(claim.unclaim_round).run(connection, values).rowcount


def unclaim_all(connection: Connection, sql: StatementCache, consumer_id: str) -> int:
    """Give back all that a consumer holds; returns how many."""
    return sql.get(claim.unclaim_all).run(connection, {"p_consumer": consumer_id}).rowcount


def oldest_first(rows: list[MessageRow]) -> list[MessageRow]:
    """Sort as promise 4 says: an UPDATE returns its rows in no order."""
    return sorted(rows, key=lambda row: (row.priority, row.available_at or 0, row.id))


# -- settle: each returns the ids that the claim still held; the others were not changed


def removes_at_once(sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool) -> bool:
    """Whether acking these is one statement, which needs no transaction around it."""
    if len(settlements) != 1 or len(settlements[0].ids) > MAX_IDS:
        return False
    dialect = sql.subject.dialect
    if keep:
        return bool(dialect.archives_at_once)
    return len(settlements[0].ids) == 1 or bool(dialect.delete_returning)


def remove(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Remove finished messages."""
    returning = sql.subject.dialect.delete_returning
    return _settle(connection, sql, settle.remove, settlement, {}, returning=returning)


def archive_messages(
    connection: Connection, sql: StatementCache, settlement: Settlement
) -> set[int]:
    """Move finished messages to the archive."""
    return sql.subject.dialect.archive(connection, sql, settlement)


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


def extend(
    connection: Connection, sql: StatementCache, settlement: Settlement, expires_at: int
) -> set[int]:
    """Renew leases up to an instant."""
    return _update(connection, sql, settle.extend, settlement, {"p_expires": expires_at})


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


# -- reaper


@dataclasses.dataclass(frozen=True, slots=True)
class DeadClaim:
    """A claim to be taken back."""

    message_id: int
    claim: Claim
    attempts: int
    max_attempts: int
    available_at: int | None

    @property
    def out_of_attempts(self) -> bool:
        """Whether the message has been delivered as often as it may."""
        return self.attempts >= self.max_attempts


def expired_leases(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims whose lease has passed, locked where the engine can skip what others hold."""
    return _dead_claims(connection, sql, reaper.expired_leases, max_attempts, limit)


def orphaned_claims(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims of consumers that are expired or gone, locked likewise."""
    return _dead_claims(connection, sql, reaper.orphaned_claims, max_attempts, limit)


def _dead_claims(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    max_attempts: int,
    limit: int,
) -> list[DeadClaim]:
    values = {"p_max_attempts": max_attempts, "p_count": limit}
    rows = sql.get(builder, 0).run(connection, values).all()
    if rows and not sql.subject.dialect.skip_locked:
        # Look again at these alone, now locking: a lease may have been renewed meanwhile.
        locked: list[Any] = []
        for batch in batches([row[0] for row in rows]):
            again = sql.get(builder, bucket_of(len(batch)))
            locked += again.run(connection, values | id_values(batch)).all()
        rows = locked
    return [DeadClaim(row[0], Claim(row[1], row[2]), row[3], row[4], row[5]) for row in rows]


def prune_archive(connection: Connection, sql: StatementCache, ttl: int, limit: int) -> int:
    """Remove the oldest archived messages past ``ttl`` microseconds; returns how many."""
    values = {"p_ttl": ttl, "p_count": limit}
    ids = [row[0] for row in sql.get(archive.old_in_archive).run(connection, values)]
    for batch in batches(ids):
        remove_old = sql.get(archive.remove_from_archive, bucket_of(len(batch)))
        remove_old.run(connection, id_values(batch))
    return len(ids)


# -- administration


def delete_message(connection: Connection, sql: StatementCache, message_id: int) -> bool:
    """Remove one message, whoever holds it; False where there is none."""
    statement = sql.get(administration.delete_message)
    return statement.run(connection, {"p_id_0": message_id}).rowcount > 0


def purge(connection: Connection, sql: StatementCache, *, with_claimed: bool) -> int:
    """Remove all messages, or those that nobody holds; returns how many."""
    return sql.get(administration.purge, with_claimed).run(connection).rowcount


def live_counts(connection: Connection, sql: StatementCache) -> tuple[int, int, int, int, int]:
    """Ready, delayed, claimed, held, and the age of the oldest ready message in microseconds."""
    row = sql.get(administration.live_counts).run(connection).one()
    ready, delayed, claimed, held, age = (int(value or 0) for value in row)
    return ready, delayed, claimed, held, max(age, 0)


def archive_counts(connection: Connection, sql: StatementCache) -> dict[str, int]:
    """How many archived messages there are, by outcome."""
    rows = sql.get(administration.archive_counts).run(connection)
    return {row[0]: int(row[1]) for row in rows}


def highest_priority(connection: Connection, sql: StatementCache) -> int:
    """The largest level number in use; 0 in an empty queue."""
    return sql.get(administration.highest_priority).run(connection).scalar() or 0

