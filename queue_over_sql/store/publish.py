"""Acts that publish messages: the content of a new message, and how its row is inserted."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.base import ErrorKind
from queue_over_sql.dialects.compiled import direct_calls
from queue_over_sql.dialects.requests import NewRows, read_rows
from queue_over_sql.dialects.statements import publish as statements
from queue_over_sql.dialects.statements.claim import remove_ids
from queue_over_sql.errors import DuplicateKey, QueueError
from queue_over_sql.message import Published
from queue_over_sql.payloads.types import changes
from queue_over_sql.store.acts import Act, change_by_ids
from queue_over_sql.store.admin import select_clock, server_now
from queue_over_sql.store.keys import recently_finished
from queue_over_sql.values.states import PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import CompiledStatement, StatementCache
    from queue_over_sql.message import MessageRow


# Limit of text in one INSERT, unless the server's own limit is lower.
_CHARACTERS_PER_INSERT = 2_000_000
# A character takes at most four bytes of a statement, as UTF-8 or with a backslash before it. The
# other values of a row take less than so many.
_BYTES_PER_CHARACTER = 4
_CHARACTERS_PER_ROW = 64
# How many columns of content each queue has.
_COMMON_COLUMNS = 6
# Those that often have the same value in many messages.
_ALIKE = frozenset({"message_key", "kind", "headers", "priority", "max_attempts", "lease_us"})


class NewMessage(NamedTuple):
    """A publication, checked and encoded; ``at`` and ``delay`` in microseconds.

    ``dedup``: whether a recently finished message may have its key.
    """

    key: str | None
    content: Mapping[str, Any]
    delay: int
    at: int | None
    dedup: bool = False

    def given(
        self, parameters: Mapping[str, str], now: int | None, *, timed: bool = False
    ) -> dict[str, Any]:
        """The bind parameters of a publish, by the database's clock or by ``now`` of its batch.

        NULLs are left out. So is the time of a message that is due at once, unless ``timed``.
        """
        content = self.content.items()
        given = {parameters[name]: value for name, value in content if value is not None}
        if self.key is not None:
            given["p_message_key"] = self.key
        if timed or now is not None or self.delay or self.at is not None:
            given |= {"p_delay": self.delay, "p_at": self.at if now is None else self.due(now)}
        return given

    def due(self, now: int) -> int:
        """When it is due if it is published at ``now``."""
        return now + self.delay if self.at is None else self.at


class MixedMessages:
    """Messages that may each have options of their own."""

    def __init__(self, messages: Sequence[NewMessage]) -> None:
        self._messages = messages

    @property
    def keyed(self) -> bool:
        """Whether one of them has a key."""
        return any(message.key is not None for message in self._messages)

    @property
    def dedup(self) -> bool:
        """Whether a recently finished message may have the key of one of them."""
        return any(message.dedup for message in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def part(self, start: int, end: int) -> MixedMessages:
        """Those from index ``start`` to before ``end``."""
        return MixedMessages(self._messages[start:end])

    def messages(self) -> Sequence[NewMessage]:
        """The messages one by one."""
        return self._messages

    def weights(self) -> Iterator[int]:
        """The size of the text of each: payload, headers, and the queue's own columns."""
        return map(_weight, self._messages)

    def rows(self, now: int) -> NewRows:
        """Their rows, published at ``now`` (microseconds); shared values are given once."""
        messages = self._messages
        columns: dict[str, list[Any]] = {"message_key": [message.key for message in messages]}
        contents = [message.content for message in messages]
        for name in contents[0]:
            columns[name] = [content[name] for content in contents]
        same: dict[str, Any] = {"published_at": now}
        differing: dict[str, Sequence[Any]] = {}
        for name, column in columns.items():
            if name in _ALIKE and column.count(column[0]) == len(column):
                same[name] = column[0]
            elif all(value is None for value in column):
                same[name] = None
            else:
                differing[name] = column
        if any(message.delay or message.at is not None for message in messages):
            due = [message.due(now) for message in messages]
            differing |= {"scheduled_at": due, "available_at": due}
        else:
            same |= {"scheduled_at": now, "available_at": now}
        return NewRows(len(messages), same, differing)


