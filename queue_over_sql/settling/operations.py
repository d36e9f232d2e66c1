"""Operations of the consumer that holds a claim, each under the fence.

Each returns the ids that the claim still held. It changes no other messages.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam

from queue_over_sql.archive import statements as archive
from queue_over_sql.groups import exits
from queue_over_sql.groups.blocking import block
from queue_over_sql.message import Claim, MessageRow
from queue_over_sql.payloads.codec import headers_with_result
from queue_over_sql.publishing.deduplication import remember_keys, remember_locked
from queue_over_sql.queues import registry
from queue_over_sql.queues.purge import remove_ids
from queue_over_sql.settling import statements as settle
from queue_over_sql.settling.strategy import Archiving
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.operations import apart, carefully, rows_by_ids
from queue_over_sql.statements.parameters import (
    MAX_IDS,
    batches,
    bucket_of,
    id_values,
    update_by_id,
)
from queue_over_sql.statements.requests import Aside, Disposition, Settlement, read_rows
from queue_over_sql.values.reasons import REFUSED
from queue_over_sql.values.states import Outcome
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import Builder, StatementCache


_NO_CONTENTS: Final = MessageRow(
    id=0,
    message_key=None,
    kind=None,
    payload=None,
    headers=None,
    priority=0,
    published_at=0,
    scheduled_at=0,
    available_at=None,
    attempt_count=0,
    max_attempts=None,
    lease_us=None,
    consumer_id=None,
    consumer_round=None,
    claimed_at=None,
    lease_expires_at=None,
    last_attempt_at=None,
    last_error=None,
    expires_at=None,
    columns={},
)
_first: Final = itemgetter(0)
LONGEST_ERROR: Final = 20_000
"""How many characters of a failure's text are kept: enough for a stack trace, and small."""


def each_of(
    sql: StatementCache,
    settlements: Sequence[Settlement],
    do: Callable[..., set[int]],
    *,
    atomic: bool = True,
) -> Operation[set[int]]:
    """The operation that runs ``do`` for each settlement; returns the ids that were still held.

    In an ordered group, a message that is given back takes along what its claim holds behind it.

    Whoever repeats it must find out whether the first run has ended the messages.
    """
    in_order = any(each.in_order for each in settlements)

    def settle_all(connection: Connection) -> set[int]:
        settled: set[int] = set()
        lock_keys(connection, sql, settlements)
        for settlement in settlements:
            settled |= do(connection, settlement=settlement)
        if in_order and settled:
            _give_back_behind(connection, sql, settlements)
        return settled

    return Operation(settle_all, atomic, repeatable=False)


def lock_keys(
    connection: Connection, sql: StatementCache, settlements: Sequence[Settlement]
) -> None:
    """Lock messages in the order of their keys, as publishers of sorted batches do.

    In any other order, an ack beside a publisher that replaces the same messages is a deadlock.
    """
    for ids in {id(each.in_key_order): each.in_key_order for each in settlements}.values():
        rows_by_ids(connection, sql, settle.held_in_key_order, ids)


def finish(
    sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool
) -> Operation[set[int]]:
    """Finish messages of several claims: archive them if ``keep``, else remove them."""
    end = archive_messages if keep else remove
    at_once = not sql.subject.grouped and _finishes_at_once(sql, settlements, keep=keep)
    return each_of(sql, settlements, partial(end, sql=sql), atomic=not at_once)


def finish_unblocking(
    sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool
) -> Operation[set[int]] | None:
    """As ``finish``, but only messages of which no others of their groups wait, in one statement.

    None if it would be several statements.
    """
    if not _finishes_at_once(sql, settlements, keep=keep):
        return None
    end = archive_messages if keep else remove
    unblocking = [dataclasses.replace(each, unblocking=True) for each in settlements]
    return each_of(sql, unblocking, partial(end, sql=sql), atomic=False)


def finish_quickly(
    sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool
) -> Operation[set[int]]:
    """As ``finish``, in a transaction: first those of which no others of their groups wait."""
    quick = finish_unblocking(sql, settlements, keep=keep)
    if quick is None:
        return finish(sql, settlements, keep=keep)

    def do(connection: Connection) -> set[int]:
        settled = quick.do(connection)
        left = without(settlements, settled)
        return settled | finish(sql, left, keep=keep).do(connection) if left else settled

    return Operation(do, atomic=True, repeatable=False)


