"""Loops over many ids, and savepoints, for operations on messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from queue_over_sql.errors import QueueError
from queue_over_sql.sql.compiled import StatementCache, run_text
from queue_over_sql.statements.parameters import batches, bucket_of, id_values

_SAVEPOINT: Final = "queue_over_sql_row"
_CHANGE: Final = "queue_over_sql_change"
_MOST_REFUSED: Final = 50


def rows_by_ids(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    ids: Sequence[int],
    values: Mapping[str, Any] | None = None,
) -> list[Sequence[Any]]:
    """Run a statement for all ids, in batches; returns all rows."""
    rows: list[Sequence[Any]] = []
    for batch in batches(ids):
        statement = sql.get(builder, bucket_of(len(batch)))
        rows += statement.run(connection, {**(values or {}), **id_values(batch)}).all()
    return rows


def change_by_ids(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    ids: Sequence[int],
    values: Mapping[str, Any] | None = None,
) -> int:
    """As ``rows_by_ids``, but returns how many rows were changed."""
    changed = 0
    for batch in batches(ids):
        statement = sql.get(builder, bucket_of(len(batch)))
        changed += statement.run(connection, {**(values or {}), **id_values(batch)}).rowcount
    return changed


@contextlib.contextmanager
def savepoint(connection: Connection, name: str = _SAVEPOINT) -> Iterator[Callable[[], None]]:
    """Undo the block alone if it fails, or if it calls what it gets; then it may go on.

    The transaction must have begun to write. A savepoint inside needs another name, because MySQL
    forgets the outer one of the same name.
    """

    def undo() -> None:
        run_text(connection, f"ROLLBACK TO SAVEPOINT {name}").close()

    run_text(connection, f"SAVEPOINT {name}").close()
    try:
        yield undo
    except QueueError:
        # It must not hide that the undoing failed: a deadlock undoes all that the caller did.
        undo()
        raise
    except BaseException:
        # After an error such as a deadlock, the savepoint may be gone as well.
        with contextlib.suppress(SQLAlchemyError):
            undo()
        raise
    run_text(connection, f"RELEASE SAVEPOINT {name}").close()


def refusal(
    connection: Connection, sql: StatementCache, name: str, write: Callable[[], object]
) -> DBAPIError | None:
    """Write in a transaction that must go on, whatever becomes of this; the error, if any.

    ``name``: of the savepoint, as in ``savepoint``.
    """
    try:
        with savepoint(connection, name):
            write()
    except DBAPIError as error:
        undoes = sql.subject.dialect.errors.undoes_transaction
        if error.orig is None or undoes(connection, error.orig):
            raise
        return error
    return None


def write_apart(
    connection: Connection,
    sql: StatementCache,
    name: str,
    ids: Sequence[int],
    write: Callable[[Sequence[int]], object],
    *,
    refused: dict[int, str],
    most: int | None = None,
) -> int:
    """Write messages, and leave out those of which the database refuses it.

    Args:
        connection: in a transaction that has begun to write.
        sql: the queue's statements.
        name: of the savepoint.
        ids: the messages.
        write: writes messages.
        refused: gets the reasons of those that are left out, by id.
        most: with so many refused ones it looks at no others.

    Returns:
        How many were written.
    """
    if not ids or (most is not None and len(refused) >= most):
        return 0
    error = refusal(connection, sql, name, lambda: write(ids))
    if error is None:
        return len(ids)
    if not sql.subject.dialect.errors.refuses_row(error):
        raise error
    if len(ids) == 1:
        refused[ids[0]] = " ".join(str(error.orig).split())
        return 0
    middle = len(ids) // 2
    return sum(
        write_apart(connection, sql, name, half, write, refused=refused, most=most)
        for half in (ids[:middle], ids[middle:])
    )


def change_allowed(
    connection: Connection, sql: StatementCache, builder: Callable[..., Any], ids: Sequence[int]
) -> int:
    """As ``change_by_ids``; in a block of ``carefully`` without what the database refuses."""
    change = partial(change_by_ids, connection, sql, builder)
    if not is_careful():
        return change(ids)
    return write_apart(connection, sql, _CHANGE, ids, change, refused={}, most=_MOST_REFUSED)


_careful: ContextVar[bool] = ContextVar("careful", default=False)


def is_careful() -> bool:
    """Whether this is a block of ``carefully``."""
    return _careful.get()


@contextlib.contextmanager
def carefully() -> Iterator[None]:
    """In the block, what the database refuses to wake or to park keeps nothing else from it.

    That costs savepoints, so it is for operations that were refused before.
    """
    before = _careful.set(True)
    try:
        yield
    finally:
        _careful.reset(before)


def apart(
    connection: Connection,
    sql: StatementCache,
    ids: Sequence[int],
    end: Callable[[Sequence[int]], set[int]],
    hold: Callable[[Sequence[int], str], object],
) -> tuple[set[int], dict[int, str]]:
    """End messages, and hold those that the database refuses to end.

    An archive may refuse a row because of an id that it has, or because of a constraint or a
    trigger of the user's own. Such a row would keep the others of its batch from ending, for ever.

    Args:
        connection: in a transaction that has begun to write.
        sql: the queue's statements.
        ids: the messages.
        end: ends messages; returns those that it found.
        hold: holds a message, with the reason.

    Returns:
        The messages that ended; the reasons of those that are held, by id.
    """
    try:
        with savepoint(connection):
            return end(ids), {}
    except DBAPIError as error:
        engine = sql.subject.dialect
        undone = error.orig is None or engine.errors.undoes_transaction(connection, error.orig)
        if undone or not engine.errors.refuses_row(error):
            raise
        reason = " ".join(str(error.orig).split())
    if len(ids) == 1:
        try:
            with savepoint(connection):
                hold(ids, reason)
        except DBAPIError as error:
            if error.orig is None or not engine.errors.cannot_read(error.orig):
                raise
            # The reaper holds it, once nobody has a lease on it.
            return set(), {}
        return set(), {ids[0]: reason}
    ended, held = set[int](), dict[int, str]()
    for some in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
        done, refused = apart(connection, sql, some, end, hold)
        ended |= done
        held |= refused
    return ended, held
