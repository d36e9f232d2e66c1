"""Fair shares: groups take turns, and those with the fewest in hand for their weight come first.

The claim index is a round of turns. While others wait, a group has as many messages in it as its
weight says, and the others of it are parked. Whoever claims one moves the next one of its group to
the end of the round, in the same transaction. So a claim meets all groups after few messages,
whatever waits.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    CompoundSelect,
    Select,
    Update,
    case,
    func,
    literal_column,
    not_,
    select,
    union_all,
)

from queue_over_sql.groups import exits, operations, statements
from queue_over_sql.groups.strategy import GroupClaim, GroupClaims, GroupRules, Seen
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS
from queue_over_sql.statements.claims import fitting, stamp_values
from queue_over_sql.statements.operations import change_allowed, change_by_ids, rows_by_ids
from queue_over_sql.statements.parameters import (
    among_ids,
    batches,
    bucket_of,
    by_id,
    id_parameters,
    id_values,
    number,
    update_by_id,
)
from queue_over_sql.statements.requests import stamped_row, wanted
from queue_over_sql.values.limits import MOST_IN_HAND
from queue_over_sql.values.options import GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.groups.strategy import GroupRequest
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import Builder, StatementCache
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.statements.requests import Where
    from queue_over_sql.values.rates import Bucket

Row: TypeAlias = "Sequence[Any]"
Ranked: TypeAlias = tuple[int, int, str | None]
"""A message that may be taken: its round, its id, its group."""
Read: TypeAlias = "Callable[[Builder, Sequence[Any], Mapping[str, Any]], Sequence[Row]]"

# Each group has a part of its own in the statement.
_AT_ONCE: Final = 64
# How many more of a group to look at than are wanted, because others may have locked some.
_SPARE: Final = 8
# How often a claim looks for further messages of the groups that it met.
_MOST_FILLS: Final = 3
# Clocks may count in milliseconds. Several claims in one take places one after another.
_TICK_US: Final = 999
# The last columns of a row that a claim locks.
_BLOCKS, _NOW = -2, -1


class Standing(NamedTuple):
    """How a group stands.

    Attributes:
        weight: its share, beside those of other groups.
        in_hand: how many of its messages are claimed.
        slots: how many more may be.
        room: how many of these may be taken now.
        limited: whether it has a limit or a rate, which needs the lock of its row.
        has_row: whether there is one.
        bucket: its tokens; None if it has no rate.
    """

    weight: int
    in_hand: int
    slots: float
    room: float
    limited: bool
    has_row: bool
    bucket: Bucket | None

    def left_after(self, count: int) -> float:
        """How many more may be taken when so many were, unless a claim wants fewer of it."""
        return min(self.slots, math.inf if self.bucket is None else self.bucket.tokens) - count


def in_turn(
    met: Iterable[Seen],
    further: Mapping[str, Sequence[int]],
    standing: Mapping[str, Standing],
    lost: Container[int] = (),
) -> list[Ranked]:
    """The messages in the order in which they should be handed out: round, id and group.

    Those groups come first that have the fewest in hand for their weight; of these, the one whose
    turn is longest ago. Messages without a group come as if each were a group of its own.

    Args:
        met: messages in the claim index, by their places.
        further: ids of other messages of groups.
        standing: how the groups stand; others get nothing.
        lost: ids of what others have locked: they take it, or half of what is parked, and move the
            other half.
    """
    ranked: list[tuple[int, int, int, str | None]] = []
    ranks: dict[str, float] = defaultdict(float)
    turns: dict[str, int] = {}

    def rank(group: str, place: int, message_id: int, share: float = 1.0) -> None:
        its = standing.get(group)
        if its is None or ranks[group] >= its.room:
            return
        rounds = (its.in_hand + math.ceil(ranks[group])) // its.weight
        ranks[group] += share if message_id in lost else 1
        ranked.append((rounds, place, message_id, group))

    for each in met:
        if each.group is None:
            ranked.append((0, each.available_at, each.id, None))
        else:
            turns.setdefault(each.group, each.available_at)
            rank(each.group, each.available_at, each.id)
    for group, ids in further.items():
        for message_id in ids:
            rank(group, turns.get(group, 0), message_id, 1 / 2)
    ranked.sort(key=lambda each: each[:3])
    return [(rounds, message_id, group) for rounds, _, message_id, group in ranked]


def read_standings(
    read: Read, rules: GroupRules, names: Sequence[str], rows: Mapping[str, Row] | None = None
) -> dict[str, Standing]:
    """How groups stand, without those that are paused or blocked.

    ``rows`` are those of ``settings_of_shares``, if they were read before.
    """
    if rows is None:
        rows = {row[0]: row for row in _of_groups(read, settings_of_shares, names)}
    held = {row[0]: int(row[1]) for row in _of_groups(read, count_in_hand, names)}
    found: dict[str, Standing] = {}
    for name in names:
        own_limit, weight, stops, *rate = rows[name][1:] if name in rows else (None, None, False)
        if stops:
            continue
        limit, in_hand = own_limit or rules.limit, held.get(name, 0)
        slots = math.inf if limit >= MOST_IN_HAND else limit - in_hand
        bucket = rules.bucket(rate) if rate else None
        found[name] = Standing(
            weight=weight or 1,
            in_hand=in_hand,
            slots=slots,
            room=slots if bucket is None else min(slots, bucket.tokens),
            # Without a row it has the rate of the queue.
            limited=slots is not math.inf or (bucket or (None if rate else rules.rate)) is not None,
            has_row=name in rows,
            bucket=bucket,
        )
    return found


def read_waiting(
    read: Read, names: Sequence[str], where: Where | None, level: int, most: int, *, fits: bool
) -> dict[str, list[int]]:
    """The first parked messages of groups, by id; with ``fits`` those that a claim may have."""
    found: dict[str, list[int]] = {}
    values = {"p_count": most, "p_priority": level}
    for row in _of_groups(read, first_parked, names, values, where, fits):
        found.setdefault(row[1], []).append(row[0])
    # A name fills the statement several times.
    return {name: sorted(set(ids)) for name, ids in found.items()}


def _of_groups(
    read: Read,
    builder: Builder,
    names: Sequence[str],
    values: Mapping[str, Any] | None = None,
    *variant: Any,
) -> Iterator[Row]:
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        size = bucket_of(len(some))
        named = statements.group_values(some, size)
        yield from read(builder, (size, *variant), {**named, **(values or {})})


class Choice:
    """What one claim, or one ``take``, chooses of the messages that it met.

    Args:
        read: runs a statement that reads.
        lock: locks messages and reads them, by id, as far as they are due and nobody else has
            locked them.
        rules: of the queue.
        where: only messages that match.
        level: the priority level.
        met: messages in the claim index, by their places.
        behind: the groups that may have further messages, which are parked.
        most: how many of one group to take at most; None: as many as there are.
        needs_rows: whether groups with a limit or a rate are taken from only under a lock of their
            rows.
        everywhere: whether to look for parked messages of any group if there is too little.
        ahead: whether to do so first, whatever it met.

    Attributes:
        standing: how the groups stand.
    """

    def __init__(
        self,
        read: Read,
        lock: Callable[[Sequence[int]], Mapping[int, Row]],
        rules: GroupRules,
        *,
        where: Where | None,
        level: int,
        met: Sequence[Seen],
        behind: Collection[str],
        most: int | None,
        needs_rows: bool,
        everywhere: bool,
        ahead: bool,
    ) -> None:
        self._read, self._lock, self._rules = read, lock, rules
        self._where, self._level, self._met, self._behind = where, level, met, behind
        self._most, self._needs_rows = most, needs_rows
        self._everywhere, self._ahead = everywhere, ahead
        self._further: dict[str, list[int]] = {}
        self._sure: set[str] = set()
        self.standing: dict[str, Standing] = {}
        self._know({each.group for each in met if each.group is not None})

    def weight(self, name: str) -> int:
        """The share of a group."""
        its = self.standing.get(name)
        return 1 if its is None else its.weight

    @property
    def lacking(self) -> list[str]:
        """The groups that need rows and have none."""
        if not self._needs_rows:
            return []
        return [name for name, its in self.standing.items() if its.limited and not its.has_row]

    def taken(self, count: int) -> dict[int, Row]:
        """Lock what is taken: in the order of turns, without what others have locked."""
        if self._ahead:
            self._look_everywhere(count)
        self._confirm(self._stale())
        taken: dict[int, Row] = {}
        tried: set[int] = set()
        fills, reach = 0, 1
        while (left := count - len(taken)) > 0:
            ranked = in_turn(self._met, self._further, self.standing, tried - taken.keys())
            chosen = [each for each in ranked if each[1] not in tried]
            chosen = chosen[:left] if reach == 1 else _alike(chosen[: left * reach])
            if self._confirm({group for _, _, group in chosen if group is not None}):
                continue
            if fills < _MOST_FILLS and not self._are_next(chosen[:left], ranked):
                fills = fills + 1 if self._looked_further(left, fills) else _MOST_FILLS
                continue
            if not chosen:
                break
            ids = [message_id for _, message_id, _ in chosen]
            tried.update(ids)
            locked = self._lock(sorted(ids))
            free = [message_id for message_id in ids if message_id in locked][:left]
            taken |= {message_id: locked[message_id] for message_id in free}
            # Others may have locked many of them, and each look costs a statement. But what it
            # locks and does not take others pass over.
            reach *= 2
        return taken

    def _are_next(self, chosen: Sequence[Ranked], ranked: Iterable[Ranked]) -> bool:
        """Whether no parked message of the groups that it met could come before one of these."""
        if not chosen:
            return False
        counts = Counter(group for _, _, group in ranked)
        last = chosen[-1][0]
        return not any(
            counts[name] < its.room and (its.in_hand + counts[name]) // its.weight < last
            for name, its in self.standing.items()
            if name in self._behind
        )

    def spent(self, taken: Mapping[str, int], now: int) -> dict[str, Bucket]:
        """What to write of the tokens of groups, after so many were taken of each at this time."""
        sure = self._sure if self._needs_rows else self.standing.keys()
        written = {*taken, *(self._stale() & sure)}
        found = {name: self.standing[name].bucket for name in written}
        return {
            name: each._replace(now=max(each.now, now)).spent(taken.get(name, 0))
            for name, each in found.items()
            if each
        }

    def _stale(self) -> set[str]:
        return {name for name, its in self.standing.items() if its.bucket and its.bucket.is_stale}

    def _know(self, names: set[str], rows: Mapping[str, Row] | None = None) -> None:
        fresh = sorted(names - self.standing.keys())
        for name, its in read_standings(self._read, self._rules, fresh, rows).items():
            room = its.room if self._most is None else min(its.room, self._most)
            self.standing[name] = its._replace(room=room)

    def _confirm(self, names: set[str]) -> bool:
        """Lock the rows of groups with a limit or a rate, and read afresh; whether there were any.

        Where a claim is the only writer, nothing has changed since it looked.
        """
        unsure = sorted(
            name for name in names - self._sure if self._needs_rows and self.standing[name].limited
        )
        if not unsure:
            return False
        self._sure.update(unsure)
        locked = {row[0]: row for row in _of_groups(self._read, lock_shares, unsure)}
        for name in unsure:
            del self.standing[name]
        self._know(set(locked), locked)
        return True

    def _looked_further(self, left: int, fills: int) -> bool:
        """Look for parked messages of the groups that it met; whether there are others."""
        open_ones = {name: its for name, its in self.standing.items() if its.room > 0}
        names = sorted(open_ones.keys() & set(self._behind))
        before = sum(map(len, self._further.values()))
        if names:
            shares = [open_ones[name].weight for name in names]
            share = math.ceil(left * max(shares) / sum(shares))
            most = min(left, 2 * share << 2 * fills) + (_SPARE << 2 * fills)
            waiting = read_waiting(self._read, names, self._where, self._level, most, fits=True)
            self._further |= waiting
        elif self._everywhere and not (self._ahead or fills):
            self._look_everywhere(left)
        return sum(map(len, self._further.values())) > before

    def _look_everywhere(self, count: int) -> None:
        """Find the oldest parked messages that this consumer may have, of any group."""
        values = wanted(self._level, count) | {"p_window": 4 * count + _SPARE}
        rows = self._read(parked_anywhere, (self._where,), values)
        self._know({row[1] for row in rows})
        for row in rows:
            self._further.setdefault(row[1], []).append(row[0])


def _alike(chosen: Sequence[Ranked]) -> list[Ranked]:
    """The first ones, of which any may be taken: of one round, or of the first one's group."""
    rounds, _, group = chosen[0] if chosen else (0, 0, None)
    return list(takewhile(lambda each: each[0] == rounds or each[2] == group, chosen))