def with_results(
    ending: Operation[set[int]],
    *,
    sql: StatementCache,
    groups: Sequence[Settlement],
    results: Mapping[int, str],
) -> Operation[set[int]]:
    """The operation that ends messages, and first writes their results into their headers.

    Whoever waits for the results hears of it.
    """

    def do(connection: Connection) -> set[int]:
        lock_keys(connection, sql, groups)
        for settlement in groups:
            keep_results(connection, sql, settlement, results)
        return ending.do(connection)

    return ending._replace(do=do, atomic=True, wakes=True)


def keep_results(
    connection: Connection, sql: StatementCache, settlement: Settlement, results: Mapping[int, str]
) -> None:
    """Write results into the headers of messages that the claim still holds."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    stamp, ids = settlement.fence_values(), [id_ for id_ in settlement.ids if id_ in results]
    for message_id, headers in rows_by_ids(connection, sql, settle.headers_of, ids, stamp):
        given = {"p_headers": headers_with_result(headers, results[message_id])}
        sql.get(settle.keep_result, 1).run(connection, id_values([message_id]) | stamp | given)


def without(settlements: Sequence[Settlement], settled: Container[int]) -> list[Settlement]:
    """The settlements without messages that are settled."""
    left = [
        dataclasses.replace(each, ids=[id_ for id_ in each.ids if id_ not in settled])
        for each in settlements
    ]
    return [each for each in left if each.ids]


def give_back(
    sql: StatementCache, settlements: Sequence[Settlement], delay: int | None = None
) -> Operation[set[int]]:
    """Give back messages of several claims, uncounted, at their place or after a delay."""
    at_once, do = updates_at_once(sql, settlements), partial(release, sql=sql, delay=delay)
    return each_of(sql, settlements, do, atomic=not at_once)


def _give_back_behind(
    connection: Connection, sql: StatementCache, settlements: Sequence[Settlement]
) -> None:
    """Give back, uncounted, what claims hold behind messages of ordered groups that came back."""
    ids: dict[Claim, list[int]] = {}
    for each in settlements:
        ids.setdefault(each.claim, []).extend(each.ids)
    limit = max(each.group_limit for each in settlements)
    for claim, given in ids.items():
        later = exits.behind(connection, sql, claim, given, limit)
        if later:
            release(connection, sql, Settlement(later, claim))


def _finishes_at_once(
    sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool
) -> bool:
    tables = sql.subject
    if settlements and settlements[0].dedup_us is not None:
        return False
    if tables.archives(keep=keep):
        return tables.dialect.strategy(Archiving).at_once and _at_once(settlements, returning=True)
    return _at_once(settlements, returning=tables.end_returning)


def updates_at_once(sql: StatementCache, settlements: Sequence[Settlement]) -> bool:
    """Whether giving these back is one statement, so that it needs no transaction around it."""
    tables: QueueTables = sql.subject
    returning = tables.features.update_returning
    return not tables.grouped and _at_once(settlements, returning=returning)


def _at_once(settlements: Sequence[Settlement], *, returning: bool) -> bool:
    if len(settlements) != 1 or settlements[0].in_key_order:
        return False
    # Without RETURNING, several messages are locked and read first.
    return len(settlements[0].ids) <= (MAX_IDS if returning else 1)


def remove(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Remove finished messages."""
    if settlement.dedup_us is not None:
        settlement = remember_keys(connection, sql, settlement)
    returning = sql.subject.end_returning
    values = sql.subject.values_of_end(settlement.archive_values)

    variant = (True,) if settlement.unblocking else ()
    do = partial(
        _settle,
        connection,
        sql,
        settle.remove,
        values=values,
        variant=variant,
        returning=returning,
    )
    return _waking(connection, sql, settlement, do) if sql.subject.grouped else do(settlement)


