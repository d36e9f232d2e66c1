"""Operations on groups: their rows, and the messages that wait out of the claim index.

A message that its group blocks is *parked*: moved out of the claim index, so that no claim meets it
again. A message of the group that is not parked, the *carrier*, notes that (``blocks``). Whoever
ends a carrier moves the next message of the group back, in the same transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

from queue_over_sql.groups import statements
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.statements.operations import change_by_ids, rows_by_ids
from queue_over_sql.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.groups.strategy import GroupClaims, GroupRequest, GroupRules, Seen
    from queue_over_sql.sql.compiled import Builder, StatementCache
    from queue_over_sql.values.rates import Bucket

_MOST_TRIES = 5
# For at most this long a message is put off for a token. Then a claim looks at the group anew.
_LONGEST_US = 300_000_000
MOST_WOKEN: Final = 1000
"""How many messages of a group to wake at once: each wakes another one when it ends."""


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


def room(
    connection: Connection, sql: StatementCache, names: Sequence[str], *, limit: int, fair: bool
) -> list[str]:
    """Each group as often as claims may have messages of it, for ``exits.wake``.

    In fair shares once, because its turns let out the others.

    Args:
        connection: reads the groups' own limits.
        sql: the queue's statements.
        names: the groups.
        limit: of groups that have none of their own.
        fair: whether groups get fair shares.
    """
    if fair:
        return list(names)
    own = own_limits(connection, sql, names)
    return [name for name in names for _ in range(min(own.get(name, limit), MOST_WOKEN))]


def any_own_rate(connection: Connection, sql: StatementCache) -> bool:
    """Whether a group has a rate of its own."""
    return sql.get(statements.any_own_rate).run(connection).first() is not None


def spend(connection: Connection, sql: StatementCache, buckets: Mapping[str, Bucket]) -> None:
    """Write what is left in buckets into the rows of groups, which this transaction has locked."""
    for names in batches(sorted(buckets)):
        tats = {name: tat for name in names if (tat := buckets[name].tat) is not None}
        size = bucket_of(len(names))
        sql.get(statements.spend, size).run(connection, statements.bucket_values(tats, size))


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
    connection: Connection,
    sql: StatementCache,
    claims: GroupClaims,
    request: GroupRequest,
    blocked: Sequence[Seen],
) -> tuple[int, list[str]]:
    """Move messages that their groups block out of the claim index.

    Run it in a transaction of its own. It locks what blocks each group, so that nobody ends that
    meanwhile, and parks the others: of the next ``request.window`` messages along the claim index.
    What blocks a group is, as far as others have not locked it,

    - the group's row, if it is paused, or blocked by a dead letter: whoever ends that wakes it;
    - if it has a rate and no token, and more could be in hand, its first message, or without order
      the first one that the claim met. That is put off until the next token;
    - else what is in hand, all of it if more than one may be;
    - and, with order, the first message that is not in hand, if more could be;
    - else, with order, the first message that the claim met. It stays in the claim index.

    Without order nothing is parked of a group of which more could be in hand.

    Args:
        connection: of the service, never a caller's.
        sql: the queue's statements.
        claims: how the queue's groups are claimed from.
        request: the claim that met the messages.
        blocked: the messages that it met and did not take.

    Returns:
        How many it moved, and the groups that have no row.
    """
    names = list(dict.fromkeys(seen.group for seen in blocked if seen.group is not None))
    limits = dict.fromkeys(names, request.rules.limit)
    lacking = set(names)
    stopped: list[str] = []
    empty: list[str] = []
    rows = _of_groups(connection, sql, statements.settings_of_groups, names)
    for name, own, stops, *rate in rows:
        lacking.discard(name)
        limits[name] = request.rules.limit if own is None else own
        bucket = request.rules.bucket(rate)
        if stops:
            stopped.append(name)
        elif bucket is not None and not bucket.tokens:
            empty.append(name)
    without = _lock_empty(connection, sql, request.rules, empty)
    standing = {row[0] for row in _of_groups(connection, sql, statements.lock_stopped, stopped)}
    firsts = {seen.group: seen.id for seen in reversed(blocked) if seen.group is not None}
    moving = {name: firsts[name] for name in names if name not in stopped}
    carriers = _lock_carriers(connection, sql, request, moving, limits, empty=without)
    waiting = standing | set(carriers.values())
    missing = sorted(lacking) if claims.needs_rows else []
    if not waiting:
        return 0, missing
    moved = claims.move_aside(connection, sql, request, waiting, carriers)
    late = put_off(connection, sql, carriers, without)
    if moved:
        for batch in batches(sorted(carriers)):
            mark = sql.get(statements.set_carriers, bucket_of(len(batch)))
            mark.run(connection, id_values(batch))
    return moved + late, missing


def _lock_empty(
    connection: Connection, sql: StatementCache, rules: GroupRules, names: Sequence[str]
) -> dict[str, int]:
    """Lock the rows of groups that have no token; returns when each gets one.

    So nobody changes its rate until what waits is put off.
    """
    found: dict[str, int] = {}
    for name, _, _, *rate in _of_groups(connection, sql, statements.lock_open, names):
        bucket = rules.bucket(rate)
        if bucket is not None and not bucket.tokens:
            found[name] = min(bucket.next_at, bucket.now + _LONGEST_US)
    return found


def put_off(
    connection: Connection,
    sql: StatementCache,
    messages: Mapping[int, str],
    until: Mapping[str, int],
) -> int:
    """Put off messages that this transaction has locked until their groups get a token."""
    times: dict[int, list[int]] = {}
    for message_id, name in messages.items():
        if name in until:
            times.setdefault(until[name], []).append(message_id)
    return sum(
        change_by_ids(connection, sql, statements.put_off, sorted(ids), {"p_at": at})
        for at, ids in times.items()
    )


def _lock_carriers(
    connection: Connection,
    sql: StatementCache,
    request: GroupRequest,
    met: Mapping[str, int],
    limits: Mapping[str, int],
    *,
    empty: Container[str],
) -> dict[int, str]:
    """Lock what blocks groups, which may be ``empty``. ``met`` has a message of each group."""
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
    if not ordered:
        spent = [met[name] for name in open_ones if name in empty]
        carriers |= _lock(connection, sql, statements.lock_unparked, spent)
    else:
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
