"""Conditions of users: checked, and put on the table that the queue itself works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ClauseElement, Column, Table
from sqlalchemy.sql import visitors

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


def check_condition(condition: Any) -> None:
    """Let an SQLAlchemy expression pass.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(condition, ClauseElement):
        msg = "where must be an SQLAlchemy condition, such as queue.table.c.kind == 'invoice'"
        raise TypeError(msg)


def rebased(condition: ColumnElement[bool], table: Table) -> ColumnElement[bool]:
    """Put a condition on ``table`` that was written with another object of the same table.

    Each ``QueueService`` has table objects of its own, and so has the user's own model of an
    adopted table. Without this the condition would add the table a second time: every message
    would match as soon as one does.

    Raises:
        ValueError: it names a column that the table does not have.
    """
    names = {column.name: column for column in table.c}

    def replace(element: Any, **_: Any) -> Any:
        if not isinstance(element, Column) or not _is_other_object_of(element.table, table):
            return None
        if element.name not in names:
            msg = f"where: the table {table.name!r} has no column {element.name!r}"
            raise ValueError(msg)
        return names[element.name]

    moved: ColumnElement[bool] = visitors.replacement_traverse(condition, {}, replace)
    return moved


def _is_other_object_of(given: Any, table: Table) -> bool:
    if not isinstance(given, Table) or given is table or given.name != table.name:
        return False
    return given.schema is None or given.schema == table.schema
