"""Statements that publish messages, and replace the one that has a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Update,
    bindparam,
    case,
    func,
    null,
    select,
    update,
)

from queue_over_sql.publishing.new_messages import CONTENT
from queue_over_sql.schema.queue_tables import KEY_RELEASED, MESSAGE_COLUMNS
from queue_over_sql.statements.parameters import CLAIM_CLEARED, NEW_LIFE, number, words

if TYPE_CHECKING:
    from queue_over_sql.schema.queue_tables import QueueTables


_PUBLISHED: Final = {"message_key", *CONTENT, "published_at", "scheduled_at", "available_at"}


EXPIRY: Final = "expires_at"
"""The column that a publish fills only if one of its messages expires."""


def insert_columns(tables: QueueTables) -> list[str]:
    """The columns that each publish fills."""
    return [*(name for name in MESSAGE_COLUMNS if name in _PUBLISHED), *tables.own_columns]


def columns_of(tables: QueueTables, differing: tuple[str, ...]) -> list[str]:
    """The columns of a publish of many messages, of which these differ."""
    names = insert_columns(tables)
    return [*names, EXPIRY] if EXPIRY in differing else names


def publish(
    tables: QueueTables, keyed: bool, given: tuple[str, ...], at_once: bool, expiring: bool
) -> Insert:
    """Insert one message, due now, after a delay or at a time, by the database's clock.

    ``given`` are the columns besides the key that are not NULL.
    """
    live = tables.live
    now = tables.expressions.now()
    due = now if at_once else func.coalesce(number("p_at"), now + number("p_delay"))
    values = {name: value_of(tables, name) for name in given}
    if keyed:
        values["message_key"] = value_of(tables, "message_key")
    times = {"published_at": now, "scheduled_at": due, "available_at": due}
    if expiring:
        times["expires_at"] = (now if at_once else _begins(tables)) + number("p_expires")
    statement = tables.expressions.insert(live).values(values | times)
    return _returning(tables, statement, live.c.published_at, keyed=keyed)


def _begins(tables: QueueTables) -> ColumnElement[Any]:
    """From when an expiry counts: the time at which a message is due, if that is still to come."""
    now = tables.expressions.now()
    return case((number("p_at") > now, number("p_at")), else_=now)


def publish_many(
    tables: QueueTables,
    size: int,
    differing: tuple[str, ...],
    returning: bool = True,
    locking: bool = False,
) -> Insert:
    """Insert ``size`` messages with times computed from the database's clock.

    Columns with equal values are one parameter each. ``locking``: lock the messages that have their
    keys; no two of the new ones may have the same key.
    """
    names, live = columns_of(tables, differing), tables.live
    same = {name: value_of(tables, name) for name in names if name not in differing}
    rows = [
        same | {name: value_of(tables, name, index) for name in differing} for index in range(size)
    ]
    statement = tables.expressions.insert(live).values(rows)
    if not returning:
        return statement.inline()
    return _returning(tables, statement, live.c.message_key, keyed=True, locking=locking)


def publish_rows(tables: QueueTables, size: int, names: tuple[str, ...]) -> Insert:
    """Insert ``size`` messages with these columns, row by row; returns nothing."""
    rows = [{name: value_of(tables, name, index) for name in names} for index in range(size)]
    return tables.expressions.insert(tables.live).values(rows).inline()


def value_of(tables: QueueTables, name: str, row: int | None = None) -> ColumnElement[Any]:
    """The parameter of a column, for a message or for one of several."""
    parameter = tables.parameters[name]
    parameter = parameter if row is None else f"{parameter}_{row}"
    return bindparam(parameter, None, type_=tables.live.c[name].type)


def _returning(
    tables: QueueTables,
    statement: Insert,
    also: ColumnElement[Any],
    *,
    keyed: bool,
    locking: bool = False,
) -> Insert:
    """Return the ids, and another column."""
    if keyed and tables.features.conflict_clause:
        statement = skip_taken(tables, statement, locking=locking)
    if tables.features.insert_returning:
        return statement.returning(tables.live.c.id, also)
    # Without RETURNING the driver's last insert id is read; SQLAlchemy must add nothing.
    return statement.inline()


def skip_taken(tables: QueueTables, statement: Insert, *, locking: bool) -> Insert:
    """Let an INSERT leave out messages whose keys are taken, and maybe lock those that have them.

    It writes nothing into them.
    """
    if locking and "last_error" in tables.live.c:
        kept = {tables.live.c.last_error: null()}
        return tables.expressions.lock_conflict(statement, tables.unique_key, kept)
    return tables.expressions.ignore_conflict(statement, tables.unique_key)


def live_by_key(tables: QueueTables) -> Select[Any]:
    """Read and lock the live message that holds a key."""
    held = tables.holds_key(words("p_key"))
    return select(*tables.message_columns(tables.live)).where(held).with_for_update()


def release_key(tables: QueueTables) -> Update:
    """Let a message keep its key without holding it."""
    live = tables.live
    return update(live).where(live.c.id == number("p_id_0")).values({KEY_RELEASED: live.c.id})


def came_back(tables: QueueTables, size: int) -> Select[Any]:
    """Find the messages that have one of these keys without holding it, and their consumers.

    It locks nothing: to lock a range of keys would make other publishers wait on some engines. It
    does not ask for unclaimed ones: PostgreSQL without statistics would read the claim index.
    """
    live = tables.live
    keys = live.c.message_key.in_([words(f"p_key_{index}") for index in range(size)])
    return select(live.c.id, live.c.consumer_id).where(keys, live.c[KEY_RELEASED] != 0)


def still_waiting(tables: QueueTables) -> Select[Any]:
    """Read and lock a message, if it still waits."""
    live = tables.live
    wanted = (live.c.id == number("p_id_0"), live.c.consumer_id.is_(None))
    return select(*tables.message_columns(live)).where(*wanted).with_for_update()


def change_own(tables: QueueTables, names: tuple[str, ...]) -> Update:
    """Change own columns of a live message; its holder keeps it."""
    values = {name: value_of(tables, name) for name in names}
    return update(tables.live).where(tables.live.c.id == number("p_id_0")).values(values)


def replace(tables: QueueTables) -> Update:
    """Replace a live message's content under its id; its holder loses the claim."""
    live = tables.live
    kept = {"message_key", "published_at"}
    due = func.coalesce(number("p_at"), tables.expressions.now() + number("p_delay"))
    times = {"scheduled_at": due, "available_at": due}
    expiry = {EXPIRY: _begins(tables) + number("p_expires")}
    given = {
        name: value_of(tables, name)
        for name in insert_columns(tables)
        if name not in times and name not in kept
    }
    fresh = NEW_LIFE | dict(tables.unparked())
    return (
        update(live)
        .where(live.c.id == number("p_id_0"))
        .values(given | times | expiry | fresh | CLAIM_CLEARED)
    )
