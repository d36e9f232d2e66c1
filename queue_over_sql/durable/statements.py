"""Statements of durable consumers: claim a round, read it, end it, all on sets.

The messages of a round are found by their lease if there is an index on the lease, which is the
purpose of ``lease_of_round``; otherwise by their consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Select,
    Subquery,
    Update,
    and_,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from queue_over_sql.archive import statements as archive
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.settling import statements as settle
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import (
    among_ids,
    by_holder,
    by_id,
    fence,
    number,
    uncounted,
    update_by_id,
    words,
)

if TYPE_CHECKING:
    from queue_over_sql.schema.queue_tables import QueueTables


def within(tables: QueueTables) -> ColumnElement[bool]:
    """The conditions of a round besides its size."""
    return and_(tables.live.c.id <= number("p_up_to"), due_by(tables, number("p_due")))


def due_by(tables: QueueTables, latest: ColumnElement[int]) -> ColumnElement[bool]:
    """The condition for messages that were due at a time, and did not fail since.

    What waited for others of its group became available when it was woken, but was due before.
    """
    due = tables.due_at() <= latest
    if not tables.grouped:
        return due
    unbegun = tables.live.c.attempt_count == literal_column("0")
    return or_(due, and_(unbegun, tables.due_first() <= latest))


def eligible(tables: QueueTables) -> ColumnElement[bool]:
    """The condition for messages that a round may claim."""
    return and_(claim.eligible(tables, None), may_claim(tables), within(tables))


def stamp_values(tables: QueueTables) -> dict[str, Any]:
    """The values that the claim of a round writes; its lease never ends."""
    return claim.stamp_values(tables, tables.expressions.now(), number("p_expires"))


def pick_ids(tables: QueueTables) -> Select[Any]:
    """Find the oldest eligible messages without locking them."""
    return (
        select(tables.live.c.id)
        .where(eligible(tables))
        .order_by(*claim.oldest_first(tables))
        .limit(number("p_count"))
    )


def lock_ids(tables: QueueTables) -> Select[Any]:
    """Lock the oldest eligible messages, skipping locked ones; see ``claiming``'s ``pick_rows``."""
    hint = tables.expressions.claim_index_hint(tables.base_name)
    picked = pick_ids(tables).with_for_update(skip_locked=tables.features.skip_locked)
    return picked if hint is None else picked.order_by(None).with_hint(tables.live, hint)


def mark(tables: QueueTables, size: int, locked: bool) -> Update:
    """Stamp rows that this transaction has locked, or else rows that are still eligible."""
    still = [] if locked else [eligible(tables)]
    ids = among_ids(tables.live, size)
    return update_by_id(tables).where(ids, *still).values(stamp_values(tables))


def mark_picked(tables: QueueTables) -> Update:
    """Lock and stamp in one statement, for engines that can update by a join."""
    picked = lock_ids(tables).subquery("picked")
    return update(tables.live).where(tables.live.c.id == picked.c.id).values(stamp_values(tables))


def count_eligible(tables: QueueTables) -> Select[Any]:
    """Count the messages of one level that rounds may claim, up to a limit."""
    # Ordered, because otherwise a planner may read a table full of dead rows.
    some = pick_ids(tables).subquery()
    return select(func.count()).select_from(some)


def last_id(tables: QueueTables) -> Select[Any]:
    """The largest id."""
    return select(func.max(tables.live.c.id))


def of_round(tables: QueueTables) -> ColumnElement[bool]:
    """The condition for messages that this round still holds."""
    live = tables.live
    return and_(
        live.c.consumer_id == words("p_consumer"),
        live.c.consumer_round == number("p_round"),
        live.c.lease_expires_at == number("p_expires"),
    )


def of_rounds(tables: QueueTables) -> ColumnElement[bool]:
    """The condition for messages that one of these rounds still holds; leases decrease by round."""
    live = tables.live
    return and_(
        live.c.consumer_id == words("p_consumer"),
        live.c.consumer_round >= number("p_round"),
        live.c.consumer_round <= number("p_last_round"),
        live.c.lease_expires_at <= number("p_expires"),
        live.c.lease_expires_at >= number("p_last_expires"),
    )


