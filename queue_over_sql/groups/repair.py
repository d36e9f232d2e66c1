"""Repair: groups whose parked messages nobody would wake, and rows of groups that are idle.

Each change of messages is one transaction, so that a crash leaves nothing behind. An edit by SQL
can: if somebody deletes a message behind which others are parked, these would wait for ever. And a
raised limit is written before the parked messages are woken; a crash between the two leaves them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import (
    CompoundSelect,
    Delete,
    Integer,
    Select,
    bindparam,
    delete,
    func,
    literal_column,
    not_,
    select,
    union_all,
)

from queue_over_sql.groups import exits
from queue_over_sql.groups.operations import MOST_WOKEN
from queue_over_sql.groups.statements import (
    among_groups,
    by_group,
    group_parameters,
    group_values,
    is_parked,
    rows_of_groups,
    set_by_hand,
    stopped,
)
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import bucket_of, by_id, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.groups.strategy import GroupRules
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import Builder, StatementCache

# Each group has a part of its own in the statement.
_AT_ONCE: Final = 64
_BEFORE_ALL: Final = -(2**63)
Place: TypeAlias = int | str
"""How far a look for broken groups has come: an id, or in a user's table the name of a group."""
_FIRST: Final[ColumnElement[int]] = literal_column("1")


def end_of_rows(tables: QueueTables) -> Select[Any]:
    """The last id of the next rows."""
    ids = tables.live.c.id
    some = select(ids).where(ids > number("p_after")).order_by(ids).limit(number("p_count"))
    return select(func.max(some.subquery("next_rows").c.id))


def with_parked(tables: QueueTables) -> Select[Any]:
    """The groups of parked messages between two ids."""
    live = tables.live
    between = (live.c.id > number("p_after"), live.c.id <= number("p_up_to"))
    found = select(live.c.group_key).where(*between, live.c.parked_at.is_not(None)).distinct()
    return by_id(tables, found, live)


def names_with_parked(tables: QueueTables, first: bool) -> Select[Any]:
    """The ``first`` groups that have parked messages, or those after ``p_name``, by name.

    For a user's table, of whose rows most are no messages: it reads the index of groups alone.
    """
    live = tables.live
    key = live.c.group_key
    free = (key.is_not(None), live.c.consumer_id.is_(None), live.c.parked_at.is_not(None))
    after = () if first else (key > _name("p_name", key),)
    found = select(key).where(*free, *after).distinct().order_by(key)
    return by_group(tables, found, live).limit(number("p_count"))


def waiting(tables: QueueTables, size: int) -> CompoundSelect[Any]:
    """What groups wait for.

    Place, since when the first one is parked, how many are in hand, a carrier of these, the group's
    own limit, whether it is stopped. The place is that of the name among the parameters, because H2
    selects no bare parameter.
    """
    live, rows = tables.live, rows_of_groups(tables)
    order = tables.expressions.order_in_group(live)
    found = []
    for place, name in enumerate(group_parameters(live, size)):
        free = select(live.c.parked_at).where(
            live.c.group_key == name, live.c.consumer_id.is_(None)
        )
        in_hand = (live.c.group_key == name, tables.expressions.is_claimed(live))
        count = select(func.count()).select_from(live).where(*in_hand)
        held = select(live.c.blocks).where(*in_hand, live.c.blocks.is_not(None))
        own = select(rows.c.own_limit).where(rows.c.group_key == name)
        stop: Select[Any] = select(_FIRST).where(rows.c.group_key == name, stopped(rows))
        parts = (
            by_group(tables, free, live).order_by(*order).limit(_FIRST),
            by_group(tables, count, live),
            by_group(tables, held, live).limit(_FIRST),
            own.limit(_FIRST),
            stop.limit(_FIRST),
        )
        found.append(select(_place(place), *[part.scalar_subquery() for part in parts]))
    return union_all(*found)


def free_carriers(tables: QueueTables, size: int) -> CompoundSelect[Any]:
    """A carrier of each group that is not in hand: place and id."""
    live = tables.live
    found = []
    for place, name in enumerate(group_parameters(live, size)):
        free = select(live.c.id).where(live.c.group_key == name, live.c.consumer_id.is_(None))
        free = free.where(not_(is_parked(live)), live.c.blocks.is_not(None))
        one = by_group(tables, free, live).limit(_FIRST).scalar_subquery()
        found.append(select(_place(place), one))
    return union_all(*found)


def _place(place: int) -> ColumnElement[int]:
    return literal_column(str(place), Integer())