def archive_messages(
    connection: Connection, sql: StatementCache, settlement: Settlement
) -> set[int]:
    """Archive finished messages; those of an adopted table end in place."""
    if not sql.subject.archives(keep=True):
        return remove(connection, sql, settlement)
    settlement = remember_keys(connection, sql, settlement)
    move: Archiving = sql.subject.dialect.strategy(Archiving)

    def archive_held(settlement: Settlement) -> set[int]:
        settled = move.move(connection, sql, settlement)
        if settled:
            exits.note_capacity(sql)
        return settled

    return _waking(connection, sql, settlement, archive_held)


def _waking(
    connection: Connection,
    sql: StatementCache,
    settlement: Settlement,
    do: Callable[[Settlement], set[int]],
) -> set[int]:
    """Do it for messages that leave the head of their groups, and wake who waits for them."""
    if not sql.subject.grouped or settlement.unblocking:
        return do(settlement)
    held = exits.lock_held(connection, sql, settlement.ids, settlement.claim)
    if not held:
        return set()
    settled = do(dataclasses.replace(settlement, ids=[each.id for each in held], locked=True))
    exits.wake(connection, sql, exits.carried(held))
    return settled


def _later(
    connection: Connection,
    sql: StatementCache,
    builder: Builder,
    settlement: Settlement,
    values: Mapping[str, Any],
) -> set[int]:
    """Make messages due later. In an ordered group nobody behind them may go on before that."""
    do = partial(_settle, connection, sql, builder, values=values)
    if not settlement.in_order:
        return _waking(connection, sql, settlement, do)
    settled = do(settlement)
    exits.wake_earlier(connection, sql, settled)
    return settled