def read_round(tables: QueueTables) -> Select[Any]:
    """Read the messages of a round."""
    return by_holder(tables, select(*tables.message_columns(tables.live)).where(of_round(tables)))


def expired_of_round(tables: QueueTables) -> Select[Any]:
    """The messages of a round that had expired when it was claimed, and how long they waited."""
    live = tables.live.c
    late = (of_round(tables), live.expires_at <= live.claimed_at, live.attempt_count <= 1)
    return by_holder(tables, select(live.id, live.expires_at - live.published_at).where(*late))


def count_rounds(tables: QueueTables) -> Select[Any]:
    """Count the messages of rounds."""
    return by_holder(tables, select(func.count()).select_from(tables.live).where(of_rounds(tables)))


def lock_rounds(tables: QueueTables) -> Select[Any]:
    """Lock the messages of rounds and read their keys and rounds."""
    live = tables.live
    looked = select(live.c.id, live.c.message_key, live.c.consumer_round)
    looked = looked.where(of_rounds(tables))
    return by_holder(tables, looked).with_for_update()


def groups_behind_rounds(tables: QueueTables) -> Select[Any]:
    """The groups that wait for messages of rounds, which this transaction has locked."""
    live = tables.live
    carriers = (of_rounds(tables), live.c.blocks.is_not(None), live.c.group_key.is_not(None))
    return by_holder(tables, select(live.c.group_key).where(*carriers)).with_for_update()


def _picked_of_rounds(tables: QueueTables) -> Subquery:
    """The ids of rounds, locked, for a join; the LIMIT keeps it a separate table."""
    found = by_holder(tables, select(tables.live.c.id).where(of_rounds(tables)))
    return found.limit(number("p_count")).with_for_update().subquery("picked")


def remove_picked(tables: QueueTables) -> Delete | Update:
    """As ``remove_rounds``, by a join with the ids."""
    same = tables.live.c.id == _picked_of_rounds(tables).c.id
    return settle.end(tables, same)


def unclaim_picked(tables: QueueTables) -> Update:
    """As ``unclaim_rounds``, by a join with the ids."""
    same = tables.live.c.id == _picked_of_rounds(tables).c.id
    return update(tables.live).where(same).values(uncounted(tables))


def remove_rounds(tables: QueueTables) -> Delete | Update:
    """End the messages of rounds."""
    return settle.end(tables, of_rounds(tables))


def copy_rounds_to_archive(tables: QueueTables) -> Insert:
    """Copy the messages of rounds to the archive; the same transaction removes them."""
    source = select(*archive.archived_values(tables, tables.live)).where(of_rounds(tables))
    names = archive.archived_names(tables)
    return insert(tables.archive).from_select(names, by_holder(tables, source))


def forget_keys(tables: QueueTables) -> Delete:
    """Delete stored keys before messages that have them end again."""
    memory, live = tables.dedup_keys, tables.live
    ending = select(live.c.message_key).where(of_rounds(tables), live.c.message_key.is_not(None))
    return delete(memory).where(memory.c.message_key.in_(by_holder(tables, ending)))


def remember_keys(tables: QueueTables) -> Insert:
    """Store the keys of locked messages of rounds that are about to end."""
    live, now = tables.live, tables.expressions.now()
    ending = select(live.c.message_key, live.c.id, now + number("p_dedup")).where(
        of_rounds(tables), live.c.message_key.is_not(None)
    )
    names = ["message_key", "message_id", "expires_at"]
    return insert(tables.dedup_keys).from_select(names, by_holder(tables, ending))


def unclaim_rounds(tables: QueueTables) -> Update:
    """Give the messages of rounds back at their places, uncounted."""
    return update(tables.live).where(of_rounds(tables)).values(uncounted(tables))


def held_attempts(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that a round still holds.

    It reads the attempts that were made and are allowed, and when the message was claimed.
    """
    live = tables.live
    allowed = func.coalesce(live.c.max_attempts, number("p_max_attempts"))
    columns = (live.c.id, live.c.attempt_count, allowed, live.c.claimed_at)
    held = select(*columns).where(fence(tables, size)).with_for_update()
    return by_id(tables, held, live)