def find_broken(
    connection: Connection, sql: StatementCache, rules: GroupRules, after: Place | None, limit: int
) -> tuple[list[str], Place | None]:
    """Look at the next rows after a place for groups that nobody would wake; None: from the first.

    Returns:
        The groups, and the place up to which it looked; None: there were no more rows.
    """
    if sql.subject.ends_in_place:
        page = {"p_count": limit} | ({} if after is None else {"p_name": after})
        parked = sql.get(names_with_parked, after is None).run(connection, page)
        names = [row[0] for row in parked]
        return list(_broken(connection, sql, rules, names)), names[-1] if names else None
    start = {"p_after": _BEFORE_ALL if after is None else after}
    last = sql.get(end_of_rows).run(connection, start | {"p_count": limit}).scalar()
    if last is None:
        return [], None
    found = sql.get(with_parked).run(connection, start | {"p_up_to": last})
    names = sorted(row[0] for row in found if row[0] is not None)
    return list(_broken(connection, sql, rules, names)), last


def _broken(
    connection: Connection, sql: StatementCache, rules: GroupRules, names: Sequence[str]
) -> dict[str, int]:
    """The groups of which nobody would wake enough messages, and how many to wake of each."""
    broken: dict[str, int] = {}
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        suspect: dict[str, int] = {}
        for row in _named(_of_groups(connection, sql, waiting, some), some):
            place, parked, count, carrier, own, stop = row
            room = (rules.limit if own is None else own) - count
            if parked is not None and stop is None and (carrier is None or room > 0):
                # In fair shares its turns let out the others.
                suspect[some[place]] = 1 if rules.fair else max(room, 1)
        listed = list(suspect)
        found = _named(_of_groups(connection, sql, free_carriers, listed), listed)
        broken |= {listed[row[0]]: suspect[listed[row[0]]] for row in found if row[1] is None}
    return broken


def _named(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> list[Sequence[Any]]:
    """Without those of the parameters that only fill the statement."""
    return [row for row in rows if row[0] < len(names)]


@operation(atomic=True)
def repair(
    connection: Connection, sql: StatementCache, rules: GroupRules, names: Sequence[str]
) -> list[str]:
    """Wake the groups of which nobody would wake enough messages; returns those that it woke."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    broken = _broken(connection, sql, rules, names)
    return [
        name
        for name, room in broken.items()
        if exits.wake(connection, sql, [name] * min(room, MOST_WOKEN))
    ]


# -- rows of groups


def next_rows(tables: QueueTables, first: bool) -> Select[Any]:
    """The names of the ``first`` rows of groups, or of those after ``p_name``; one may be empty."""
    key = rows_of_groups(tables).c.group_key
    following = select(key).order_by(key).limit(number("p_count"))
    return following if first else following.where(key > _name("p_name", key))


def lock_idle(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those rows of groups that nobody needs: without messages, settings, and not new."""
    rows, live = rows_of_groups(tables), tables.live
    now = tables.expressions.now()
    none: ColumnElement[int] = literal_column("0")
    plain = not_(set_by_hand(rows))
    before = func.coalesce(rows.c.created_at, none) <= now - number("p_age")
    # Its tokens have come back.
    rested = func.coalesce(rows.c.tat_us, none) <= now
    used: Select[Any] = select(_FIRST).where(live.c.group_key == rows.c.group_key).correlate(rows)
    # Apart, as some engines' indexes are.
    free = by_group(tables, used.where(live.c.consumer_id.is_(None)), live)
    held = by_group(tables, used.where(tables.expressions.is_claimed(live)), live)
    unused = (~free.exists(), ~held.exists())
    idle = by_id(tables, select(rows.c.group_key), rows)
    idle = idle.where(among_groups(rows, size), plain, before, rested, *unused)
    return idle.with_for_update(of=rows, skip_locked=tables.features.skip_locked)


def remove_rows(tables: QueueTables, size: int) -> Delete:
    """Remove rows of groups."""
    rows = rows_of_groups(tables)
    return delete(rows).where(among_groups(rows, size))


def _name(parameter: str, key: ColumnElement[Any]) -> ColumnElement[Any]:
    return bindparam(parameter, None, type_=key.type)


@operation(atomic=True)
def remove_idle(
    connection: Connection, sql: StatementCache, after: str | None, limit: int, age: int
) -> tuple[int, str | None]:
    """Remove the rows of idle groups among the next ones by name.

    A claim creates a row again when it meets the group.

    Args:
        connection: with a transaction.
        sql: the queue's statements.
        after: the last name that was looked at; None: begin with the first one.
        limit: how many rows to look at.
        age: microseconds since the row was created, before which it stays.

    Returns:
        How many were removed, and the last name; None: no rows.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    page = {"p_count": limit} | ({} if after is None else {"p_name": after})
    some = sql.get(next_rows, after is None).run(connection, page).all()
    names = [row[0] for row in some]
    if not names:
        return 0, None
    idle = [row[0] for row in _of_groups(connection, sql, lock_idle, names, {"p_age": age})]
    _of_groups(connection, sql, remove_rows, idle)
    return len(idle), names[-1]


def _of_groups(
    connection: Connection,
    sql: StatementCache,
    builder: Builder,
    names: Sequence[str],
    values: dict[str, Any] | None = None,
) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = []
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        size = bucket_of(len(some))
        statement = sql.get(builder, size)
        result = statement.run(connection, group_values(some, size) | (values or {}))
        rows += list(result)
    return rows
