"""DELETE by ids that reads no other rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Executable, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeleteByIds(Executable, ClauseElement):
    """Joins the table with the ids in this order.

    With ``id IN (…)`` both servers read the whole table if they expect few rows in it, past all
    finished messages that are not purged yet, and wait for rows that other consumers have locked,
    which then wait for ours. A DELETE takes no hint for that, except in a join.
    """

    inherit_cache = False

    def __init__(
        self, table: Table, ids: Sequence[ColumnElement[Any]], condition: ColumnElement[bool] | None
    ) -> None:
        self.table = table
        self.ids = ids
        self.condition = condition


@compiles(DeleteByIds)
def _deletion_as_sql(deletion: DeleteByIds, compiler: Any, **options: Any) -> str:
    table = compiler.preparer.format_table(deletion.table)
    key = compiler.process(deletion.table.c.id, **options)
    ids = ", ".join(compiler.process(each, **options) for each in deletion.ids)
    sql = (
        f"DELETE {table} FROM JSON_TABLE(JSON_ARRAY({ids}), '$[*]' COLUMNS (id BIGINT PATH '$'))"
        f" AS picked STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {key} = picked.id"
    )
    if deletion.condition is None:
        return sql
    return f"{sql} WHERE {compiler.process(deletion.condition, **options)}"
