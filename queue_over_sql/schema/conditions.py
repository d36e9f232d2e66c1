"""Conditions of users on columns and on fields of payloads, and how fields are written as paths."""

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
from queue_over_sql.payloads.codec import is_storable, plain

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


JsonPath = Sequence[str | int]
"""The keys, and the positions in lists (from 0), that lead to a field."""

JsonScalar = str | int | float | bool | None
"""What a field may be compared with."""


# Nobody can have stored these; another in each process.
NUL: Final = uuid.uuid4().hex
"""What a NUL character is compared as where a text of the database cannot have one."""
LONE: Final = uuid.uuid4().hex
"""What half of a surrogate pair is compared as, which is no character at all."""


def path_text(path: JsonPath) -> str:
    """The path as ``$."address"."city"[0]``; keys must be free of quotes and backslashes.

    Control characters are written as payloads have them: tables do not take apart what they hold.
    """
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{json.dumps(step, ensure_ascii=False)}"
        for step in path
    ]
    return "$" + "".join(steps)


def without_nul(text: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON with ``NUL`` for each NUL character, and no backslash that is written as two."""
    # Then the escape of a NUL is nothing but that.
    plain = func.replace(text, "\\\\", "\\u005c")
    return func.replace(plain, "\\u0000", NUL)


# SQLite and MySQL have no way to write these inside a quoted key.
_NOT_IN_PATHS: Final = ('"', "\\", "\0")
# An anonymous parameter, after an object and a word.
_PLAIN_NAME: Final = re.compile(r"%\(\d+ \w+\)s")


def check_condition(condition: Any) -> None:
    """Let an SQLAlchemy expression pass.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(condition, ClauseElement) or isinstance(condition, Executable):
        msg = "where must be an SQLAlchemy condition, such as queue.table.c.kind == 'invoice'"
        raise TypeError(msg)


def rebased(condition: ColumnElement[bool], table: Table) -> ColumnElement[bool]:
    """Put a condition on ``table`` that was written with another object of the same table.

    Each ``QueueService`` has table objects of its own, and so has the user's own model of an
    adopted table. Without this the condition would add the table a second time: every message
    would match as soon as one does.

    Raises:
        ValueError: it names a column that the table does not have, or is about another table.
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
    """The parameter of a column with an odd name, under a name of its own; None of any other.

    Drivers get names without dots and the like, so that those of two columns may become one.
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
    """Let fields of a payload to search by pass.

    Raises:
        TypeError: they are no mapping; the text names the argument.
    """
    if not isinstance(wanted, Mapping):
        msg = (
            f"{argument} must be a mapping of paths to values, such as "
            f"{{'address.city': 'Zagreb'}}, not {type(wanted).__name__}"
        )
        raise TypeError(msg)


def payload_path(path: Any, argument: str = "payload") -> list[str | int]:
    """The steps of a path such as ``address.city`` or ``items.0.sku``.

    Raises:
        TypeError, ValueError: it is none; the text names the argument.
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
    return [int(step) if step.isascii() and step.isdigit() else step for step in steps]


def check_payload_value(path: str, value: Any, argument: str = "payload") -> Any:
    """Let a value pass, as plain text or number, that a field of a payload can be compared with.

    Raises:
        ValueError: it is no JSON value, or one with parts; the text names the argument.
    """
    if isinstance(value, str):
        # A NUL may be in a payload, unlike in other texts.
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
