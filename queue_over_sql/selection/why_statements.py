"""What ``Queue.why`` reads: a message, all that may keep it waiting, and its place in line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
)

from queue_over_sql.consumers.registrations import ConsumerInfo, completed, info, info_columns
from queue_over_sql.groups.statements import (
    among_groups,
    by_group,
    group_values,
    rate_columns,
    rows_of_groups,
)
from queue_over_sql.statements.parameters import by_holder, number
from queue_over_sql.values.durations import NEVER, optional_number, stored_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.errors import QueueError
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


MOST_NAMED: Final = 3
"""How many messages in hand are named at most."""
MOST_COUNTED: Final = 10_000
"""How many messages before one are counted at most."""


class Live(NamedTuple):
    """A live message, and all that may keep it waiting, at one moment; times in microseconds.

    Attributes:
        due: whether it is due.
        expires_at: until when its first attempt must begin; None: it does not expire, or one has
            begun.
        expired: whether that time has passed.
        claim_whole: whether its claim is as a consumer wrote it.
        lease_over: whether the lease of its claim has ended.
        holder_dead: whether the consumer of its claim has missed its heartbeat, or is gone.
        paused_at: since when the queue is paused; None if it is not.
        group: its group, if it has one.
        holder: the consumer of its claim, or the error of its row; None if it is not registered.
    """

    due: bool
    available_at: int | None
    priority: int
    attempts: int
    max_attempts: int | None
    kind: str | None
    last_error: Any
    consumer_id: str | None
    claimed_at: int | None
    lease_expires_at: int | None
    claim_whole: bool
    lease_over: bool
    holder_dead: bool
    paused_at: int | None
    expires_at: int | None
    expired: bool
    group: str | None
    holder: ConsumerInfo | QueueError | None


class GroupOf(NamedTuple):
    """The group of a message at one moment.

    Attributes:
        own_limit: the group's own limit; None: it has that of the queue.
        paused_at: since when it is paused; None if it is not.
        blocked_by: the dead letter that blocks it.
        weight: its share; None: 1.
        rate: what its row says of its rate, as ``GroupRules.bucket`` reads it; None without a row.
        claimed: its messages in hand, up to ``MOST_NAMED``, and how many there are.
        first: its first message that nobody has.
    """

    own_limit: int | None
    paused_at: int | None
    blocked_by: int | None
    weight: int | None
    rate: Sequence[Any] | None
    claimed: Sequence[int]
    claimed_count: int
    first: int | None


class Ended(NamedTuple):
    """A finished message."""

    finished_at: int
    outcome: str
    attempts: int
    max_attempts: int | None
    last_error: Any


def select_live(tables: QueueTables) -> Select[Any]:
    """Read a live message and its holder, at one moment."""
    live, consumers, now = tables.live, tables.system.consumers, tables.expressions.now()
    kind = live.c.kind if tables.has_payloads else null()
    expiry = _expiry(tables)
    whole = and_(live.c.lease_expires_at.is_not(None), live.c.consumer_round.is_not(None))
    expired = consumers.c.expires_at <= tables.expressions.heartbeat_now()
    dead = or_(consumers.c.expires_at.is_(None), expired)
    return (
        select(
            _flag(tables.is_due()).label("due"),
            tables.due_at(),
            live.c.priority,
            live.c.attempt_count,
            live.c.max_attempts,
            kind.label("kind"),
            live.c.last_error,
            live.c.consumer_id.label("claimer"),
            live.c.claimed_at,
            live.c.lease_expires_at,
            _flag(whole).label("whole"),
            _flag(live.c.lease_expires_at <= now).label("is_over"),
            _flag(dead).label("dead"),
            _paused_at(tables).label("paused_at"),
            expiry.label("expiry"),
            _flag(expiry <= now).label("is_late"),
            *info_columns(tables.system),
            *([live.c.group_key] if tables.grouped else []),
        )
        .select_from(live.outerjoin(consumers, consumers.c.consumer_id == live.c.consumer_id))
        .where(live.c.id == number("p_id_0"), *tables.live_only())
    )


def _flag(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return case((condition, literal_column("1")), else_=literal_column("0"))


def _expiry(tables: QueueTables) -> ColumnElement[Any]:
    """Until when the first attempt must begin; NULL if one has begun, which may come back late."""
    if not tables.may_expire:
        return literal_column("NULL", BigInteger())
    live = tables.live.c
    return case((live.attempt_count == literal_column("0"), live.expires_at))


def _paused_at(tables: QueueTables) -> ColumnElement[Any]:
    c = tables.system.queues.c
    mine = (c.table_prefix == tables.prefix, c.name == tables.queue)
    return select(c.paused_at).where(*mine).scalar_subquery()


def select_ended(tables: QueueTables) -> Select[Any]:
    """Read how a message ended."""
    c = tables.archive.c
    ended = (c.finished_at, c.outcome, c.attempt_count, c.max_attempts, c.last_error)
    return select(*ended).where(c.id == number("p_id_0"), *tables.finished_only())


def select_permanent(tables: QueueTables) -> Select[Any]:
    """The names of consumers that stand for clients of which nobody knows whether they live."""
    c = tables.system.consumers.c
    forever = (c.durable == literal_column("0"), c.expires_at == literal(NEVER, BigInteger()))
    return select(c.name).where(*forever).order_by(c.name)


def count_ahead(tables: QueueTables, same: bool) -> Select[Any]:
    """Count the ready messages of one level that come before a message, up to a limit.

    It also says whether the message is still at the place that the parameters describe. ``same``:
    whether this is the message's own level.
    """
    live = tables.live
    one: ColumnElement[int] = literal_column("1")
    place = select(one).where(
        live.c.id == number("p_id_0"),
        live.c.consumer_id.is_(None),
        live.c.priority == number("p_priority"),
        tables.due_at() == number("p_due"),
    )
    if not same:
        before = [_count(tables, live.c.available_at <= tables.expressions.now())]
    else:
        # No OR: for two ranges planners may choose two scans and a sort.
        due = live.c.available_at
        together = (due == number("p_due"), live.c.id < number("p_id_0"))
        before = [_count(tables, due < number("p_due")), _count(tables, *together)]
    return select(place.select_from(live).scalar_subquery().label("place"), *before)


def _count(tables: QueueTables, *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
    """Count along the claim index, as a claim reads it."""
    live, engine = tables.live, tables.expressions
    unclaimed = engine.unclaimed_range(live.c.consumer_id)
    level = (unclaimed, live.c.priority == number("p_level"))
    found = select(live.c.id).where(*level, *conditions).limit(number("p_count"))
    hint = engine.claim_index_hint(tables.base_name)
    if hint is not None:
        found = found.with_hint(live, hint)
    else:
        order = [live.c.available_at, live.c.id]
        hint = engine.claim_range_hint(tables.base_name)
        if hint is not None:
            # With a range condition, the first column of the index is part of the order.
            found, order = found.with_hint(live, hint), [live.c.consumer_id, *order]
        found = found.order_by(*order)
    return select(func.count()).select_from(found.subquery()).scalar_subquery()


def read_live(connection: Connection, sql: StatementCache, message_id: int) -> Live | None:
    """Read a live message and what may keep it waiting; None if there is none."""
    row: Any = sql.get(select_live).run(connection, {"p_id_0": message_id}).first()
    if row is None:
        return None
    due, available_at, priority, attempts, most, kind, error, claimer = row[:8]
    claimed_at, lease_expires_at, whole, over, dead, paused_at = row[8:14]
    expiry, is_late, *about = row[14:]
    group = about.pop() if sql.subject.grouped else None
    return Live(
        bool(due),
        optional_number("available_at", available_at),
        stored_number("priority", priority),
        stored_number("attempt_count", attempts),
        optional_number("max_attempts", most),
        kind,
        error,
        claimer,
        optional_number("claimed_at", claimed_at),
        optional_number("lease_expires_at", lease_expires_at),
        bool(whole),
        bool(over),
        bool(dead),
        optional_number("paused_at", paused_at),
        optional_number("expires_at", expiry),
        bool(is_late),
        group,
        None if about[0] is None else info(about),
    )


def select_group(tables: QueueTables) -> Select[Any]:
    """The row of a group."""
    rows = rows_of_groups(tables)
    own = (rows.c.own_limit, rows.c.paused_at, rows.c.blocked_by, rows.c.weight)
    return select(*own, *rate_columns(tables)).where(among_groups(rows, 1))


def select_claimed(tables: QueueTables) -> Select[Any]:
    """The first messages of a group that are in hand."""
    live = tables.live
    held = select(live.c.id).where(among_groups(live, 1), tables.expressions.is_claimed(live))
    return by_group(tables, held, live).order_by(live.c.id).limit(number("p_count"))


def select_first(tables: QueueTables) -> Select[Any]:
    """The first message of a group that nobody has."""
    live = tables.live
    waiting = select(live.c.id).where(among_groups(live, 1), live.c.consumer_id.is_(None))
    first = by_group(tables, waiting, live).order_by(*tables.expressions.order_in_group(live))
    return first.limit(literal_column("1"))


def read_group(connection: Connection, sql: StatementCache, group: str) -> GroupOf:
    """Read what may hold up the messages of a group."""
    name = group_values([group], 1)
    row: Any = sql.get(select_group).run(connection, name).first()
    held = sql.get(select_claimed).run(connection, name | {"p_count": MOST_COUNTED}).all()
    first = sql.get(select_first).run(connection, name).scalar()
    own_limit, paused_at, blocked_by, weight, *rate = row or (None, None, None, None)
    return GroupOf(
        optional_number("own_limit", own_limit),
        optional_number("paused_at", paused_at),
        optional_number("blocked_by", blocked_by),
        optional_number("weight", weight),
        rate or None,
        [each[0] for each in held[:MOST_NAMED]],
        len(held),
        first,
    )


def select_earlier(tables: QueueTables) -> Select[Any]:
    """Count the ready messages of a group before one of them, up to a limit."""
    live = tables.live
    waits = (live.c.consumer_id.is_(None), tables.is_due(), live.c.id < number("p_id_0"))
    level = live.c.priority == number("p_priority")
    earlier = select(live.c.id).where(among_groups(live, 1), level, *waits)
    earlier = by_group(tables, earlier, live).limit(number("p_count"))
    return select(func.count()).select_from(earlier.subquery())


def earlier_of_group(
    connection: Connection, sql: StatementCache, message_id: int, group: str, priority: int
) -> int:
    """How many ready messages of its group come before a message, up to ``MOST_COUNTED`` + 1."""
    values = {"p_id_0": message_id, "p_priority": priority, "p_count": MOST_COUNTED + 1}
    found = sql.get(select_earlier).run(connection, values | group_values([group], 1))
    return int(found.scalar_one())


def read_ended(connection: Connection, sql: StatementCache, message_id: int) -> Ended | None:
    """Read how a message ended; None if it is not in the archive."""
    row: Any = sql.get(select_ended).run(connection, {"p_id_0": message_id}).first()
    if row is None:
        return None
    finished_at, outcome, attempts, most, error = row
    return Ended(
        stored_number("finished_at", finished_at),
        outcome,
        stored_number("attempt_count", attempts),
        optional_number("max_attempts", most),
        error,
    )


def select_living(tables: QueueTables) -> Select[Any]:
    """The consumers that are alive."""
    c = tables.system.consumers.c
    alive = c.expires_at > tables.expressions.heartbeat_now()
    return select(*info_columns(tables.system)).where(alive).order_by(c.started_at, c.consumer_id)


def select_declared(tables: QueueTables) -> Select[Any]:
    """Which kinds of the queue consumers know."""
    c = tables.system.kinds.c
    of_queue = (c.table_prefix == tables.prefix, c.queue == tables.queue)
    return select(c.consumer_id, c.table_prefix, c.queue, c.kind).where(*of_queue)


def living_consumers(connection: Connection, sql: StatementCache) -> list[ConsumerInfo]:
    """The consumers that are alive, and what they handle, as far as it is about the queue."""
    rows: Sequence[Any] = sql.get(select_living).run(connection).all()
    declared: Sequence[Any] = sql.get(select_declared).run(connection).all()
    return [each for each in completed(rows, declared) if isinstance(each, ConsumerInfo)]


def select_holders(tables: QueueTables) -> Select[Any]:
    """The living consumers that have a message of the queue in hand."""
    live, c = tables.live, tables.system.consumers.c
    # By the index of leases, which has only what is in hand, or by the consumer.
    is_held = (live.c.consumer_id == c.consumer_id, live.c.lease_expires_at.is_not(None))
    held = by_holder(tables, select(live.c.id).where(*is_held).limit(literal_column("1")))
    # Not EXISTS: MySQL may join all claims for it.
    return select(c.consumer_id).where(
        c.expires_at > tables.expressions.heartbeat_now(), held.scalar_subquery().is_not(None)
    )


def holders(connection: Connection, sql: StatementCache) -> set[str]:
    """The living consumers that have a message of the queue in hand."""
    return {row[0] for row in sql.get(select_holders).run(connection).all()}


def permanent_consumers(connection: Connection, sql: StatementCache) -> list[str]:
    """The names of consumers that never expire, and so say nothing about their clients."""
    return [row[0] for row in sql.get(select_permanent).run(connection).all()]


def ahead_of(
    connection: Connection, sql: StatementCache, message_id: int, place: tuple[int, int | None]
) -> tuple[int, int] | None:
    """How many ready messages come before a message, and how many of them are more urgent.

    They are counted up to one more than ``MOST_COUNTED``. ``place`` is its priority, and when it is
    due. None: the message has left that place.
    """
    before = urgent = 0
    priority, due = place
    there = {"p_id_0": message_id, "p_priority": priority, "p_due": due}
    for level in range(priority + 1):
        same = level == priority
        left = {"p_level": level, "p_count": MOST_COUNTED + 1 - before}
        row: Any = sql.get(count_ahead, same).run(connection, there | left).one()
        if row[0] is None:
            return None
        before += sum(int(count) for count in row[1:])
        if not same:
            urgent = before
        if before > MOST_COUNTED:
            break
    return before, urgent
