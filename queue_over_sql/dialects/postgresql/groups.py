"""How PostgreSQL claims from a queue with groups: in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    CompoundSelect,
    Connection,
    Float,
    FromClause,
    Select,
    all_,
    and_,
    any_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)

from queue_over_sql.dialects.locked_groups import LockedGroupClaims
from queue_over_sql.dialects.postgresql.claim import (
    all_acked,
    count_acked,
    end_held,
    exchange_values,
    settled_of,
)
from queue_over_sql.groups.statements import rows_of_groups, stopped, window
from queue_over_sql.groups.strategy import (
    GroupClaim,
    GroupClaims,
    GroupRequest,
    Seen,
    group_of,
)
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import number, words
from queue_over_sql.statements.requests import Settlement, Where, read_rows


class PostgreSQLGroupClaims(GroupClaims):
    """Looks for groups, locks their rows, takes of them and stamps, all in one statement.

    Its snapshot may be older than its locks. So each claim of a group writes another number into
    the group's row, and a claim leaves out a group whose number is not that of its snapshot.
    """

    at_once = True
    has_heads = True
    exchanges_heads = True

    def with_rates(self) -> GroupClaims:
        return LockedGroupClaims(self._dialect)

    def claim(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim:
        where, ordered = request.claim.where, request.rules.ordered
        statement = sql.get(claim_groups, where, ordered, request.past_size)
        found: Sequence[Any] = statement.run(connection, request.values()).all()
        # A claimed message outside of the window has no time.
        met = sorted((row[2], row[0], row[1], row[3]) for row in found if row[0] is not None)
        seen = [Seen(message_id, group, due) for due, message_id, group, _ in met]
        rows = read_rows(connection, sql, [row[4:] for row in found if row[4] is not None])
        return GroupClaim(rows, seen, met[0][3] if met else 0)

    def claim_heads(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim | None:
        statement = sql.get(claim_heads, request.claim.where)
        found = statement.run(connection, request.values()).all()
        return self._heads(connection, sql, request, found)

    def exchange_heads(
        self,
        connection: Connection,
        sql: StatementCache,
        settlements: Sequence[Settlement],
        request: GroupRequest,
        *,
        keep: bool,
    ) -> tuple[set[int], GroupClaim | None]:
        ids = [message_id for each in settlements for message_id in each.ids]
        values = exchange_values(sql, settlements, keep=keep) | request.values()
        values |= {
            "p_held_by": settlements[0].claim.consumer_id,
            "p_ids": ids,
            "p_rounds": [each.claim.consumer_round for each in settlements for _ in each.ids],
        }
        statement = sql.get(exchange_heads, keep, request.claim.where)
        rows: Sequence[Any] = statement.run(connection, values).all()
        settled = settled_of(ids, rows[0])
        if len(settled) < len(ids):
            return settled, None
        found = [row[2:] for row in rows if row[2] is not None or row[5] is not None]
        return settled, self._heads(connection, sql, request, found)

    @staticmethod
    def _heads(
        connection: Connection, sql: StatementCache, request: GroupRequest, found: Sequence[Any]
    ) -> GroupClaim | None:
        rows = read_rows(connection, sql, [row[3:] for row in found if row[0] is None])
        if rows and len(rows) == len(found):
            return GroupClaim.of_all(rows)
        seen = [Seen(row.id, group_of(row), row.available_at or 0) for row in rows]
        seen += [Seen(*row[:3]) for row in found if row[0] is not None]
        seen.sort(key=lambda each: (each.available_at, each.id))
        if not rows:
            groups = [each.group for each in seen if each.group is not None]
            if len(seen) < request.window or len(set(groups)) < len(groups):
                return None
        return GroupClaim(rows, seen, rows[0].claimed_at or 0 if rows else 0)


def claim_heads(tables: QueueTables, where: Where | None) -> Select[Any]:
    """Claim those of a window that are the first ones of their groups.

    Nothing if there are fewer than ``p_window`` messages, or several of one group. Each row has a
    message that was left, or one that was claimed.
    """
    columns, found, counted = _heads_of_window(tables, where)
    return select(*columns).select_from(found).add_cte(counted)


def exchange_heads(tables: QueueTables, keep: bool, where: Where | None) -> Select[Any]:
    """As ``claim_heads``, and ack messages of a consumer behind which no others wait.

    If some were lost, or others wait, it claims nothing. Each row begins as in
    ``exchange_at_once``.
    """
    held = and_(_fence_of_claims(tables), tables.live.c.blocks.is_(None))
    acked = end_held(tables, held, keep=keep)
    columns, found, counted = _heads_of_window(tables, where, acked)
    settled = count_acked(acked)
    return (
        select(settled.c.acked, settled.c.ids, *columns)
        .select_from(settled.outerjoin(found, true()))
        .add_cte(counted)
    )


def _fence_of_claims(tables: QueueTables) -> ColumnElement[bool]:
    """The fence of messages of several claims of one consumer: each id has its round.

    The numbers are arrays, because a worker acks as many as it happens to have. The text is long to
    compile, and to plan, so it is the same for any number.
    """
    live = tables.live
    ids, rounds = (bindparam(name, None, type_=ARRAY(BigInteger)) for name in ("p_ids", "p_rounds"))
    pairs = func.unnest(ids, rounds).table_valued("id", "round").render_derived("held")
    # CASE keeps the planner from making a join of it, in which it would compare all with all.
    claimed = case(
        (tuple_(live.c.id, live.c.consumer_round).in_(select(pairs.c.id, pairs.c.round)), true())
    )
    return and_(live.c.id == any_(ids), live.c.consumer_id == words("p_held_by"), claimed)


def _heads_of_window(
    tables: QueueTables, where: Where | None, acked: CTE | None = None
) -> tuple[list[ColumnElement[Any]], FromClause, CTE]:
    """The columns and rows of ``claim_heads``, and what counts the claims of groups.

    What is acked meanwhile is not in hand any more, although the snapshot has it.
    """
    live, groups, now = tables.live, rows_of_groups(tables), tables.expressions.now()
    other, held = live.alias("other"), live.alias("held")
    columns = live.c.id, live.c.group_key, live.c.available_at, live.c.parked_at
    picked = _fenced(window(tables, where).with_only_columns(*columns), "picked")
    several = func.count(picked.c.group_key) - func.count(picked.c.group_key.distinct())
    whole = (
        select(and_(func.count() == number("p_window"), several == 0))
        .select_from(picked)
        .scalar_subquery()
    )
    # A LIMIT keeps the planner from reading all rows for a join.
    row = (
        select(
            _place().label("place"),
            groups.c.seq,
            func.coalesce(groups.c.own_limit, number("p_limit")).label("most"),
        )
        .where(groups.c.group_key == picked.c.group_key, ~stopped(groups))
        .limit(literal_column("1"))
        .lateral("row")
    )
    head = (
        select(other.c.id)
        .where(
            tables.expressions.in_group(other.c.group_key, picked.c.group_key),
            other.c.consumer_id.is_(None),
        )
        .order_by(*tables.expressions.order_in_group(other))
        .limit(literal_column("1"))
        .correlate(picked)
        .scalar_subquery()
    )
    others: list[ColumnElement[bool]] = []
    free: list[ColumnElement[bool]] = [whole, picked.c.parked_at.is_(None)]
    if acked is not None:
        others = [held.c.id != all_(func.array(select(acked.c.id).scalar_subquery()))]
        free.insert(0, all_acked(acked))
    # The one that may not be in hand beside another.
    last_in_hand = (
        _in_hand(tables, held, picked.c.group_key, row.c.most)
        .where(*others)
        .offset(row.c.most - literal_column("1"))
        .limit(literal_column("1"))
        .correlate(picked, row)
        .scalar_subquery()
    )
    wanted = _fenced(
        select(picked.c.id, row.c.place, row.c.seq)
        .select_from(picked.join(row, true()))
        .where(*free, picked.c.id == head, last_in_hand.is_(None)),
        "wanted",
    )
    newest = (
        select(literal_column("1").label("one"))
        .select_from(groups)
        .where(_place() == wanted.c.place, groups.c.seq == wanted.c.seq)
        .with_for_update(skip_locked=True)
        .lateral("newest")
    )
    locked = _fenced(
        select(wanted.c.id, wanted.c.place).select_from(wanted.join(newest, true())), "locked"
    )
    counted = (
        update(groups)
        .where(_place() == _any_of(locked.c.place))
        .values(seq=groups.c.seq + literal_column("1"))
        .cte("counted")
    )
    alone = select(picked.c.id).where(*free, picked.c.group_key.is_(None))
    taken = union_all(select(locked.c.id), alone).subquery("taken")
    changed = (
        update(live)
        .where(live.c.id == _any_of(taken.c.id))
        .values(claim.stamp_values(tables, now))
        .returning(*tables.message_columns(live))
        .cte("changed")
    )
    # An adopted table labels its columns.
    changed_id = next(iter(changed.c))
    left = [
        case((changed_id.is_(None), column))
        for column in (picked.c.id, picked.c.group_key, picked.c.available_at)
    ]
    found = picked.outerjoin(changed, picked.c.id == changed_id)
    return [*left, *changed.c], found, counted


def claim_groups(tables: QueueTables, where: Where | None, ordered: bool, past: int) -> Select[Any]:
    """Claim of the groups in the window, which leaves out ``past`` groups.

    Each row has a message of the window, the time, and a claimed message; one of the two messages
    may be missing.
    """
    live, groups, now = tables.live, rows_of_groups(tables), tables.expressions.now()
    picked = _fenced(window(tables, where, past), "picked")
    wanted = _wanted(tables, picked, ordered=ordered)
    locked = _locked(tables, wanted)
    # What was put off gets its due time back.
    further: dict[str, Any] = {
        "available_at": func.coalesce(live.c.parked_at, live.c.available_at),
        "parked_at": None,
    }
    if ordered:
        kept, flagged = _first(tables, picked, locked, where)
        carries = case((live.c.id == _any_of(flagged.c.id), 1), else_=live.c.blocks)
        further["blocks"] = carries
    else:
        kept = _any(picked, locked)
    taken = select(kept.c.group_key).distinct().subquery("taken")
    counted = (
        update(groups)
        .where(groups.c.group_key == taken.c.group_key)
        .values(seq=func.greatest(groups.c.seq + 1, now))
        .cte("counted")
    )
    changed = (
        update(live)
        .where(live.c.id == _any_of(kept.c.id))
        .values(claim.stamp_values(tables, now) | further)
        .returning(*tables.message_columns(live))
        .cte("changed")
    )
    # An adopted table labels its columns.
    changed_id = next(iter(changed.c))
    return (
        select(*picked.c, *changed.c)
        .select_from(picked.outerjoin(changed, picked.c.id == changed_id, full=True))
        .add_cte(counted)
    )


def _fenced(statement: Select[Any] | CompoundSelect[Any], name: str) -> CTE:
    """MATERIALIZED keeps the planner from running it twice, or inside of a loop."""
    return statement.cte(name).prefix_with("MATERIALIZED")


def _place() -> ColumnElement[Any]:
    """Where a row lies: found without an index. A row that is locked stays there."""
    return literal_column("ctid")


def _any_of(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """By an array, so that the index is probed for each; see ``PostgreSQLClaims.chosen``."""
    return any_(func.array(select(column).scalar_subquery()))


def _in_hand(
    tables: QueueTables, held: Any, name: ColumnElement[Any], most: ColumnElement[int]
) -> Select[Any]:
    """Messages of a group in hand, by the index of these.

    If nothing was in hand when the server last counted, the planner takes the index of leases for
    empty, and for the cheaper one. Then each group would read all that is in hand now. So the order
    of the right index is asked for, and of seemingly a thousand times as many rows: it seems
    expensive to sort these. Only a value that is not known beforehand, such as ``most``, seems so.
    """
    once = func.generate_series(literal_column("1"), func.least(most, literal_column("1")))
    return (
        select(literal_column("1").label("one"))
        .select_from(held.join(once.alias("once"), true()))
        .where(tables.expressions.in_group(held.c.group_key, name))
        .where(held.c.lease_expires_at.is_not(None))
        .order_by(held.c.group_key)
    )


def _wanted(tables: QueueTables, picked: CTE, *, ordered: bool) -> CTE:
    """Groups of which something may be handed out, their number, and what the limit leaves."""
    groups, held = rows_of_groups(tables), tables.live.alias("held")
    names = _fenced(
        select(
            picked.c.group_key,
            func.count().label("seen"),
            func.min(picked.c.available_at).label("place"),
            func.min(picked.c.id).label("least"),
        )
        .where(picked.c.group_key.is_not(None))
        .group_by(picked.c.group_key),
        "names",
    )
    limit = func.coalesce(groups.c.own_limit, number("p_limit"))
    # A LIMIT keeps the planner from reading all rows for a join.
    row = (
        select(groups.c.seq, limit.label("most"))
        .where(groups.c.group_key == names.c.group_key, ~stopped(groups))
        .limit(literal_column("1"))
        .lateral("row")
    )
    in_hand = (
        _in_hand(tables, held, names.c.group_key, row.c.most)
        .limit(row.c.most)
        .correlate(names, row)
        .lateral("some")
    )
    count = select(func.count().label("count")).select_from(in_hand).lateral("in_hand")
    left = row.c.most - count.c.count
    if ordered:
        left = case((row.c.most > 1, left))
    return _fenced(
        select(
            *(names.c.group_key, names.c.place, names.c.seen, row.c.seq),
            left.label("left"),
            (row.c.most == 1).label("single"),
        )
        .select_from(names.join(row, true()).join(count, true()))
        .where(count.c.count < row.c.most)
        .order_by(names.c.place, names.c.least),
        "wanted",
    )


def _locked(tables: QueueTables, wanted: CTE) -> CTE:
    """Lock groups, and say how much of each; the lock compares the number with the snapshot's.

    What is wanted is divided among those that this claim has locked. So consumers that meet the
    same few groups at once get several messages of some, instead of one of each.
    """
    groups = rows_of_groups(tables)
    row = (
        select(groups.c.seq)
        .where(groups.c.group_key == wanted.c.group_key, groups.c.seq == wanted.c.seq)
        .with_for_update(skip_locked=True)
        .lateral("locked_row")
    )
    free = _fenced(
        # As a rule no more rows are locked than are wanted, and locked ones do not count.
        select(wanted.c.group_key, wanted.c.place, wanted.c.seen, wanted.c.left, wanted.c.single)
        .select_from(wanted.join(row, true()))
        .limit(number("p_rows")),
        "free",
    )
    fair = func.ceil(
        cast(number("p_count"), Float)
        / select(func.count()).select_from(free.alias("all")).scalar_subquery()
    )
    most = func.least(func.greatest(free.c.seen, cast(fair, BigInteger)), number("p_most"))
    return _fenced(
        select(
            *(free.c.group_key, free.c.place, free.c.single),
            func.least(most, free.c.left).label("most"),
        ),
        "locked",
    )


def _first(tables: QueueTables, picked: CTE, locked: CTE, where: Where | None) -> tuple[CTE, CTE]:
    """What to take with order: the ids with their groups, and those that others wait behind.

    Of each group its first messages by id, up to one that is not due, does not fit, or is locked.
    """
    live = tables.live
    run = (
        select(
            live.c.id,
            _sum_of(_due(tables, where)).label("due"),
            or_(live.c.blocks.is_not(None), live.c.parked_at.is_not(None)).label("waits"),
        )
        .where(
            tables.expressions.in_group(live.c.group_key, locked.c.group_key),
            live.c.consumer_id.is_(None),
        )
        .order_by(*tables.expressions.order_in_group(live))
        .limit(locked.c.most)
        .correlate(locked)
        .subquery("run")
    )
    due = func.bool_and(run.c.due, type_=Boolean()).over(order_by=run.c.id)
    first = select(run.c.id, run.c.waits, due.label("due")).lateral("first")
    of_groups = (
        select(first.c.id, locked.c.group_key, locked.c.place, first.c.waits, locked.c.single)
        .select_from(locked.join(first, true()))
        .where(first.c.due)
    )
    alone = select(picked.c.id, picked.c.group_key, picked.c.available_at, false(), false())
    chosen = _oldest(of_groups, alone.where(picked.c.group_key.is_(None)), "p_rows")
    sure = _fenced(
        select(live.c.id)
        # Inside of the sum, so that the planner does not read the index of unclaimed messages.
        .where(
            live.c.id == _any_of(chosen.c.id),
            _sum_of(live.c.consumer_id.is_(None), _due(tables, where)),
        )
        .with_for_update(skip_locked=True),
        "sure",
    )
    there = sure.c.id.is_not(None)
    so_far = func.bool_and(there, type_=Boolean()).over(
        partition_by=chosen.c.group_key, order_by=chosen.c.id
    )
    known = (
        select(
            *(chosen.c.id, chosen.c.group_key, chosen.c.place, chosen.c.waits, chosen.c.single),
            case((chosen.c.group_key.is_(None), there), else_=so_far).label("keeps"),
        )
        .select_from(chosen.outerjoin(sure, sure.c.id == chosen.c.id))
        .subquery("known")
    )
    kept = _fenced(
        select(known.c.id, known.c.group_key, known.c.waits, known.c.single)
        .where(known.c.keeps)
        .order_by(known.c.place, known.c.id)
        .limit(number("p_count")),
        "kept",
    )
    # If several may be in hand, each that ends must let out another one.
    waiting = (
        select(
            *(kept.c.id, kept.c.single),
            func.max(kept.c.id).over(partition_by=kept.c.group_key).label("last"),
            func.bool_or(kept.c.waits, type_=Boolean())
            .over(partition_by=kept.c.group_key)
            .label("waits"),
        )
        .where(kept.c.group_key.is_not(None))
        .subquery("waiting")
    )
    flagged = _fenced(
        select(waiting.c.id).where(
            waiting.c.waits, or_(~waiting.c.single, waiting.c.id == waiting.c.last)
        ),
        "flagged",
    )
    return kept, flagged


def _any(picked: CTE, locked: CTE) -> CTE:
    """What to take without order: messages of the window, which are locked; of a group some."""
    turn = func.row_number().over(
        partition_by=picked.c.group_key, order_by=(picked.c.available_at, picked.c.id)
    )
    ranked = (
        select(*picked.c, turn.label("turn"), locked.c.most)
        .select_from(picked.join(locked, locked.c.group_key == picked.c.group_key))
        .subquery("ranked")
    )
    of_groups = select(ranked.c.id, ranked.c.group_key, ranked.c.available_at.label("place")).where(
        ranked.c.turn <= ranked.c.most
    )
    alone = select(picked.c.id, picked.c.group_key, picked.c.available_at)
    return _oldest(of_groups, alone.where(picked.c.group_key.is_(None)), "p_count")


def _oldest(of_groups: Select[Any], alone: Select[Any], most: str) -> CTE:
    both = union_all(of_groups, alone).subquery("both")
    chosen = select(both).order_by(both.c.place, both.c.id).limit(number(most))
    return _fenced(chosen, "chosen")


def _due(tables: QueueTables, where: Where | None) -> ColumnElement[bool]:
    live = tables.live
    at = func.coalesce(live.c.parked_at, live.c.available_at)
    return and_(at <= tables.expressions.now(), *claim.fitting(tables, where))


def _sum_of(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether all hold; false, where a comparison with NULL gives NULL."""
    return func.coalesce(and_(*conditions), false())
