"""Acts that claim and take messages, and give back claims of a consumer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

from queue_over_sql.dialects.requests import Settlement, read_taken_rows
from queue_over_sql.dialects.statements import archive, claim, settle
from queue_over_sql.dialects.statements.parameters import MAX_IDS, batches, bucket_of, id_values
from queue_over_sql.message import AGE, Claim
from queue_over_sql.store import registry
from queue_over_sql.store.keys import remember_locked
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.requests import ClaimRequest, Where
    from queue_over_sql.message import Message, MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.store.settle import Aside


_NOBODY = Claim("", 0)


def claim_messages(
    connection: Connection, sql: StatementCache, request: ClaimRequest
) -> list[MessageRow]:
    """Claim up to ``request.count`` messages of one priority level, oldest first."""
    return oldest_first(sql.subject.dialect.claim(connection, sql, request))


def anything_to_claim(connection: Connection, sql: StatementCache, request: ClaimRequest) -> bool:
    """Whether a claim would find something, without writing."""
    look = sql.get(claim.anything_eligible, request.where)
    return look.run(connection, request.wanted()).first() is not None


def exchanges_at_once(sql: StatementCache, settlements: Sequence[Settlement]) -> bool:
    """Whether ack and claim are one statement, so that they need no transaction around them."""
    single = len(settlements) == 1 and len(settlements[0].ids) <= MAX_IDS
    plain = single and settlements[0].dedup_us is None
    return plain and sql.subject.dialect.exchanges_at_once


def exchange(
    connection: Connection,
    sql: StatementCache,
    settlement: Settlement,
    request: ClaimRequest,
    *,
    keep: bool,
) -> tuple[set[int], list[MessageRow]]:
    """Ack and claim in one statement. Use it only if ``exchanges_at_once``.

    It claims nothing unless all finished messages were held.

    Returns:
        The finished ids that were still held, and the claimed messages, oldest first.
    """
    dialect = sql.subject.dialect
    settled, rows = dialect.exchange(connection, sql, settlement, request, keep=keep)
    return settled, oldest_first(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class Disposition:
    """What to do with a message that was taken.

    Attributes:
        keep: whether it goes to the archive.
        dedup_us: as in ``Settlement``.
        error: why it becomes a dead letter; None if it is done.
        aside: if set, the message is deferred instead, because it does not fit its kind here.
        outcome: the outcome of a dead letter.
    """

    keep: bool
    dedup_us: int | None = None
    error: str | None = None
    aside: Aside | None = None
    outcome: str = Outcome.FAILED


DecodeTaken: TypeAlias = (
    "Callable[[Sequence[MessageRow]], tuple[list[Message], dict[Disposition, list[MessageRow]]]]"
)
"""Turns taken rows into messages, and returns dispositions for rows that cannot be decoded."""


def take(
    connection: Connection,
    sql: StatementCache,
    values: Mapping[str, Any],
    *,
    decode: DecodeTaken,
    done: Disposition,
    where: Where | None,
) -> tuple[int, list[Message]]:
    """Remove the oldest messages of a level in the caller's transaction, which locks them.

    Args:
        connection: the caller's.
        sql: the queue's statements.
        values: the bind parameters: the level, and how many.
        decode: decodes the rows that were found.
        done: the disposition of the decoded messages.
        where: only messages that match.

    Returns:
        How many rows were found, and the decoded messages, oldest first.
    """
    sql.subject.dialect.lock_for_writing(connection, sql)
    found = sql.get(claim.pick_rows, where).run(connection, values).all()
    rows = sorted(read_taken_rows(connection, sql, found), key=AGE)
    messages, unreadable = decode(rows)
    if unreadable:
        aside = {row.id for same in unreadable.values() for row in same}
        handed_out = [row for row in rows if row.id not in aside]
    else:
        handed_out = rows
    if handed_out:
        end_locked(connection, sql, [(done, handed_out)])
    end_locked(connection, sql, unreadable.items())
    return len(rows), messages


def end_locked(
    connection: Connection,
    sql: StatementCache,
    groups: Iterable[tuple[Disposition, Sequence[MessageRow]]],
) -> None:
    """End unclaimed messages that this transaction has locked, by their dispositions."""
    for end, same in groups:
        if end.aside is not None:
            for row in same:
                values = id_values([row.id]) | end.aside.values()
                sql.get(settle.set_locked_aside).run(connection, values)
            continue
        if end.dedup_us is not None:
            ending = [(row.id, row.message_key) for row in same]
            remember_locked(connection, sql, ending, end.dedup_us)
        _remove_locked(connection, sql, [row.id for row in same], end)


def cancel_message(
    connection: Connection, sql: StatementCache, message_id: int, end: Disposition
) -> bool:
    """End one message, even if a consumer holds it; False if it does not exist."""
    sql.subject.dialect.lock_for_writing(connection, sql)
    found: Any = sql.get(claim.lock_one).run(connection, id_values([message_id])).first()
    if found is None:
        return False
    if end.dedup_us is not None:
        remember_locked(connection, sql, [(found[0], found[1])], end.dedup_us)
    _remove_locked(connection, sql, [message_id], end)
    return True


def _remove_locked(
    connection: Connection, sql: StatementCache, ids: Sequence[int], end: Disposition
) -> None:
    tables: QueueTables = sql.subject
    if end.error is not None and not end.keep:
        registry.count_discarded(connection, tables, len(ids))
    outcome = Outcome.DONE if end.error is None else end.outcome
    how = Settlement(ids, _NOBODY, outcome, end.error).archive_values()
    for batch in batches(ids):
        size, values = bucket_of(len(batch)), id_values(batch)
        if tables.ends_in_place:
            attempted = outcome != Outcome.REJECTED
            sql.get(archive.finish_ids, size, attempted).run(connection, values | how)
            continue
        if end.keep:
            sql.get(archive.copy_ids_to_archive, size).run(connection, values | how)
        sql.get(claim.remove_ids, size).run(connection, values)


def unclaim_round(connection: Connection, sql: StatementCache, stamp: Claim) -> int:
    """Give back the messages of one claim; returns how many."""
    values = {"p_consumer": stamp.consumer_id, "p_round": stamp.consumer_round}
    return sql.get(claim.unclaim_round).run(connection, values).rowcount


def unclaim_all(connection: Connection, sql: StatementCache, consumer_id: str) -> int:
    """Give back all messages that a consumer holds; returns how many."""
    return sql.get(claim.unclaim_all).run(connection, {"p_consumer": consumer_id}).rowcount


def oldest_first(rows: list[MessageRow]) -> list[MessageRow]:
    """Sort claimed rows, because an UPDATE returns them in no particular order."""
    return sorted(rows, key=lambda row: (row.priority, row.available_at or 0, row.id))
