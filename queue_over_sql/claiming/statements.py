"""Statements that claim messages and read the claimed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Integer, Select, Update, delete, false, literal, select, update

from queue_over_sql.queues.registry import may_claim
from queue_over_sql.statements.claims import (
    eligible,
    finds_first,
    found_first,
    in_claim_order,
    oldest_first,
    stamp_values,
)
from queue_over_sql.statements.parameters import (
    among_ids,
    number,
    uncounted,
    update_by_id,
    words,
)

if TYPE_CHECKING:
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.statements.requests import Where


def pick_ids(tables: QueueTables, where: Where | None) -> Select[Any]:
    """Find the oldest eligible messages without locking them."""
    return (
        select(tables.live.c.id)
        .where(eligible(tables, where), may_claim(tables))
        .order_by(*oldest_first(tables))
        .limit(number("p_count"))
    )


def pick_rows(tables: QueueTables, where: Where | None) -> Select[Any]:
    """Lock and read the oldest eligible messages, skipping locked ones; the clock comes last."""
    columns = *tables.message_columns(tables.live), tables.expressions.now().label("now")
    if finds_first(tables, where):
        found = found_first(tables, columns, where, may_claim(tables))
        return found.limit(number("p_count"))
    statement = (
        select(*columns)
        .where(eligible(tables, where, ranged=where is None), may_claim(tables))
        .limit(number("p_count"))
        .with_for_update(skip_locked=tables.features.skip_locked)
    )
    return in_claim_order(statement, tables, where)


def anything_eligible(tables: QueueTables, where: Where | None) -> Select[Any]:
    """Whether there is anything to claim, without writing."""
    return (
        select(literal(1, Integer()))
        .select_from(tables.live)
        .where(eligible(tables, where), may_claim(tables))
        .limit(1)
    )


def mark(tables: QueueTables, size: int) -> Update:
    """Stamp rows that this transaction has locked."""
    stamp = stamp_values(tables, number("p_now"))
    return update_by_id(tables).where(among_ids(tables.live, size)).values(stamp)


def mark_where_eligible(tables: QueueTables, size: int, where: Where | None) -> Update:
    """Stamp rows that are still eligible; the first claim gets them."""
    return (
        update_by_id(tables)
        .where(among_ids(tables.live, size), eligible(tables, where))
        .values(stamp_values(tables, tables.expressions.now()))
    )


def stamped(tables: QueueTables) -> Select[Any]:
    """Read the messages of one claim."""
    live = tables.live
    return select(*tables.message_columns(live)).where(
        live.c.consumer_id == words("p_consumer"), live.c.consumer_round == number("p_round")
    )


def change_nothing(tables: QueueTables) -> Delete:
    """What a server or a transaction that only reads refuses; for queues with rules."""
    return delete(tables.only_with_rules[0]).where(false())


def unclaim_round(tables: QueueTables) -> Update:
    """Give back, uncounted, the messages of a claim whose answer was lost."""
    return unclaim_all(tables).where(tables.live.c.consumer_round == number("p_round"))


def unclaim_all(tables: QueueTables) -> Update:
    """Give back, uncounted, all messages that a consumer holds."""
    live = tables.live
    held = (tables.expressions.is_claimed(live), live.c.consumer_id == words("p_consumer"))
    hint = tables.expressions.rounds_index_hint(tables.base_name)
    of_all = update(live) if hint is None else update(live).with_hint(hint)
    return of_all.where(*held).values(uncounted(tables))
