"""Slots: at most so many messages of a queue are in hand, over all processes.

A queue with a limit has a slot for each message that may be in hand. A claim locks free slots,
skipping locked ones, and writes its stamp into them in its own transaction. A slot is free if its
stamp is not that of a claimed message. So settles, the reaper, and edits by SQL write nothing and
know nothing of slots, no row is hot, and no crash leaves a wrong count.

A lowered limit takes slots away: their numbers become negative. What is in hand there still counts,
so a claim moves these stamps into free slots before it uses any.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

from queue_over_sql.limits import statements
from queue_over_sql.message import Claim
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.sql.compiled import StatementCache

    Rows = list[Sequence[Any]]
    Elsewhere = Callable[[Callable[[Connection], Rows]], Rows]

_SPARE: Final = 64
"""How many slots more than it needs a claim tries, since others may lock some of them."""
_AT_ONCE: Final = 256
TAKING: Final = "take"
"""The consumer in the stamps of slots of messages that a caller's transaction takes."""
FIRST_UNLIMITED: Final = -1_000_000
"""Slots of messages that were claimed without regard to the limit have numbers below this."""


def has_room(connection: Connection, sql: StatementCache) -> bool:
    """Whether a slot seems to be free, without writing."""
    return bool(sql.get(statements.free_slots).run(connection, {"p_count": 1}).all())


def reserve(connection: Connection, sql: StatementCache, count: int) -> list[int]:
    """Lock up to ``count`` free slots until the transaction ends, for a claim in it.

    It writes nothing if none is free.
    """
    return _reserve(connection, sql, count, None)


def reserve_for_caller(
    connection: Connection,
    sql: StatementCache,
    count: int,
    elsewhere: Elsewhere | None,
    used: Collection[int] = (),
) -> list[int]:
    """As ``reserve``, in a caller's transaction, which may have used slots already.

    Args:
        connection: the caller's.
        sql: the queue's statements.
        count: the largest number of slots.
        elsewhere: reads what is committed, on another connection; None: there is no other one.
        used: the slots that the transaction has used, if nothing else tells that.
    """
    here = elsewhere or (lambda read: read(connection))
    free = _reserve(connection, sql, count + len(used) if count else 0, here)
    return [slot for slot in free if slot not in used][:count]


def _reserve(
    connection: Connection, sql: StatementCache, count: int, elsewhere: Elsewhere | None
) -> list[int]:
    def free(target: Connection) -> Rows:
        wanted = {"p_count": count + _SPARE}
        return list(sql.get(statements.free_slots).run(target, wanted).all())

    seen = [row[0] for row in (free(connection) if elsewhere is None else elsewhere(free))]
    if not seen or count <= 0:
        return []
    size = bucket_of(len(seen))
    values = statements.slot_values(seen, size)
    lock = sql.get(statements.lock_slots, size).run(connection, values | {"p_count": count})
    locked = {row[0]: tuple(row[1:4]) for row in lock.all()}
    if not locked:
        return []

    def stand(target: Connection) -> Rows:
        some = statements.slot_values(list(locked), bucket_of(len(locked)))
        return list(sql.get(statements.standing, bucket_of(len(locked))).run(target, some).all())

    # After the lock: what was read before may be older.
    found = stand(connection) if elsewhere is None else elsewhere(stand)
    # A stamp that only this transaction sees is one that it wrote in a ``take``.
    usable = sorted(
        row[0] for row in found if row[0] > 0 and not row[4] and locked[row[0]] == tuple(row[1:4])
    )
    away = [row for row in found if row[0] < 0]
    if not away:
        return usable
    if elsewhere is not None:
        # It would hold locks that other claims wait for.
        return usable[: max(0, len(usable) - sum(1 for row in away if row[4]))]
    return _moved_in(connection, sql, usable, away)


