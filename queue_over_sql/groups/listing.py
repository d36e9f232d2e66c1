"""How the groups of a queue stand: their backlog, what is in hand, and what holds them up."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from sqlalchemy import BigInteger, case, func, literal_column, select, union_all

from queue_over_sql.groups.statements import (
    among_groups,
    group_values,
    rate_columns,
    rows_of_groups,
    set_by_hand,
)
from queue_over_sql.statements.operations import rows_by_ids
from queue_over_sql.statements.parameters import among_ids, bucket_of, number
from queue_over_sql.values.durations import instant, optional_number, stored_number
from queue_over_sql.values.rates import stored_rate
from queue_over_sql.values.states import GroupState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement, Connection, Select, Table

    from queue_over_sql.groups.strategy import GroupRules
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import Builder, StatementCache

GroupsBy: TypeAlias = Literal["waiting", "age", "blocked"]
ORDERS: Final = ("waiting", "age", "blocked")
# Each group has a part of its own in a statement.
_AT_ONCE: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class GroupInfo:
    """How a group of messages stands.

    Attributes:
        name: of the group; may be empty.
        state: what holds it up, or that it is ready.
        waiting: messages that no consumer has.
        claimed: messages in hand.
        limit: how many may be in hand at once.
        own_limit: its own limit; None: it has that of the queue.
        rate: how fast its messages may start; None: as fast as they can.
        own_rate: its own rate; None: it has that of the queue; ``"unlimited"``: none.
        next_token: when the next message may start, while the rate is used up; else None.
        weight: its share, in a queue with ``group_fair``.
        own_weight: what an operator gave it as its weight; None: nothing, so that it is 1.
        oldest_age: for how long the oldest message that waits has been due; None if none is due.
        next_due: when its next message is due; None if one is due now, or none waits.
        head: in a FIFO group the message that the others wait for: the first one in hand, else the
            first one that waits. None without a message, or without an order.
        consumer_ids: the consumers that have messages of it in hand.
        claimed_since: when the first of these messages was claimed; None if none is in hand.
        paused_since: when it was paused; None if it is not.
        blocked_by: the dead letter that blocks it; None if none does.
    """

    name: str
    state: GroupState
    waiting: int
    claimed: int
    limit: int
    own_limit: int | None
    rate: str | None
    own_rate: str | None
    next_token: datetime | None
    weight: int
    own_weight: int | None
    oldest_age: timedelta | None
    next_due: datetime | None
    head: int | None
    consumer_ids: Sequence[str]
    claimed_since: datetime | None
    paused_since: datetime | None
    blocked_by: int | None


class _Counted(NamedTuple):
    name: str
    waiting: int
    claimed: int
    due: int
    head: int | None
    since: int | None
    next_at: int | None
    own_limit: int | None
    paused_at: int | None
    blocked_by: int | None
    tat: int | None
    own_rate: int | None
    own_burst: int | None
    weight: int | None
    now: int


class _Held(NamedTuple):
    consumer_ids: list[str]
    first: int
    since: int | None


class _Head(NamedTuple):
    id: int
    due: bool
    due_at: int | None


def count_groups(tables: QueueTables, by: str | None) -> Select[Any]:
    """Count the messages of groups, with their rows; ``by`` None: of the group ``p_group_0``.

    It also finds groups without messages for which operators have changed something.
    """
    live, rows, now = tables.live, rows_of_groups(tables), tables.expressions.now()
    of_live = live.c.group_key.is_not(None) if by else among_groups(live, 1)
    of_rows = set_by_hand(rows) if by else among_groups(rows, 1)
    waits, due = live.c.consumer_id.is_(None), tables.due_at()
    nothing: ColumnElement[Any] = literal_column("0")
    never: ColumnElement[Any] = literal_column("NULL", BigInteger())
    counted = (
        select(
            live.c.group_key.label("name"),
            _count_if(waits).label("waiting"),
            _count_if(live.c.consumer_id.is_not(None)).label("claimed"),
            _count_if(waits & tables.is_due()).label("due"),
            func.min(case((waits, live.c.id))).label("head"),
            func.min(case((waits, live.c.scheduled_at))).label("since"),
            func.min(case((waits & (due > now), due))).label("next_at"),
        )
        .where(of_live)
        .group_by(live.c.group_key)
    )
    noted = select(rows.c.group_key, nothing, nothing, nothing, never, never, never).where(of_rows)
    both = union_all(counted, noted).subquery("both_kinds")
    sums = [func.sum(both.c[name]).label(name) for name in ("waiting", "claimed", "due")]
    firsts = [func.min(both.c[name]).label(name) for name in ("head", "since", "next_at")]
    found = select(both.c.name, *sums, *firsts).group_by(both.c.name).subquery("found")
    last = case((found.c.since.is_(None), literal_column("1")), else_=literal_column("0"))
    oldest = (last, found.c.since, found.c.name)
    order: tuple[ColumnElement[Any], ...] = oldest
    if by != "age":
        order = (found.c.waiting.desc(), *oldest)
    if by == "blocked":
        order = (_stopped(rows), *order)
    return (
        select(
            *(*found.c, rows.c.own_limit, rows.c.paused_at, rows.c.blocked_by, rows.c.weight),
            *rate_columns(tables),
        )
        .select_from(found.outerjoin(rows, rows.c.group_key == found.c.name))
        .order_by(*order)
        .limit(number("p_count"))
    )


def _stopped(rows: Table) -> ColumnElement[Any]:
    # Some engines put what is null first, and others last.
    blocked, paused = rows.c.blocked_by.is_not(None), rows.c.paused_at.is_not(None)
    places: list[ColumnElement[Any]] = [literal_column(str(place)) for place in range(3)]
    return case((blocked, places[0]), (paused, places[1]), else_=places[2])


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.count(case((condition, literal_column("1"))))


def holders(tables: QueueTables, size: int) -> Select[Any]:
    """Who has messages of groups in hand: group, consumer, first id, first time of a claim."""
    c = tables.live.c
    held = (among_groups(tables.live, size), tables.expressions.is_claimed(tables.live))
    first = (func.min(c.id), func.min(c.claimed_at))
    by_consumer = (c.group_key, c.consumer_id)
    return select(*by_consumer, *first).where(*held).group_by(*by_consumer).order_by(*by_consumer)


def due_times(tables: QueueTables, size: int) -> Select[Any]:
    """When messages are due: id, whether they are, the time."""
    due = case((tables.is_due(), literal_column("1")), else_=literal_column("0"))
    return select(tables.live.c.id, due, tables.due_at()).where(among_ids(tables.live, size))


def read_groups(
    connection: Connection,
    sql: StatementCache,
    rules: GroupRules,
    *,
    by: GroupsBy = "waiting",
    most: int,
) -> list[GroupInfo]:
    """The groups that have messages, or for which operators have changed something."""
    with sql.subject.dialect.sessions.scanning(connection):
        rows = sql.get(count_groups, by).run(connection, {"p_count": most}).all()
    return _informed(connection, sql, rules, [_counted(row) for row in rows])


def read_group(
    connection: Connection, sql: StatementCache, rules: GroupRules, name: str
) -> GroupInfo:
    """How one group stands, which may have no message."""
    values = group_values([name], 1) | {"p_count": 1}
    row = sql.get(count_groups, None).run(connection, values).first()
    none = _counted((name, 0, 0, 0, *[None] * 10, 0))
    return _informed(connection, sql, rules, [none if row is None else _counted(row)])[0]


def _counted(row: Sequence[Any]) -> _Counted:
    name, waiting, claimed, due, head, since, next_at, own_limit, paused_at, blocked_by = row[:10]
    weight, tat, own_rate, own_burst, now = row[10:]
    return _Counted(
        name,
        int(waiting),
        int(claimed),
        int(due),
        head,
        optional_number("scheduled_at", since),
        optional_number("available_at", next_at),
        optional_number("own_limit", own_limit),
        optional_number("paused_at", paused_at),
        optional_number("blocked_by", blocked_by),
        optional_number("tat_us", tat),
        optional_number("own_rate_us", own_rate),
        optional_number("own_burst", own_burst),
        optional_number("weight", weight),
        stored_number("the time", now),
    )


def _informed(
    connection: Connection, sql: StatementCache, rules: GroupRules, found: Sequence[_Counted]
) -> list[GroupInfo]:
    in_hand = _in_hand(connection, sql, [each.name for each in found if each.claimed])
    heads: dict[int, _Head] = {}
    if rules.ordered:
        ids = sorted(each.head for each in found if each.head is not None)
        rows = rows_by_ids(connection, sql, due_times, ids)
        heads = {row[0]: _Head(row[0], bool(row[1]), row[2]) for row in rows}
    return [_info(each, rules, in_hand.get(each.name), heads.get(each.head or 0)) for each in found]


def _in_hand(connection: Connection, sql: StatementCache, names: Sequence[str]) -> dict[str, _Held]:
    found: dict[str, _Held] = {}
    for name, consumer, first, since in _of_groups(connection, sql, holders, names):
        known = found.setdefault(name, _Held([], first, since))
        sooner = min((at for at in (since, known.since) if at is not None), default=None)
        found[name] = _Held([*known.consumer_ids, consumer], min(first, known.first), sooner)
    return found


def _of_groups(
    connection: Connection, sql: StatementCache, builder: Builder, names: Sequence[str]
) -> Iterator[Sequence[Any]]:
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        size = bucket_of(len(some))
        yield from list(sql.get(builder, size).run(connection, group_values(some, size)))


def _info(
    counted: _Counted, rules: GroupRules, held: _Held | None, head: _Head | None
) -> GroupInfo:
    limit = rules.limit if counted.own_limit is None else counted.own_limit
    next_at = counted.next_at if head is None or head.due else head.due_at
    is_due = counted.due > 0 if head is None else head.due
    oldest = None
    if counted.due and counted.since is not None:
        oldest = timedelta(microseconds=max(0, counted.now - counted.since))
    first = None if head is None else head.id
    own = (counted.own_rate, counted.own_burst)
    bucket = rules.bucket((counted.tat, *own, counted.now))
    token = None if bucket is None or bucket.tokens else bucket.next_at
    state = _state(counted, limit, due=is_due, next_at=next_at)
    if state is GroupState.READY and token is not None:
        state = GroupState.THROTTLED
    return GroupInfo(
        counted.name,
        state,
        counted.waiting,
        counted.claimed,
        limit,
        counted.own_limit,
        None if bucket is None else str(bucket.rate),
        stored_rate(*own),
        _moment(token),
        counted.weight or 1,
        counted.weight,
        oldest,
        None if is_due else _moment(next_at),
        held.first if rules.ordered and held is not None else first,
        () if held is None else tuple(held.consumer_ids),
        None if held is None else _moment(held.since),
        _moment(counted.paused_at),
        counted.blocked_by,
    )


def _state(counted: _Counted, limit: int, *, due: bool, next_at: int | None) -> GroupState:
    if counted.paused_at is not None:
        return GroupState.PAUSED
    if counted.blocked_by is not None:
        return GroupState.BLOCKED
    if counted.claimed >= limit:
        return GroupState.BUSY
    if not counted.waiting:
        return GroupState.EMPTY
    if due:
        return GroupState.READY
    return GroupState.HELD if next_at is None else GroupState.DELAYED


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else instant(microseconds)
