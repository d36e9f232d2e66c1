"""Statements about messages of groups, and about the groups' rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    FromClause,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    not_,
    or_,
    select,
    union_all,
    update,
)

from queue_over_sql.queues.registry import may_claim
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS
from queue_over_sql.statements.claims import (
    eligible,
    finds_first,
    fitting,
    found_first,
    in_claim_order,
)
from queue_over_sql.statements.parameters import among_ids, bucket_of, by_id, number, update_by_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.statements.requests import Where


def rows_of_groups(tables: QueueTables) -> Table:
    """The table of the groups' rows; only for queues with groups."""
    if tables.groups is None:
        msg = f"queue {tables.queue!r} has no groups"
        raise ValueError(msg)
    return tables.groups


# -- parameters


def group_values(names: Sequence[str], size: int) -> dict[str, str]:
    """The bind parameters of groups; the last name fills the unused ones of their bucket."""
    filled = [*names, *[names[-1]] * (size - len(names))]
    return {f"p_group_{index}": name for index, name in enumerate(filled)}


def group_parameters(table: Table, size: int) -> list[ColumnElement[Any]]:
    """The parameters that ``group_values`` fills."""
    kind = table.c.group_key.type
    return [bindparam(f"p_group_{index}", None, type_=kind) for index in range(size)]


def among_groups(table: Table, size: int) -> ColumnElement[bool]:
    """The condition that the row's group is one of ``size`` parameters."""
    names = group_parameters(table, size)
    return table.c.group_key.in_(names) if size > 1 else table.c.group_key == names[0]


# -- messages


def past_values(names: Sequence[str]) -> dict[str, str]:
    """The bind parameters of groups that a window leaves out, padded to their bucket."""
    filled = [*names, *[names[-1]] * (past_size(names) - len(names))] if names else []
    return {f"p_past_{index}": name for index, name in enumerate(filled)}


def past_size(names: Sequence[str]) -> int:
    """For how many groups to compile a window that leaves out these."""
    return bucket_of(len(names)) if names else 0


def window(
    tables: QueueTables, where: Where | None, past: int = 0, locked: bool = True
) -> Select[Any]:
    """The next ``p_window`` due messages of a level along the claim index: id, group, due, now.

    It leaves out ``past`` groups, of ``past_values``. With ``locked`` it locks the messages and
    skips those that others have locked.
    """
    live = tables.live
    columns: tuple[ColumnElement[Any], ...] = (
        live.c.id,
        live.c.group_key,
        live.c.available_at,
        tables.expressions.now().label("now"),
    )
    if locked and finds_first(tables, where):
        found = found_first(tables, columns, where, *past_groups(live, past), may_claim(tables))
        return found.limit(number("p_window"))
    statement = (
        select(*columns)
        .where(
            eligible(tables, where, ranged=where is None),
            *past_groups(live, past),
            may_claim(tables),
        )
        .limit(number("p_window"))
    )
    if locked:
        statement = statement.with_for_update(skip_locked=tables.features.skip_locked)
    return in_claim_order(statement, tables, where)


def past_groups(live: Table, size: int) -> list[ColumnElement[bool]]:
    """The condition that the row's group is none of those of ``past_values``."""
    if not size:
        return []
    group = live.c.group_key
    names = [bindparam(f"p_past_{index}", None, type_=group.type) for index in range(size)]
    return [or_(group.is_(None), group.not_in(names))]


def in_hand(tables: QueueTables, size: int) -> Select[Any]:
    """The claimed messages of groups: group and id."""
    live = tables.live
    found = select(live.c.group_key, live.c.id).where(
        among_groups(live, size), tables.expressions.is_claimed(live)
    )
    return by_group(tables, found, live)


def heads(tables: QueueTables, size: int) -> Select[Any]:
    """The first unclaimed message of the group of each of these messages: group and id."""
    live, others = tables.live, tables.live.alias("other")
    first = (
        select(others.c.id)
        .where(
            tables.expressions.in_group(others.c.group_key, live.c.group_key),
            others.c.consumer_id.is_(None),
        )
        .order_by(*tables.expressions.order_in_group(others))
        .limit(literal_column("1"))
    )
    head = by_group(tables, first, others).scalar_subquery()
    named = select(live.c.group_key, head).where(among_ids(live, size))
    return by_id(tables, named, live)


