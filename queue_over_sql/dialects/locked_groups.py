"""How MySQL, MariaDB and H2 claim from queues with groups: they lock the rows of groups.

The others do so, too, where groups have rates.

A row of a message is locked by its id alone, never along the index of groups. InnoDB keeps the lock
of an index entry even if it skips the row, and whoever has the row would wait for that to write it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    SelectBase,
    Update,
    and_,
    func,
    literal_column,
    not_,
    select,
    union_all,
)

from queue_over_sql.claiming.statements import mark
from queue_over_sql.groups import exits, operations, statements
from queue_over_sql.groups.strategy import GroupClaim, GroupClaims, GroupRequest, Seen
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS, QueueTables
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.statements.claims import fitting, stamp_values
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.parameters import (
    among_ids,
    batches,
    bucket_of,
    by_id,
    id_values,
    number,
    update_by_id,
)
from queue_over_sql.statements.requests import Where, stamped_row
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.rates import Bucket

Row: TypeAlias = Sequence[Any]

_DUE: Final = MESSAGE_COLUMNS.index("available_at")
# The last columns of a row that a claim reads.
_PARKED, _BLOCKS, _NOW = -3, -2, -1
# How many groups one statement reads the messages of.
_RUNS_AT_ONCE: Final = 32
# How many parked messages of one group a claim lets out.
_MOST_LET_OUT: Final = 64


class LockedGroupClaims(GroupClaims):
    """Claims in several statements; each of them reads what was committed before it began."""

    reads_rates = True

    def claim(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim:
        values = request.values()
        look = sql.get(window, request.claim.where, request.past_size)
        rows = list(look.run(connection, values).all())
        if not rows:
            return GroupClaim([], [], 0)
        rows.sort(key=lambda row: (row[_DUE], row[0]))
        place = len(MESSAGE_COLUMNS) + sql.subject.own_columns.index(GROUP_KEY)
        met: dict[str, list[Row]] = {}
        for row in rows:
            if row[place] is not None:
                met.setdefault(row[place], []).append(row)
        now = rows[0][_NOW]
        groups = _Groups(connection, sql, request, met, now)
        room = groups.room() if met else {}
        if request.rules.ordered:
            taken = _in_order(rows, place, groups.first_of(room) if room else {})
        else:
            taken = _oldest(rows, place, room)
        del taken[request.claim.count :]
        groups.spend(taken, place)
        _stamp(connection, sql, values | {"p_now": now}, taken)
        if request.rules.ordered:
            _hand_on(connection, sql, taken, place, groups.limits)
        groups.let_out(taken, place)
        return GroupClaim(
            [stamped_row(connection, sql, row, request.claim, now) for row in taken],
            [Seen(row[0], row[place], row[_DUE]) for row in rows],
            now,
        )


class _Groups:
    """The groups that one claim met, each with its messages of the window."""

    def __init__(
        self,
        connection: Connection,
        sql: StatementCache,
        request: GroupRequest,
        met: Mapping[str, Sequence[Row]],
        now: int,
    ) -> None:
        self._connection, self._sql, self._request, self._met = connection, sql, request, met
        self._now = now
        self._heads: dict[str, int] = {}
        self._held: dict[str, int] = {}
        # The tokens of groups that have a rate, before this claim and after it.
        self._buckets: dict[str, Bucket] = {}
        self._spent: dict[str, Bucket] = {}
        self.limits: dict[str, int] = {}

    def room(self) -> dict[str, int]:
        """How many to take of each group; those of which none may be taken are left out."""
        limits = self.limits = self._locked()
        if not limits:
            return {}
        # After the lock, so that this sees every claim of these groups.
        held = self._held = self._standing(list(limits))
        room = {name: self._left(limits[name], held.get(name, 0)) for name in limits}
        for name, bucket in self._buckets.items():
            room[name] = min(room[name], bucket.tokens)
        names = [name for name in self._met if room.get(name, 0) > 0]
        most = math.inf if self._request.most is None else self._request.most
        return {name: int(min(self._enough(name, names), most, room[name])) for name in names}

    def _locked(self) -> dict[str, int]:
        """Lock the rows of groups that others have not locked; returns the limit of each."""
        found: dict[str, int] = {}
        for batch in batches(list(self._met)):
            size = bucket_of(len(batch))
            rows = self._sql.get(lock_rows, size).run(
                self._connection, statements.group_values(batch, size)
            )
            for name, own, tat, own_rate, own_burst in rows:
                found[name] = self._request.rules.limit if own is None else own
                bucket = self._request.rules.bucket((tat, own_rate, own_burst, self._now))
                if bucket is not None:
                    self._buckets[name] = bucket
        return found

    def spend(self, taken: Sequence[Row], place: int) -> None:
        """Spend the tokens of what is taken."""
        counts = Counter(row[place] for row in taken if row[place] in self._buckets)
        self._spent = {name: self._buckets[name].spent(count) for name, count in counts.items()}
        cut = {name: each.spent(0) for name, each in self._buckets.items() if each.is_stale}
        operations.spend(self._connection, self._sql, cut | self._spent)
        for name, count in counts.items():
            self._held[name] = self._held.get(name, 0) + count

    def let_out(self, taken: Sequence[Row], place: int) -> None:
        """Let out more of groups with a rate, behind what was parked or has others behind it.

        Else more of them would start only when something ends.
        """
        behind = {row[place] for row in taken if row[_PARKED] is not None or row[_BLOCKS]}
        at: dict[str, list[int]] = {}
        for name, bucket in self._spent.items():
            left = min(self.limits[name] - self._held[name], max(1, bucket.tokens), _MOST_LET_OUT)
            if name in behind and left > 0:
                at[name] = [max(bucket.next_at, bucket.now)] * left
        exits.let_out(self._connection, self._sql, at)

    def _standing(self, names: Sequence[str]) -> dict[str, int]:
        """Find how many messages of each group are in hand, and note the first one that is not."""
        held: dict[str, int] = {}
        for batch in batches(names):
            size = bucket_of(len(batch))
            values: dict[str, Any] = dict(statements.group_values(batch, size))
            if self._request.rules.ordered:
                values |= id_values([self._met[name][0][0] for name in batch])
            standing = self._sql.get(in_hand_and_heads, size, self._request.rules.ordered)
            for name, message_id, is_head in standing.run(self._connection, values):
                if is_head:
                    self._heads[name] = message_id
                else:
                    held[name] = held.get(name, 0) + 1
        return held

    def _left(self, limit: int, held: int) -> float:
        """How many more may be in hand. One consumer may have any number of an ordered group."""
        if limit == 1 and self._request.rules.ordered:
            return 0 if held else math.inf
        return limit - held

    def _enough(self, name: str, names: Sequence[str]) -> int:
        return max(len(self._met[name]), self._request.claim.count // len(names))

    def first_of(self, wanted: Mapping[str, int]) -> dict[str, list[Row]]:
        """The first messages of each group, as far as they are due and nobody has locked them."""
        ids = {name: [self._heads[name]] for name in wanted if name in self._heads}
        several = [name for name in ids if wanted[name] > 1]
        for first in range(0, len(several), _RUNS_AT_ONCE):
            some = several[first : first + _RUNS_AT_ONCE]
            size = bucket_of(len(some))
            values: dict[str, Any] = dict(statements.group_values(some, size))
            numbers = [wanted[name] for name in some]
            values |= {f"p_number_{place}": n for place, n in enumerate(numbers)}
            # What fills the bucket finds nothing.
            values |= {f"p_number_{place}": 0 for place in range(len(some), size)}
            ids |= {name: [] for name in some}
            for name, message_id in self._sql.get(first_ids, size).run(self._connection, values):
                ids[name].append(message_id)
        found = {row[0]: row for rows in self._met.values() for row in rows}
        others = sorted({each for run in ids.values() for each in run} - found.keys())
        for batch in batches(others):
            lock = self._sql.get(lock_due, bucket_of(len(batch)), self._request.claim.where)
            found |= {row[0]: row for row in lock.run(self._connection, id_values(batch))}
        return {name: _prefix(found, sorted(run)) for name, run in ids.items()}


def _in_order(rows: Sequence[Row], place: int, runs: dict[str, list[Row]]) -> list[Row]:
    """The first messages of groups, each group where the window has its first one."""
    taken: list[Row] = []
    for row in rows:
        taken += [row] if row[place] is None else runs.pop(row[place], ())
    return taken


def _oldest(rows: Sequence[Row], place: int, room: Mapping[str, int]) -> list[Row]:
    """What the window has of each group, as far as there is room."""
    left = dict(room)
    taken: list[Row] = []
    for row in rows:
        group = row[place]
        if group is None or left.get(group, 0) > 0:
            taken.append(row)
        if group in left:
            left[group] -= 1
    return taken


def _prefix(found: Mapping[int, Row], ids: Sequence[int]) -> list[Row]:
    run: list[Row] = []
    for message_id in ids:
        if message_id not in found:
            break
        run.append(found[message_id])
    return run


def _stamp(
    connection: Connection, sql: StatementCache, values: Mapping[str, Any], taken: Sequence[Row]
) -> None:
    parked = [row[0] for row in taken if row[_PARKED] is not None]
    others = [row[0] for row in taken if row[_PARKED] is None]
    change_by_ids(connection, sql, mark, others, values)
    change_by_ids(connection, sql, mark_parked, parked, values)


def _hand_on(
    connection: Connection,
    sql: StatementCache,
    taken: Sequence[Row],
    place: int,
    limits: Mapping[str, int],
) -> None:
    """If others may be parked behind a group's messages, note it on these.

    If several may be in hand, each that ends must let out another one; else the last one does.
    """
    runs: dict[str, list[int]] = {}
    behind: set[str] = set()
    for row in taken:
        runs.setdefault(row[place], []).append(row[0])
        if row[_PARKED] is not None or row[_BLOCKS]:
            behind.add(row[place])
    carriers = [each for name in behind for each in runs[name][-1 if limits[name] == 1 else 0 :]]
    change_by_ids(connection, sql, statements.set_carriers, sorted(carriers))


# -- statements


def window(tables: QueueTables, where: Where | None, past: int) -> Select[Any]:
    """Lock and read the next messages along the claim index, as in ``statements.window``."""
    picked = statements.window(tables, where, past)
    return picked.with_only_columns(*_columns(tables))


def _columns(tables: QueueTables) -> list[ColumnElement[Any]]:
    columns = tables.message_columns(tables.live)
    columns[_DUE] = _due(tables).label("due_at")
    c = tables.live.c
    return [*columns, c.parked_at, c.blocks, tables.expressions.now()]


def _due(tables: QueueTables) -> ColumnElement[Any]:
    return func.coalesce(tables.live.c.parked_at, tables.live.c.available_at)


def lock_rows(tables: QueueTables, size: int) -> Select[Any]:
    """Lock the rows of groups of which messages may be handed out: name, own limit, rate."""
    rows = statements.rows_of_groups(tables)
    rate = (rows.c.tat_us, rows.c.own_rate_us, rows.c.own_burst)
    locked = (
        select(rows.c.group_key, rows.c.own_limit, *rate)
        .where(statements.among_groups(rows, size), not_(statements.stopped(rows)))
        .with_for_update(skip_locked=True)
    )
    return by_id(tables, locked, rows)


def in_hand_and_heads(tables: QueueTables, size: int, heads: bool) -> SelectBase:
    """The claimed messages of groups, and with ``heads`` the first one that is not claimed.

    Columns: group, id, and 1 for a head. Each group is named by one of its messages, too.
    """
    held = statements.in_hand(tables, size).add_columns(literal_column("0"))
    if not heads:
        return held
    return union_all(held, statements.heads(tables, size).add_columns(literal_column("1")))


def first_ids(tables: QueueTables, size: int) -> CompoundSelect[Any]:
    """The first unclaimed messages of each group: as many as its ``p_number`` says."""
    live = tables.live
    runs = []
    for place, name in enumerate(statements.group_parameters(live, size)):
        run = (
            select(live.c.group_key, live.c.id)
            .where(live.c.group_key == name, live.c.consumer_id.is_(None))
            .order_by(*tables.expressions.order_in_group(live))
            .limit(number(f"p_number_{place}"))
        )
        runs.append(select(statements.by_group(tables, run, live).subquery(f"run_{place}")))
    return union_all(*runs)


def lock_due(tables: QueueTables, size: int, where: Where | None) -> Select[Any]:
    """Lock and read those of the ids that are due, parked or not, if this consumer may get them."""
    live = tables.live
    due = and_(
        among_ids(live, size),
        live.c.consumer_id.is_(None),
        _due(tables) <= tables.expressions.now(),
        *fitting(tables, where),
    )
    locked = select(*_columns(tables)).where(due).with_for_update(skip_locked=True)
    return by_id(tables, locked, live)


def mark_parked(tables: QueueTables, size: int) -> Update:
    """Stamp rows that are parked and that this transaction has locked; they get their due time."""
    stamp = stamp_values(tables, number("p_now"))
    live = tables.live
    # In this order, because MySQL assigns from left to right.
    due = (live.c.available_at, live.c.parked_at), (live.c.parked_at, None)
    return update_by_id(tables).where(among_ids(live, size)).ordered_values(*due, *stamp.items())
