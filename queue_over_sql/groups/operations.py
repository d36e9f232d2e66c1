"""Operations on groups: their rows, and the messages that wait out of the claim index.

A message that its group blocks is *parked*: moved out of the claim index, so that no claim meets it
again. A message of the group that is not parked, the *carrier*, notes that (``blocks``). Whoever
ends a carrier moves the next message of the group back, in the same transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from queue_over_sql.groups import statements
from queue_over_sql.groups.strategy import GroupClaims
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.statements.operations import rows_by_ids
from queue_over_sql.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.groups.strategy import GroupRequest, Seen
    from queue_over_sql.sql.compiled import Builder, StatementCache

_MOST_TRIES = 5


def know(connection: Connection, sql: StatementCache, names: Sequence[str]) -> int:
    """Create the rows of groups that have none; returns how many lacked.

    Run it without a transaction around it: whoever meets the same groups would wait for that.
    """
    lacking = _lacking(connection, sql, names)
    found = len(lacking)
    for _ in range(_MOST_TRIES):
        for first, size in _powers(len(lacking)):
            some = lacking[first : first + size]
            values = statements.group_values(some, size)
            try:
                sql.get(statements.add_groups, size).run(connection, values)
            except DBAPIError as error:
                errors = sql.subject.dialect.errors
                if errors.classify(error) is not ErrorKind.DUPLICATE:
                    raise
                # Another consumer created one of them; the statement created none.
                lacking = _lacking(connection, sql, lacking)
                break
        else:
            break
    return found


def own_limits(connection: Connection, sql: StatementCache, names: Sequence[str]) -> dict[str, int]:
    """The limits of those groups that have their own."""
    rows = _of_groups(connection, sql, statements.settings_of_groups, names)
    return {row[0]: row[1] for row in rows if row[1] is not None}


def _lacking(connection: Connection, sql: StatementCache, names: Sequence[str]) -> list[str]:
    there = {row[0] for row in _of_groups(connection, sql, statements.known_groups, names)}
    # In one order, so that those who create the same ones do not wait for each other in a circle.
    return sorted(set(names) - there)


def _powers(count: int) -> Iterator[tuple[int, int]]:
    """Split a number of rows into powers of two, because few texts shall serve all numbers."""
    first = 0
    while first < count:
        size = 1 << (min(count - first, 256).bit_length() - 1)
        yield first, size
        first += size


def park(
    connection: Connection, sql: StatementCache, request: GroupRequest, blocked: Sequence[Seen]
) -> tuple[int, list[str]]:
    """Move messages that their groups block out of the claim index.

    Run it in a transaction of its own. It locks what blocks each group, so that nobody ends that
    meanwhile, and parks the others: of the next ``request.window`` messages along the claim index.
    What blocks a group is, as far as others have not locked it,

    - the group's row, if it is paused, or blocked by a dead letter: whoever ends that wakes it;
    - else what is in hand, all of it if more than one may be;
    - and, with order, the first message that is not in hand, if more could be;
    - else, with order, the first message that the claim met. It stays in the claim index.

    Without order nothing is parked of a group of which more could be in hand.

    Args:
        connection: of the service, never a caller's.
        sql: the queue's statements.
        request: the claim that met the messages.
        blocked: the messages that it met and did not take.

    Returns:
        How many it moved, and the groups that have no row.
    """
    names = list(dict.fromkeys(seen.group for seen in blocked if seen.group is not None))
    limits = dict.fromkeys(names, request.rules.limit)
    lacking = set(names)
    stopped: list[str] = []
    for name, own, stops in _of_groups(connection, sql, statements.settings_of_groups, names):
        lacking.discard(name)
        limits[name] = request.rules.limit if own is None else own
        if stops:
            stopped.append(name)
    standing = {row[0] for row in _of_groups(connection, sql, statements.lock_stopped, stopped)}
    firsts = {seen.group: seen.id for seen in reversed(blocked) if seen.group is not None}
    moving = {name: firsts[name] for name in names if name not in stopped}
    carriers = _lock_carriers(connection, sql, request, moving, limits)
    waiting = standing | set(carriers.values())
    claims: GroupClaims = sql.subject.dialect.strategy(GroupClaims)
    missing = sorted(lacking) if claims.needs_rows else []
    if not waiting:
        return 0, missing
    moved = claims.move_aside(connection, sql, request, waiting, carriers)
    if moved:
        for batch in batches(sorted(carriers)):
            mark = sql.get(statements.set_carriers, bucket_of(len(batch)))
            mark.run(connection, id_values(batch))
    return moved, missing


def _lock_carriers(
    connection: Connection,
    sql: StatementCache,
    request: GroupRequest,
    met: Mapping[str, int],
    limits: Mapping[str, int],
) -> dict[int, str]:
    """Lock what blocks groups. ``met`` are the groups, with a message of each."""
    ordered = request.rules.ordered
    held: dict[str, list[int]] = {}
    for group, message_id in _of_groups(connection, sql, statements.in_hand, list(met)):
        held.setdefault(group, []).append(message_id)
    open_ones = [name for name in met if len(held.get(name, ())) < limits[name]]
    if not ordered:
        for name in open_ones:
            held.pop(name, None)
    # The last one of an ordered group ends last, as a rule.
    wanted = {
        name: [max(ids)] if ordered and limits[name] == 1 else ids for name, ids in held.items()
    }
    claimed = [message_id for ids in wanted.values() for message_id in ids]
    locked = _lock(connection, sql, statements.lock_claimed, claimed)
    # The end of one that is not locked is under way, and would not let out another one.
    leaving = {name for name, ids in wanted.items() if not locked.keys() >= set(ids)}
    carriers = {message_id: name for message_id, name in locked.items() if name not in leaving}
    if ordered:
        waiting = {name: met[name] for name in open_ones if name not in leaving}
        heads = rows_by_ids(connection, sql, statements.heads, list(waiting.values()))
        firsts = [first for _, first in heads if first is not None]
        carriers |= _lock(connection, sql, statements.lock_unparked, firsts)
        without = waiting.keys() - set(carriers.values())
        others = [waiting[name] for name in without]
        carriers |= _lock(connection, sql, statements.lock_unparked, others)
    return carriers


def _lock(
    connection: Connection, sql: StatementCache, builder: Builder, ids: Sequence[int]
) -> dict[int, str]:
    locked: dict[int, str] = {}
    for batch in batches(sorted(ids)):
        found = sql.get(builder, bucket_of(len(batch))).run(connection, id_values(batch))
        locked.update({row[0]: row[1] for row in found})
    return locked


def _of_groups(
    connection: Connection, sql: StatementCache, builder: Builder, names: Sequence[str]
) -> Iterator[Sequence[Any]]:
    for batch in batches(names):
        size = bucket_of(len(batch))
        found: Iterable[Sequence[Any]] = sql.get(builder, size).run(
            connection, statements.group_values(batch, size)
        )
        yield from list(found)