def by_group(tables: QueueTables, statement: Select[Any], rows: FromClause) -> Select[Any]:
    """Let the engine find ``rows``, which are messages, by the index of groups."""
    hint = tables.expressions.group_index_hint(tables.base_name)
    return statement if hint is None else statement.with_hint(rows, hint)


def firsts(tables: QueueTables, size: int) -> CompoundSelect[Any]:
    """The first ``p_first`` unclaimed messages of each group: group and id."""
    live = tables.live
    runs = []
    for place, name in enumerate(group_parameters(live, size)):
        run = (
            select(live.c.group_key, live.c.id)
            .where(live.c.group_key == name, live.c.consumer_id.is_(None))
            .order_by(*tables.expressions.order_in_group(live))
            .limit(number("p_first"))
        )
        runs.append(select(by_group(tables, run, live).subquery(f"run_{place}")))
    return union_all(*runs)


def lock_due(tables: QueueTables, size: int, where: Where | None) -> Select[Any]:
    """Lock and read those of the ids that are due, parked or not; the clock comes last."""
    live, now = tables.live, tables.expressions.now()
    columns = tables.message_columns(live)
    columns[MESSAGE_COLUMNS.index("available_at")] = _due_at(live).label("due_at")
    found = _due(tables, size, where).with_only_columns(*columns, now.label("now"))
    return by_id(tables, found.with_for_update(skip_locked=tables.features.skip_locked), live)


def due(tables: QueueTables, size: int, where: Where | None) -> Select[Any]:
    """As ``lock_due``, without locks: only the ids."""
    return by_id(tables, _due(tables, size, where), tables.live)


def _due(tables: QueueTables, size: int, where: Where | None) -> Select[Any]:
    live = tables.live
    free = and_(among_ids(live, size), live.c.consumer_id.is_(None))
    at_once = _due_at(live) <= tables.expressions.now()
    return select(live.c.id).where(free, at_once, *fitting(tables, where))


def _due_at(live: Table) -> ColumnElement[Any]:
    return func.coalesce(live.c.parked_at, live.c.available_at)


