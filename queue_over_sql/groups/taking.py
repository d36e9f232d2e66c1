"""Picking messages of groups inside a caller's transaction, which then removes them.

The caller may keep the transaction open for long. So it locks only the rows of groups from which it
takes: these are in hand until it ends, and all other groups go on.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from queue_over_sql.groups import operations, statements
from queue_over_sql.groups.fair import Choice, lock_shares
from queue_over_sql.groups.strategy import GroupClaims, Seen
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS
from queue_over_sql.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.statements.requests import wanted
from queue_over_sql.values.options import GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.groups.strategy import GroupRules
    from queue_over_sql.sql.compiled import Builder, StatementCache
    from queue_over_sql.statements.requests import Where
    from queue_over_sql.values.rates import Bucket

_MOST_LOOKS = 20
_LEAST_SEEN = 50
# Each group has a part of its own in the statement.
_AT_ONCE = 32


class Picking:
    """One ``take`` of a level.

    Args:
        connection: the caller's, with a transaction.
        sql: the queue's statements.
        rules: of the queue.
        where: only messages that match.
        elsewhere: runs a read on a connection of the service, where the caller's may see the past.
        create_rows: creates rows of groups that have none, apart from the caller's transaction.
        park: moves messages that their groups block out of the claim index; None: let them be.
    """

    def __init__(
        self,
        connection: Connection,
        sql: StatementCache,
        rules: GroupRules,
        where: Where | None,
        *,
        elsewhere: Callable[[Callable[[Connection], list[Any]]], list[Any]],
        create_rows: Callable[[Iterable[str]], object],
        park: Callable[[Sequence[Seen]], object] | None,
    ) -> None:
        self._connection, self._sql, self._rules, self._where = connection, sql, rules, where
        self._elsewhere, self._create_rows, self._park = elsewhere, create_rows, park
        self._needs_rows = sql.subject.dialect.strategy(GroupClaims).needs_rows
        self._rows: list[Sequence[Any]] = []
        self._most = math.inf
        self._past: set[int] = set()
        # The groups that have rows.
        self._known: set[str] = set()
        # The tokens of groups that have a rate.
        self._buckets: dict[str, Bucket] = {}

    def pick(
        self, level: int, count: int, edits: int, most: int | None = None
    ) -> list[Sequence[Any]]:
        """Lock and read up to ``count`` messages, ``most`` of a group; the clock comes last."""
        self._most = math.inf if most is None else most
        past: tuple[str, ...] = ()
        size = max(2 * count, _LEAST_SEEN)
        for _ in range(_MOST_LOOKS):
            left = count - len(self._rows)
            values = wanted(level, left, 0, edits) | {"p_window": size}
            values |= statements.past_values(past)
            builder = (statements.window, self._where, statements.past_size(past), False)
            met = [Seen(*row[:3]) for row in self._read(*builder, values=values)]
            met = sorted(set(met), key=lambda each: (each.available_at, each.id))
            picked = {row[0] for row in self._rows}
            seen = [each for each in met if each.id not in picked]
            if self._rules.fair:
                self._pick_fairly(seen, left, level)
            else:
                self._pick_of(seen, left)
            names = {each.group for each in seen if each.group is not None}
            if len(self._rows) >= count or len(met) < size:
                break
            if self._park is not None and not past:
                taken = {row[0] for row in self._rows}
                self._park([each for each in seen if each.id not in taken])
            past = tuple({*past, *names})
            if not names:
                # Others have locked what it met.
                size *= 4
        return self._rows

    def _read(
        self, builder: Builder, *variant: Any, values: Mapping[str, Any], newest: bool = False
    ) -> list[Any]:
        """Read what the caller sees and what is committed; ``newest``: only the latter.

        On most engines that is the same.
        """

        def read(connection: Connection) -> list[Any]:
            return list(self._sql.get(builder, *variant).run(connection, values).all())

        if not self._sql.subject.features.reads_the_past:
            return read(self._connection)
        return (
            self._elsewhere(read) if newest else [*read(self._connection), *self._elsewhere(read)]
        )

    def _pick_of(self, seen: Sequence[Seen], count: int) -> None:
        """If the first one of a group may not be taken, the next group has its turn."""
        most = len(self._rows) + count
        tried = self._pick_some(seen, count)
        while tried and len(self._rows) < most:
            taken = {row[0] for row in self._rows}
            seen = [each for each in seen if each.group not in tried and each.id not in taken]
            if self._rules.ordered:
                due = self._first_due(seen)
                seen = [each for each in seen if each.group is None or each.group in due]
            tried = self._pick_some(seen, most - len(self._rows))

    def _pick_some(self, seen: Sequence[Seen], count: int) -> Collection[str]:
        """Pick of as many groups as are needed if all have enough; returns these."""
        met: dict[str, list[int]] = {}
        for each in seen:
            if each.group is not None:
                met.setdefault(each.group, []).append(each.id)
        chosen, others = self._chosen(met, seen, count)
        ids = self._ids(met, chosen)
        locked = self._locked([each for run in ids.values() for each in run])
        alone, found = [each.id for each in seen if each.group is None], 0
        # Others may have locked some.
        while alone and found < others:
            some, alone = alone[: others - found], alone[others - found :]
            free = self._locked(some)
            found += len(free)
            locked |= free
        before = len(self._rows)
        places: dict[int, str] = {each: name for name, run in ids.items() for each in run}
        for each in seen:
            left = count - len(self._rows)
            run = [each.id] if each.group is None else ids.pop(each.group, [])
            for message_id in run[:left]:
                if message_id in locked:
                    self._rows.append(locked[message_id])
                elif self._rules.ordered and message_id not in self._past:
                    break
        names = [places[row[0]] for row in self._rows[before:] if row[0] in places]
        counts = Counter(name for name in names if name in self._buckets)
        spent = {name: self._buckets[name].spent(number) for name, number in counts.items()}
        cut = {name: each.spent(0) for name, each in self._buckets.items() if each.is_stale}
        operations.spend(self._connection, self._sql, cut | spent)
        return chosen

    def _pick_fairly(self, seen: Sequence[Seen], count: int, level: int) -> None:
        """Those in whose groups the fewest are in hand; what ends lets out the next ones."""
        names = {each.group for each in seen if each.group is not None}
        if names and not self._needs_rows and self._rules.rate is not None:
            # Nobody else writes meanwhile.
            operations.know(self._connection, self._sql, sorted(names))
        choice = self._choice(seen, names, level)
        if choice.lacking:
            self._create_rows(choice.lacking)
            choice = self._choice(seen, names, level)
        rows = choice.taken(count).values()
        place = len(MESSAGE_COLUMNS) + self._sql.subject.own_columns.index(GROUP_KEY)
        counts = Counter(row[place] for row in rows if row[place] is not None)
        now = max((row[-1] for row in rows), default=0)
        operations.spend(self._connection, self._sql, choice.spent(counts, now))
        self._rows += rows

    def _choice(self, seen: Sequence[Seen], names: set[str], level: int) -> Choice:
        return Choice(
            self._read_by_groups,
            self._locked,
            self._rules,
            where=self._where,
            level=level,
            met=seen,
            behind=names,
            most=None if self._most == math.inf else int(self._most),
            needs_rows=self._needs_rows,
            everywhere=self._where is not None,
            ahead=False,
        )

    def _read_by_groups(
        self, builder: Builder, variant: Sequence[Any], values: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        if builder is lock_shares:
            return list(self._sql.get(builder, *variant).run(self._connection, values).all())
        return self._read(builder, *variant, values=values, newest=True)

    def _locked(self, ids: Sequence[int]) -> dict[int, Sequence[Any]]:
        """Lock and read those that are due and that nobody else has locked."""
        locked: dict[int, Sequence[Any]] = {}
        for batch in batches(sorted(ids)):
            lock = self._sql.get(statements.lock_due, bucket_of(len(batch)), self._where)
            locked |= {row[0]: row for row in lock.run(self._connection, id_values(batch))}
        return locked

    def _chosen(
        self, met: Mapping[str, Sequence[int]], seen: Sequence[Seen], count: int
    ) -> tuple[dict[str, int], int]:
        """Lock as many groups as are needed; how many to take of each, and how many others."""
        if met and not self._needs_rows and self._rules.rate is not None:
            # Nobody else writes meanwhile.
            operations.know(self._connection, self._sql, sorted(met))
        room = self._room(list(met), statements.settings_of_groups)
        if self._needs_rows and (lacking := met.keys() - self._known):
            self._create_rows(lacking)
            room = self._room(list(met), statements.settings_of_groups)
        # Most messages of an ordered group may be parked, and so not be met.
        parts = len(met) + sum(each.group is None for each in seen)
        share = count // parts if parts and self._rules.ordered else 0
        most = {name: min(max(len(met[name]), share), room[name], self._most) for name in room}
        if not self._needs_rows:
            return _oldest(seen, most, count)
        locked: set[str] = set()
        buckets: dict[str, Bucket] = {}
        while True:
            chosen, others = _oldest(seen, most, count)
            if not (new := [name for name in chosen if name not in locked]):
                self._buckets = buckets
                return chosen, others
            # After the lock, so that it sees every claim of these groups.
            room = self._room(new, statements.lock_open)
            buckets |= self._buckets
            locked.update(new)
            # If others have locked one, the next one has its turn.
            most |= {name: min(most[name], room.get(name, 0)) for name in new}

    def _room(self, names: Sequence[str], builder: Builder) -> dict[str, float]:
        """How many messages of each group may be taken; only where it is any."""
        limits = {} if self._needs_rows else dict.fromkeys(names, self._rules.limit)
        self._buckets = {}
        for name, own, stops, *rate in self._of_groups(builder, names):
            self._known.add(name)
            limits[name] = self._rules.limit if own is None else own
            bucket = self._rules.bucket(rate)
            if bucket is not None:
                self._buckets[name] = bucket
            if stops:
                del limits[name]
        held = dict.fromkeys(limits, 0)
        for name, _ in self._of_groups(statements.in_hand, list(limits)):
            held[name] += 1
        room: dict[str, float] = {}
        for name, limit in limits.items():
            left: float = limit - held[name]
            if left > 0:
                alone = limit == 1 and self._rules.ordered
                room[name] = math.inf if alone else left
            bucket = self._buckets.get(name)
            if bucket is not None and name in room:
                room[name] = min(room[name], bucket.tokens)
        return {name: left for name, left in room.items() if left > 0}

    def _first_due(self, seen: Sequence[Seen]) -> set[str]:
        """The groups whose first message is due and fits, whether others have locked it or not."""
        names = list(dict.fromkeys(each.group for each in seen if each.group is not None))
        # Where the caller may see the past, two of a group.
        firsts = set(self._of_groups(statements.firsts, names, {"p_first": 1}, newest=False))
        found: set[int] = set()
        for batch in batches(sorted({message_id for _, message_id in firsts})):
            look = statements.due, bucket_of(len(batch)), self._where
            found.update(row[0] for row in self._read(*look, values=id_values(batch)))
        return {name for name, message_id in firsts if message_id in found}

    def _ids(
        self, met: Mapping[str, Sequence[int]], chosen: Mapping[str, int]
    ) -> dict[str, list[int]]:
        if not self._rules.ordered:
            return {name: list(met[name][:most]) for name, most in chosen.items()}
        most = {"p_first": max(chosen.values(), default=0)}
        there = self._of_groups(statements.firsts, list(chosen), most)
        seen = set(there)
        if self._sql.subject.features.reads_the_past:
            # What this transaction has published, and what is gone by now.
            seen |= set(self._of_groups(statements.firsts, list(chosen), most, newest=False))
            self._past = {each[1] for each in seen} - {each[1] for each in there}
        ids: dict[str, list[int]] = {name: [] for name in chosen}
        for name, message_id in sorted(seen, key=lambda each: each[1]):
            gone = message_id in self._past
            if gone or len(set(ids[name]) - self._past) < chosen[name]:
                ids[name].append(message_id)
        return ids

    def _of_groups(
        self,
        builder: Builder,
        names: Sequence[str],
        more: Mapping[str, Any] | None = None,
        *,
        newest: bool = True,
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            size = bucket_of(len(some))
            values = {**statements.group_values(some, size), **(more or {})}
            if builder is statements.lock_open:
                locking = self._sql.get(builder, size)
                rows = list(locking.run(self._connection, values).all())
            else:
                rows = self._read(builder, size, values=values, newest=newest)
            found += [tuple(row) for row in rows]
        return found


def _oldest(
    seen: Sequence[Seen], most: Mapping[str, float], count: int
) -> tuple[dict[str, int], int]:
    """How many of each group to take, the groups by their oldest message, and how many others."""
    chosen: dict[str, int] = {}
    left, others = count, 0
    for each in seen:
        if left <= 0:
            break
        if each.group is None:
            left, others = left - 1, others + 1
        elif each.group not in chosen and (number := int(min(most.get(each.group, 0), left))):
            chosen[each.group] = number
            left -= number
    return chosen, others
