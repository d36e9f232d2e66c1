"""Attempts: what became of each failed attempt of a message, also after it is archived.

A row is written in the transaction that ends the attempt. An attempt that succeeds writes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Select,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)

from queue_over_sql.errors import DatabaseUnavailable, Locked, QueueError, visible
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.operations import change_by_ids, refusal, rows_by_ids
from queue_over_sql.statements.parameters import (
    among_ids,
    batches,
    id_parameters,
    id_values,
    number,
)
from queue_over_sql.values.durations import instant
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


_log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_ATTEMPTS_TOLD: Final = 20
"""How many attempts of a message are kept; the oldest ones go."""
LOST: Final = "lost"
HELD: Final = "held"
_LONGEST_ERROR: Final = 2_000
_LONGEST_TRACEBACK: Final = 8_000
# How long nothing is written after the database has refused it.
_PAUSE_SECONDS: Final = 60.0
# In one statement.
_MOST_ROWS: Final = 64
_SAVEPOINT: Final = "queue_over_sql_attempts"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A failed attempt of a message.

    Attributes:
        attempt: its number, from 1 on.
        outcome: ``retried``; ``failed`` and ``rejected``: the message became a dead letter;
            ``lost``: the consumer died, or its lease expired; ``held``: the database refused to
            archive the message.
        began_at: when it was claimed; None if that is unknown.
        ended_at: when it failed, or when somebody noticed that its claim was lost.
        consumer_id: the consumer that had it.
        worker: the name of this consumer. This and the next two are None if its registration was
            gone.
        host, pid: where it ran.
        error: why it failed, at most the first 2,000 characters.
        traceback: of the exception, at most its last 8,000 characters; None if there was none.
    """

    attempt: int
    outcome: str
    began_at: datetime | None
    ended_at: datetime
    consumer_id: str
    worker: str | None
    host: str | None
    pid: int | None
    error: str | None
    traceback: str | None


class Failure(NamedTuple):
    """A failed attempt to write; times in microseconds."""

    message_id: int
    attempt: int
    consumer_id: str
    began_at: int | None
    outcome: str
    error: str | None
    traceback: str | None = None


class AttemptLog:
    """Writes the failed attempts of one queue with what ends them.

    It never keeps a message from being settled: if the database refuses the rows, it goes on
    without them.
    """

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._paused_until = -math.inf

    def run(
        self,
        operation: Operation[T],
        run: Callable[[Operation[T]], T],
        failures: Callable[[T], Sequence[Failure]] | None,
    ) -> T:
        """Run an operation, and write the failures of its result in the same transaction."""
        if failures is None or time.monotonic() < self._paused_until:
            return run(operation)
        writing = False

        def do(connection: Connection) -> T:
            nonlocal writing
            writing = False
            result = operation.do(connection)
            if rows := failures(result):
                writing = True
                self._write(connection, rows)
                writing = False
            return result

        try:
            return run(operation._replace(do=do, atomic=True))
        except QueueError as error:
            if not writing:
                raise
            # A connection that broke says nothing of the table.
            if isinstance(error, Locked) or not isinstance(error, DatabaseUnavailable):
                self._pause(error)
        return run(operation)

    def inside(
        self, operation: Operation[T], failures: Callable[[T], Sequence[Failure]] | None
    ) -> Operation[T]:
        """As ``run``, for an operation in the caller's transaction."""
        if failures is None:
            return operation

        def do(connection: Connection) -> T:
            result = operation.do(connection)
            rows = failures(result)
            if rows and time.monotonic() >= self._paused_until:
                write = partial(self._write, connection, rows)
                error = refusal(connection, self._context.sql, _SAVEPOINT, write)
                if error is not None:
                    self._pause(error)
            return result

        return operation._replace(do=do)

    def _pause(self, error: Exception) -> None:
        self._paused_until = time.monotonic() + _PAUSE_SECONDS
        _log.warning(
            "Queue %s: failed attempts cannot be written to queue_over_sql_attempts, so the "
            "messages are settled without that. The next try is in a minute. %s",
            self._context.name,
            visible(str(error), keep=""),
            extra={"queue": self._context.name},
        )

    def _write(self, connection: Connection, failures: Sequence[Failure]) -> None:
        sql = self._context.sql
        holders = self._holders(connection, {each.consumer_id for each in failures})
        for rows in _in_powers_of_two(failures):
            values: dict[str, Any] = {}
            for index, row in enumerate(rows):
                worker, host, pid = holders.get(row.consumer_id, (None, None, None))
                values |= {
                    f"p_message_id_{index}": row.message_id,
                    f"p_attempt_{index}": row.attempt,
                    f"p_consumer_id_{index}": row.consumer_id,
                    f"p_worker_{index}": worker,
                    f"p_host_{index}": host,
                    f"p_pid_{index}": pid,
                    f"p_began_at_{index}": row.began_at,
                    f"p_outcome_{index}": row.outcome,
                    f"p_error_{index}": row.error and row.error[:_LONGEST_ERROR],
                    f"p_traceback_{index}": row.traceback and row.traceback[-_LONGEST_TRACEBACK:],
                }
            sql.get(insert_attempts, len(rows)).run(connection, values)
        if len(failures) == 1 and failures[0].attempt > MOST_ATTEMPTS_TOLD:
            # Those of several messages at once are left to the reaper.
            last = failures[0].attempt - MOST_ATTEMPTS_TOLD
            values = {"p_id_0": failures[0].message_id, "p_attempt": last}
            sql.get(forget_earlier).run(connection, values)

    def _holders(
        self, connection: Connection, consumer_ids: set[str]
    ) -> dict[str, tuple[str, str, int]]:
        found: dict[str, tuple[str, str, int]] = {}
        for consumer_id in consumer_ids:
            if (mine := self._context.consumer.registration(consumer_id)) is not None:
                found[consumer_id] = mine
        if others := sorted(consumer_ids - found.keys()):
            found |= read_holders(connection, self._context.sql, others)
        return found


