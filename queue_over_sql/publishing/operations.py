"""Operations that publish messages: the content of a new message, and how its row is inserted."""

from __future__ import annotations

import contextlib
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from queue_over_sql.errors import DuplicateKey, GroupFull, QueueError
from queue_over_sql.groups import exits
from queue_over_sql.message import Published
from queue_over_sql.payloads.types import changes
from queue_over_sql.publishing import statements
from queue_over_sql.publishing.deduplication import key_values, recently_finished
from queue_over_sql.publishing.new_messages import (
    BYTES_PER_CHARACTER,
    CHARACTERS_PER_ROW,
    Batch,
    MixedMessages,
    NewMessage,
    PlainMessages,
    PlainPayloads,
    chunks,
)
from queue_over_sql.publishing.room import check_room, make_room
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.queues.registry import note_expiring
from queue_over_sql.sql.compiled import direct_calls
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import Operation, operation
from queue_over_sql.statements.clock import select_clock, server_now
from queue_over_sql.statements.operations import savepoint
from queue_over_sql.statements.parameters import batches, bucket_of
from queue_over_sql.statements.requests import read_rows
from queue_over_sql.values.durations import instant
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.states import PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.sql.compiled import CompiledStatement, StatementCache

    _Ids = dict[str | None, list[int]]


# The largest number of rows of one INSERT: if ids are needed, and if not.
_ROWS_PER_INSERT = 256
_ROWS_PER_LOAD = 1024
# How often to retry if the message with the key finishes between the INSERT and the look at it.
_KEY_RACES = 50


def publishing(sql: StatementCache, message: NewMessage, on_conflict: str) -> Operation[Published]:
    """The operation that publishes one message; see ``publish``.

    It is never repeated, even with a key: the message may be published and finished by then.
    """
    keyed, tables = message.key is not None, sql.subject
    tied = keyed and (tables.frees_claimed_keys or not tables.features.conflict_clause)
    return Operation(
        partial(publish, sql=sql, message=message, on_conflict=on_conflict),
        atomic=tied or message.dedup or on_conflict == "replace" or message.room is not None,
        durable=True,
        repeatable=False,
        wakes=True,
    )


def publish(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    on_conflict: str,
    *,
    now: int | None = None,
) -> Published:
    """Insert one message, or follow ``on_conflict`` if its key is taken.

    ``now`` is the time of its batch in microseconds; None: the time of the statement.

    Raises:
        DuplicateKey: ``on_conflict`` is ``"raise"`` and the key is taken.
        GroupFull: there is no room for it, and ``when_full`` is ``"reject"``.
    """
    check_size(sql, [message.key, *message.content.values()])
    if message.expires is not None and now is None:
        note_expiring(connection, sql)
    if message.room is not None:
        sql.subject.dialect.sessions.lock_for_writing(connection, sql)
        replaced = _make_room(connection, sql, message, now)
        if replaced is not None:
            return replaced
    if message.key is None:
        return _insert(connection, sql, message, now)
    return _publish_keyed(connection, sql, message, message.key, on_conflict, now=now)