class FairClaims(GroupClaims):
    """Claims in fair shares, in the same way on every engine.

    A claim looks at a window of messages and locks only what it takes of it. So consumers do not
    wait for each other, nor leave out a group because another one is claiming of it. Only where a
    group has a limit or a rate they lock its row. What is in hand is counted from the messages, as
    ever.
    """

    def __init__(self, dialect: QueueDialect, *, rated: bool = False) -> None:
        super().__init__(dialect)
        self.needs_rows = rated or dialect.strategy(GroupClaims).needs_rows

    def with_rates(self) -> GroupClaims:
        """As in the base."""
        return self if self.needs_rows else FairClaims(self._dialect, rated=True)

    def claim(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim:
        """As in the base, in fair shares; ``request.patient`` as it says there."""
        return _Claim(connection, sql, request).made(needs_rows=self.needs_rows)


def claims_of(sql: StatementCache, rules: GroupRules) -> GroupClaims:
    """How to claim from a queue with these rules."""
    dialect = sql.subject.dialect
    claims: GroupClaims = dialect.strategy(FairClaims if rules.fair else GroupClaims)
    return claims.with_rates() if rules.rated else claims


class _Claim:
    """One claim."""

    def __init__(self, connection: Connection, sql: StatementCache, request: GroupRequest) -> None:
        self._connection, self._sql, self._request = connection, sql, request
        self._where = request.claim.where
        self._met: list[Seen] = []
        self._standing: Mapping[str, Standing] = {}
        self._now = 0

    def _read(
        self, builder: Builder, variant: Sequence[Any], values: Mapping[str, Any]
    ) -> Sequence[Row]:
        return self._sql.get(builder, *variant).run(self._connection, values).all()

    def made(self, *, needs_rows: bool) -> GroupClaim:
        request, claim = self._request, self._request.claim
        size = (self._where, request.past_size)
        rows = sorted(self._read(window, size, request.values()), key=lambda row: (row[2], row[0]))
        if not rows and not request.everywhere:
            return GroupClaim([], [], 0)
        self._met = [Seen(*row[:3]) for row in rows]
        self._now = rows[0][3] if rows else 0
        choice = Choice(
            self._read,
            self._locked,
            request.rules,
            where=self._where,
            level=claim.priority,
            met=self._met,
            behind={row[1] for row in rows if row[1] is not None and row[4] is not None},
            most=request.most,
            needs_rows=needs_rows,
            everywhere=request.everywhere,
            ahead=request.ahead,
        )
        if choice.lacking:
            # The caller creates them, apart.
            return GroupClaim([], self._met, self._now, lacking=choice.lacking)
        full = len(rows) >= request.window
        hidden = tuple(_crowding(self._met, choice.weight)) if full else ()
        if hidden and request.patient:
            return GroupClaim([], self._met, self._now, hidden)
        taken = choice.taken(claim.count)
        self._standing = choice.standing
        groups = [group for row in taken.values() if (group := self._group_of(row)) is not None]
        operations.spend(self._connection, self._sql, choice.spent(Counter(groups), self._now))
        if taken:
            self._stamp(taken)
            self._give_turns(taken)
        stamped = [
            stamped_row(self._connection, self._sql, row, claim, self._now)
            for row in taken.values()
        ]
        return GroupClaim(stamped, self._met, self._now, hidden)

    def _locked(self, ids: Sequence[int]) -> dict[int, Row]:
        locked: dict[int, Row] = {}
        for batch in batches(ids):
            size = bucket_of(len(batch))
            rows = self._read(lock_due, (size, self._where), id_values(batch))
            locked |= {row[0]: row for row in rows}
        if locked:
            self._now = max(self._now, *(row[_NOW] for row in locked.values()))
        return locked

    # -- what is written

    def _stamp(self, taken: Mapping[int, Row]) -> None:
        values = self._request.claim.stamp() | {"p_now": self._now}
        change_by_ids(self._connection, self._sql, stamp, sorted(taken), values)

    def _give_turns(self, taken: Mapping[int, Row]) -> None:
        """Let each group have its turns at the end of the round, and nothing between."""
        of_group: dict[str, list[Row]] = {}
        for row in taken.values():
            group = self._group_of(row)
            if group is not None:
                of_group.setdefault(group, []).append(row)
        counts = {group: len(rows) for group, rows in of_group.items()}
        carriers = {g: [r[0] for r in rows if r[_BLOCKS]] for g, rows in of_group.items()}
        spare, turns = self._turns(taken, counts, carriers)
        ready, behind = self._aside(spare, turns, carriers)
        turn: dict[str | None, int] = {}
        for place, each in enumerate(self._met):
            turn.setdefault(each.group, place)
        # Who got the least for its weight comes first, then whose turn was longer ago.
        order = sorted(
            (counts[group] / self._standing[group].weight, turn.get(group, 0), group)
            for group, ids in ready.items()
            if ids
        )
        first = self._end_of_round()
        places = {
            each: min(self._now, first + place)
            for place, (_, _, group) in enumerate(order)
            for each in ready[group]
        }
        self._move(places)
        exits.let_out(self._connection, self._sql, self._late(counts, carriers))
        change_allowed(self._connection, self._sql, statements.set_parked, behind)
        # Each of the others lets out one when it ends.
        kept = [ids[len(ready.get(group, ())) :] for group, ids in carriers.items()]
        again = sorted(each for ids in kept for each in ids)
        change_by_ids(self._connection, self._sql, statements.set_carriers, again)

    def _turns(
        self,
        taken: Mapping[int, Row],
        counts: Mapping[str, int],
        carriers: Mapping[str, Sequence[int]],
    ) -> tuple[dict[str, list[int]], dict[str, int]]:
        """What groups have in the claim index beyond their turns, and how many turns they get."""
        left: dict[str, list[int]] = {group: [] for group in counts}
        for each in self._met:
            if each.group in left and each.id not in taken:
                left[each.group].append(each.id)
        alone = len({each.group for each in self._met}) == 1
        spare: dict[str, list[int]] = {}
        turns: dict[str, int] = {}
        for group, count in counts.items():
            its, others = self._standing[group], left[group]
            if its.left_after(count) <= 0 or (alone and not carriers[group]):
                continue
            spare[group] = others[max(0, its.weight - count) :]
            turns[group] = min(count, its.weight)
            if len(self._met) < self._request.window:
                # Others may have been locked when it was to get its turns.
                turns[group] = max(turns[group], its.weight - len(others))
        return spare, turns

    def _late(
        self, counts: Mapping[str, int], carriers: Mapping[str, Sequence[int]]
    ) -> dict[str, list[int]]:
        """When groups that have used up their rates, but not their limits, get a turn."""
        late: dict[str, list[int]] = {}
        for group, count in counts.items():
            its = self._standing[group]
            waits = its.bucket is not None and its.left_after(count) <= 0 < its.slots - count
            if its.bucket is not None and waits and carriers[group]:
                spent = its.bucket._replace(now=max(its.bucket.now, self._now)).spent(count)
                late[group] = [max(spent.next_at, self._now)]
        return late

    def _move(self, places: Mapping[int, int]) -> None:
        ids = sorted(places)
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            size = bucket_of(len(some))
            filled = [*some, *some[-1:] * (size - len(some))]
            values = {f"p_place_{place}": places[each] for place, each in enumerate(filled)}
            moving = self._sql.get(give_turns, size)
            moving.run(self._connection, values | id_values(some))

    def _aside(
        self,
        spare: Mapping[str, Sequence[int]],
        turns: Mapping[str, int],
        carriers: Mapping[str, Sequence[int]],
    ) -> tuple[dict[str, list[int]], list[int]]:
        """Lock the next messages of groups, and those that are to be parked."""
        ids = sorted(each for some in spare.values() for each in some)
        rows = rows_by_ids(self._connection, self._sql, statements.lock_waiting, ids)
        free = {row[0] for row in rows}
        ready: dict[str, list[int]] = {}
        behind: list[int] = []
        lacking: dict[str, int] = {}
        for group, some in spare.items():
            movable = [each for each in some if each in free]
            ready[group] = movable[: turns[group]]
            behind += movable[turns[group] :]
            if len(ready[group]) < turns[group] and carriers[group]:
                lacking[group] = turns[group] - len(ready[group])
        for group, some in self._let_out(lacking).items():
            ready[group] += some
        return ready, sorted(behind)

    def _let_out(self, lacking: Mapping[str, int]) -> dict[str, list[int]]:
        """Lock so many parked messages of groups; such that this consumer may have, if any."""
        found: dict[str, list[int]] = {}
        for fits in (True, False):
            names = sorted(lacking.keys() - found.keys())
            if not names:
                break
            most = max(lacking[name] for name in names) + _SPARE
            level = self._request.claim.priority
            waiting = read_waiting(self._read, names, self._where, level, most, fits=fits)
            found |= {name: [] for name in waiting}
            reach = 1
            while short := {n: lacking[n] - len(found[n]) for n in waiting if waiting[n]}:
                # No more than they need, because others look for some, too.
                tried = {name: waiting[name][: left * reach] for name, left in short.items()}
                ids = sorted(each for some in tried.values() for each in some)
                rows = rows_by_ids(self._connection, self._sql, exits.lock_skipping, ids)
                free = {row[0] for row in rows}
                for name, left in short.items():
                    found[name] += [each for each in tried[name] if each in free][:left]
                    full = len(found[name]) >= lacking[name]
                    waiting[name] = [] if full else waiting[name][left * reach :]
                reach *= 2
        return found

    def _end_of_round(self) -> int:
        last = self._met[-1].available_at if self._met else 0
        return min(self._now, max(last + 1, self._now - _TICK_US))

    def _group_of(self, row: Row) -> str | None:
        place = len(MESSAGE_COLUMNS) + self._sql.subject.own_columns.index(GROUP_KEY)
        group: str | None = row[place]
        return group


# -- parking


def spread(connection: Connection, sql: StatementCache, request: GroupRequest) -> int:
    """Park what groups have in the claim index beyond their turns; returns how much.

    It looks at the next ``request.window`` messages. Run it in a transaction of its own, of the
    service. What stays of a group is locked meanwhile, so that nobody ends it: others are parked
    behind it.
    """

    def read(builder: Builder, variant: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Row]:
        return sql.get(builder, *variant).run(connection, values).all()

    rows = read(
        statements.window, (request.claim.where, request.past_size, False), request.values()
    )
    met = sorted((Seen(*row[:3]) for row in rows), key=lambda each: (each.available_at, each.id))
    names = sorted(_crowding(met, lambda _: 1))
    weights = {row[0]: row[2] or 1 for row in _of_groups(read, settings_of_shares, names)}
    crowding = _crowding(met, lambda name: weights.get(name, 1))
    stays = {name: ids[: weights.get(name, 1)] for name, ids in crowding.items()}
    kept = rows_by_ids(
        connection,
        sql,
        statements.lock_unparked,
        sorted(each for ids in stays.values() for each in ids),
    )
    behind = {row[1] for row in kept}
    spare = [each for name in behind for each in crowding[name][len(stays[name]) :]]
    free = [row[0] for row in rows_by_ids(connection, sql, statements.lock_waiting, sorted(spare))]
    moved = change_allowed(connection, sql, statements.set_parked, sorted(free))
    if moved:
        ids = sorted(row[0] for row in kept)
        change_by_ids(connection, sql, statements.set_carriers, ids)
    return moved


def parked_fitting(
    connection: Connection,
    sql: StatementCache,
    rules: GroupRules,
    *,
    priority: int,
    count: int,
    where: Where | None,
) -> list[int]:
    """Parked messages that a claim may have, of groups of which more may be in hand: ids.

    Without order, another one of a group may be in the claim index that this consumer may not have,
    or does not want. Then these wait for nothing.
    """

    def read(builder: Builder, variant: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Row]:
        return sql.get(builder, *variant).run(connection, values).all()

    past: list[str] = []
    window = wanted(priority, count) | {"p_window": 4 * count + _SPARE}
    for _ in range(_MOST_FILLS):
        variant = (where, statements.past_size(past))
        rows = read(parked_anywhere, variant, window | statements.past_values(past))
        names = sorted({row[1] for row in rows})
        standing = read_standings(read, rules, names)
        found: list[int] = []
        counts: Counter[str] = Counter()
        for row_id, name in rows:
            if name in standing and counts[name] < standing[name].room:
                counts[name] += 1
                found.append(row_id)
        if found or len(rows) < window["p_window"]:
            return found[:count]
        # Groups of which no more may be in hand hide the others.
        past += names
    return []


def _crowding(met: Sequence[Seen], weight: Callable[[str], int]) -> dict[str, list[int]]:
    """The groups that have more messages in the window than turns: all of these, by place."""
    found: dict[str, list[int]] = {}
    for each in met:
        if each.group is not None:
            found.setdefault(each.group, []).append(each.id)
    return {name: ids for name, ids in found.items() if len(ids) > weight(name)}


# -- statements


def window(tables: QueueTables, where: Where | None, past: int) -> Select[Any]:
    """As ``statements.window``, without locks; the mark of others behind it comes last."""
    return statements.window(tables, where, past, locked=False).add_columns(tables.live.c.blocks)


def parked_anywhere(tables: QueueTables, where: Where | None, past: int = 0) -> Select[Any]:
    """The first parked messages of a level that this consumer may get: id and group.

    Of any group but ``past`` ones, of ``statements.past_values``.
    """
    live = tables.live
    waits = (live.c.consumer_id.is_(None), *_parked(live), *statements.past_groups(live, past))
    return (
        select(live.c.id, live.c.group_key)
        .where(*waits, _level(live), *fitting(tables, where), may_claim(tables))
        .order_by(live.c.parked_at, live.c.id)
        .limit(number("p_window"))
    )


def first_parked(
    tables: QueueTables, size: int, where: Where | None, fits: bool
) -> CompoundSelect[Any]:
    """The first parked messages of groups, ``p_count`` of each: id and group.

    With ``fits`` those of one level that this consumer may get.
    """
    live = tables.live
    fit = (_level(live), *fitting(tables, where)) if fits else ()
    found = []
    for place, name in enumerate(statements.group_parameters(live, size)):
        waits = (live.c.consumer_id.is_(None), *_parked(live), *fit)
        of_group = tables.expressions.in_group(live.c.group_key, name)
        first = select(live.c.id, live.c.group_key).where(of_group, *waits)
        order = tables.expressions.order_in_group(live)
        first = statements.by_group(tables, first, live).order_by(*order)
        part = first.limit(number("p_count")).subquery(f"g{place}")
        found.append(select(part.c.id, part.c.group_key))
    return union_all(*found)


def _parked(live: Table) -> tuple[ColumnElement[bool], ...]:
    # In an expression, so that no engine reads the claim index for it, past all that is parked.
    place = func.coalesce(live.c.available_at, literal_column("0"))
    return live.c.parked_at.is_not(None), place == literal_column("0")


def _level(live: Table) -> ColumnElement[bool]:
    return live.c.priority + literal_column("0") == number("p_priority")


def settings_of_shares(tables: QueueTables, size: int) -> Select[Any]:
    """The rows of groups: name, own limit, weight, whether it is stopped, its rate."""
    rows = statements.rows_of_groups(tables)
    stops = case((statements.stopped(rows), literal_column("1")), else_=literal_column("0"))
    return by_id(tables, _settings(tables, size, stops), rows)


def lock_shares(tables: QueueTables, size: int) -> Select[Any]:
    """As ``settings_of_shares``; locks those of which messages may be handed out."""
    rows = statements.rows_of_groups(tables)
    found = _settings(tables, size, literal_column("0")).where(not_(statements.stopped(rows)))
    locked = found.with_for_update(skip_locked=tables.features.skip_locked)
    return by_id(tables, locked, rows)


def _settings(tables: QueueTables, size: int, stops: ColumnElement[int]) -> Select[Any]:
    rows = statements.rows_of_groups(tables)
    columns = (rows.c.group_key, rows.c.own_limit, rows.c.weight, stops.label("stopped"))
    found = select(*columns, *statements.rate_columns(tables))
    return found.where(statements.among_groups(rows, size))


def count_in_hand(tables: QueueTables, size: int) -> Select[Any]:
    """How many messages of groups are claimed: group and number."""
    live = tables.live
    held = (statements.among_groups(live, size), tables.expressions.is_claimed(live))
    counted = select(live.c.group_key, func.count()).where(*held).group_by(live.c.group_key)
    return statements.by_group(tables, counted, live)


def lock_due(tables: QueueTables, size: int, where: Where | None) -> Select[Any]:
    """As ``statements.lock_due``, with the mark of others behind it before the clock."""
    locked = statements.lock_due(tables, size, where)
    *columns, now = locked.selected_columns
    return locked.with_only_columns(*columns, tables.live.c.blocks, now)


def stamp(tables: QueueTables, size: int) -> Update:
    """Stamp messages that this transaction has locked; parked ones get their due time back."""
    live = tables.live
    # In this order, because MySQL assigns from left to right.
    due = (
        (live.c.available_at, func.coalesce(live.c.parked_at, live.c.available_at)),
        (live.c.parked_at, None),
        (live.c.blocks, None),
    )
    values = stamp_values(tables, number("p_now"))
    return update_by_id(tables).where(among_ids(live, size)).ordered_values(*due, *values.items())


def give_turns(tables: QueueTables, size: int) -> Update:
    """Move messages that this transaction has locked to places in the claim index."""
    live = tables.live
    ids = id_parameters(size)
    at = case(*[(live.c.id == each, number(f"p_place_{n}")) for n, each in enumerate(ids)])
    place = {"available_at": at, "parked_at": None}
    return (
        update_by_id(tables)
        .where(among_ids(live, size))
        .values(**place, blocks=literal_column("1"))
    )