def read_attempts(context: QueueContext, message_id: int) -> list[Attempt]:
    """The failed attempts of a message, the oldest first; see ``Queue.attempts``."""
    rows = context.run(lambda c: context.sql.get(attempts_of).run(c, {"p_id_0": message_id}).all())
    return [
        Attempt(
            attempt=row[0],
            outcome=row[1],
            began_at=None if row[2] is None else instant(row[2]),
            ended_at=instant(row[3]),
            consumer_id=row[4],
            worker=printable(row[5]),
            host=printable(row[6]),
            pid=row[7],
            error=printable(row[8]),
            traceback=printable(row[9]),
        )
        for row in reversed(rows)
    ]


def prune_attempts(
    connection: Connection, sql: StatementCache, after: int, limit: int
) -> tuple[int, int | None]:
    """Forget attempts of messages that are gone, and those that are too many.

    Args:
        connection: outside of a transaction, so that each statement sees what is committed. A
            message that is being archived is then found in the queue or in the archive.
        sql: the queue's statements.
        after: the last message that was looked at.
        limit: how many messages to look at.

    Returns:
        How many messages were concerned; the last one that was looked at, None at the end.
    """
    values = {"p_after": after, "p_count": limit}
    told: Sequence[Any] = sql.get(messages_told).run(connection, values).all()
    ids = [row[0] for row in told]
    if not ids:
        return 0, None
    gone = set(ids)
    for archived in dict.fromkeys((False, not sql.subject.ends_in_place)):
        builder = existing_archived if archived else existing_live
        gone -= {row[0] for row in rows_by_ids(connection, sql, builder, ids)}
    changed = len(gone)
    if gone:
        change_by_ids(connection, sql, forget_messages, sorted(gone))
    for message_id, count in told:
        if count > MOST_ATTEMPTS_TOLD and message_id not in gone:
            wanted = {"p_id_0": message_id, "p_kept": MOST_ATTEMPTS_TOLD}
            oldest = sql.get(oldest_kept).run(connection, wanted).scalar()
            if oldest is not None:
                wanted = {"p_id_0": message_id, "p_ended": oldest}
                sql.get(forget_older).run(connection, wanted)
                changed += 1
    return changed, ids[-1] if len(ids) == limit else None


def read_holders(
    connection: Connection, sql: StatementCache, consumer_ids: Sequence[str]
) -> dict[str, tuple[str, str, int]]:
    """The names, hosts and processes of those of the consumers that are registered."""
    consumers = sql.subject.system.consumers.c
    wanted = select(consumers.consumer_id, consumers.name, consumers.host, consumers.pid)
    rows = connection.execute(wanted.where(consumers.consumer_id.in_(consumer_ids)))
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def carry_over(connection: Connection, sql: StatementCache, ids: Mapping[int, int]) -> None:
    """Give the attempts of requeued messages to their new ids, in a transaction that has written.

    Args:
        connection: the connection.
        sql: the queue's statements.
        ids: the new ids, by the former ones.
    """

    def move() -> None:
        for batch in batches(sorted(ids)):
            values: dict[str, Any] = dict(id_values(batch))
            former = [values[f"p_id_{index}"] for index in range(len(values))]
            values |= {f"p_new_{index}": ids[each] for index, each in enumerate(former)}
            sql.get(move_attempts, len(former)).run(connection, values)

    if error := refusal(connection, sql, _SAVEPOINT, move):
        _log.debug("Attempts of requeued messages are not kept: %s", error)


