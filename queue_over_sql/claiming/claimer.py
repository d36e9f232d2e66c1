"""Claiming: priority levels, the low watermark, the exchange, and recovery after a short claim."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter, deque
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from queue_over_sql.claiming.group_walk import MOST_LOOKS, GroupWalk, in_order, place_after
from queue_over_sql.claiming.low_watermark import LowWatermark
from queue_over_sql.claiming.operations import (
    DecodeTaken,
    anything_to_claim,
    claim_of_groups_within,
    claim_within,
    claiming,
    claiming_heads,
    claiming_of_groups,
    count_due,
    exchange,
    exchanges_at_once,
    exchanges_heads,
    exchanging_heads,
    insist_on_writing,
    oldest_first,
    take,
    unclaim_round,
)
from queue_over_sql.claiming.refused_rows import LOOKS_AT, RefusedRows
from queue_over_sql.database.forks import shared_lock
from queue_over_sql.database.notify import noting_ready
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    Locked,
    NotPermitted,
    PayloadInvalid,
    QueueError,
    QueueNotFound,
)
from queue_over_sql.groups.strategy import GroupClaim, GroupRules, group_of
from queue_over_sql.groups.taking import Picking
from queue_over_sql.limits.bounds import outlook
from queue_over_sql.limits.slots import occupy_taken, reserve_for_caller
from queue_over_sql.limits.tokens import give_back, look, spend_some
from queue_over_sql.message import AGE, note_claim
from queue_over_sql.observer import facts_of
from queue_over_sql.queues import registry
from queue_over_sql.queues.context import once_more
from queue_over_sql.queues.decoding import as_where
from queue_over_sql.queues.temporary import note_use
from queue_over_sql.recovery.suspects import may_run_together
from queue_over_sql.settling.operations import finish as finishing
from queue_over_sql.settling.operations import finish_quickly as finishing_quickly
from queue_over_sql.settling.operations import release, without
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.operations import carefully, refusal
from queue_over_sql.statements.requests import (
    ANY_EDITS,
    ClaimRequest,
    Disposition,
    Settlement,
    Where,
    count_ids,
    wanted,
)
from queue_over_sql.values.backoff import poll_pauses
from queue_over_sql.values.checks import check_whole
from queue_over_sql.values.durations import elapsed_clock, to_microseconds, to_timedelta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import ColumnElement, Connection, RootTransaction

    from queue_over_sql.consumers.consumer import Holder
    from queue_over_sql.consumers.isolation import Isolation
    from queue_over_sql.groups.strategy import GroupRequest, Seen
    from queue_over_sql.message import Claim, Message, MessageRow
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.queues.decoding import Decoder
    from queue_over_sql.recovery.recovery import Recovery
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.values.durations import Duration


_log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_POLL, LAST_POLL = 0.01, 1.0
_last_error = attrgetter("last_error")
# How long each claim looks for one whose answer was lost. The server may still be running that one,
# for as long as a lock or a standby lets it wait; so looks go on after that, at growing intervals.
_LATE_SECONDS = 5.0
_LAST_LATE_PAUSE = 60.0
# How often a claim from groups begins again because the queue was edited meanwhile.
_MOST_EDITS = 10
# How often a use is noted during the time for which a queue may stay unused.
_NOTES_OF_USE = 20
_NOTE_OF_USE = "queue_over_sql_use"
# Counts below this need no closer check.
_MANY = 1_000_000


@dataclasses.dataclass
class _Unanswered:
    """A claim without an answer: the server may have carried it out, or may do so later."""

    stamp: Claim
    since: float
    certain: bool
    due_at: float = 0.0

    def put_off(self, now: float) -> None:
        """The server has not carried it out yet."""
        age = now - self.since
        self.due_at = now if age < _LATE_SECONDS else now + min(age / 2, _LAST_LATE_PAUSE)


class Claimer:
    """Claims messages of one queue for one service."""

    def __init__(
        self,
        context: QueueContext,
        decoder: Decoder,
        recovery: Recovery,
        lasting: Holder | None = None,
    ) -> None:
        self._context = context
        self._holder: Holder = lasting or context.consumer
        self._lasting = lasting is not None
        self._decoder = decoder
        self._recovery = recovery
        self._marks: dict[int, LowWatermark] = {}
        self._walk = GroupWalk(context)
        self._refused = RefusedRows(context)
        # The queue's edit count that the watermarks are based on.
        self._edits: int | None = None
        # Held while both change or are read: a mark that is based on another count hides an edit.
        self._placing = shared_lock()
        # Claims whose answer was lost with the connection, so that nobody works on their messages.
        self._unanswered: deque[_Unanswered] = deque()
        # How many messages to claim at once while there are suspects; None: any number.
        self._at_most: int | None = None
        # The slots that transactions of callers have used, where no other connection can tell.
        self._used: WeakKeyDictionary[RootTransaction, set[int]] = WeakKeyDictionary()
        # When the rate of the queue allows the next message, by the monotonic clock.
        self._token_at = 0.0
        self._use_noted_until = float("-inf")

    @property
    def token_at(self) -> float:
        """When the queue's rate allows the next message, on the monotonic clock; may be past."""
        return self._token_at

    @property
    def edits(self) -> int | None:
        """The queue's edit count that the watermarks are based on; None: not known yet."""
        return self._edits

    def low(self, level: int) -> int:
        """Where the next claim of a priority level looks from; 0: from the beginning."""
        return self._mark(level).bound()

    def consume(
        self,
        count: int,
        lease: Duration | None,
        wait: Duration,
        where: ColumnElement[bool] | None,
        apart: Isolation | None = None,
        *,
        most: int | None = None,
    ) -> list[Message]:
        """Claim and decode; wait and repeat while there is nothing. See ``Queue.consume``.

        ``apart``: what else this process has in hand, from which suspects are kept apart.
        ``most``: how many messages of one group to claim; None: any number.
        """
        seconds = 0.0
        if type(wait) is not float or wait != 0.0:
            seconds = to_timedelta(wait, "wait", zero=True).total_seconds()
        matching = None if where is None else as_where(where)
        deadline = time.monotonic() + seconds
        arrivals, pauses = self._context.arrivals, None
        unreadable: set[int] = set()
        while True:
            seen = arrivals.count
            rows, messages = self._delivered(count, lease, matching, apart, most)
            if rows:
                # Unreadable messages were given back. They must not hide the others. Nor may this
                # loop run for ever if they become due again at once.
                if messages or unreadable.issuperset(row.id for row in rows):
                    return messages
                unreadable.update(row.id for row in rows)
                pauses = None
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            token_in = self._token_at - time.monotonic()
            if token_in > 0:
                # No poll before then finds more, unless somebody changes the rate.
                seldom = poll_pauses(LAST_POLL, LAST_POLL)
                self._context.wakeups.await_next_poll(seen, seldom, min(left, token_in))
                continue
            pauses = pauses or poll_pauses(FIRST_POLL, LAST_POLL)
            self._context.wakeups.await_next_poll(seen, pauses, left)

    def _delivered(
        self,
        count: int,
        lease: Duration | None,
        where: Where | None,
        apart: Isolation | None,
        most: int | None,
    ) -> tuple[list[MessageRow], list[Message]]:
        """What a claim got, and the messages of it that are readable."""
        began = elapsed_clock()
        if apart is None:
            rows = self.claim(count, lease, where, most)
            return rows, self.decoded(rows, began) if rows else []
        with apart.claiming() as allowed:
            rows = self.claim(count, lease, where, most) if allowed else []
            suspects = bool(rows) and may_run_together(rows[0].last_error) is not None
            if suspects and not apart.admits_suspects():
                try:
                    # If it woke waiting consumers, this one would claim them again at once.
                    self._unclaim(rows, wake=False)
                except BaseException:
                    self.abandon(rows)
                    raise
                return [], []
            messages = self.decoded(rows, began) if rows else []
            apart.note(messages, self._context.consumer, suspects=suspects)
        return rows, messages

    @once_more
    def claim(
        self,
        count: int,
        lease: Duration | None,
        where: Where | None = None,
        most: int | None = None,
    ) -> list[MessageRow]:
        """Claim up to ``count`` messages, oldest first within their priority level."""
        if type(count) is not int or not 0 < count < _MANY:
            count = check_whole("count", count)
        lease_us = None if lease is None else to_microseconds(lease, "lease")
        if self._unanswered:
            self.recall()
        if self._at_most is not None:
            count = min(count, self._at_most)
        matching = self._refused.without(where)
        try:
            rows = self._apart(self._claimed(count, lease_us, matching, most))
        except (DatabaseRefused, PayloadInvalid, UnicodeError) as error:
            # The database may have claimed them before it could not be read.
            self.recall()
            if not (self._recovery.unreadable.hold_some(error) or self._finds_refused(error)):
                raise
            matching = self._refused.without(where)
            rows = self._apart(self._claimed(count, lease_us, matching, most))
        if self._came_late(rows):
            rows = self._apart(self._claimed(count, lease_us, matching, most))
        return rows

    def _finds_refused(self, error: BaseException) -> bool:
        levels = range(self._context.settings.priorities)
        looks = [self._request(level, LOOKS_AT, None, 0, edits=ANY_EDITS) for level in levels]
        return self._refused.find(error, looks)

    def _came_late(self, rows: Sequence[MessageRow]) -> bool:
        """Give back, uncounted, what was claimed after this consumer had expired.

        The claim may have waited for the lock of another transaction, and so may the heartbeats.
        """
        if not rows:
            return False
        first, last = rows[0].consumer_id, rows[-1].consumer_id
        keeps = self._context.consumer.keeps
        if keeps(first) and (first == last or keeps(last)):
            return False
        self._unclaim(rows)
        return True

    def _claimed(
        self, count: int, lease_us: int | None, where: Where | None, most: int | None
    ) -> list[MessageRow]:
        rows: list[MessageRow] = []
        try:
            self._claim_levels(rows, count, lease_us, where, most)
            if len(rows) < count and self._restore_if_due():
                self.look_fully()
                first = len(rows)
                self._claim_levels(rows, count, lease_us, where, most)
                return self._once(rows, first)
        except QueueError as error:
            # Return what was claimed before the error, or it would wait for its lease to end.
            if not rows:
                raise
            _log.warning("Queue %s: %s", self._context.name, error)
        except BaseException:
            # The caller was interrupted, so nobody receives what was claimed before.
            self.abandon(rows)
            raise
        return rows

    def _apart(self, rows: list[MessageRow]) -> list[MessageRow]:
        """Give back, uncounted, what must not run beside suspects; the first rows stay."""
        limits: Sequence[int | None] = ()
        if any(map(_last_error, rows)):
            limits = [may_run_together(row.last_error) for row in rows]
        suspected = [limit for limit in limits if limit is not None]
        self._at_most = min(suspected, default=None)
        if not suspected:
            return rows
        kept = 1
        while kept < len(rows) and (limits[kept] is None) is (limits[0] is None):
            if limits[0] is not None and kept >= min(suspected):
                break
            kept += 1
        try:
            self._unclaim(rows[kept:])
        except BaseException:
            self.abandon(rows)
            raise
        return rows[:kept]

    def decoded(self, rows: Sequence[MessageRow], began: float) -> list[Message]:
        """The readable messages of claimed rows; the claim began at ``began``, on that clock."""
        if self._lasting:
            rows = [row._replace(by_token=True) for row in rows]
        try:
            messages = self._decoder.messages(rows)
            if len(messages) < len(rows) and self._context.tables.grouped:
                messages = self._undisturbed(rows, messages)
        except BaseException:
            self.abandon(rows)
            raise
        note_claim(messages, began)
        observer = self._context.observer
        if observer is not None and messages:
            observer.claimed(self._context.name, facts_of(messages), elapsed_clock() - began)
        return messages

    def _undisturbed(
        self, rows: Sequence[MessageRow], messages: Sequence[Message]
    ) -> list[Message]:
        """Without what is behind messages of its group that were given back; these go back, too."""
        if not self._rules.ordered:
            return list(messages)
        delivered = {message.id for message in messages}
        broken: set[str] = set()
        behind: list[MessageRow] = []
        for row in rows:
            group = group_of(row)
            if group is None:
                continue
            if group in broken:
                behind.append(row)
            elif row.id not in delivered and not row.is_expired(row.claimed_at):
                broken.add(group)
        back = {row.id for row in behind}
        self._unclaim([row for row in behind if row.id in delivered])
        return [message for message in messages if message.id not in back]

    def _once(self, rows: Sequence[MessageRow], first: int) -> list[MessageRow]:
        """Merge two claims, in order and each message once; the first claim got ``first`` rows.

        A lease may end between the two claims. Then the second claim of the message is given back,
        and its attempt is not counted.
        """
        ids = {row.id for row in rows[:first]}
        again = [row for row in rows[first:] if row.id in ids]
        self._unclaim(again)
        fresh = [row for row in rows[first:] if row.id not in ids]
        both = [*rows[:first], *fresh]
        return both if self._context.tables.grouped else oldest_first(both)

    def _unclaim(self, rows: Sequence[MessageRow], *, wake: bool = True) -> None:
        """Give back messages, uncounted; if this fails, they return with their leases."""
        groups: dict[Claim, list[int]] = {}
        for row in rows:
            if row.claim is not None:
                groups.setdefault(row.claim, []).append(row.id)
        for stamp, ids in groups.items():
            settlement = Settlement(ids, stamp)
            try:
                self._context.run(lambda c: release(c, self._context.sql, settlement))  # noqa: B023 - runs at once
            except QueueError as error:
                _log.warning("Queue %s: %s", self._context.name, error)
        if groups:
            self.look_fully()
            if wake:
                self._context.wake_consumers()

    def series(self, messages: Sequence[Message]) -> list[str | None]:
        """The group of each message of one claim, where these must run one after another."""
        if not self._context.tables.grouped or not (rules := self._rules).ordered:
            return [None] * len(messages)
        counts = Counter(message.group for message in messages)
        several = [name for name, count in counts.items() if name is not None and count > 1]
        if not several:
            return [None] * len(messages)
        limits = self._walk.limits(several, rules)
        # The limit may have been lowered or raised since the claim.
        alone = {name for name in several if limits[name] == 1 or counts[name] > limits[name]}
        return [message.group if message.group in alone else None for message in messages]

    def abandon(self, rows: Sequence[MessageRow]) -> None:
        """Let the next claim or heartbeat give these back first: nobody works on them."""
        stamps = (row.claim for row in rows)
        known = dict.fromkeys(stamp for stamp in stamps if stamp is not None)
        self._note_unanswered(known, certain=True)

    def recall(self) -> int:
        """Give back messages that were claimed but never delivered; returns how many."""
        total = 0
        for _ in range(len(self._unanswered)):
            try:
                lost = self._unanswered.popleft()
            except IndexError:  # another thread was quicker
                break
            if lost.due_at > time.monotonic():
                self._unanswered.append(lost)
                continue
            try:
                count = self._context.run(
                    lambda connection: unclaim_round(
                        connection,
                        self._context.sql,
                        lost.stamp,  # noqa: B023 - runs at once
                    )
                )
            except QueueNotFound:
                # Its messages are gone with it.
                continue
            except BaseException:
                self._unanswered.append(lost)
                raise
            # Claims of an expired consumer are the reaper's.
            ours = lost.stamp.consumer_id == self._holder.consumer_id
            if not (count or lost.certain) and ours:
                # The interrupted statement may still be running on the server.
                lost.put_off(time.monotonic())
                self._unanswered.append(lost)
            if count:
                _log.info(
                    "Released %d messages. The database had claimed them for this consumer, but "
                    "its answer did not arrive.",
                    count,
                )
                self.look_fully()
                self._context.wake_consumers()
            total += count
        return total

    @once_more
    def exchange(
        self,
        count: int,
        lease: Duration | None,
        settlements: Sequence[Settlement],
        *,
        keep: bool,
        where: Where | None,
        acked: Callable[[set[int]], object],
        most: int | None = None,
    ) -> tuple[set[int], list[MessageRow]]:
        """Settle, then claim if nothing was lost, in one transaction.

        In a queue with groups, the first ones may end in a transaction of their own. ``acked`` is
        called with their ids, because the next transaction may fail.
        """
        if type(count) is not int or not 0 < count < _MANY:
            count = check_whole("count", count)
        if self._at_most is not None:
            count = min(count, self._at_most)
        where = self._refused.without(where)
        lease_us = None if lease is None else to_microseconds(lease, "lease")
        # It keeps to these tables, even if somebody turns groups on or off meanwhile.
        sql = self._context.sql
        exchanged = self._exchange
        if sql.subject.grouped:
            exchanged = partial(self._exchange_groups, acked=acked, most=most)
        settled, rows = exchanged(sql, count, lease_us, settlements, keep=keep, where=where)
        if sql.subject.limited and len(rows) < len(settled):
            self._context.wake_consumers()
        rows = self._apart(rows)
        return settled, [] if self._came_late(rows) else rows

    def _exchange(
        self,
        sql: StatementCache,
        count: int,
        lease_us: int | None,
        settlements: Sequence[Settlement],
        *,
        keep: bool,
        where: Where | None,
    ) -> tuple[set[int], list[MessageRow]]:
        levels = range(self._context.settings.priorities)
        at_once = len(levels) == 1 and exchanges_at_once(sql, settlements)
        finish = finishing(sql, settlements, keep=keep)
        finish = _quietly(finish) if sql.subject.limited else finish
        expected = count_ids(settlements)
        edits, lows = self._places(levels, where)
        # Claim on all levels or on none. Otherwise a lower level could be served while a higher one
        # is refused.
        requests = [
            self._request(
                level,
                count,
                lease_us,
                lows[level],
                edits=edits,
                where=where,
                guarded=any(lows) or sql.subject.bounded,
            )
            for level in levels
        ]
        claims: list[tuple[ClaimRequest, list[MessageRow]]] = []

        def settle_and_claim(connection: Connection) -> tuple[set[int], list[MessageRow]]:
            claims.clear()
            if at_once:
                first = requests[0]
                settled, rows = exchange(connection, sql, settlements[0], first, keep=keep)
                claims.append((first, rows))
                return settled, rows
            settled = finish.do(connection)
            if len(settled) < expected:
                return settled, []
            rows = []
            for request in requests:
                left = count - len(rows)
                if left:
                    part, found = claim_within(connection, sql, request.of(left))
                    if not part.count:
                        break
                    claims.append((part, found))
                    rows = rows + found
            return settled, rows

        began = time.monotonic()
        operation = Operation(settle_and_claim, atomic=not at_once, repeatable=False)
        settled, rows = self._answered(requests, operation)
        if len(settled) == expected:
            for request, found in claims:
                self._found(found, request, began)
            if not rows and (any(lows) or sql.subject.bounded):
                self._was_edited()
        return settled, rows

    def _exchange_groups(
        self,
        sql: StatementCache,
        count: int,
        lease_us: int | None,
        settlements: Sequence[Settlement],
        *,
        keep: bool,
        where: Where | None,
        acked: Callable[[set[int]], object],
        most: int | None,
    ) -> tuple[set[int], list[MessageRow]]:
        """As ``exchange``; the claim is one look, and further ones follow if it found nothing."""
        expected, began = count_ids(settlements), time.monotonic()
        requests = [
            self._group_request(level, count, lease_us, where, most=most)
            for level in range(self._context.settings.priorities)
        ]
        looks: list[tuple[GroupRequest, GroupClaim]] = []
        settled: set[int] = set()
        rows: list[MessageRow] = []
        if exchanges_heads(sql, settlements, requests):
            (request,) = requests
            at_once = exchanging_heads(sql, settlements, request, keep=keep)
            settled, found = self._answered([request.claim], at_once)
            acked(settled)
            if found is not None:
                looks, rows = [(request, found)], in_order(found)
            settlements, requests = without(settlements, settled), [request._replace(heads=False)]
        if not looks:
            rest, rows = self._exchange_in_steps(
                sql, count, settlements, requests, looks, keep=keep
            )
            settled |= rest
        for request, found in looks:
            self._note_look(request, found, began)
        # Every level must prepare its next look.
        nexts = [self._prepare(request, found, rows) for request, found in looks if found.seen]
        more = any(past is not None for past in nexts)
        if not rows and len(settled) == expected and (self._was_edited() or more):
            rows = self._claimed(count, lease_us, where, most)
        return settled, rows

    def _exchange_in_steps(
        self,
        sql: StatementCache,
        count: int,
        settlements: Sequence[Settlement],
        requests: Sequence[GroupRequest],
        looks: list[tuple[GroupRequest, GroupClaim]],
        *,
        keep: bool,
    ) -> tuple[set[int], list[MessageRow]]:
        """Settle, then look at groups on each level, in one transaction; it adds to ``looks``."""
        finish = finishing_quickly(sql, settlements, keep=keep)
        expected = count_ids(settlements)

        def settle_and_claim(connection: Connection) -> tuple[set[int], list[MessageRow]]:
            looks.clear()
            settled = finish.do(connection)
            rows: list[MessageRow] = []
            for request in requests if len(settled) == expected else ():
                if len(rows) == count:
                    break
                part = request.of(count - len(rows))
                part, found = claim_of_groups_within(connection, sql, part)
                if not part.claim.count:
                    break
                looks.append((part, found))
                rows += in_order(found)
            return settled, rows

        operation = Operation(settle_and_claim, atomic=True, repeatable=False)
        return self._answered([request.claim for request in requests], operation)

    def take(
        self,
        connection: Connection,
        count: int,
        *,
        decode: DecodeTaken,
        done: Disposition,
        where: Where | None,
        refused: dict[int, str],
        ended: dict[int, Disposition],
        careful: bool,
    ) -> list[Message]:
        """Remove messages inside the caller's transaction; see ``take``."""
        count = check_whole("count", count)
        self._context.asked()
        self._note_use(connection)
        messages: list[Message] = []
        slots: Sequence[int] = ()
        tokens = interval = 0
        if self._context.tables.bounded:
            count, (tokens, interval), slots = self._reserved_to_take(connection, count, where)
        for level in range(self._context.settings.priorities):
            while left := count - len(messages):
                sql, values, picking = self._context.sql, wanted(level, left), None
                if sql.subject.grouped:
                    picking = partial(
                        self._pick, connection, sql, level, left, where=where, careful=careful
                    )
                found, taken = take(
                    connection,
                    sql,
                    values,
                    decode=decode,
                    done=done,
                    where=where,
                    refused=refused,
                    ended=ended,
                    careful=careful,
                    picking=picking,
                )
                if slots:
                    of_these = slots[len(messages) :]
                    occupy_taken(connection, sql, of_these, [message.id for message in taken])
                    if not self._has_others:
                        self._slots_used(connection).update(of_these[: len(taken)])
                messages += taken
                # If ``found`` reached ``left`` there may be more, because unreadable rows were
                # found but not delivered.
                if found < left:
                    break
        if tokens > len(messages):
            spare = tokens - len(messages)
            self._apart_from(connection, partial(give_back, count=spare, interval=interval))
        if not messages:
            insist_on_writing(connection, self._context.sql)
        return messages

    @property
    def _has_others(self) -> bool:
        """Whether a query may run beside the caller's transaction."""
        connections = self._context.connections
        return connections.background and connections.has_others

    @property
    def _may_run_beside(self) -> bool:
        """Whether a transaction may write beside the caller's."""
        return self._has_others and self._context.dialect.features.skip_locked

    def _apart_from(self, connection: Connection, do: Callable[..., T]) -> T:
        """Do it in a transaction of its own, since a caller's may stay open for long.

        Where the caller's has the only lock for writing, or its connection is the only one, it is
        done there.
        """
        context = self._context
        if not self._may_run_beside:
            return do(connection, context.sql)
        once = Operation(partial(do, sql=context.sql), atomic=True, repeatable=False)
        return context.run(once)

    def _reserved_to_take(
        self, connection: Connection, count: int, where: Where | None
    ) -> tuple[int, tuple[int, int], Sequence[int]]:
        """How many messages a ``take`` may get, what ``spend_some`` returned, and its slots."""
        tables, spent = self._context.tables, (0, 0)
        count = self._due_to_take(connection, count, where)
        if tables.rated and count:
            if self._context.connections.background:
                # After a step of the clock it mends the rate.
                self._apart_from(connection, look)
            spent = self._apart_from(connection, partial(spend_some, count=count))
            count = spent[0]
        if not tables.limited:
            return count, spent, ()
        # The caller may keep the transaction open for long, so it takes none in vain.
        elsewhere = self._context.run if self._has_others else None
        used = () if self._has_others else self._slots_used(connection)
        slots = reserve_for_caller(connection, self._context.sql, count, elsewhere, used)
        return len(slots), spent, slots

    def _slots_used(self, connection: Connection) -> set[int]:
        """The slots of what the caller's transaction has taken, on the only connection."""
        transaction = connection.get_transaction()
        return set() if transaction is None else self._used.setdefault(transaction, set())

    def _due_to_take(self, connection: Connection, count: int, where: Where | None) -> int:
        """How many messages a ``take`` may find, at most so many."""
        context, sql = self._context, self._context.sql
        context.dialect.sessions.lock_for_writing(connection, sql)
        levels = range(context.settings.priorities)

        def due(target: Connection) -> int:
            return sum(count_due(target, sql, wanted(level, count), where) for level in levels)

        found = due(connection)
        if self._has_others and sql.subject.features.reads_the_past:
            found = max(found, context.run(due))
        return min(count, found)

    def _pick(
        self,
        connection: Connection,
        sql: StatementCache,
        level: int,
        count: int,
        *,
        where: Where | None,
        careful: bool,
    ) -> Sequence[Sequence[Any]]:
        """Lock and read messages of groups, for ``take``."""
        run, guarded = self._context.run, True
        create_rows = partial(self._walk.create_rows, anew=True)
        park: Callable[[Sequence[Seen]], object] | None
        park = partial(self._park_for_take, connection, level)
        if not self._context.connections.background:
            # A query of ours would end the caller's transaction.
            guarded, park = False, None
        rows: Sequence[Sequence[Any]] = ()
        edited = woken = False
        while True:
            edits = self._known_edits() if guarded else ANY_EDITS
            # It looks at each group's row anyway.
            rules = GroupRules.of(self._context.settings)
            picking = Picking(
                connection,
                sql,
                rules,
                where,
                elsewhere=run,
                create_rows=create_rows,
                park=park,
            )
            # Of what the database refuses to end, nothing behind it may be taken.
            rows = picking.pick(level, count, edits, most=1 if careful else None)
            if rows or not guarded:
                break
            if not edited and self._was_edited():
                edited = True
            elif not woken and self._wakes_for_take(connection, level, count, where):
                woken = True
            else:
                break
        return rows

    def _wakes_for_take(
        self, connection: Connection, level: int, count: int, where: Where | None
    ) -> bool:
        """Whether a ``take`` that found nothing woke parked messages that it may have."""
        callers = connection if self._context.dialect.features.look_first else None
        return self._walk.wakes_fitting(level, count, where, callers)

    def _park_for_take(self, connection: Connection, level: int, blocked: Sequence[Seen]) -> None:
        """Park what a ``take`` met, so that the next one need not look past it."""
        # It claims nothing, and a registration would wait for the caller's transaction.
        looking = ClaimRequest("", 0, 1, level, 0, None, 0, edits=ANY_EDITS, guarded=False)
        request = self._walk.request(looking, self._rules)
        apart = self._walk.parking(request, blocked)
        if self._context.dialect.features.look_first:
            # The caller's transaction has the only lock for writing.
            with carefully():
                apart.do(connection)
            return
        try:
            self._context.run(apart)
        except (DatabaseRefused, PayloadInvalid) as error:
            self._walk.cannot_park(error)

    def take_columns(
        self, connection: Connection, count: int, *, keep: bool
    ) -> list[RecordBatch] | None:
        """Take as columns, one batch per level; None if this engine or queue cannot do it."""
        levels = range(self._context.settings.priorities)
        self._context.asked()
        self._note_use(connection)
        edits, lows = self._places(levels)
        taken = self._take_levels(connection, count, lows, edits, keep=keep)
        if taken == [] and any(lows):
            self._was_edited()
            taken = self._take_levels(connection, count, [0] * len(levels), ANY_EDITS, keep=keep)
        return taken

    def _take_levels(
        self, connection: Connection, count: int, lows: Sequence[int], edits: int, *, keep: bool
    ) -> list[RecordBatch] | None:
        context, left, taken = self._context, count, []
        known = edits if any(lows) else ANY_EDITS
        for level, low in enumerate(lows):
            values = wanted(level, left, low, known)
            began = time.monotonic()
            batch = context.dialect.columns.take(connection, context.sql, values, keep=keep)
            if batch is None:
                return None
            if batch.num_rows:
                taken.append(batch)
            latest = batch.column("available_at")[-1].value if batch.num_rows else 0
            self._mark(level).noted(batch.num_rows, latest, left, low, time.monotonic() - began)
            left -= batch.num_rows
            if not left:
                break
        return taken

    def look_fully(self, available_at: int | None = None) -> None:
        """Start the next claims at this place, where messages came back; None: at the beginning."""
        for mark in list(self._marks.values()):
            mark.lower(available_at)

    def _claim_levels(
        self,
        rows: list[MessageRow],
        count: int,
        lease_us: int | None,
        where: Where | None,
        most: int | None,
    ) -> None:
        for level in range(self._context.settings.priorities):
            left = count - len(rows)
            if left <= 0 or not self._has_room():
                return
            if self._context.tables.grouped:
                rows += self._claim_groups(level, left, lease_us, where, most)
            elif where is not None:
                rows += self._claim_where(level, left, lease_us, where)
            else:
                rows += self._claim_level(level, left, lease_us, most)

    def _claim_level(
        self, level: int, count: int, lease_us: int | None, most: int | None
    ) -> list[MessageRow]:
        mark = self._mark(level)
        edits, (low,) = self._places([level])
        request = self._request(level, count, lease_us, low, edits=edits)
        found = self._look(mark, request)
        if found or not request.guarded:
            return found
        if self._was_edited() or (request.low and mark.may_look_fully()):
            if self._context.tables.grouped:
                return self._claim_groups(level, count, lease_us, None, most)
            edits = self._known_edits()
            found = self._look(mark, self._request(level, count, lease_us, 0, edits=edits))
        return found

    def _claim_groups(
        self,
        level: int,
        count: int,
        lease_us: int | None,
        where: Where | None,
        most: int | None,
    ) -> list[MessageRow]:
        """Walk along the claim index until something is found, or nothing is left to look at."""
        rows: list[MessageRow] = []
        past: tuple[str, ...] = ()
        fully, edits, patient, behind = False, 0, True, False
        for _ in range(MOST_LOOKS):
            left = count - len(rows)
            request = self._group_request(
                level, left, lease_us, where, past, most=most, fully=fully, patient=patient
            )
            request, found = self._look_at_groups(request)
            rows += in_order(found)
            low, fully = request.claim.low, False
            if not request.claim.count:
                # The limit of the queue is reached, or its rate is used up.
                break
            is_over = False
            if request.rules.fair and request.past and patient and not (rows or found.lacking):
                # Behind what it looked past is nothing for it.
                past, patient = (), False
            elif not found.seen:
                # The claim is of no use if an edit changed the limits.
                if edits < _MOST_EDITS and self._was_edited():
                    edits += 1
                elif low and self._mark(level).may_look_fully():
                    fully = True
                else:
                    is_over = True
            elif (following := self._prepare(request, found, rows)) is not None:
                past = following
            else:
                is_over = True
            if is_over:
                if rows or behind or not self._walk.wakes_fitting(level, count, where):
                    break
                past, behind = (), True
        return rows

    def _prepare(
        self, request: GroupRequest, found: GroupClaim, rows: Sequence[MessageRow]
    ) -> tuple[str, ...] | None:
        """As ``GroupWalk.goes_on``, which must not lose the rows that were claimed before."""
        try:
            return self._walk.goes_on(request, found)
        except QueueError as error:
            if not rows:
                raise
            _log.warning("Queue %s: %s", self._context.name, error)
            return None
        except BaseException:
            self.abandon(rows)
            raise

    def _look_at_groups(self, request: GroupRequest) -> tuple[GroupRequest, GroupClaim]:
        claim, sql = request.claim, self._context.sql
        found = GroupClaim([], [], 0)
        if not sql.subject.grouped:
            # Somebody turned groups off since this claim began.
            return request, found
        began = time.monotonic()
        first = self._mark(claim.priority).idle and not request.everywhere
        if not (first and self._looks_in_vain(claim)):
            heads = None
            if request.heads and not sql.subject.bounded:
                heads = self._answered([claim], claiming_heads(sql, request))
                request = request._replace(heads=heads is not None)
            if heads is None:
                request, found = self._answered([claim], claiming_of_groups(sql, request))
            else:
                found = heads
        if request.claim.count:
            self._note_look(request, found, began)
        return request, found

    def _note_look(self, request: GroupRequest, found: GroupClaim, began: float) -> None:
        claim = request.claim
        if claim.where is not None or request.past:
            return
        seconds, place = time.monotonic() - began, place_after(found)
        with self._placing:
            if claim.edits == self._edits:
                mark = self._mark(claim.priority)
                mark.noted(len(found.rows), place, claim.count, claim.low, seconds)

    def _group_request(
        self,
        level: int,
        count: int,
        lease_us: int | None,
        where: Where | None,
        past: tuple[str, ...] = (),
        *,
        most: int | None = None,
        fully: bool = False,
        patient: bool = True,
    ) -> GroupRequest:
        """The next look at groups; it finds nothing if the limits were changed."""
        # Read it before the settings.
        edits, (low,) = self._places([level], where, fully=fully)
        claim = self._request(level, count, lease_us, low, edits=edits, where=where, guarded=True)
        return self._walk.request(claim, self._rules, past, most, patient=patient)

    def _has_room(self) -> bool:
        """Whether limit and rate of the queue, if it has any, allow another message."""
        if not self._context.tables.bounded:
            return True
        # Somebody may have changed them, or have turned them off.
        return self._sees_room() or (self._was_edited() and self._sees_room())

    def _sees_room(self) -> bool:
        context = self._context
        if not context.tables.bounded:
            return True
        found = context.run(lambda c: outlook(c, context.sql))
        self._token_at = time.monotonic() + found.seconds
        return found.has_room

    @property
    def _rules(self) -> GroupRules:
        return self._walk.rules

    def _places(
        self, levels: Sequence[int], where: Where | None = None, *, fully: bool = False
    ) -> tuple[int, list[int]]:
        """The edit count that is known, and where claims of these levels start by it."""
        self._known_edits()
        from_low = not fully and where is None
        with self._placing:
            edits = self._edits
            lows = [self._mark(level).bound() if from_low else 0 for level in levels]
        assert edits is not None  # noqa: S101 - nobody forgets it
        return edits, lows

    def _known_edits(self) -> int:
        if self._edits is None:
            edits = self._edit_count()
            with self._placing:
                # What another thread learned first is what its marks are based on.
                if self._edits is None:
                    self._edits = edits
            if self._context.tables.has_rules:
                # The limits may have been changed since they were read.
                self._context.refresh()
        return self._edits

    def _was_edited(self) -> bool:
        edits = self._edit_count()
        with self._placing:
            if edits == self._edits:
                return False
            self._edits = edits
            self._walk.forget_limits()
            self.look_fully()
        # Somebody may have turned groups on or off, or have changed their limits.
        self._context.refresh()
        return True

    def _edit_count(self) -> int:
        return self._context.run(lambda c: registry.edit_count(c, self._context.sql))

    def _claim_where(
        self, level: int, count: int, lease_us: int | None, where: Where
    ) -> list[MessageRow]:
        """Claim matching messages from the beginning, because the watermark does not cover them."""
        if not self._context.tables.bounded:
            return self._look(None, self._request(level, count, lease_us, 0, where=where))
        edits = self._known_edits()
        found = self._look(None, self._request(level, count, lease_us, 0, edits=edits, where=where))
        if not found and self._was_edited():
            edits = self._known_edits()
            again = self._request(level, count, lease_us, 0, edits=edits, where=where)
            found = self._look(None, again)
        return found

    def _looks_in_vain(self, request: ClaimRequest) -> bool:
        """Whether a read finds nothing to claim, where a claim takes a lock that others need."""
        context = self._context
        first = context.dialect.features.look_first or context.tables.rated
        return first and not context.run(
            lambda connection: anything_to_claim(connection, context.sql, request)
        )

    def _look(self, mark: LowWatermark | None, request: ClaimRequest) -> list[MessageRow]:
        sql = self._context.sql
        if sql.subject.grouped:
            # Somebody turned groups on since this claim began.
            return []
        began = time.monotonic()
        rows: list[MessageRow] = []
        if not ((mark is None or mark.idle) and self._looks_in_vain(request)):
            if sql.subject.bounded:
                claim = Operation(partial(claim_within, sql=sql, request=request), atomic=True)
                claim = claim._replace(repeatable=False)
                request, rows = self._answered([request], claim)
            else:
                rows = self._answered([request], claiming(sql, request))
            if len(rows) > 1:
                rows.sort(key=AGE)
        if request.count:
            self._found(rows, request, began)
        return rows

    def _found(self, rows: Sequence[MessageRow], request: ClaimRequest, began: float) -> None:
        if request.where is not None:
            return
        seconds = time.monotonic() - began
        with self._placing:
            if request.edits == self._edits:
                mark = self._mark(request.priority)
                mark.claimed(rows, request.count, request.low, seconds)

    def _request(
        self,
        level: int,
        count: int,
        lease_us: int | None,
        low: int,
        *,
        edits: int = 0,
        where: Where | None = None,
        guarded: bool | None = None,
    ) -> ClaimRequest:
        stamp = self._holder.next_claim()
        if self._lasting:
            # Nobody knows whether those who settle by tokens are still there.
            self._note_use()
        else:
            self._context.asked()
            self._context.declare_kinds()
        return ClaimRequest(
            consumer_id=stamp.consumer_id,
            consumer_round=stamp.consumer_round,
            count=count,
            priority=level,
            low=low,
            lease_us=lease_us,
            queue_lease_us=self._context.known_settings.lease_us,
            edits=edits,
            guarded=low != 0 or self._context.tables.bounded if guarded is None else guarded,
            where=where,
        )

    def _note_use(self, connection: Connection | None = None) -> None:
        """Keep a queue that ends unused, if no registration says that this consumer uses it.

        ``connection``: of a caller whose transaction uses it.
        """
        limit, context = self._context.known_settings.unused_us, self._context
        now = time.monotonic()
        if limit is None or now < self._use_noted_until:
            return
        self._use_noted_until = now + limit / _NOTES_OF_USE / 1_000_000
        tables = context.tables
        record = (tables.system, context.dialect, tables.prefix, tables.queue)
        error: Exception | None = None
        if connection is None or self._may_run_beside:
            try:
                with context.connections.giving_way():
                    context.run(note_use.of(*record))
            except (Locked, NotPermitted) as refused:
                error = refused
        elif context.dialect.features.aborts_on_error:
            note = partial(note_use, connection, *record)
            error = refusal(connection, context.sql, _NOTE_OF_USE, note)
        else:
            note_use(connection, *record)
        if error is not None:
            _log.info("The use of queue %s is noted later: %s", context.name, error)

    def _answered(self, requests: Sequence[ClaimRequest], operation: Operation[T]) -> T:
        try:
            return self._context.run(operation)
        except BaseException as error:
            self._note_lost_answer(requests, error)
            raise

    def _note_lost_answer(self, requests: Iterable[ClaimRequest], error: BaseException) -> None:
        """Remember claims whose answer was lost.

        The connection broke, the caller was interrupted, or the driver could not read a value.
        """
        lost = isinstance(error, DatabaseUnavailable | DatabaseRefused)
        if lost or not isinstance(error, QueueError):
            self._note_unanswered(request.claim for request in requests)

    def _note_unanswered(self, stamps: Iterable[Claim], *, certain: bool = False) -> None:
        now = time.monotonic()
        self._unanswered.extend(_Unanswered(stamp, now, certain) for stamp in stamps)
        self._holder.recall_by(self.recall)

    def _restore_if_due(self) -> bool:
        """Recover messages of dead consumers, as the reaper does and with its rate limit."""
        pace = self._recovery.pace
        if not pace.due():
            return False
        with pace.running():
            restored, is_over = self._recovery.restore_in_turn()
            if not is_over:
                pace.go_on()
        if restored:
            # This claim may leave some of them to others.
            self._context.wake_consumers()
        return restored > 0

    def _mark(self, level: int) -> LowWatermark:
        mark = self._marks.get(level)
        return mark if mark is not None else self._marks.setdefault(level, LowWatermark())


def _quietly(settle: Operation[T]) -> Operation[T]:
    """Settle before a claim, which uses itself what that frees: it is no news to others."""

    def do(connection: Connection) -> T:
        with noting_ready():
            return settle.do(connection)

    return settle._replace(do=do)
