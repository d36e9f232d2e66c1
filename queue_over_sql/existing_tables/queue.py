"""AdoptedQueue: a queue whose messages are the rows of your own table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import BigInteger, and_, literal

from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.existing_tables import store as existing_store
from queue_over_sql.message import Publication, Published
from queue_over_sql.publishing.new_messages import naming_item
from queue_over_sql.publishing.publisher import (
    Publisher,
    as_items,
    as_publication,
    due,
    encode_options,
)
from queue_over_sql.queue import Queue
from queue_over_sql.sql.conditions import check_condition, rebased
from queue_over_sql.values.checks import check_function, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from sqlalchemy import Column, ColumnElement, Connection

    from queue_over_sql.message import CallersConnection
    from queue_over_sql.values.durations import Duration


_BEFORE_ALL = -(2**63)
_BATCH = 5_000


class AdoptedQueue(Queue[Mapping[str, Any]]):
    """A queue over your own table. ``QueueService.adopt_queue`` creates it.

    ``message.row`` has your columns of the row. A finished row stays in the table, with its
    ``status``, ``outcome``, ``finished_at``, attempts and last error.
    """

    def enqueue(
        self,
        where: ColumnElement[bool] | None = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        connection: CallersConnection | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Enqueue rows that were never messages, in one statement.

        Args:
            where: only rows that match this SQLAlchemy condition on ``table``, or on your own
                ``Table`` or mapped class.
            delay: the messages become due after this time.
            at: the messages become due at this time; instead of ``delay``.
            priority: their priority.
            connection: the caller's own transaction, which this does not commit.
            progress: enqueue in transactions of 5,000 rows, and call this function after each with
                the number so far.

        Returns:
            How many rows were enqueued.

        Raises:
            TypeError, ValueError: an argument has an invalid value.
        """
        check_function("progress", progress)
        levels = self._core.context.settings.priorities
        values = _when(delay, at)
        values["p_priority"] = check_whole("priority", priority, 0, levels - 1)
        conditions = self._conditions(where)
        if progress is None:
            return self._enqueue(conditions, values, connection)
        total = 0
        for part in self._batches(conditions, connection):
            total += self._enqueue([*conditions, part], values, connection)
            progress(total)
        return total

    def count_new(self, where: ColumnElement[bool] | None = None) -> int:
        """Count the rows that match ``where`` and were never enqueued."""
        sql, conditions = self._core.context.sql, self._conditions(where)
        return self._core.context.run(
            lambda connection: existing_store.count_new(connection, sql, conditions)
        )

    def _conditions(self, where: ColumnElement[bool] | None) -> list[ColumnElement[bool]]:
        if where is None:
            return []
        check_condition(where)
        return [rebased(where, self.table)]

    def _enqueue(
        self,
        conditions: Sequence[ColumnElement[bool]],
        values: Mapping[str, Any],
        connection: CallersConnection | None,
    ) -> int:
        context, began = self._core.context, time.monotonic()
        enqueueing = existing_store.enqueue.of(context.sql, conditions, values)
        count = context.run(enqueueing, connection)
        if count and context.observer is not None:
            context.observer.published(context.name, count, time.monotonic() - began, ())
        return count

    def _batches(
        self, conditions: Sequence[ColumnElement[bool]], connection: CallersConnection | None
    ) -> Iterator[ColumnElement[bool]]:
        context, key, after = self._core.context, self.table.c.id, _BEFORE_ALL

        def look(target: Connection) -> int | None:
            return existing_store.last_of_next(target, context.sql, conditions, after, _BATCH)

        while (last := context.run(look, connection)) is not None:
            # With its type, because the key may have a smaller type than the number below all keys.
            yield and_(key > literal(after, BigInteger()), key <= literal(last, BigInteger()))
            after = last

    def __repr__(self) -> str:
        return f"<AdoptedQueue {self.name}>"