def _in_powers_of_two(rows: Sequence[Failure]) -> Iterator[Sequence[Failure]]:
    """Split rows, so that a few texts of statements serve any number."""
    start = 0
    while start < len(rows):
        size = min(_MOST_ROWS, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


# -- statements

_GIVEN: Final = (
    *("message_id", "attempt", "consumer_id", "worker", "host", "pid"),
    *("began_at", "outcome", "error", "traceback"),
)
_READ: Final = (
    *("attempt", "outcome", "began_at", "ended_at"),
    *("consumer_id", "worker", "host", "pid", "error", "traceback"),
)


def insert_attempts(tables: QueueTables, size: int) -> Insert:
    """Write attempts that end now."""
    attempts, reason = tables.system.attempts, tables.expressions.reason_type()
    types = {name: attempts.c[name].type for name in _GIVEN} | {"error": reason}
    types |= {"traceback": reason}
    same = {"table_prefix": tables.prefix, "queue": tables.queue}
    rows = [
        same
        | {name: bindparam(f"p_{name}_{index}", None, type_=types[name]) for name in _GIVEN}
        | {"ended_at": tables.expressions.now()}
        for index in range(size)
    ]
    return insert(attempts).values(rows if size > 1 else rows[0])


def attempts_of(tables: QueueTables) -> Select[Any]:
    """The attempts of a message, the newest first."""
    attempts = tables.system.attempts
    wanted = select(*[attempts.c[name] for name in _READ]).where(*_of_message(tables))
    return wanted.order_by(*_newest_first(tables)).limit(2 * MOST_ATTEMPTS_TOLD)


def messages_told(tables: QueueTables) -> Select[Any]:
    """The next messages that have attempts, and how many."""
    ids = tables.system.attempts.c.message_id
    wanted = select(ids, func.count()).where(*_of_queue(tables), ids > number("p_after"))
    return wanted.group_by(ids).order_by(ids).limit(number("p_count"))


def existing_live(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the ids are rows of the queue."""
    return select(tables.live.c.id).where(among_ids(tables.live, size))


def existing_archived(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the ids are in the archive."""
    return select(tables.archive.c.id).where(among_ids(tables.archive, size))


def forget_messages(tables: QueueTables, size: int) -> Delete:
    """Forget the attempts of messages."""
    ids = tables.system.attempts.c.message_id.in_(id_parameters(size))
    return delete(tables.system.attempts).where(*_of_queue(tables), ids)


def move_attempts(tables: QueueTables, size: int) -> Update:
    """Give the attempts of messages to other ids."""
    ids, old = tables.system.attempts.c.message_id, id_parameters(size)
    new = case(*[(ids == each, number(f"p_new_{at}")) for at, each in enumerate(old)], else_=ids)
    moved = update(tables.system.attempts).where(*_of_queue(tables), ids.in_(old))
    return moved.values(message_id=new)


def forget_earlier(tables: QueueTables) -> Delete:
    """Forget the first attempts of a message."""
    early = tables.system.attempts.c.attempt <= number("p_attempt")
    return delete(tables.system.attempts).where(*_of_message(tables), early)


def oldest_kept(tables: QueueTables) -> Select[Any]:
    """When the newest attempt ended of those that are too many."""
    wanted = select(tables.system.attempts.c.ended_at).where(*_of_message(tables))
    return wanted.order_by(*_newest_first(tables)).limit(1).offset(number("p_kept"))


def forget_older(tables: QueueTables) -> Delete:
    """Forget the attempts of a message that ended by then."""
    old = tables.system.attempts.c.ended_at <= number("p_ended")
    return delete(tables.system.attempts).where(*_of_message(tables), old)


def _newest_first(tables: QueueTables) -> list[ColumnElement[Any]]:
    columns = tables.system.attempts.c
    return [columns.ended_at.desc(), columns.attempt.desc()]


def _of_message(tables: QueueTables) -> list[ColumnElement[bool]]:
    return [*_of_queue(tables), tables.system.attempts.c.message_id == number("p_id_0")]


def _of_queue(tables: QueueTables) -> list[ColumnElement[bool]]:
    columns = tables.system.attempts.c
    return [columns.table_prefix == tables.prefix, columns.queue == tables.queue]
