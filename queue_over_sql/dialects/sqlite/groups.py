"""How SQLite claims from a queue with groups: in few statements, because it is the only writer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    Update,
    and_,
    case,
    false,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from queue_over_sql.dialects.locked_groups import LockedGroupClaims
from queue_over_sql.groups.statements import (
    group_parameters,
    group_values,
    rows_of_groups,
    set_carriers,
    stopped,
    window,
)
from queue_over_sql.groups.strategy import (
    GroupClaim,
    GroupClaims,
    GroupRequest,
    Seen,
)
from queue_over_sql.message import MessageRow
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import Builder, StatementCache
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import (
    among_ids,
    batches,
    bucket_of,
    id_values,
    number,
)
from queue_over_sql.statements.requests import Where, read_rows

# SQLite allows 500 parts of one statement.
_NAMES_AT_ONCE = 256


class _First(NamedTuple):
    """One of the first messages of a group, and how many of the group may be in hand and are."""

    group: str
    limit: int
    in_hand: int
    id: int
    due: bool
    waits: bool


class SQLiteGroupClaims(GroupClaims):
    """Reads the window, then the first messages of its groups, and stamps.

    It needs no rows of groups, except for what is particular to a group.
    """

    needs_rows = False
    has_heads = True

    def with_rates(self) -> GroupClaims:
        return LockedGroupClaims(self._dialect)

    def claim_heads(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim | None:
        statement = sql.get(stamp_heads, request.claim.where)
        rows = read_rows(connection, sql, statement.run(connection, request.values()).all())
        return GroupClaim.of_all(rows) if rows else None

    def claim(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim:
        look = sql.get(window, request.claim.where, request.past_size)
        met = look.run(connection, request.values()).all()
        if not met:
            return GroupClaim([], [], 0)
        seen = [Seen(*row[:3]) for row in met]
        if request.rules.ordered:
            chosen, flagged = _ordered(connection, sql, request, seen)
        else:
            chosen, flagged = _unordered(connection, sql, request, seen), []
        rows: list[MessageRow] = []
        for batch in batches(chosen):
            stamped = sql.get(stamp, bucket_of(len(batch))).run(
                connection, id_values(batch) | request.claim.stamp()
            )
            rows += read_rows(connection, sql, stamped.all())
        for batch in batches(flagged):
            sql.get(set_carriers, bucket_of(len(batch))).run(connection, id_values(batch))
        return GroupClaim(rows, seen, met[0][3])


def _ordered(
    connection: Connection, sql: StatementCache, request: GroupRequest, seen: Sequence[Seen]
) -> tuple[list[int], list[int]]:
    """The ids of what to take with order, and of those that others wait behind."""
    counts = Counter(each.group for each in seen if each.group is not None)
    least = math.ceil(request.claim.count / max(1, len(counts)))
    most: dict[str, int] = {}
    together: dict[int, list[str]] = {}
    for group, count in counts.items():
        most[group] = max(least, count)
        if request.most is not None:
            most[group] = min(most[group], request.most)
        # By powers of two, because a LIMIT is the same for all groups of a statement.
        together.setdefault(bucket_of(most[group]), []).append(group)
    firsts: dict[str, list[_First]] = {}
    for limit, groups in together.items():
        values = request.values() | {"p_first": limit}
        for row in _of_groups(connection, sql, groups, values, first, request.claim.where):
            firsts.setdefault(row[0], []).append(_First(*row))
    chosen: list[int] = []
    flagged: list[int] = []
    for each in seen:
        left = request.claim.count - len(chosen)
        if left <= 0:
            break
        if each.group is None:
            chosen.append(each.id)
            continue
        run = _run(firsts.pop(each.group, ()), min(left, most[each.group]))
        chosen += [message.id for message in run]
        if any(message.waits for message in run):
            # If several may be in hand, each that ends must let out another one.
            flagged += [message.id for message in (run[-1:] if run[0].limit == 1 else run)]
    return chosen, flagged


def _run(firsts: Sequence[_First], most: int) -> list[_First]:
    """The first messages that may be taken: all are due."""
    run: list[_First] = []
    for message in sorted(firsts, key=lambda each: each.id):
        left = most if message.limit == 1 else min(most, message.limit - message.in_hand)
        if len(run) >= left or not message.due:
            break
        run.append(message)
    return run


def _unordered(
    connection: Connection, sql: StatementCache, request: GroupRequest, seen: Sequence[Seen]
) -> list[int]:
    """The ids of what to take without order."""
    groups = list(dict.fromkeys(each.group for each in seen if each.group is not None))
    left: dict[str, int] = {}
    for group, limit, in_hand in _of_groups(connection, sql, groups, request.values(), room):
        left[group] = limit - in_hand
        if request.most is not None:
            left[group] = min(left[group], request.most)
    chosen: list[int] = []
    for each in seen:
        if len(chosen) == request.claim.count:
            break
        if each.group is None:
            chosen.append(each.id)
        elif left.get(each.group, 0) > 0:
            left[each.group] -= 1
            chosen.append(each.id)
    return chosen


def _of_groups(
    connection: Connection,
    sql: StatementCache,
    groups: Sequence[str],
    values: dict[str, Any],
    builder: Builder,
    *variant: Any,
) -> Iterator[Sequence[Any]]:
    for start in range(0, len(groups), _NAMES_AT_ONCE):
        some = groups[start : start + _NAMES_AT_ONCE]
        size = bucket_of(len(some))
        # The last names are missing, so that each comes once.
        names = group_values(some, len(some))
        yield from sql.get(builder, size, *variant).run(connection, values | names).all()


def room(tables: QueueTables, size: int) -> Select[Any]:
    """Of groups: name, limit, and how many are in hand; only if there may be more."""
    names = _names(tables, size)
    columns, source, conditions = _open(tables, names)
    return select(*columns).select_from(source).where(*conditions)


def first(tables: QueueTables, size: int, where: Where | None) -> Select[Any]:
    """The first ``p_first`` unclaimed messages of groups that may have more in hand."""
    live = tables.live
    names = _names(tables, size)
    columns, source, conditions = _open(tables, names)
    other = live.alias("other")
    ids = (
        select(other.c.id)
        .where(other.c.group_key == names.c.name, other.c.consumer_id.is_(None))
        .order_by(other.c.id)
        .limit(number("p_first"))
        .correlate(names)
    )
    at = func.coalesce(live.c.parked_at, live.c.available_at)
    due = and_(at <= tables.expressions.now(), *claim.fitting(tables, where))
    return (
        select(
            *columns,
            live.c.id,
            func.coalesce(due, false()).label("due"),
            or_(live.c.blocks.is_not(None), live.c.parked_at.is_not(None)),
        )
        .select_from(source.join(live, live.c.id.in_(ids)))
        .where(*conditions)
    )


def _names(tables: QueueTables, size: int) -> Subquery:
    parts = [select(name.label("name")) for name in group_parameters(tables.live, size)]
    return union_all(*parts).subquery("names")


def _open(
    tables: QueueTables, names: Subquery
) -> tuple[list[ColumnElement[Any]], Any, list[ColumnElement[bool]]]:
    """Columns, tables and conditions for groups of which more may be in hand."""
    groups, held = rows_of_groups(tables), tables.live.alias("held")
    in_hand = (
        select(func.count())
        .select_from(held)
        .where(held.c.group_key == names.c.name, held.c.lease_expires_at.is_not(None))
        .correlate(names)
        .scalar_subquery()
    )
    limit = func.coalesce(groups.c.own_limit, number("p_limit"))
    source = names.outerjoin(groups, groups.c.group_key == names.c.name)
    return [names.c.name, limit, in_hand], source, [~stopped(groups), in_hand < limit]


def stamp_heads(tables: QueueTables, where: Where | None) -> Update:
    """Stamp a window of ``p_window`` messages; none if one is not the first of an open group."""
    live, groups = tables.live, rows_of_groups(tables)
    other, held = live.alias("other"), live.alias("held")
    columns = live.c.id, live.c.group_key, live.c.parked_at
    met = window(tables, where).with_only_columns(*columns).subquery("met")
    head = (
        select(other.c.id)
        .where(other.c.group_key == met.c.group_key, other.c.consumer_id.is_(None))
        .order_by(other.c.id)
        .limit(literal_column("1"))
        .correlate(met)
        .scalar_subquery()
    )
    in_hand = (
        select(func.count())
        .select_from(held)
        .where(held.c.group_key == met.c.group_key, held.c.lease_expires_at.is_not(None))
        .correlate(met)
        .scalar_subquery()
    )
    limit = func.coalesce(groups.c.own_limit, number("p_limit"))
    first = and_(met.c.id == head, in_hand < limit, ~stopped(groups))
    fits = and_(met.c.parked_at.is_(None), or_(met.c.group_key.is_(None), first))
    each = (
        select(
            met.c.id,
            # Names that no column of an adopted table has.
            func.min(case((fits, 1), else_=0)).over().label("window_fits"),
            func.count().over().label("window_count"),
        )
        .select_from(met.outerjoin(groups, groups.c.group_key == met.c.group_key))
        .subquery("each")
    )
    whole = select(each.c.id).where(
        each.c.window_fits == 1, each.c.window_count == number("p_window")
    )
    return (
        update(live)
        .where(live.c.id.in_(whole), live.c.consumer_id.is_(None))
        .values(claim.stamp_values(tables, tables.expressions.now()))
        .returning(*tables.message_columns(live))
    )


def stamp(tables: QueueTables, size: int) -> Update:
    """Stamp messages that were chosen in this transaction; parked ones get their due time back."""
    live = tables.live
    due = {
        "available_at": func.coalesce(live.c.parked_at, live.c.available_at),
        "parked_at": None,
    }
    return (
        update(live)
        .where(among_ids(live, size), live.c.consumer_id.is_(None))
        .values(claim.stamp_values(tables, tables.expressions.now()) | due)
        .returning(*tables.message_columns(live))
    )
