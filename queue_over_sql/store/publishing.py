"""Acts that put messages in."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.base import ErrorKind
from queue_over_sql.dialects.rows import read_rows
from queue_over_sql.dialects.statements import publish as statements
from queue_over_sql.dialects.statements.claim import remove_ids
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.errors import DuplicateKey, QueueError
from queue_over_sql.publications import Published, PublishOutcome
from queue_over_sql.store.administration import server_now
from queue_over_sql.store.keys import recently_finished

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow

# How many rows one INSERT carries at most.
_ROWS_PER_INSERT = 256
# And how much text: servers bound the size of a statement (MariaDB at 16 MiB by default).
_CHARACTERS_PER_INSERT = 2_000_000
# A live message with the key may finish between our INSERT and our look at it; then we go again.
_KEY_RACES = 50


@dataclasses.dataclass(frozen=True, slots=True)
class NewMessage:
    """A publication, checked and encoded; ``at`` and ``delay`` in microseconds.

    ``dedup``: its key may be taken by a message that finished a short while ago.
    """

    key: str | None
    content: Mapping[str, Any]
    delay: int
    at: int | None
    dedup: bool = False

    def values(self, now: int | None = None) -> dict[str, Any]:
        """The bind parameters of a publish by the database's clock, or by ``now`` of its batch."""
        given = {f"p_{name}": value for name, value in self.content.items()}
        at = self.at if now is None else self.due(now)
        return given | {"p_message_key": self.key, "p_delay": self.delay, "p_at": at}

    def due(self, now: int) -> int:
        """When it is due if it is published at ``now``."""
        return now + self.delay if self.at is None else self.at

    def row(self, now: int) -> dict[str, Any]:
        """The values of its row, published at ``now``."""
        due = self.due(now)
        times = {"published_at": now, "scheduled_at": due, "available_at": due}
        return {**self.content, **times, "message_key": self.key}


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
    connection: Connection, sql: StatementCache, messages: Sequence[NewMessage], on_conflict: str
) -> list[Published]:
    """Insert messages in their order; all or, where a key is taken and that is an error, none.

    Raises:
        DuplicateKey: as in ``publish``; what this call had inserted is removed again.
    """
    now = server_now(connection, sql)
    published: list[Published] = []
    created: list[int] = []
    try:
        for chunk in _chunks(messages):
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


def load(connection: Connection, sql: StatementCache, messages: Sequence[NewMessage]) -> None:
    """Insert messages by the engine's fastest path.

    Raises:
        DuplicateKey: a key is taken; nothing of these messages was published.
    """
    now = server_now(connection, sql)
    dedup = any(message.dedup for message in messages)
    rows = [message.row(now) for message in messages]
    if dedup or not sql.subject.dialect.load(connection, sql, rows):
        publish_many(connection, sql, messages, "raise")


def _insert(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> int:
    result = sql.get(statements.publish, False).run(connection, message.values(now))
    if sql.subject.dialect.insert_returning:
        return int(result.scalar_one())
    return int(result.lastrowid)


def _insert_keyed(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> int | None:
    dialect = sql.subject.dialect
    statement = sql.get(statements.publish, True)
    if dialect.aborts_on_error and not dialect.conflict_clause:
        with connection.begin_nested():
            result = statement.run(connection, message.values(now))
    else:
        result = statement.run(connection, message.values(now))
    if dialect.insert_returning:
        row = result.first()
        return None if row is None else int(row[0])
    return int(result.lastrowid)


def _live_by_key(connection: Connection, sql: StatementCache, key: str) -> MessageRow | None:
    rows = read_rows(sql, sql.get(statements.live_by_key).run(connection, {"p_key": key}))
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
    if _same(message, existing):
        return Published(existing.id, PublishOutcome.UNCHANGED)
    values = message.values(now) | {"p_id_0": existing.id}
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
        while size > 1 and _weight(messages[start : start + size]) > _CHARACTERS_PER_INSERT:
            size //= 2
        yield messages[start : start + size]
        start += size


def _weight(messages: Sequence[NewMessage]) -> int:
    return sum(len(message.content["payload"]) for message in messages)


def _publish_chunk(
    connection: Connection,
    sql: StatementCache,
    chunk: Sequence[NewMessage],
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
            for message in chunk
        ]
    created += [message_id for same in ids.values() for message_id in same]
    finished = _recently_finished(connection, sql, chunk)
    published = []
    for message in chunk:
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
        result = sql.get(statements.publish_many, len(chunk)).run(connection, values)
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
