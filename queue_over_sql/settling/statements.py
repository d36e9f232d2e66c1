"""Statements of the consumer that holds a claim, each fenced by the claim's stamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Delete,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    select,
)

from queue_over_sql.archive.statements import finished
from queue_over_sql.schema.queue_tables import MOST_ATTEMPTS
from queue_over_sql.statements.parameters import (
    CLAIM_CLEARED,
    among_ids,
    by_id,
    fence,
    id_parameters,
    number,
    reason,
    stamped_by,
    uncounted,
    update_by_id,
)

if TYPE_CHECKING:
    from queue_over_sql.schema.queue_tables import QueueTables


CLAIM_FACTS: Final = (
    *("id", "attempt_count", "max_attempts", "lease_us"),
    *("consumer_id", "consumer_round", "claimed_at", "lease_expires_at"),
)


def held(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that the claim still holds."""
    locked = select(tables.live.c.id).where(fence(tables, size)).with_for_update()
    return by_id(tables, locked, tables.live)


def held_in_key_order(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that anybody holds, in the order in which Python sorts their keys."""
    claimed = (among_ids(tables.live, size), tables.expressions.is_claimed(tables.live))
    keys = tables.expressions.as_code_points(tables.key())
    return select(tables.live.c.id).where(*claimed).order_by(keys).with_for_update()


def still_there(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the ids are live, whoever holds them."""
    return select(tables.live.c.id).where(among_ids(tables.live, size), *tables.live_only())


def existing(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the ids are rows at all."""
    return select(tables.live.c.id).where(among_ids(tables.live, size))


def stamped(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the ids the claim still holds, without a lock."""
    return select(tables.live.c.id).where(fence(tables, size))


def headers_of(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that the claim still holds, and read their headers as text."""
    live = tables.live
    headers = tables.expressions.read_payload(live.c.headers)
    locked = select(live.c.id, headers).where(fence(tables, size)).with_for_update()
    return by_id(tables, locked, live)


def claimed_messages(tables: QueueTables, size: int) -> Select[Any]:
    """The messages of these ids with their stamps, whoever holds them, after the time."""
    found = select(tables.expressions.now(), *tables.message_columns(tables.live))
    return found.where(among_ids(tables.live, size))


def claims(tables: QueueTables, size: int) -> Select[Any]:
    """As ``claimed_messages``, but only the claims: attempts, stamps and leases."""
    wanted = [tables.live.c[name] for name in CLAIM_FACTS]
    return select(tables.expressions.now(), *wanted).where(among_ids(tables.live, size))


def remove(tables: QueueTables, size: int, unblocking: bool = False) -> ClauseElement:
    """End messages under the fence; if ``unblocking``, none behind which others may be parked."""
    live = tables.live
    alone = [live.c.blocks.is_(None)] if unblocking else []
    if tables.end_returning:
        ending = end(tables, and_(fence(tables, size), *alone)).returning(live.c.id)
        return tables.expressions.by_range_of_ids(ending) if size > 1 else ending
    if tables.ends_in_place:
        ended = update_by_id(tables).where(fence(tables, size), *alone)
        return ended.values(finished(tables))
    held = and_(stamped_by(tables), *alone)
    return tables.expressions.delete_by_ids(live, id_parameters(size), held)


def end(tables: QueueTables, which: ColumnElement[bool]) -> Delete | Update:
    """End messages: remove them, or store the outcome in a user's row."""
    return tables.end(which, lambda: finished(tables))


def release(tables: QueueTables, size: int) -> ClauseElement:
    """Give messages back at their place; the attempt does not count."""
    return _fenced_update(tables, size, uncounted(tables))


def release_later(tables: QueueTables, size: int) -> ClauseElement:
    """Give messages back after a delay; the attempt does not count."""
    due = {"available_at": tables.expressions.now() + number("p_delay")}
    return _fenced_update(tables, size, uncounted(tables) | due)


def restore(tables: QueueTables, size: int) -> ClauseElement:
    """Give messages of a dead claim back at their place; the attempt counts."""
    return _fenced_update(tables, size, _failed(tables))


def restore_with_another(tables: QueueTables, size: int) -> ClauseElement:
    """As ``restore``; the attempt counts, and they get one more."""
    allowed = func.coalesce(tables.live.c.max_attempts, number("p_max_attempts"))
    another = case((allowed < MOST_ATTEMPTS, allowed + 1), else_=allowed)
    return _fenced_update(tables, size, _failed(tables) | {"max_attempts": another})


def retry(tables: QueueTables, size: int) -> ClauseElement:
    """Give failed messages back after a delay."""
    due = {"available_at": tables.expressions.now() + number("p_delay")}
    return _fenced_update(tables, size, _failed(tables) | due)


def _failed(tables: QueueTables) -> dict[str, Any]:
    last = {"last_attempt_at": tables.expressions.now(), "last_error": reason(tables)}
    return CLAIM_CLEARED | dict(tables.after_failure()) | last


def hold_refused(tables: QueueTables, size: int) -> ClauseElement:
    """Hold messages that cannot end; no consumer gets them."""
    return _fenced_update(tables, size, held_as_refused(tables))


def hold_locked(tables: QueueTables) -> ClauseElement:
    """As ``hold_refused``, for an unclaimed message that this transaction has locked."""
    return update_by_id(tables).where(among_ids(tables.live, 1)).values(held_as_refused(tables))


def held_as_refused(tables: QueueTables) -> dict[str, Any]:
    """The values of a message that is held with a reason; no consumer gets it."""
    held = {"available_at": None, **tables.unparked()}
    return _failed(tables) | dict(tables.still_live()) | held


def set_aside(tables: QueueTables, size: int) -> ClauseElement:
    """Defer messages that do not fit their kind here; the attempt does not count."""
    return _fenced_update(tables, size, uncounted(tables) | _aside(tables))


def set_locked_aside(tables: QueueTables) -> ClauseElement:
    """As ``set_aside``, for an unclaimed message that this transaction has locked."""
    return update_by_id(tables).where(among_ids(tables.live, 1)).values(_aside(tables))


def _aside(tables: QueueTables) -> dict[str, Any]:
    now = tables.expressions.now()
    return {
        "available_at": now + number("p_delay"),
        "last_attempt_at": now,
        "last_error": reason(tables),
        "headers": bindparam("p_headers", None, type_=tables.live.c.headers.type),
    }


def keep_result(tables: QueueTables, size: int) -> ClauseElement:
    """Write headers with the result, before the message ends."""
    headers = bindparam("p_headers", None, type_=tables.live.c.headers.type)
    return _fenced_update(tables, size, {"headers": headers})


def extend(tables: QueueTables, size: int) -> ClauseElement:
    """Renew leases."""
    return _fenced_update(tables, size, {"lease_expires_at": number("p_expires")})


def _fenced_update(tables: QueueTables, size: int, values: dict[str, Any]) -> ClauseElement:
    statement = update_by_id(tables).where(fence(tables, size)).values(values)
    return statement.returning(tables.live.c.id) if tables.features.update_returning else statement


def lock_one(tables: QueueTables) -> Select[Any]:
    """Lock one live message, even if a consumer holds it, and read its key."""
    live = tables.live
    wanted = (among_ids(live, 1), *tables.live_only())
    return select(live.c.id, tables.key()).where(*wanted).with_for_update()