def finish_apart(
    connection: Connection,
    sql: StatementCache,
    settlement: Settlement,
    end: Callable[..., set[int]],
) -> tuple[set[int], dict[int, str]]:
    """End messages with ``archive_messages`` or ``remove``, and hold those that are refused.

    Returns:
        The ended ones that the claim still held; the reasons of those that are held now, by id.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    held: set[int] = set()

    def end_some(ids: Sequence[int]) -> set[int]:
        return end(connection, sql, dataclasses.replace(settlement, ids=ids))

    def hold_some(ids: Sequence[int], reason: str) -> None:
        values = {"p_error": refusal(settlement.outcome, settlement.error, reason)}
        some = dataclasses.replace(settlement, ids=ids)
        held.update(_later(connection, sql, settle.hold_refused, some, values))

    with carefully():
        ended, reasons = apart(connection, sql, settlement.ids, end_some, hold_some)
    return ended, {id_: reason for id_, reason in reasons.items() if id_ in held}


def refusal(outcome: str, error: str | None, reason: str) -> str:
    """The ``last_error`` of a message that the database refused to finish."""
    earlier = "" if error is None else f" ({error})"
    text = f"{REFUSED} as {outcome}{earlier}: {reason}"
    return printable(text[:LONGEST_ERROR]) or text


def release(
    connection: Connection, sql: StatementCache, settlement: Settlement, delay: int | None = None
) -> set[int]:
    """Give messages back, uncounted, at their place or after a delay."""
    if delay is not None:
        values = {"p_delay": delay}
        return _later(connection, sql, settle.release_later, settlement, values)
    return _settle(connection, sql, settle.release, settlement, {})


def restore(
    connection: Connection,
    sql: StatementCache,
    settlement: Settlement,
    max_attempts: int | None = None,
) -> set[int]:
    """Give back messages of a dead claim at their place.

    Args:
        connection: the connection.
        sql: the queue's statements.
        settlement: the messages, with the reason.
        max_attempts: of the queue, if they get one attempt more; None: they do not.
    """
    values: dict[str, Any] = {"p_error": settlement.error}
    if max_attempts is None:
        return _settle(connection, sql, settle.restore, settlement, values)
    values["p_max_attempts"] = max_attempts
    return _settle(connection, sql, settle.restore_with_another, settlement, values)


def retry(
    connection: Connection, sql: StatementCache, settlement: Settlement, delay: int
) -> set[int]:
    """Give failed messages back after a delay."""
    values = {"p_error": settlement.error, "p_delay": delay}
    return _later(connection, sql, settle.retry, settlement, values)


def set_aside(
    connection: Connection, sql: StatementCache, settlement: Settlement, aside: Aside
) -> set[int]:
    """Defer one message that does not fit its kind here, uncounted."""
    return _later(connection, sql, settle.set_aside, settlement, aside.values())


def extend(
    connection: Connection, sql: StatementCache, settlement: Settlement, expires_at: int
) -> set[int]:
    """Renew leases until a given time."""
    return _settle(connection, sql, settle.extend, settlement, {"p_expires": expires_at})


def hold_refused(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Lock messages until the transaction ends, without changing them."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    stamp = settlement.fence_values()
    return {row[0] for row in rows_by_ids(connection, sql, settle.held, settlement.ids, stamp)}


def still_there(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> set[int]:
    """Which of the messages are still live."""
    return {row[0] for row in rows_by_ids(connection, sql, settle.still_there, ids)}


def deleted(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> list[int]:
    """Which of the messages have no row, as this transaction sees it."""
    there = {row[0] for row in rows_by_ids(connection, sql, settle.existing, ids)}
    return [row_id for row_id in ids if row_id not in there]


def stamped(connection: Connection, sql: StatementCache, settlement: Settlement) -> set[int]:
    """Which of the messages the claim still holds, without a lock."""
    stamp = settlement.fence_values()
    return {row[0] for row in rows_by_ids(connection, sql, settle.stamped, settlement.ids, stamp)}


def claimed_rows(
    connection: Connection, sql: StatementCache, ids: Sequence[int], *, contents: bool
) -> list[tuple[MessageRow, int]]:
    """These messages with their stamps, whoever holds them, each with the database's time.

    Without ``contents`` only what is known of their claims is read.
    """
    if contents:
        found = rows_by_ids(connection, sql, settle.claimed_messages, ids)
        rows = read_rows(connection, sql, [row[1:] for row in found])
        return [(row, found[place][0]) for place, row in enumerate(rows)]
    found = rows_by_ids(connection, sql, settle.claims, ids)
    return [
        (_NO_CONTENTS._replace(**dict(zip(settle.CLAIM_FACTS, row[1:], strict=True))), row[0])
        for row in found
    ]


def keep_traceback(
    connection: Connection, tables: QueueTables, settlement: Settlement, text: str
) -> set[int]:
    """Store the traceback of a failure in messages that the claim still holds; settles none."""
    claim, live = settlement.claim, tables.live
    connection.execute(
        update_by_id(tables)
        .where(
            live.c.id.in_(settlement.ids),
            live.c.consumer_id == claim.consumer_id,
            live.c.consumer_round == claim.consumer_round,
        )
        .values(last_traceback=bindparam(None, text, type_=tables.expressions.reason_type()))
    )
    return set()


def _settle(
    connection: Connection,
    sql: StatementCache,
    builder: Builder,
    settlement: Settlement,
    values: Mapping[str, Any],
    *,
    variant: tuple[bool, ...] = (),
    returning: bool | None = None,
) -> set[int]:
    settled: set[int] = set()
    if returning is None:
        returning = sql.subject.features.update_returning
    for batch in batches(settlement.ids):
        ids: Sequence[int] = batch
        stamp = settlement.fence_values()
        if not returning and len(batch) > 1 and not settlement.locked:
            lock = sql.get(settle.held, bucket_of(len(batch)))
            ids = [row[0] for row in lock.run(connection, id_values(batch) | stamp)]
            if not ids:
                continue
        statement = sql.get(builder, bucket_of(len(ids)), *variant)
        result = statement.run(connection, {**id_values(ids), **stamp, **values})
        if returning:
            settled.update(map(_first, result))
        elif result.rowcount:
            settled.update(ids)
    if settled and builder is not settle.extend:
        exits.note_capacity(sql)
    return settled


_NOBODY = Claim("", 0)


def end_locked(
    connection: Connection,
    sql: StatementCache,
    groups: Iterable[tuple[Disposition, Sequence[MessageRow]]],
) -> None:
    """End unclaimed messages that this transaction has locked, by their dispositions."""
    for end, same in groups:
        if end.aside is not None:
            with exits.leaving(connection, sql, [row.id for row in same]):
                for row in same:
                    values = id_values([row.id]) | end.aside.values()
                    sql.get(settle.set_locked_aside).run(connection, values)
            continue
        if end.dedup_us is not None:
            ending = [(row.id, row.message_key) for row in same]
            remember_locked(connection, sql, ending, end.dedup_us)
        _remove_locked(connection, sql, [row.id for row in same], end)


def end_apart(
    connection: Connection,
    sql: StatementCache,
    disposition: Disposition,
    rows: Mapping[int, MessageRow],
) -> dict[int, str]:
    """As ``end_locked``, but hold messages that the database refuses to end; their reasons."""

    def end(ids: Sequence[int]) -> set[int]:
        end_locked(connection, sql, [(disposition, [rows[id_] for id_ in ids])])
        return set(ids)

    held = _held_apart(connection, sql, disposition, list(rows), end)
    if disposition.feed is not None and disposition.error is not None:
        disposition.feed(connection, [id_ for id_ in rows if id_ not in held])
    return held


def end_each(
    connection: Connection,
    sql: StatementCache,
    rows: Iterable[MessageRow],
    disposition: Callable[[MessageRow], Disposition],
) -> tuple[dict[int, Disposition], dict[int, str]]:
    """End each of the locked messages by its own disposition, as ``end_apart`` does.

    Returns:
        How they ended, and the reasons of those that are held now, by id.
    """
    groups: dict[Disposition, dict[int, MessageRow]] = {}
    for row in rows:
        groups.setdefault(disposition(row), {})[row.id] = row
    ended: dict[int, Disposition] = {}
    refused: dict[int, str] = {}
    for end, same in groups.items():
        refused |= end_apart(connection, sql, end, same)
        ended |= dict.fromkeys(same.keys() - refused.keys(), end)
    return ended, refused


def _held_apart(
    connection: Connection,
    sql: StatementCache,
    disposition: Disposition,
    ids: Sequence[int],
    end: Callable[[Sequence[int]], set[int]],
) -> dict[int, str]:
    outcome = Outcome.DONE if disposition.error is None else disposition.outcome

    def hold(ids: Sequence[int], reason: str) -> None:
        text = refusal(outcome, disposition.error, reason)
        with exits.leaving(connection, sql, ids):
            sql.get(settle.hold_locked).run(connection, id_values(ids) | {"p_error": text})

    return apart(connection, sql, ids, end, hold)[1]


def cancel_message(
    connection: Connection,
    sql: StatementCache,
    message_id: int,
    end: Disposition,
    refused: dict[int, str],
) -> bool:
    """End one message, even if a consumer holds it; False if it does not exist.

    If the database refuses to end it, it is held, and noted in ``refused`` with the reason.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    found: Any = sql.get(settle.lock_one).run(connection, id_values([message_id])).first()
    if found is None:
        return False

    def remove(ids: Sequence[int]) -> set[int]:
        if end.dedup_us is not None:
            remember_locked(connection, sql, [(found[0], found[1])], end.dedup_us)
        _remove_locked(connection, sql, ids, end)
        return set(ids)

    refused |= _held_apart(connection, sql, end, [message_id], remove)
    return True


def _remove_locked(
    connection: Connection, sql: StatementCache, ids: Sequence[int], end: Disposition
) -> None:
    tables: QueueTables = sql.subject
    if end.error is not None and not end.keep:
        registry.count_discarded(connection, tables, len(ids))
    outcome = Outcome.DONE if end.error is None else end.outcome
    if end.blocks:
        block(connection, sql, exits.lock(connection, sql, ids))
    how = Settlement(ids, _NOBODY, outcome, end.error).archive_values()
    with exits.leaving(connection, sql, ids):
        for batch in batches(ids):
            size, values = bucket_of(len(batch)), id_values(batch)
            if tables.ends_in_place:
                attempted = outcome != Outcome.REJECTED
                sql.get(archive.finish_ids, size, attempted).run(connection, values | how)
                continue
            if end.keep:
                sql.get(archive.copy_ids_to_archive, size).run(connection, values | how)
            sql.get(remove_ids, size).run(connection, values)