class RowPublisher(Publisher):
    """Publishes by inserting rows into the adopted table."""

    def publish(
        self,
        publication: Publication,
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> Published:
        """Insert one row; see ``Queue.publish``."""
        return self._insert([publication], on_conflict, connection)[0]

    def publish_many(
        self,
        items: Iterable[Any],
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> list[Published]:
        """Insert several rows, all or none; see ``Queue.publish_many``."""
        return self._insert(
            [as_publication(item) for item in as_items(items)], on_conflict, connection
        )

    def _load_batch(self, items: list[Any], start: int) -> int:
        return len(self._insert([as_publication(each) for each in items], "raise", None, start))

    def _insert(
        self,
        publications: Sequence[Publication],
        on_conflict: str,
        connection: CallersConnection | None,
        start: int = 0,
    ) -> list[Published]:
        context = self._context
        if on_conflict != "raise":
            _refuse("on_conflict", "its messages have no keys")
        rows: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
        with naming_item(rows, publications, start):
            rows.extend(self._row(publication) for publication in publications)
        ids = context.run(existing_store.publish_rows.of(context.sql, rows), connection)
        return list(map(Published, ids))

    def _row(self, publication: Publication) -> tuple[tuple[str, ...], Mapping[str, Any]]:
        """The keys of the columns that a publication sets, and the bind parameters.

        Raises:
            PayloadInvalid: the payload is not a mapping of columns to values.
            TypeError, ValueError: a column or an option is invalid; the message names it.
        """
        if publication.key is not None:
            _refuse("key", "use a unique constraint on a column of the table instead")
        if publication.kind is not None:
            _refuse("kind", "all rows of a table have the same kind")
        if publication.group is not None:
            _refuse("group", "put it into the payload, in the column that names groups")
        if publication.expires is not None:
            _refuse("expires", "its rows stay until you delete them")
        if publication.columns:
            _refuse(
                "columns as keywords", "put them into the payload, a mapping of columns to values"
            )
        columns = self._columns(publication.payload)
        encoded = encode_options(publication, self._context.settings.priorities)
        options = {f"p_{name}": value for name, value in encoded.items()}
        names = self._context.tables.parameters
        given = {names[key]: value for key, value in columns.items()}
        times = _when(publication.delay, publication.at)
        return tuple(sorted(columns)), given | options | times

    def _columns(self, payload: Any) -> dict[str, Any]:
        tables = self._context.tables
        if not isinstance(payload, Mapping):
            msg = (
                f"The payload of queue {self._context.name!r} must be a row: a mapping of column "
                f"names to values, not {type(payload).__name__}."
            )
            raise PayloadInvalid(msg)
        keys = {tables.live.c[key].name: key for key in tables.users_columns}
        unknown = sorted(str(name) for name in payload if name not in keys)
        if unknown:
            msg = (
                f"the table of queue {self._context.name!r} has no column {', '.join(unknown)}; "
                f"its columns are: {', '.join(keys)}"
            )
            raise TypeError(msg)
        values = {keys[name]: value for name, value in payload.items()}
        columns = [tables.live.c[key] for key in tables.users_columns]
        for column in columns:
            if str(column.key) not in values and _has_python_default(column):
                by_name = {name: values[key] for name, key in keys.items() if key in values}
                values[str(column.key)] = _python_default(column, by_name)
        missing = [c.name for c in columns if _is_missing(c, values)]
        if missing:
            msg = (
                f"the table of queue {self._context.name!r} requires a value for its column "
                f"{', '.join(missing)}"
            )
            raise TypeError(msg)
        return values


def _is_missing(column: Column[Any], values: Mapping[str, Any]) -> bool:
    if column.nullable or values.get(str(column.key)) is not None:
        return False
    if str(column.key) in values:
        return True
    fills_itself = column.server_default is not None or column.default is not None
    return not (fills_itself or column.primary_key)


def _has_python_default(column: Column[Any]) -> bool:
    default: Any = column.default
    return default is not None and (default.is_scalar or default.is_callable)


class _RowSoFar:
    """What a default that looks at the other values of its row gets of SQLAlchemy's context."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.current_parameters = dict(values)

    def get_current_parameters(self, **_options: bool) -> dict[str, Any]:
        """The values. The options are for statements of several rows."""
        return self.current_parameters


def _python_default(column: Column[Any], values: Mapping[str, Any]) -> Any:
    default: Any = column.default
    return default.arg if default.is_scalar else default.arg(_RowSoFar(values))


def _when(delay: Duration | None, at: datetime | None) -> dict[str, int | None]:
    wait, instant = due(delay, at)
    return {"p_delay": wait, "p_at": instant}


def _refuse(option: str, instead: str) -> NoReturn:
    msg = f"{option} is not possible for an adopted table: {instead}"
    raise ValueError(msg)
