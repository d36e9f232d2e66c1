"""Reading through the driver of the connection, row by row: for engines without a faster way."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.arrow.batches import batches_of_rows
from queue_over_sql.dialects.arrow.types import arrow_type, wide_type
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import ColumnElement, Connection, Select
    from sqlalchemy.types import TypeEngine


class ReadsRows:
    """What a dialect reads of a result, and how: through the driver of the connection."""

    def arrow_type(self, kind: TypeEngine[Any]) -> pa.DataType:
        """The Arrow type that the values of a column become."""
        return arrow_type(kind)

    def read_column(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How a column of the user's is selected so that ``read_arrow`` gets what it can read."""
        return column

    def read_payload(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How a payload is selected so that the driver returns ``str`` or ``bytes`` unchanged."""
        return column

    def read_content(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How a payload or headers are selected so that ``read_arrow`` gets their text or bytes."""
        return self.read_payload(column)

    def read_arrow(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        """Run a SELECT and yield its result as Arrow batches, by the fastest way there is here.

        Args:
            connection: one of ``Connections.reading()``. What is read is what was committed,
                because the way may lead over another connection to the same database.
            statement: its columns are those of the schema, in that order; times are microseconds
                since the epoch where the schema has instants, objects of JSON where it has maps.
            schema: of the batches.
            batch_bytes: the size that a batch may have; a single row may be larger.

        Raises:
            sqlalchemy.exc.DBAPIError: the database refused it or cannot be reached.
            ValueError: a value cannot be what the schema says; the text names the column.
        """
        text, parameters = CompiledStatement(statement, connection.dialect).bound()
        with driver_errors(connection, text):
            cursor = driver_connection(connection).cursor()
            try:
                cursor.execute(text, parameters)
                yield from batches_of_rows(cursor.fetchmany, schema, batch_bytes)
            finally:
                cursor.close()


class ReadsWideIntegers(ReadsRows):
    """For engines whose integers have 64 bits, whatever their column says."""

    def arrow_type(self, kind: TypeEngine[Any]) -> pa.DataType:
        """The same, with room for any integer."""
        return wide_type(kind)
