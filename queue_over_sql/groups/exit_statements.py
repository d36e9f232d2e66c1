"""Statements about messages that leave the hands of a consumer, and those that wait behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import CompoundSelect, Select, Update, literal_column, select, union_all

from queue_over_sql.groups.statements import among_groups, by_group, group_parameters
from queue_over_sql.statements.parameters import (
    among_ids,
    by_id,
    fence,
    number,
    stamped_by,
    update_by_id,
)

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql.schema.queue_tables import QueueTables


def lock(tables: QueueTables, size: int) -> Select[Any]:
    """Lock messages: id, group, whether others are parked behind it."""
    return _locked(tables, among_ids(tables.live, size))


def lock_held(tables: QueueTables, size: int) -> Select[Any]:
    """As ``lock``, those of the ids that the claim still holds."""
    return _locked(tables, fence(tables, size))


def _locked(tables: QueueTables, which: ColumnElement[bool]) -> Select[Any]:
    live = tables.live
    locked = select(live.c.id, live.c.group_key, live.c.blocks).where(which).with_for_update()
    return by_id(tables, locked, live)


def next_parked(tables: QueueTables, size: int, skipping: bool) -> CompoundSelect[Any]:
    """The first parked messages of groups, ``p_count`` of each: id and group.

    It locks them, where the engine can lock in a part of a statement.
    """
    live = tables.live
    found = []
    for place, name in enumerate(group_parameters(live, size)):
        of_group = tables.expressions.in_group(live.c.group_key, name)
        waiting = (of_group, live.c.consumer_id.is_(None))
        first: Select[Any] = select(live.c.id, live.c.group_key)
        first = first.where(*waiting, live.c.parked_at.is_not(None))
        order = tables.expressions.order_in_group(live)
        first = by_group(tables, first, live).order_by(*order).limit(number("p_count"))
        if tables.features.locks_inside:
            first = first.with_for_update(skip_locked=skipping and tables.features.skip_locked)
        part = first.subquery(f"g{place}")
        found.append(select(part.c.id, part.c.group_key))
    return union_all(*found)


def newest_parked(tables: QueueTables) -> Select[Any]:
    """Lock the first ``p_count`` parked messages of a group, as they are committed by now: id."""
    live = tables.live
    waiting = (live.c.consumer_id.is_(None), live.c.parked_at.is_not(None))
    first = select(live.c.id).where(among_groups(live, 1), *waiting)
    first = by_group(tables, first, live).order_by(*tables.expressions.order_in_group(live))
    return first.limit(number("p_count")).with_for_update()


def lock_parked(tables: QueueTables, size: int, skipping: bool) -> Select[Any]:
    """Lock those of the ids that are still parked: id and group."""
    live = tables.live
    still = (live.c.consumer_id.is_(None), live.c.parked_at.is_not(None))
    locked = select(live.c.id, live.c.group_key).where(among_ids(live, size), *still)
    skips = skipping and tables.features.skip_locked
    return by_id(tables, locked.with_for_update(skip_locked=skips), live)


def unpark(tables: QueueTables, size: int) -> Update:
    """Move parked messages back into the claim index, each as one behind which others may wait.

    They are due now: at their old time they would lie below the watermarks of claims.
    """
    live = tables.live
    back = {"available_at": tables.expressions.now(), "parked_at": None}
    parked = (among_ids(live, size), live.c.parked_at.is_not(None))
    return update_by_id(tables).where(*parked).values(**back, blocks=literal_column("1"))


def came_back(tables: QueueTables, size: int) -> Select[Any]:
    """Those of the ids that have a group and nobody holds: id, group, whether others are parked."""
    live = tables.live
    free = (live.c.consumer_id.is_(None), live.c.group_key.is_not(None))
    found = select(live.c.id, live.c.group_key, live.c.blocks).where(among_ids(live, size), *free)
    return by_id(tables, found, live)


def of_claim(tables: QueueTables, size: int) -> Select[Any]:
    """What a claim holds of groups: id and group."""
    live = tables.live
    held = (among_groups(live, size), tables.expressions.is_claimed(live), stamped_by(tables))
    return by_group(tables, select(live.c.id, live.c.group_key).where(*held), live)
