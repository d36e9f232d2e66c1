"""Room: what a publish does if its group, or the queue, is full (``when_full``).

Publishing writes and locks no row that publishers share. So two publishers at the same time may
both find room for one more message.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Select, Update, case, func, literal_column, not_, select

from queue_over_sql.errors import GroupFull
from queue_over_sql.groups import exits
from queue_over_sql.groups.operations import own_limits
from queue_over_sql.groups.statements import among_groups, by_group, group_values
from queue_over_sql.message import Published
from queue_over_sql.publishing import statements
from queue_over_sql.publishing.deduplication import recently_finished
from queue_over_sql.schema.queue_tables import KEY_RELEASED
from queue_over_sql.statements.operations import savepoint
from queue_over_sql.statements.parameters import number
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.states import PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.publishing.new_messages import NewMessage, Room
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache

_MOST_TRIES: Final = 8
"""How many waiting messages a replace tries, since others may claim some of them."""


def check_room(connection: Connection, sql: StatementCache, messages: Sequence[NewMessage]) -> None:
    """Refuse a batch that has no room.

    Raises:
        GroupFull: a message of it would exceed a limit; it names that one.
    """
    needed = Counter(message.room for message in messages)
    left: dict[Room, int] = {}
    for place, message in enumerate(messages):
        room = message.room
        if room is None:
            continue
        if room not in left:
            left[room] = _left(connection, sql, room, needed[room])
        if left[room] <= 0:
            raise _full(connection, sql, room, place if len(messages) > 1 else None)
        left[room] -= 1


def make_room(
    connection: Connection, sql: StatementCache, message: NewMessage, now: int | None
) -> Published | None:
    """Let a new message replace one that waits, if there is no room for both.

    Returns:
        What was replaced; None: insert the message.

    Raises:
        GroupFull: there is no room, and the queue has ``when_full="reject"``.
        DBAPIError: another message has its key; the transaction may go on.
    """
    room = message.room
    if room is None or _left(connection, sql, room) > 0:
        return None
    if not room.replaces:
        raise _full(connection, sql, room)
    values, of_group = _of(room), room.group is not None
    found = sql.get(newest_waiting, of_group).run(connection, values)
    for message_id in [row[0] for row in found.all()]:
        one = {"p_id_0": message_id}
        if sql.get(lock_one, of_group).run(connection, values | one).first() is None:
            continue
        given = message.given(sql.subject.parameters, now, timed=True) | one
        replaces = _replace if message.key is None else _replace_keyed
        if replaces(connection, sql, message, given):
            return Published(message_id, PublishOutcome.REPLACED)
        break
    return None


def _replace(
    connection: Connection, sql: StatementCache, _message: NewMessage, given: dict[str, Any]
) -> bool:
    with exits.leaving(connection, sql, [given["p_id_0"]]):
        sql.get(replace_all).run(connection, given)
    return True


def _replace_keyed(
    connection: Connection, sql: StatementCache, message: NewMessage, given: dict[str, Any]
) -> bool:
    """As ``_replace``; False if a message with this key has finished recently."""
    with savepoint(connection, "queue_over_sql_room") as undo:
        _replace(connection, sql, message, given)
        # Only now: another publisher's message may have had the key, and finished, meanwhile.
        taken = message.dedup and recently_finished(connection, sql, [str(message.key)])
        if taken:
            undo()
    return not taken


def _left(connection: Connection, sql: StatementCache, room: Room, needed: int = 1) -> int:
    """How many messages there is room for, at least; exactly if these are less than needed."""
    limit = _limit(connection, sql, room)
    values = _of(room) | {"p_most": limit}
    if room.most:
        counted = sql.get(length).run(connection, values | {"p_free": limit - needed})
    else:
        counted = sql.get(occupied, room.group is not None).run(connection, values)
    return limit - int(counted.scalar() or 0)


def _limit(connection: Connection, sql: StatementCache, room: Room) -> int:
    if room.group is None:
        return room.limit
    return own_limits(connection, sql, [room.group]).get(room.group, room.limit)


def _of(room: Room) -> dict[str, Any]:
    values: dict[str, Any] = {"p_count": _MOST_TRIES}
    return values if room.group is None else values | group_values([room.group], 1)


def _full(
    connection: Connection, sql: StatementCache, room: Room, place: int | None = None
) -> GroupFull:
    return GroupFull(sql.subject.queue, room.group, _limit(connection, sql, room), place)


# -- statements


def occupied(tables: QueueTables, of_group: bool) -> Select[Any]:
    """Count the unfinished messages of a group, or of the queue; ``p_most`` or more are enough."""
    live = tables.live
    if not of_group:
        return select(_count(select(live.c.id).where(*tables.live_only())))
    some = by_group(tables, select(live.c.id).where(among_groups(live, 1)), live)
    waiting = some.where(live.c.consumer_id.is_(None))
    return select(_count(waiting) + _count(some.where(tables.expressions.is_claimed(live))))


def length(tables: QueueTables) -> Select[Any]:
    """The number of unfinished messages, or more than that if that is ``p_free`` or less.

    No more messages than ids lie between the oldest and the newest, so most often none is counted.
    """
    ids, live_only = tables.live.c.id, tables.live_only()
    oldest = select(func.min(ids)).where(*live_only).scalar_subquery()
    newest = select(func.max(ids)).where(*live_only).scalar_subquery()
    between = newest - oldest + literal_column("1")
    counted = _count(select(ids).where(*live_only))
    return select(case((between <= number("p_free"), between), else_=counted))


def _count(some: Select[Any]) -> ColumnElement[int]:
    limited = some.limit(number("p_most")).subquery()
    return select(func.count()).select_from(limited).scalar_subquery()


def newest_waiting(tables: QueueTables, of_group: bool) -> Select[Any]:
    """The newest messages of a group, or without one, that nobody holds."""
    live = tables.live
    newest = select(live.c.id).where(*_waiting(tables, of_group)).limit(number("p_count"))
    if of_group:
        order = [each.desc() for each in tables.expressions.order_in_group(live)]
        return by_group(tables, newest, live).order_by(*order)
    return newest.order_by(live.c.id.desc())


def lock_one(tables: QueueTables, of_group: bool) -> Select[Any]:
    """Lock a message, if nobody has locked it.

    It must wait still, and in this group: an edit or a publish with its key may have changed it.
    """
    wanted = (tables.live.c.id == number("p_id_0"), *_waiting(tables, of_group))
    locked: Select[Any] = select(literal_column("1")).select_from(tables.live).where(*wanted)
    return locked.with_for_update(skip_locked=tables.features.skip_locked)


def _waiting(tables: QueueTables, of_group: bool) -> Iterator[ColumnElement[bool]]:
    """The conditions for the messages of a group, or without one, that wait and are not held."""
    live = tables.live
    yield live.c.consumer_id.is_(None)
    yield not_(tables.is_held())
    if of_group:
        yield among_groups(live, 1)
    elif tables.grouped:
        yield live.c[GROUP_KEY].is_(None)


def replace_all(tables: QueueTables) -> Update:
    """As ``statements.replace``, with the key of the new message."""
    key = {"message_key": statements.value_of(tables, "message_key")}
    if tables.frees_claimed_keys:
        key[KEY_RELEASED] = literal_column("0")
    return statements.replace(tables).values(key)