def lock_claimed(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that are claimed, whoever claims them: id and group."""
    return _locked(tables, size, tables.live.c.consumer_id.is_not(None))


def lock_unparked(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that are neither claimed nor parked: id and group."""
    live = tables.live
    return _locked(tables, size, live.c.consumer_id.is_(None), not_(is_parked(live)))


def lock_waiting(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that are in the claim index: id and group."""
    return _locked(tables, size, *_in_claim_index(tables))


def _in_claim_index(tables: QueueTables) -> tuple[ColumnElement[bool], ...]:
    return tables.live.c.consumer_id.is_(None), tables.live.c.available_at.is_not(None)


def _locked(tables: QueueTables, size: int, *conditions: ColumnElement[bool]) -> Select[Any]:
    live = tables.live
    locked = (
        select(live.c.id, live.c.group_key)
        .where(among_ids(live, size), *conditions)
        .with_for_update(skip_locked=tables.features.skip_locked)
    )
    return by_id(tables, locked, live)


def set_carriers(tables: QueueTables, size: int) -> Update:
    """Note on messages that others may be parked behind them."""
    live = tables.live
    unmarked = and_(among_ids(live, size), live.c.blocks.is_(None))
    return update_by_id(tables).where(unmarked).values(blocks=literal_column("1"))


def set_parked(tables: QueueTables, size: int) -> Update:
    """Move messages out of the claim index; they keep their due time in another column."""
    live = tables.live
    waiting = and_(among_ids(live, size), *_in_claim_index(tables))
    # In this order, because MySQL assigns from left to right.
    return (
        update_by_id(tables)
        .where(waiting)
        .ordered_values(
            (live.c.parked_at, func.coalesce(live.c.parked_at, live.c.available_at)),
            (live.c.available_at, None),
        )
    )


def is_parked(live: FromClause) -> ColumnElement[bool]:
    """The condition for messages that are moved out of the claim index."""
    return and_(live.c.parked_at.is_not(None), live.c.available_at.is_(None))


def put_off(tables: QueueTables, size: int) -> Update:
    """Let claims meet due messages at ``p_at``, not before; parked ones, too.

    They keep their due time as parked ones do.
    """
    live = tables.live
    due = or_(live.c.available_at <= tables.expressions.now(), is_parked(live))
    waiting = and_(among_ids(live, size), live.c.consumer_id.is_(None), due)
    # In this order, because MySQL assigns from left to right.
    return (
        update_by_id(tables)
        .where(waiting)
        .ordered_values(
            (live.c.parked_at, func.coalesce(live.c.parked_at, live.c.available_at)),
            (live.c.available_at, number("p_at")),
        )
    )


# -- the groups' rows


def set_by_hand(rows: Table) -> ColumnElement[bool]:
    """The condition for groups for which an operator has set something, or that are stopped."""
    names = ("own_limit", "own_rate_us", "weight")
    return or_(*[rows.c[name].is_not(None) for name in names], stopped(rows))


def settings_of_groups(tables: QueueTables, size: int) -> Select[Any]:
    """The rows of groups: name, own limit, whether nothing of it is handed out, its rate."""
    rows = rows_of_groups(tables)
    found = select(rows.c.group_key, rows.c.own_limit, stopped(rows), *rate_columns(tables))
    return by_id(tables, found.where(among_groups(rows, size)), rows)


def rate_columns(tables: QueueTables) -> list[ColumnElement[Any]]:
    """What ``GroupRules.bucket`` needs of a group's row; the last one is the clock."""
    c = rows_of_groups(tables).c
    return [c.tat_us, c.own_rate_us, c.own_burst, tables.expressions.now().label("now")]


def any_own_rate(tables: QueueTables) -> Select[Any]:
    """Whether a group has a rate of its own."""
    own = rows_of_groups(tables).c.own_rate_us
    return select(own).where(own.is_not(None)).limit(literal_column("1"))


def spend(tables: QueueTables, size: int) -> Update:
    """Note what the buckets of groups are, of ``bucket_values``."""
    rows = rows_of_groups(tables)
    names = group_parameters(rows, size)
    tats = [(rows.c.group_key == name, number(f"p_tat_{n}")) for n, name in enumerate(names)]
    # Another number, as with each claim where it counts.
    values = {"tat_us": case(*tats), "seq": rows.c.seq + literal_column("1")}
    return update(rows).where(among_groups(rows, size)).values(values)


def bucket_values(tats: Mapping[str, int], size: int) -> dict[str, Any]:
    """The bind parameters of ``spend``."""
    filled = [*tats.values(), *[0] * (size - len(tats))]
    return group_values(list(tats), size) | {f"p_tat_{n}": tat for n, tat in enumerate(filled)}


def lock_stopped(tables: QueueTables, size: int) -> Select[Any]:
    """Lock the rows of those groups of which nothing is handed out."""
    rows = rows_of_groups(tables)
    locked = (
        select(rows.c.group_key)
        .where(among_groups(rows, size), stopped(rows))
        .with_for_update(skip_locked=tables.features.skip_locked)
    )
    return by_id(tables, locked, rows)


def lock_open(tables: QueueTables, size: int) -> Select[Any]:
    """As ``settings_of_groups``; locks those of which messages may be handed out."""
    rows = rows_of_groups(tables)
    locked = (
        select(rows.c.group_key, rows.c.own_limit, literal_column("0"), *rate_columns(tables))
        .where(among_groups(rows, size), not_(stopped(rows)))
        .with_for_update(skip_locked=tables.features.skip_locked)
    )
    return by_id(tables, locked, rows)


def stopped(rows: Table) -> ColumnElement[bool]:
    """The condition for groups that are paused, or blocked by a dead letter."""
    return or_(rows.c.paused_at.is_not(None), rows.c.blocked_by.is_not(None))


def known_groups(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the groups have rows."""
    rows = rows_of_groups(tables)
    return by_id(tables, select(rows.c.group_key).where(among_groups(rows, size)), rows)


def add_groups(tables: QueueTables, size: int) -> Insert:
    """Create rows of groups; where the engine can, it leaves out those that others created."""
    rows, now = rows_of_groups(tables), tables.expressions.now()
    names = group_parameters(rows, size)
    # From the time on, because a row that was deleted and comes back must not repeat a number.
    new = [{"group_key": name, "seq": now, "created_at": now} for name in names]
    insertion = tables.expressions.insert(rows).values(new)
    return tables.expressions.ignore_conflict(insertion, [rows.c.group_key])
