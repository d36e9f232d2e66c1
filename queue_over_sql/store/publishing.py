"""Acts that put messages in."""

from __future__ import annotations

import contextlib
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.base import ErrorKind
from queue_over_sql.dialects.direct import direct_calls
from queue_over_sql.dialects.rows import read_rows
from queue_over_sql.dialects.statements import publish as statements
from queue_over_sql.dialects.statements.claim import remove_ids
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.errors import DuplicateKey, QueueError
from queue_over_sql.publications import Published, PublishOutcome
from queue_over_sql.sameness import changes
from queue_over_sql.store.administration import server_now
from queue_over_sql.store.keys import recently_finished
from queue_over_sql.store.new_messages import (
    MixedMessages,
    PlainMessages,
    PlainPayloads,
    chunks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import CompiledStatement, StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.store.new_messages import Batch, NewMessage

# How many rows one INSERT carries at most, and where no ids are asked for.
_ROWS_PER_INSERT = 256
_ROWS_PER_LOAD = 1024
# A live message with the key may finish between our INSERT and our look at it; then we go again.
_KEY_RACES = 50


def publish(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    on_conflict: str,
    *,
    now: int | None = None,
) -> Published:
    """Insert one message, or do what ``on_conflict`` says about the one that has its key.

    Args:
        connection: where.
        sql: the queue's statements.
        message: what to publish.
        on_conflict: ``"raise"``, ``"skip"`` or ``"replace"``.
        now: the instant of its batch in microseconds; None for the statement's own.

    Raises:
        DuplicateKey: ``on_conflict`` is ``"raise"`` and the key is taken.
    """
    if message.key is None:
        return Published(_insert(connection, sql, message, now))
    refused: DBAPIError | None = None
    for _ in range(_KEY_RACES):
        try:
            message_id = _insert_keyed(connection, sql, message, now)
        except DBAPIError as error:
            if sql.subject.dialect.classify(error) is not ErrorKind.DUPLICATE:
                raise
            message_id, refused = None, error
        if message_id is not None:
            finished = _recently_finished(connection, sql, [message])
            return _unless_finished(
                connection, sql, message, message_id, on_conflict=on_conflict, finished=finished
            )
        existing = _live_by_key(connection, sql, message.key)
        if existing is not None:
            return _resolve_conflict(connection, sql, message, existing, on_conflict, now=now)
    text = f"Queue {sql.subject.queue!r}: the key {message.key!r} is neither free nor taken."
    raise QueueError(text) from refused


def publish_many(
    connection: Connection,
    sql: StatementCache,
    given: Sequence[NewMessage] | PlainMessages,
    on_conflict: str,
) -> list[Published]:
    """Insert messages in their order; all or, where a key is taken and that is an error, none.

    Raises:
        DuplicateKey: as in ``publish``; what this call had inserted is removed again.
    """
    now = server_now(connection, sql)
    most = sql.subject.dialect.rows_at_once
    published: list[Published] = []
    created: list[int] = []
    try:
        for chunk in chunks(_batch(given), most or _ROWS_PER_INSERT, rounded=most is None):
            published += _publish_chunk(
                connection, sql, chunk, on_conflict, now=now, created=created
            )
    except Exception as error:
        take_out(connection, sql, created, error)
        raise
    return published


def take_out(
    connection: Connection, sql: StatementCache, created: Sequence[int], error: Exception
) -> None:
    """Undo what a batch had inserted, in the caller's transaction, which may go on.

    Where ``error`` is the database's own the transaction may be spoilt, and then there is nothing
    left to undo. But a refusal of ours must not hide that the undoing failed: a deadlock there has
    rolled back all that the caller did.
    """
    with contextlib.suppress(*((DBAPIError,) if isinstance(error, DBAPIError) else ())):
        _remove_created(connection, sql, created)


def _remove_created(connection: Connection, sql: StatementCache, created: Sequence[int]) -> None:
    for batch in batches(created):
        remove = sql.get(remove_ids, bucket_of(len(batch)))
        remove.run(connection, id_values(batch))


def load(
    connection: Connection,
    sql: StatementCache,
    given: Sequence[NewMessage] | PlainMessages | PlainPayloads,
) -> None:
    """Insert messages by the engine's fastest path.

    Raises:
        DuplicateKey: a key is taken; nothing of these messages was published.
        PayloadInvalid, PayloadTooLarge: of plain payloads; likewise.
    """
    now = server_now(connection, sql)
    if isinstance(given, PlainPayloads):
        dialect = sql.subject.dialect
        if dialect.loads_as_it_comes and dialect.load(connection, sql, given.rows(now)):
            return
        _load_encoded(connection, sql, given.encoded(), now)
    else:
        _load_encoded(connection, sql, _batch(given), now)


def _load_encoded(connection: Connection, sql: StatementCache, batch: Batch, now: int) -> None:
    if batch.dedup:
        publish_many(connection, sql, batch.messages(), "raise")
    elif not sql.subject.dialect.load(connection, sql, batch.rows(now)):
        if batch.keyed:
            publish_many(connection, sql, batch.messages(), "raise")
            return
        for chunk in chunks(batch, _ROWS_PER_LOAD):
            rows = chunk.rows(now)
            statement = sql.get(statements.publish_many, rows.count, tuple(rows.differing), False)
            statement.run(connection, rows.values(sql.subject.parameters))


def _batch(given: Sequence[NewMessage] | PlainMessages) -> Batch:
    return given if isinstance(given, PlainMessages) else MixedMessages(given)


def _inserting(sql: StatementCache, message: NewMessage, now: int | None) -> CompiledStatement:
    at_once = now is None and message.at is None and not message.delay
    names = tuple([name for name, value in message.content.items() if value is not None])
    return sql.get(statements.publish, message.key is not None, names, at_once)


def _insert(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> int:
    result = _inserting(sql, message, now).run(
        connection, message.given(sql.subject.parameters, now)
    )
    if sql.subject.dialect.insert_returning:
        return int(result.scalar_one())
    return int(result.lastrowid)


def _insert_keyed(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> int | None:
    dialect = sql.subject.dialect
    statement = _inserting(sql, message, now)
    if dialect.aborts_on_error and not dialect.conflict_clause:
        with connection.begin_nested():
            result = statement.run(connection, message.given(sql.subject.parameters, now))
    else:
        result = statement.run(connection, message.given(sql.subject.parameters, now))
    if dialect.insert_returning:
        row = result.first()
        return None if row is None else int(row[0])
    return int(result.lastrowid)


def _live_by_key(connection: Connection, sql: StatementCache, key: str) -> MessageRow | None:
    rows = read_rows(
        connection, sql, sql.get(statements.live_by_key).run(connection, {"p_key": key})
    )
    return rows[0] if rows else None


def _resolve_conflict(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    existing: MessageRow,
    on_conflict: str,
    *,
    now: int | None,
) -> Published:
    if on_conflict == "skip":
        return Published(existing.id, PublishOutcome.SKIPPED)
    if on_conflict == "raise":
        raise DuplicateKey(sql.subject.queue, str(message.key), existing.id)
    if _changes_nothing(connection, sql, message, existing):
        return Published(existing.id, PublishOutcome.UNCHANGED)
    values = message.values(sql.subject.parameters, now) | {"p_id_0": existing.id}
    del values["p_message_key"]
    sql.get(statements.replace).run(connection, values)
    return Published(existing.id, PublishOutcome.REPLACED)


def _recently_finished(
    connection: Connection, sql: StatementCache, messages: Sequence[NewMessage]
) -> Mapping[str, int]:
    """Keys of just inserted messages that a finished one still has, with its id."""
    wanted = [message.key for message in messages if message.dedup and message.key is not None]
    return recently_finished(connection, sql, wanted) if wanted else {}


def _unless_finished(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    message_id: int,
    *,
    on_conflict: str,
    finished: Mapping[str, int],
) -> Published:
    """Let an inserted message stand, or take it back where a finished one still has its key."""
    if message.key is None or message.key not in finished:
        return Published(message_id)
    sql.get(remove_ids, 1).run(connection, {"p_id_0": message_id})
    if on_conflict == "raise":
        owner = finished[message.key]
        raise DuplicateKey(sql.subject.queue, message.key, owner, finished=True)
    return Published(finished[message.key], PublishOutcome.SKIPPED)


def _changes_nothing(
    connection: Connection, sql: StatementCache, message: NewMessage, existing: MessageRow
) -> bool:
    """Whether a replace would change nothing; a delay always names another instant.

    The engine may round a value of an own column, or bring it into another form. So where only such
    differ they are written, and what is read then decides.
    """
    if message.delay or (message.at is not None and message.at != existing.scheduled_at):
        return False
    present = existing._asdict() | dict(existing.columns)
    changed = [n for n, value in message.content.items() if not _is_equal(value, present[n])]
    if not changed or not existing.columns.keys() >= set(changed):
        return not changed
    parameters = sql.subject.parameters
    values = {parameters[name]: message.content[name] for name in changed}
    change = sql.get(statements.change_own, tuple(changed))
    change.run(connection, values | {"p_id_0": existing.id})
    again = _live_by_key(connection, sql, str(message.key))
    return again is not None and all(
        _is_equal(again.columns[name], present[name]) for name in changed
    )


def _is_equal(value: Any, other: Any) -> bool:
    # NaN is not even equal to itself.
    return not any(changes(value, other)) or (value != value and other != other)  # noqa: PLR0124


def _publish_chunk(
    connection: Connection,
    sql: StatementCache,
    chunk: Batch,
    on_conflict: str,
    *,
    now: int,
    created: list[int],
) -> list[Published]:
    """Insert messages, and do what ``on_conflict`` says; ``created`` gets the ids of the new."""
    ids = _insert_chunk(connection, sql, chunk, now)
    if ids is None:
        return [
            _noted(publish(connection, sql, message, on_conflict, now=now), created)
            for message in chunk.messages()
        ]
    for same in ids.values():
        created += same
    if len(ids.get(None, ())) == len(chunk):
        return list(map(Published, ids[None]))
    messages = chunk.messages()
    finished = _recently_finished(connection, sql, messages)
    published = []
    for message in messages:
        new = ids.get(message.key)
        if new:
            settled = _unless_finished(
                connection, sql, message, new.pop(0), on_conflict=on_conflict, finished=finished
            )
        else:
            again = publish(connection, sql, message, on_conflict, now=now)
            settled = _noted(again, created)
        published.append(settled)
    return published


def _noted(published: Published, created: list[int]) -> Published:
    if published.outcome is PublishOutcome.CREATED:
        created.append(published.id)
    return published


def _insert_chunk(
    connection: Connection, sql: StatementCache, chunk: Batch, now: int
) -> dict[str | None, list[int]] | None:
    """Insert in one statement; the new ids by key, in order. None where it has to go singly."""
    dialect, keyed = sql.subject.dialect, chunk.keyed
    clean_failure = dialect.undoes_failed_insert and not dialect.aborts_on_error
    if not (dialect.insert_returning or dialect.consecutive_ids) or (
        keyed and not dialect.conflict_clause and not clean_failure
    ):
        return None
    parts: list[Sequence[Any]] = []
    try:
        found = dialect.publish_rows(connection, sql, chunk.rows(now))
        if found is None:
            for part in chunks(chunk, _ROWS_PER_INSERT):
                parts += _insert_values(connection, sql, part, now)
            found = parts
    except DBAPIError as error:
        # The statement as a whole was undone, and so are those before it.
        take_out(connection, sql, [row[0] for row in parts], error)
        # Which key is taken shows when they go singly.
        if keyed and dialect.classify(error) is ErrorKind.DUPLICATE:
            return None
        raise
    # By the id alone: keys may be None, which has no order.
    rows = sorted(found, key=itemgetter(0))
    if not keyed:
        return {None: [row[0] for row in rows]}
    ids: dict[str | None, list[int]] = {}
    for message_id, key in rows:
        ids.setdefault(key, []).append(message_id)
    return ids


def _insert_values(
    connection: Connection, sql: StatementCache, batch: Batch, now: int
) -> Sequence[Sequence[Any]]:
    """Id and key of each message that was inserted: all but those whose key is taken."""
    rows, dialect = batch.rows(now), sql.subject.dialect
    statement = sql.get(statements.publish_many, rows.count, tuple(rows.differing))
    # Our own transactions end with the error; the caller's may go on.
    clean = dialect.undoes_failed_insert or direct_calls(connection) is not None
    with contextlib.nullcontext() if clean else connection.begin_nested():
        result = statement.run(connection, rows.values(sql.subject.parameters))
        if dialect.insert_returning:
            return result.all()
    first, step = result.lastrowid, dialect.id_step
    keys = rows.column("message_key")
    return [(first + index * step, key) for index, key in enumerate(keys)]