class PlainMessages:
    """Messages that only have payloads, which are encoded for the table.

    ``blank`` is the content of a message without its payload.
    """

    keyed = False
    dedup = False

    def __init__(self, payloads: Sequence[str | bytes], blank: Mapping[str, Any]) -> None:
        self._payloads = payloads
        self._blank = blank

    def __len__(self) -> int:
        return len(self._payloads)

    def part(self, start: int, end: int) -> PlainMessages:
        """As in ``MixedMessages``."""
        return PlainMessages(self._payloads[start:end], self._blank)

    def messages(self) -> list[NewMessage]:
        """The messages one by one."""
        blank = self._blank
        return [NewMessage(None, {**blank, "payload": each}, 0, None) for each in self._payloads]

    def weights(self) -> Iterator[int]:
        """The size of the text of each."""
        return map(len, self._payloads)

    def rows(self, now: int) -> NewRows:
        """Their rows."""
        same = _plain_values(self._blank, now)
        return NewRows(len(self._payloads), same, {"payload": self._payloads})


class PlainPayloads:
    """Payloads without options. Each is encoded only when it is sent, while the server works."""

    def __init__(
        self,
        payloads: Sequence[Any],
        encode: Callable[[Any], str | bytes],
        blank: Mapping[str, Any],
    ) -> None:
        self._payloads = payloads
        self._encode = encode
        self._blank = blank

    def encoded(self) -> PlainMessages:
        """All of them, encoded now.

        Raises:
            PayloadInvalid, PayloadTooLarge: one of them is invalid.
        """
        return PlainMessages(list(map(self._encode, self._payloads)), self._blank)

    def rows(self, now: int) -> NewRows:
        """Their rows, published at ``now``; they can be read once, which raises as ``encoded``."""
        encoded = map(self._encode, self._payloads)
        return NewRows(len(self._payloads), _plain_values(self._blank, now), {"payload": encoded})


