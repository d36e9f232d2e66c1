"""The transfer of columns: how an engine reads, writes and takes messages as Arrow columns."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Select, Table
from sqlalchemy.types import TypeEngine

from queue_over_sql.sql.compiled import StatementCache

if TYPE_CHECKING:
    import pyarrow as pa


class Columns(abc.ABC):
    """Reads, writes and takes columns; needs PyArrow."""

    arrow_type: Callable[[TypeEngine[Any]], pa.DataType]
    """Returns the Arrow type for a column's values."""

    @abc.abstractmethod
    def read_column(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Select a user's column in a form that ``read`` can read."""

    @abc.abstractmethod
    def read_content(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Select a payload or headers so that ``read`` gets their text or bytes."""

    @abc.abstractmethod
    def read(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        """Run a SELECT and yield its result as Arrow batches, in the fastest available way.

        Args:
            connection: one of ``Connections.reading()``. Only committed data are read, because
                another connection to the same database may be used.
            statement: its columns are those of the schema, in that order. Instants of the schema
                are microseconds since the epoch, and maps are JSON objects.
            schema: of the batches.
            batch_bytes: the largest size of a batch, unless a single row is larger.

        Raises:
            sqlalchemy.exc.DBAPIError: the database refused it, or is unavailable.
            ValueError: a value does not fit the schema; the message names the column.
        """

    @abc.abstractmethod
    def write(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        batches: Iterable[pa.RecordBatch],
    ) -> int:
        """Insert rows given as columns, in the engine's fastest way.

        Args:
            connection: in a transaction, because this is one operation.
            table: the target.
            names: the columns to fill; each batch has them, and may have others.
            batches: columns of the Arrow types of their SQL types; texts are ``string``.

        Returns:
            How many rows were inserted.
        """

    @abc.abstractmethod
    def take(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any], *, keep: bool
    ) -> pa.RecordBatch | None:
        """Take the oldest messages of a level, sorted; None if they must be taken as rows.

        Args:
            connection: the caller's, inside a transaction.
            sql: the queue's statements.
            values: ``p_priority``, ``p_low``, ``p_edits`` and ``p_count``.
            keep: whether finished messages are archived.
        """
