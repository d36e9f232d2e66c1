"""The user's conditions on columns and payload fields, and the syntax of paths to fields."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Column,
    Executable,
    Table,
    bindparam,
    func,
    select,
)
from sqlalchemy.sql import visitors

from queue_over_sql.errors import shown
from queue_over_sql.values.limits import MAX_FIELDS, MAX_STEPS, STEP_LENGTH
from queue_over_sql.values.texts import is_storable, plain

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


JsonPath = Sequence[str | int]
"""The keys and list positions (from 0) that lead to a field."""

JsonScalar = str | int | float | bool | None
"""The values that a field may be compared with."""


# Random texts, different in each process, that no stored value can contain.
NUL: Final = uuid.uuid4().hex
"""Stands for a NUL character in comparisons if the database's text cannot contain one."""
LONE: Final = uuid.uuid4().hex
"""Stands for a lone surrogate in comparisons, which is not a valid character."""


def path_text(path: JsonPath) -> str:
    """The path as ``$."address"."city"[0]``; keys must not contain quotes or backslashes.

    Control characters are escaped as in payloads, because tables search the stored text.
    """
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{json.dumps(step, ensure_ascii=False)}"
        for step in path
    ]
    return "$" + "".join(steps)


def without_nul(text: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON with ``NUL`` for each NUL character, and without escaped backslashes."""
    # Now an escape of NUL cannot be part of another escape.
    plain = func.replace(text, "\\\\", "\\u005c")
    return func.replace(plain, "\\u0000", NUL)


# SQLite and MySQL cannot write these inside a quoted key.
_NOT_IN_PATHS: Final = ('"', "\\", "\0")
# An anonymous parameter, named after an object and a word.
_POSITION: Final = re.compile(r"[0-9]{1,9}")
_PLAIN_NAME: Final = re.compile(r"%\(\d+ \w+\)s")


def check_condition(condition: Any) -> None:
    """Check that a value is an SQLAlchemy expression.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(condition, ClauseElement) or isinstance(condition, Executable):
        msg = "where must be an SQLAlchemy condition, such as queue.table.c.kind == 'invoice'"
        raise TypeError(msg)


def rebased(condition: ColumnElement[bool], table: Table) -> ColumnElement[bool]:
    """Convert a condition that was written with another object of the same table.

    Each ``QueueService`` has its own table objects, and so has the user's model of an adopted
    table. Without this, the condition would add the table a second time, and every message would
    match as soon as one does.

    Raises:
        ValueError: it names a column that the table does not have, or uses another table.
    """
    names = {column.name: column for column in table.c}

    def replace(element: Any, **_: Any) -> Any:
        if isinstance(element, BindParameter):
            return _plainly_named(element)
        if not isinstance(element, Column) or not _is_other_object_of(element.table, table):
            return None
        if element.name not in names:
            msg = f"where: the table {table.name!r} has no column {element.name!r}"
            raise ValueError(msg)
        return names[element.name]

    moved: ColumnElement[bool] = visitors.replacement_traverse(condition, {}, replace)
    others = [other for other in select(moved).get_final_froms() if other is not table]
    if others:
        msg = (
            f"where uses {', '.join(str(other) for other in others)}, but the messages are in "
            f"{table.name}: use the columns of that table, and a subquery (exists, in_) for other "
            "tables"
        )
        raise ValueError(msg)
    return moved


def _plainly_named(bind: BindParameter[Any]) -> BindParameter[Any] | None:
    """A parameter of a column with an odd name, renamed; None for any other element.

    Drivers replace dots and the like in names, so the names of two columns could become equal.
    """
    if not bind.unique or _PLAIN_NAME.fullmatch(bind.key):
        return None
    plain = bindparam(
        None,
        bind.value,
        type_=bind.type,
        unique=True,
        callable_=bind.callable,
        expanding=bind.expanding,
        literal_execute=bind.literal_execute,
    )
    plain.expand_op = bind.expand_op
    return plain


def check_fields(wanted: Any, argument: str = "payload") -> None:
    """Check the payload fields of a search.

    Raises:
        TypeError: they are not a mapping; the message names the argument.
        ValueError: they are too many, or a path is too long for a statement.
    """
    if not isinstance(wanted, Mapping):
        msg = (
            f"{argument} must be a mapping of paths to values, such as "
            f"{{'address.city': 'Zagreb'}}, not {type(wanted).__name__}"
        )
        raise TypeError(msg)
    if len(wanted) > MAX_FIELDS:
        msg = f"{argument} has {len(wanted):,} paths: give at most {MAX_FIELDS}"
        raise ValueError(msg)
    for path in wanted:
        steps = path.split(".") if isinstance(path, str) else []
        if len(steps) > MAX_STEPS or any(len(step) > STEP_LENGTH for step in steps):
            msg = (
                f"{argument}: {shown(path)} is too long: a path has at most {MAX_STEPS} steps of "
                f"{STEP_LENGTH} characters"
            )
            raise ValueError(msg)


def payload_path(path: Any, argument: str = "payload") -> list[str | int]:
    """The steps of a path such as ``address.city`` or ``items.0.sku``.

    Raises:
        TypeError, ValueError: it is not a path; the message names the argument.
    """
    if not isinstance(path, str):
        msg = f"{argument}: a path must be a str such as 'address.city', not {type(path).__name__}"
        raise TypeError(msg)
    steps = path.split(".")
    if steps[0] == "$" and len(steps) > 1:
        msg = f"{argument}: write {shown(path)} without $, such as 'items.0.sku'"
        raise ValueError(msg)
    unfit = not is_storable(path) or any(forbidden in path for forbidden in _NOT_IN_PATHS)
    if not all(steps) or unfit:
        msg = (
            f"{argument}: {shown(path)} is not a path: write keys and positions joined by dots, "
            "such as 'address.city' or 'items.0.sku', without quotes, backslashes or empty steps"
        )
        raise ValueError(msg)
    # A number that is no INTEGER of the database can only be a key.
    return [int(step) if _POSITION.fullmatch(step) else step for step in steps]


def check_payload_value(path: str, value: Any, argument: str = "payload") -> Any:
    """Check a value to compare a payload field with; returns it as plain text or number.

    Raises:
        ValueError: it is not a JSON scalar; the message names the argument.
    """
    if isinstance(value, str):
        # A payload may contain NUL, unlike other texts.
        if is_storable(value.replace("\0", "")):
            return plain(value)
        msg = (
            f"{argument}: {shown(path)} with {shown(value)} contains a lone surrogate, which is "
            "not valid Unicode"
        )
        raise ValueError(msg)
    if value is None or _is_finite(value):
        return plain(value)
    msg = (
        f"{argument}: {shown(path)} can be compared with text, a finite number, True, False or "
        f"None, not with {type(value).__name__} {shown(value)}; list its inner fields one by one"
    )
    raise ValueError(msg)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _is_other_object_of(given: Any, table: Table) -> bool:
    if not isinstance(given, Table) or given is table or given.name != table.name:
        return False
    return given.schema is None or given.schema == table.schema