def chunks(
    batch: Batch, rows: int, statement_bytes: int | None = None, *, rounded: bool = True
) -> Iterator[Batch]:
    """Split a batch so that each part fits one statement: by number of rows and size of text.

    With ``rounded``, sizes are powers of two, so that fewer statements are compiled. A part of one
    message may be larger than the server's limit of ``statement_bytes``.
    """
    most = _CHARACTERS_PER_INSERT
    if statement_bytes is not None:
        most = min(most, statement_bytes // _BYTES_PER_CHARACTER)
    if not rounded and 0 < len(batch) <= rows and sum(batch.weights()) <= most:
        yield batch
        return
    start = 0
    ends = list(itertools.accumulate(batch.weights(), initial=0))
    while start < len(batch):
        left = len(batch) - start
        size = min(rows, 1 << (left.bit_length() - 1) if rounded else left)
        while size > 1 and ends[start + size] - ends[start] > most - size * _CHARACTERS_PER_ROW:
            size //= 2
        yield batch.part(start, start + size)
        start += size


Batch = MixedMessages | PlainMessages


def _plain_values(blank: Mapping[str, Any], now: int) -> dict[str, Any]:
    same = {**blank, "message_key": None}
    same |= {"published_at": now, "scheduled_at": now, "available_at": now}
    del same["payload"]
    return same


def _weight(message: NewMessage) -> int:
    content = message.content
    weight = len(content["payload"]) + len(content["headers"] or "") + len(message.key or "")
    if len(content) > _COMMON_COLUMNS:
        weight += sum(len(value) for value in content.values() if isinstance(value, str | bytes))
    return weight


# The largest number of rows of one INSERT: if ids are needed, and if not.
_ROWS_PER_INSERT = 256
_ROWS_PER_LOAD = 1024
# How often to retry if the message with the key finishes between the INSERT and the look at it.
_KEY_RACES = 50


def publishing(sql: StatementCache, message: NewMessage, on_conflict: str) -> Act[Published]:
    """The act of publishing one message; see ``publish``."""
    tied = message.key is not None and not sql.subject.dialect.conflict_clause
    return Act(
        partial(publish, sql=sql, message=message, on_conflict=on_conflict),
        atomic=tied or message.dedup or on_conflict == "replace",
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
    """
    check_size(sql, [message.key, *message.content.values()])
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
    text = (
        f"Queue {sql.subject.queue!r}: the message with key {message.key!r} could not be "
        "inserted, but no other message has this key. Try again."
    )
    raise QueueError(text) from refused


def publish_many(
    connection: Connection,
    sql: StatementCache,
    given: Sequence[NewMessage] | PlainMessages,
    on_conflict: str,
) -> list[Published]:
    """Insert messages in order: all of them, or none if a key is taken and that is an error.

    Raises:
        DuplicateKey: as in ``publish``; what this call had inserted is removed again.
    """
    now, step = _now_and_step(connection, sql)
    most = sql.subject.dialect.rows_at_once
    published: list[Published] = []
    created: list[int] = []
    try:
        for chunk in chunks(_batch(given), most or _ROWS_PER_INSERT, rounded=most is None):
            published += _publish_chunk(
                connection, sql, chunk, on_conflict, now=now, step=step, created=created
            )
    except Exception as error:
        take_out(connection, sql, created, error)
        raise
    return published


def take_out(
    connection: Connection, sql: StatementCache, created: Sequence[int], error: Exception
) -> None:
    """Delete what a batch inserted, in the caller's transaction, which may continue.

    If ``error`` is the database's own, the transaction may have failed, and there is nothing to
    undo. After any other error a failure of the deletion must be raised: a deadlock rolls back all
    that the caller did.
    """
    with contextlib.suppress(*((DBAPIError,) if isinstance(error, DBAPIError) else ())):
        change_by_ids(connection, sql, remove_ids, created)


def load(
    connection: Connection,
    sql: StatementCache,
    given: Sequence[NewMessage] | PlainMessages | PlainPayloads,
) -> None:
    """Insert messages by the engine's fastest path.

    Raises:
        DuplicateKey: a key is taken; nothing of these messages was published.
        PayloadInvalid, PayloadTooLarge: a plain payload is invalid; nothing was published.
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
        for chunk in chunks(batch, _ROWS_PER_LOAD, sql.subject.dialect.statement_bytes):
            _check_alone(sql, chunk)
            rows = chunk.rows(now)
            statement = sql.get(statements.publish_many, rows.count, tuple(rows.differing), False)
            statement.run(connection, rows.values(sql.subject.parameters))


def _now_and_step(connection: Connection, sql: StatementCache) -> tuple[int, int | None]:
    """The database's clock, and the distance of the ids that this session's INSERTs get."""
    step = sql.subject.dialect.id_step
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
    limit = sql.subject.dialect.statement_bytes
    if limit is None:
        return
    given = [value for value in values if isinstance(value, str | bytes)]
    if (sum(map(len, given)) + _CHARACTERS_PER_ROW) * _BYTES_PER_CHARACTER > limit:
        sql.subject.dialect.check_sent(given)


def _check_alone(sql: StatementCache, batch: Batch) -> None:
    if len(batch) == 1:
        (message,) = batch.messages()
        check_size(sql, [message.key, *message.content.values()])


def _inserting(sql: StatementCache, message: NewMessage, now: int | None) -> CompiledStatement:
    at_once = now is None and message.at is None and not message.delay
    names = tuple([name for name, value in message.content.items() if value is not None])
    return sql.get(statements.publish, message.key is not None, names, at_once)


def _insert(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> int:
    statement, values = _inserting(sql, message, now), message.given(sql.subject.parameters, now)
    result = statement.run(connection, values)
    if sql.subject.dialect.insert_returning:
        return int(result.scalar_one())
    return int(result.lastrowid)


def _insert_keyed(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> int | None:
    dialect = sql.subject.dialect
    statement, values = _inserting(sql, message, now), message.given(sql.subject.parameters, now)
    nested = dialect.aborts_on_error and not dialect.conflict_clause
    with connection.begin_nested() if nested else contextlib.nullcontext():
        result = statement.run(connection, values)
    if dialect.insert_returning:
        row = result.first()
        return None if row is None else int(row[0])
    return int(result.lastrowid)


def _live_by_key(connection: Connection, sql: StatementCache, key: str) -> MessageRow | None:
    found = sql.get(statements.live_by_key).run(connection, {"p_key": key})
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
    if _changes_nothing(connection, sql, message, existing):
        return Published(existing.id, PublishOutcome.UNCHANGED)
    values = message.given(sql.subject.parameters, now, timed=True) | {"p_id_0": existing.id}
    del values["p_message_key"]
    sql.get(statements.replace).run(connection, values)
    return Published(existing.id, PublishOutcome.REPLACED)


def _recently_finished(
    connection: Connection, sql: StatementCache, messages: Sequence[NewMessage]
) -> Mapping[str, int]:
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
    """Whether a replace would change nothing; a delay always means another time.

    The engine may round or reformat a value of an own column. So if only such columns differ, they
    are written, read again and compared.
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
    # NaN is not equal to itself.
    return not any(changes(value, other)) or (value != value and other != other)  # noqa: PLR0124


def _publish_chunk(
    connection: Connection,
    sql: StatementCache,
    chunk: Batch,
    on_conflict: str,
    *,
    now: int,
    step: int | None,
    created: list[int],
) -> list[Published]:
    ids = _insert_chunk(connection, sql, chunk, now, step)
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
    connection: Connection, sql: StatementCache, chunk: Batch, now: int, step: int | None
) -> dict[str | None, list[int]] | None:
    """Insert in one statement; the new ids by key, in order. None: insert one by one."""
    dialect, keyed = sql.subject.dialect, chunk.keyed
    clean_failure = dialect.undoes_failed_insert and not dialect.aborts_on_error
    if not (dialect.insert_returning or step) or (
        keyed and not dialect.conflict_clause and not clean_failure
    ):
        return None
    parts: list[Sequence[Any]] = []
    try:
        found = dialect.publish_rows(connection, sql, chunk.rows(now))
        if found is None:
            for part in chunks(chunk, _ROWS_PER_INSERT, dialect.statement_bytes):
                parts += _insert_values(connection, sql, part, now, step)
            found = parts
    except DBAPIError as error:
        # This statement was undone; now undo the earlier parts of the batch.
        take_out(connection, sql, [row[0] for row in parts], error)
        # Inserting one by one finds out which key is taken.
        if keyed and dialect.classify(error) is ErrorKind.DUPLICATE:
            return None
        raise
    if not keyed:
        return {None: sorted([row[0] for row in found])}
    ids: dict[str | None, list[int]] = {}
    # By the id alone, because keys may be None, which cannot be sorted.
    for message_id, key in sorted(found, key=itemgetter(0)):
        ids.setdefault(key, []).append(message_id)
    return ids


def _insert_values(
    connection: Connection, sql: StatementCache, batch: Batch, now: int, step: int | None
) -> Sequence[Sequence[Any]]:
    _check_alone(sql, batch)
    rows, dialect = batch.rows(now), sql.subject.dialect
    statement = sql.get(statements.publish_many, rows.count, tuple(rows.differing))
    # The error ends our own transaction, but the caller's may continue.
    clean = dialect.undoes_failed_insert or direct_calls(connection) is not None
    with contextlib.nullcontext() if clean else connection.begin_nested():
        result = statement.run(connection, rows.values(sql.subject.parameters))
        if dialect.insert_returning:
            return result.all()
    first, keys = result.lastrowid, rows.column("message_key")
    return [(first + index * (step or 1), key) for index, key in enumerate(keys)]