def _moved_in(
    connection: Connection, sql: StatementCache, usable: Sequence[int], away: Rows
) -> list[int]:
    """Move what is in hand beyond the limit into these slots; returns the slots that are left."""
    ended = sorted(row[0] for row in away if not row[4])
    for batch in batches(ended):
        size = bucket_of(len(batch))
        remove = sql.get(statements.remove_slots, size)
        remove.run(connection, statements.slot_values(batch, size))
    left = list(usable)
    standing = sorted(row[0] for row in away if row[4])
    for batch in batches(standing):
        if not left:
            break
        size = bucket_of(len(batch))
        values = statements.slot_values(batch, size) | {"p_count": len(left)}
        # Others move those that they have locked, each into a slot that they have locked as well.
        for slot, *stamp in sql.get(statements.lock_slots, size).run(connection, values).all():
            place = statements.slot_values([left.pop(0)], 1)
            moved = dict(zip(("p_id_0", "p_consumer", "p_round"), stamp, strict=True))
            sql.get(statements.move_in).run(connection, place | moved)
            remove = sql.get(statements.remove_slots, 1)
            remove.run(connection, statements.slot_values([slot], 1))
    return left


def occupy(
    connection: Connection,
    sql: StatementCache,
    slots: Sequence[int],
    ids: Sequence[int],
    stamp: Claim,
) -> None:
    """Write the stamp of a claim into as many of the slots as it has messages."""
    values = {"p_consumer": stamp.consumer_id, "p_round": stamp.consumer_round}
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        places, size = slots[start : start + len(some)], bucket_of(len(some))
        named = statements.slot_values(places, size) | id_values(some)
        sql.get(statements.occupy, size).run(connection, values | named)


def occupy_taken(
    connection: Connection, sql: StatementCache, slots: Sequence[int], ids: Sequence[int]
) -> None:
    """Mark slots as used by messages that this transaction removes.

    When it has ended, the messages are gone and the slots are free. Until then, a further ``take``
    in it knows by the marks which slots it has used.
    """
    occupy(connection, sql, slots, ids, Claim(TAKING, secrets.randbits(62)))


def set_slots(connection: Connection, sql: StatementCache, limit: int | None) -> None:
    """Give a queue as many slots as its limit; None: no slots. In a transaction.

    It waits for transactions that have slots: those of claims, and of ``take``.
    """
    if limit is None:
        sql.get(statements.remove_all).run(connection)
        return
    there = {row[0] for row in sql.get(statements.lock_all).run(connection).all()}
    values = {"p_count": limit}
    if any(slot > limit for slot in there):
        sql.get(statements.take_away).run(connection, values)
    if any(-limit <= slot < 0 for slot in there):
        sql.get(statements.bring_back).run(connection, values)
    lacking = sorted(set(range(1, limit + 1)) - {abs(slot) for slot in there})
    while lacking:
        size = 1 << (min(len(lacking), _AT_ONCE).bit_length() - 1)
        some, lacking = lacking[:size], lacking[size:]
        add = sql.get(statements.add_slots, size)
        add.run(connection, statements.slot_values(some, size))


def find_others(connection: Connection, sql: StatementCache) -> list[tuple[int, str, int]]:
    """The stamps of what is in hand without a slot: id, consumer, round."""
    # The claims first: a claim that comes between has its slot.
    claimed = [tuple(row) for row in sql.get(statements.claimed_stamps).run(connection).all()]
    if not claimed:
        return []
    known = {tuple(row[1:4]) for row in sql.get(statements.all_stamps).run(connection).all()}
    return sorted(stamp for stamp in claimed if stamp not in known and None not in stamp)


@operation(atomic=True)
def count_others(connection: Connection, sql: StatementCache) -> int:
    """Let what is in hand without a slot count; returns how many messages that was.

    They were claimed before there was a limit, or by SQL.
    """
    lacking = find_others(connection, sql)
    for message_id, consumer_id, consumer_round in lacking:
        slot = statements.slot_values([FIRST_UNLIMITED - message_id], 1)
        stamp = {"p_id_0": message_id, "p_consumer": consumer_id, "p_round": consumer_round}
        # Of an earlier claim of this message.
        known = sql.get(statements.move_in).run(connection, slot | stamp).rowcount
        how = statements.move_in if known else statements.add_stamped
        try:
            sql.get(how).run(connection, slot | stamp)
        except DBAPIError as error:
            if sql.subject.dialect.errors.classify(error) is not ErrorKind.DUPLICATE:
                raise
            # Another process is doing the same.
            break
    return len(lacking)