def _make_room(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> Published | None:
    """As ``make_room``; None also if its key is taken, so that ``on_conflict`` decides."""
    if message.key is None:
        return make_room(connection, sql, message, now)
    for _ in range(_KEY_RACES):
        if _has_key_already(connection, sql, message, message.key):
            return None
        try:
            return make_room(connection, sql, message, now)
        except DBAPIError as error:
            if sql.subject.dialect.errors.classify(error) is not ErrorKind.DUPLICATE:
                raise
        holder = _live_by_key(connection, sql, message.key)
        if holder is not None and sql.subject.frees_claimed_keys and holder.consumer_id is not None:
            sql.get(statements.release_key).run(connection, {"p_id_0": holder.id})
    return None


def _publish_keyed(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    key: str,
    on_conflict: str,
    *,
    now: int | None,
) -> Published:
    existing = _came_back(connection, sql, key)
    if existing is not None:
        return _resolve_conflict(connection, sql, message, existing, on_conflict, now=now)
    refused: DBAPIError | None = None
    for _ in range(_KEY_RACES):
        try:
            published = _publish_new(connection, sql, message, on_conflict, now)
        except DBAPIError as error:
            if sql.subject.dialect.errors.classify(error) is not ErrorKind.DUPLICATE:
                raise
            published, refused = None, error
        if published is not None:
            return published
        # If what had the key has ended, another one may have come back meanwhile.
        existing = _live_by_key(connection, sql, key) or _came_back(connection, sql, key)
        if existing is None:
            continue
        if not sql.subject.frees_claimed_keys or existing.consumer_id is None:
            return _resolve_conflict(connection, sql, message, existing, on_conflict, now=now)
        # It is claimed, so it must not keep others from waiting.
        sql.get(statements.release_key).run(connection, {"p_id_0": existing.id})
    text = (
        f"Queue {sql.subject.queue!r}: the message with key {key!r} could not be "
        "inserted, but no other message has this key. Try again."
    )
    raise QueueError(text) from refused


@operation(atomic=True, durable=True, repeatable=False, wakes=True)
def publish_many(
    connection: Connection,
    sql: StatementCache,
    given: Sequence[NewMessage] | PlainMessages,
    on_conflict: str,
) -> list[Published]:
    """Insert messages in order: all of them, or none if a key is taken and that is an error.

    Raises:
        DuplicateKey, GroupFull: as in ``publish``; what this call had inserted is removed again.
    """
    batch = _batch(given)
    if batch.needs_room:
        return _publish_with_room(connection, sql, batch, on_conflict)
    return _publish_all(connection, sql, batch, on_conflict)


def _publish_with_room(
    connection: Connection, sql: StatementCache, batch: Batch, on_conflict: str
) -> list[Published]:
    messages = batch.messages()
    if not (batch.keyed or any(each.room and each.room.replaces for each in messages)):
        check_room(connection, sql, messages)
        return _publish_all(connection, sql, batch, on_conflict)
    if batch.expiring:
        note_expiring(connection, sql)
    now, published = server_now(connection, sql), list[Published]()
    with all_or_none(connection, sql):
        for place, message in enumerate(messages):
            try:
                published.append(publish(connection, sql, message, on_conflict, now=now))
            except GroupFull as error:
                raise GroupFull(error.queue, error.group, error.limit, place) from None
            except DuplicateKey as error:
                raise without_own(error, published) from None
    return published


def _publish_all(
    connection: Connection, sql: StatementCache, batch: Batch, on_conflict: str
) -> list[Published]:
    if batch.expiring:
        note_expiring(connection, sql)
    now, step = _now_and_step(connection, sql)
    most = sql.subject.dialect.strategy(Inserts).rows_at_once
    # Where an error aborts the transaction, only one of our own leaves anything to undo.
    several = batch.keyed or (len(batch) > 1 and not sql.subject.features.aborts_on_error)
    published: list[Published] = []
    with all_or_none(connection, sql) if several else contextlib.nullcontext():
        for chunk in chunks(batch, most or _ROWS_PER_INSERT, rounded=most is None):
            _publish_chunk(connection, sql, chunk, on_conflict, published, now=now, step=step)
    return published


@contextlib.contextmanager
def all_or_none(connection: Connection, sql: StatementCache) -> Iterator[None]:
    """Undo what the block has inserted if it fails in a caller's transaction, which may go on.

    An error ends a transaction of our own. A deletion would need a right that publishers lack.
    """
    if direct_calls(connection) is not None:
        yield
        return
    with _undoable(connection, sql, "queue_over_sql_batch"):
        yield


@contextlib.contextmanager
def _undoable(
    connection: Connection, sql: StatementCache, name: str
) -> Iterator[Callable[[], None]]:
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    with savepoint(connection, name) as undo:
        yield undo


@operation(atomic=True, durable=True, repeatable=False, wakes=True)
def load(
    connection: Connection,
    sql: StatementCache,
    given: Sequence[NewMessage] | PlainMessages | PlainPayloads,
) -> bool:
    """Insert messages by the engine's fastest path; always True, so that consumers are woken.

    Raises:
        DuplicateKey: a key is taken; nothing of these messages was published.
        PayloadInvalid, PayloadTooLarge: a plain payload is invalid; nothing was published.
    """
    now = server_now(connection, sql)
    if isinstance(given, PlainPayloads):
        inserts: Inserts = sql.subject.dialect.strategy(Inserts)
        if inserts.loads_as_it_comes and inserts.load(connection, sql, given.rows(now)):
            return True
        _load_encoded(connection, sql, given.encoded(), now)
    else:
        _load_encoded(connection, sql, _batch(given), now)
    return True


def _load_encoded(connection: Connection, sql: StatementCache, batch: Batch, now: int) -> None:
    if batch.expiring:
        note_expiring(connection, sql)
    tied = batch.dedup or (batch.keyed and sql.subject.frees_claimed_keys)
    if tied or batch.needs_room:
        publish_many(connection, sql, batch.messages(), "raise")
    elif not sql.subject.dialect.strategy(Inserts).load(connection, sql, batch.rows(now)):
        if batch.keyed:
            publish_many(connection, sql, batch.messages(), "raise")
            return
        for chunk in chunks(batch, _ROWS_PER_LOAD, sql.subject.features.statement_bytes):
            _check_alone(sql, chunk)
            rows = chunk.rows(now)
            statement = sql.get(statements.publish_many, rows.count, tuple(rows.differing), False)
            statement.run(connection, rows.values(sql.subject.parameters))


def _now_and_step(connection: Connection, sql: StatementCache) -> tuple[int, int | None]:
    """The database's clock, and the distance of the ids that this session's INSERTs get."""
    step = sql.subject.features.id_step
    if step is None:
        return server_now(connection, sql), None
    # The same session tells it in the same transaction, and no other session can change it.
    now, distance = sql.get(select_clock, step).run(connection).one()
    return int(now), int(distance)


def _batch(given: Sequence[NewMessage] | PlainMessages) -> Batch:
    return given if isinstance(given, PlainMessages) else MixedMessages(given)


def check_size(sql: StatementCache, values: Iterable[Any]) -> None:
    """Refuse a message with these values if it is larger than the server's limit for a statement.

    Raises:
        PayloadTooLarge: it is.
    """
    limit = sql.subject.features.statement_bytes
    if limit is None:
        return
    given = [value for value in values if isinstance(value, str | bytes)]
    if (sum(map(len, given)) + CHARACTERS_PER_ROW) * BYTES_PER_CHARACTER > limit:
        sql.subject.dialect.strategy(Inserts).check_sent(given)


def _check_alone(sql: StatementCache, batch: Batch) -> None:
    if len(batch) == 1:
        (message,) = batch.messages()
        check_size(sql, [message.key, *message.content.values()])


def _inserting(sql: StatementCache, message: NewMessage, now: int | None) -> CompiledStatement:
    at_once = now is None and message.at is None and not message.delay
    names = tuple([name for name, value in message.content.items() if value is not None])
    expiring = message.expires is not None
    return sql.get(statements.publish, message.key is not None, names, at_once, expiring)


def _insert(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> Published:
    statement, values = _inserting(sql, message, now), message.given(sql.subject.parameters, now)
    result = statement.run(connection, values)
    if sql.subject.features.insert_returning:
        return _published(*result.one())
    return Published(int(result.lastrowid))


def _insert_keyed(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> Published | None:
    features = sql.subject.features
    statement, values = _inserting(sql, message, now), message.given(sql.subject.parameters, now)
    nested = features.aborts_on_error and not features.conflict_clause
    with connection.begin_nested() if nested else contextlib.nullcontext():
        result = statement.run(connection, values)
    if features.insert_returning:
        row = result.first()
        return None if row is None else _published(*row)
    return Published(int(result.lastrowid))


def _published(message_id: Any, at: int) -> Published:
    return Published(int(message_id), published_at=instant(at))


def _live_by_key(connection: Connection, sql: StatementCache, key: str) -> MessageRow | None:
    found = sql.get(statements.live_by_key).run(connection, {"p_key": key})
    rows = read_rows(connection, sql, found)
    return rows[0] if rows else None


def _that_came_back(
    connection: Connection, sql: StatementCache, keys: Sequence[str | None]
) -> list[int]:
    """Messages that came back to the queue after later ones had taken these keys."""
    wanted = [key for key in keys if key is not None]
    if not wanted or not sql.subject.frees_claimed_keys:
        return []
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    found: list[int] = []
    for batch in batches(wanted):
        size = bucket_of(len(batch))
        rows: Any = sql.get(statements.came_back, size).run(connection, key_values(batch, size))
        found += [message_id for message_id, consumer in rows if consumer is None]
    return found


def _has_key_already(
    connection: Connection, sql: StatementCache, message: NewMessage, key: str
) -> bool:
    """Whether ``on_conflict`` decides about a message, because its key is taken."""
    if _that_came_back(connection, sql, [key]):
        return True
    holder = _live_by_key(connection, sql, key)
    if holder is not None:
        return not sql.subject.frees_claimed_keys or holder.consumer_id is None
    return bool(_recently_finished(connection, sql, [message]))


def _came_back(connection: Connection, sql: StatementCache, key: str) -> MessageRow | None:
    """Lock the newest waiting message of a key, if one came back after another had taken it."""
    found = _that_came_back(connection, sql, [key])
    if not found:
        return None
    holder = _live_by_key(connection, sql, key)
    if holder is not None and holder.consumer_id is None:
        return holder
    return _still_waiting(connection, sql, max(found))


def _still_waiting(
    connection: Connection, sql: StatementCache, message_id: int
) -> MessageRow | None:
    found = sql.get(statements.still_waiting).run(connection, {"p_id_0": message_id})
    rows = read_rows(connection, sql, found)
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
    with exits.leaving(connection, sql, [existing.id]):
        if _changes_nothing(connection, sql, message, existing):
            return Published(existing.id, PublishOutcome.UNCHANGED)
        values = message.given(sql.subject.parameters, now, timed=True) | {"p_id_0": existing.id}
        del values["p_message_key"]
        sql.get(statements.replace).run(connection, values)
    return Published(existing.id, PublishOutcome.REPLACED)


def _publish_new(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    on_conflict: str,
    now: int | None,
) -> Published | None:
    """Insert a message with a key, unless a message with this key has finished recently.

    None if a message has the key now.
    """
    if not message.dedup or (on_conflict == "raise" and direct_calls(connection) is not None):
        # An error ends a transaction of our own, and so undoes what it has inserted.
        return _insert_new(connection, sql, message, on_conflict, now)
    with _undoable(connection, sql, "queue_over_sql_key") as undo:
        published = _insert_new(connection, sql, message, on_conflict, now)
        if published is not None and published.outcome is PublishOutcome.SKIPPED:
            undo()
        return published


def _insert_new(
    connection: Connection,
    sql: StatementCache,
    message: NewMessage,
    on_conflict: str,
    now: int | None,
) -> Published | None:
    """As ``_publish_new``; the caller undoes the insert if this skips the message, or raises."""
    published = _insert_keyed(connection, sql, message, now)
    if published is None:
        return None
    finished = _recently_finished(connection, sql, [message])
    if not finished:
        return published
    return _finished_before(sql, message, on_conflict, finished)


def _recently_finished(
    connection: Connection, sql: StatementCache, messages: Sequence[NewMessage]
) -> Mapping[str, int]:
    wanted = [message.key for message in messages if message.dedup and message.key is not None]
    return recently_finished(connection, sql, wanted) if wanted else {}


def _finished_before(
    sql: StatementCache, message: NewMessage, on_conflict: str, finished: Mapping[str, int]
) -> Published:
    key = str(message.key)
    if on_conflict == "raise":
        raise DuplicateKey(sql.subject.queue, key, finished[key], finished=True)
    return Published(finished[key], PublishOutcome.SKIPPED)


def _changes_nothing(
    connection: Connection, sql: StatementCache, message: NewMessage, existing: MessageRow
) -> bool:
    """Whether a replace would change nothing; a delay or an expiry always means another time.

    The engine may round or reformat a value of an own column. So if only such columns differ, they
    are written, read again and compared. A group is kept as it is.
    """
    if message.delay or (message.at is not None and message.at != existing.scheduled_at):
        return False
    if message.expires is not None or existing.expires_at is not None:
        return False
    present = existing._asdict() | dict(existing.columns)
    changed = [n for n, value in message.content.items() if not _is_equal(value, present[n])]
    if not changed or GROUP_KEY in changed or not existing.columns.keys() >= set(changed):
        return not changed
    parameters = sql.subject.parameters
    values = {parameters[name]: message.content[name] for name in changed}
    change = sql.get(statements.change_own, tuple(changed))
    change.run(connection, values | {"p_id_0": existing.id})
    if sql.subject.frees_claimed_keys:
        again = _still_waiting(connection, sql, existing.id)
    else:
        again = _live_by_key(connection, sql, str(message.key))
    return again is not None and all(
        _is_equal(again.columns[name], present[name]) for name in changed
    )


def _is_equal(value: Any, other: Any) -> bool:
    # NaN is not equal to itself.
    return not any(changes(value, other)) or (value != value and other != other)  # noqa: PLR0124


def _publish_chunk(
    connection: Connection,
    sql: StatementCache,
    chunk: Batch,
    on_conflict: str,
    published: list[Published],
    *,
    now: int,
    step: int | None,
) -> None:
    """Publish a part of a batch, of which ``published`` is what came before."""
    singly = chunk.keyed and _that_came_back(connection, sql, [m.key for m in chunk.messages()])
    finished: Mapping[str, int] = {}
    if singly:
        ids = None
    elif chunk.dedup:
        ids, finished = _insert_unfinished(connection, sql, chunk, now, step)
    else:
        ids = _insert_chunk(connection, sql, chunk, now, step)
    at = instant(now)
    if ids is None:
        ids = {}
    elif len(ids.get(None, ())) == len(chunk):
        published += [Published(each, published_at=at) for each in ids[None]]
        return
    for message in chunk.messages():
        if message.key is not None and message.key in finished:
            published.append(_finished_before(sql, message, on_conflict, finished))
        elif new := ids.get(message.key):
            published.append(Published(new.pop(0), published_at=at))
        else:
            try:
                published.append(publish(connection, sql, message, on_conflict, now=now))
            except DuplicateKey as error:
                raise without_own(error, published) from None


def without_own(error: DuplicateKey, published: Sequence[Published]) -> DuplicateKey:
    """The error, without the id of a message that is undone with this batch."""
    new = {each.id for each in published if each.outcome is PublishOutcome.CREATED}
    return DuplicateKey(error.queue, error.key, None) if error.id in new else error


def _insert_unfinished(
    connection: Connection, sql: StatementCache, chunk: Batch, now: int, step: int | None
) -> tuple[_Ids | None, dict[str, int]]:
    """As ``_insert_chunk``, without messages whose keys those have that finished recently.

    It returns these keys, too, each with the id of the finished message.
    """
    finished: dict[str, int] = {}
    with _undoable(connection, sql, "queue_over_sql_keys") as undo:
        while True:
            left = [message for message in chunk.messages() if message.key not in finished]
            if not left:
                return {}, finished
            ids = _insert_chunk(connection, sql, MixedMessages(left), now, step)
            found = {} if ids is None else _recently_finished(connection, sql, left)
            if not found:
                return ids, finished
            # Only now, when nobody else can finish a message with one of the keys.
            undo()
            finished |= found


def _insert_chunk(
    connection: Connection, sql: StatementCache, chunk: Batch, now: int, step: int | None
) -> _Ids | None:
    """Insert in one statement; the new ids by key, in order. None: insert one by one."""
    dialect, keyed = sql.subject.dialect, chunk.keyed
    features = dialect.features
    clean_failure = features.undoes_failed_insert and not features.aborts_on_error
    if not (features.insert_returning or step) or (
        keyed and not features.conflict_clause and not clean_failure
    ):
        return None
    found = dialect.strategy(Inserts).publish(connection, sql, chunk.rows(now))
    if found is None:
        parts = list(chunks(chunk, _ROWS_PER_INSERT, features.statement_bytes))
        tied = len(parts) > 1 and keyed and not features.conflict_clause
        try:
            undoing = _undoable(connection, sql, "queue_over_sql_parts")
            with undoing if tied else contextlib.nullcontext():
                found = [
                    row
                    for part in parts
                    for row in _insert_values(connection, sql, part, now, step)
                ]
        except DBAPIError as error:
            # Inserting one by one finds out which key is taken.
            if keyed and dialect.errors.classify(error) is ErrorKind.DUPLICATE:
                return None
            raise
    if not keyed:
        return {None: sorted([row[0] for row in found])}
    ids: _Ids = {}
    # By the id alone, because keys may be None, which cannot be sorted.
    for message_id, key in sorted(found, key=itemgetter(0)):
        ids.setdefault(key, []).append(message_id)
    return ids


def _insert_values(
    connection: Connection, sql: StatementCache, batch: Batch, now: int, step: int | None
) -> Sequence[Sequence[Any]]:
    _check_alone(sql, batch)
    rows, features = batch.rows(now), sql.subject.features
    statement = sql.get(
        statements.publish_many, rows.count, tuple(rows.differing), True, rows.locking
    )
    # The error ends our own transaction, but the caller's may continue.
    clean = features.undoes_failed_insert or direct_calls(connection) is not None
    with contextlib.nullcontext() if clean else connection.begin_nested():
        result = statement.run(connection, rows.values(sql.subject.parameters))
        if features.insert_returning:
            return result.all()
    first, keys = result.lastrowid, rows.column("message_key")
    return [(first + index * (step or 1), key) for index, key in enumerate(keys)]
