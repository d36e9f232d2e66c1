"""Acts: what to do on a connection, and whether it needs a transaction; loops over many ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection

from queue_over_sql.dialects.compiled import StatementCache
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values

T = TypeVar("T")


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


class Act(NamedTuple, Generic[T]):
    """Something to do on a connection.

    Attributes:
        do: the function that does it.
        atomic: whether it is several statements, which need a transaction around them.
    """

    do: Callable[[Connection], T]
    atomic: bool = True
