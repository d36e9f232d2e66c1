"""Statements that move messages to the archive, or finish and requeue adopted rows in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Insert,
    Select,
    Update,
    bindparam,
    case,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
)

from queue_over_sql.groups.blocking import is_blocking
from queue_over_sql.schema.existing import NOT_ATTEMPTED
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS, UNREAD_COLUMNS
from queue_over_sql.statements.parameters import (
    CLAIM_CLEARED,
    among_ids,
    by_id,
    fence,
    id_parameters,
    next_attempt,
    number,
    reason,
    update_by_id,
    words,
)
from queue_over_sql.statements.requests import archive_columns

if TYPE_CHECKING:
    from sqlalchemy import CTE, Table

    from queue_over_sql.schema.queue_tables import QueueTables


def ending_reason(tables: QueueTables, earlier: ColumnElement[Any]) -> ColumnElement[Any]:
    """Why a dead letter failed; for a done message, why an earlier attempt failed."""
    return case((words("p_outcome", 20) == literal("done"), earlier), else_=reason(tables))


def archived_names(tables: QueueTables) -> list[str]:
    """The columns that are copied to the archive."""
    return [*MESSAGE_COLUMNS, *UNREAD_COLUMNS, *tables.own_columns, "finished_at", "outcome"]


def archived_values(tables: QueueTables, source: Table | CTE) -> list[ColumnElement[Any]]:
    """The values of a row in the archive."""
    now = tables.expressions.now()
    changed = {
        "last_error": ending_reason(tables, source.c.last_error),
        "last_attempt_at": func.coalesce(number("p_attempted"), source.c.last_attempt_at),
    }
    names = [*MESSAGE_COLUMNS, *UNREAD_COLUMNS, *tables.own_columns]
    return [*[changed.get(name, source.c[name]) for name in names], now, words("p_outcome", 20)]


def select_archived(tables: QueueTables, size: int) -> Select[Any]:
    """Read archived messages by id, as ``archive_columns``."""
    return select(*archive_columns(tables)).where(among_ids(tables.archive, size))


def copy_to_archive(tables: QueueTables, size: int) -> Insert:
    """Copy messages to the archive under the fence; the same transaction removes them."""
    source = select(*archived_values(tables, tables.live)).where(fence(tables, size))
    return _copied(tables, source)


def copy_ids_to_archive(tables: QueueTables, size: int) -> Insert:
    """Copy locked messages to the archive by id, for ``take``."""
    source = select(*archived_values(tables, tables.live)).where(among_ids(tables.live, size))
    return _copied(tables, source)


def _copied(tables: QueueTables, source: Select[Any]) -> Insert:
    # It locks what it reads in a caller's transaction on MySQL and MariaDB.
    source = by_id(tables, source, tables.live)
    return insert(tables.archive).from_select(archived_names(tables), source)


def is_live(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the ids are not finished."""
    return select(tables.live.c.id).where(among_ids(tables.live, size), *tables.live_only())


def ending_of(tables: QueueTables, size: int) -> Select[Any]:
    """How messages ended, and their headers as text."""
    archive = tables.archive
    headers = tables.expressions.read_payload(archive.c.headers)
    found = select(archive.c.outcome, archive.c.last_error, headers)
    return found.where(among_ids(archive, size), *tables.finished_only())


def newest_to_go(tables: QueueTables) -> Select[Any]:
    """The newest message of an outcome that is one too many."""
    archive = tables.archive
    return (
        select(archive.c.finished_at, archive.c.id)
        .where(archive.c.outcome == words("p_outcome", 20))
        .order_by(archive.c.finished_at.desc(), archive.c.id.desc())
        .offset(number("p_keep"))
        .limit(1)
    )


def old_in_archive(tables: QueueTables) -> Select[Any]:
    """The oldest messages of an outcome, from a time up to a place; a batch has one time."""
    archive = tables.archive
    at, message_id = archive.c.finished_at, archive.c.id
    # A dead letter that still blocks its group is not dealt with.
    spared = [not_(is_blocking(tables))] if tables.grouped else []
    oldest = (
        select(message_id, at)
        .where(
            archive.c.outcome == words("p_outcome", 20),
            at >= number("p_since"),
            at <= number("p_at"),
            # No OR: for two ranges planners may choose two scans and a sort.
            or_(at != number("p_at"), message_id <= number("p_id_0")),
            *spared,
        )
        .order_by(at, message_id)
        .limit(number("p_count"))
    )
    hint = tables.expressions.archive_index_hint(tables.base_name)
    return oldest if hint is None else oldest.with_hint(archive, hint)


def remove_from_archive(tables: QueueTables, size: int) -> ClauseElement:
    """Remove archived messages by id."""
    return tables.expressions.delete_by_ids(tables.archive, id_parameters(size))


def span(tables: QueueTables) -> Select[Any]:
    """Count the messages that finished between two times, and find the first time."""
    at = tables.archive.c.finished_at
    counted: ColumnElement[Any] = func.count()
    wanted = [*tables.finished_only(), *tables.of_any_outcome()]
    between = (at > number("p_after"), at <= number("p_up_to"))
    return select(counted, func.min(at)).where(*wanted, *between)


def remove_exported(tables: QueueTables, size: int) -> ClauseElement:
    """Remove archived messages by id, unless they have finished again since."""
    archive = tables.archive
    same = archive.c.finished_at <= number("p_up_to")
    return tables.expressions.delete_by_ids(archive, id_parameters(size), same)


def finish_ids(tables: QueueTables, size: int, attempted: bool) -> Update:
    """Finish locked messages in place by id; a ``take`` counts as an attempt."""
    live = tables.live
    counted = {"attempt_count": next_attempt(live)} if attempted else {}
    return update_by_id(tables).where(among_ids(live, size)).values(finished(tables) | counted)


def finished(tables: QueueTables) -> dict[str, Any]:
    """The values of a user's row that is finished as a message."""
    now = tables.expressions.now()
    values = CLAIM_CLEARED | {
        "status": words("p_status", 20),
        "outcome": words("p_outcome", 20),
        "available_at": None,
        "finished_at": now,
        "last_attempt_at": now,
        "last_error": ending_reason(tables, tables.live.c.last_error),
    }
    return values | dict(tables.unparked())


def begin_anew(tables: QueueTables, size: int) -> Update:
    """Requeue finished rows, by id; their attempts start again."""
    live = tables.live
    fresh = dict.fromkeys(("finished_at", "outcome", "last_attempt_at", "last_error"))
    headers = bindparam("p_headers", None, type_=live.c.headers.type)
    given = {"priority": number("p_priority"), "headers": headers, "attempt_count": 0}
    return (
        update_by_id(tables)
        .where(among_ids(live, size), *tables.finished_only())
        .values(begun(tables) | fresh | given)
    )


def begun(tables: QueueTables) -> dict[str, Any]:
    """The values of a user's row that becomes a message."""
    now = tables.expressions.now()
    due = func.coalesce(number("p_at"), now + number("p_delay"))
    return {
        "status": NOT_ATTEMPTED,
        "published_at": now,
        "scheduled_at": due,
        "available_at": due,
    }
