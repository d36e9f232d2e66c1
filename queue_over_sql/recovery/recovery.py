"""Recovery: what the reaper does for one queue, and what a claim does that finds too little."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from queue_over_sql.attempts import LOST, Failure, prune_attempts
from queue_over_sql.errors import DatabaseRefused, Locked, QueueError, visible
from queue_over_sql.groups.blocking import find_blocked_by_nothing, unblock_all
from queue_over_sql.groups.operations import own_limits
from queue_over_sql.groups.repair import Place, find_broken, remove_idle, repair
from queue_over_sql.groups.strategy import GroupRules
from queue_over_sql.limits.slots import count_others
from queue_over_sql.limits.tokens import read as read_bucket
from queue_over_sql.limits.tokens import restore_rate
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queues.decoding import expiry
from queue_over_sql.recovery import clock_steps
from queue_over_sql.recovery.clock_steps import ClockStep
from queue_over_sql.recovery.dead_claims import (
    expired_leases,
    find_half_claimed,
    held_by,
    holders_of,
    move_to_last_level,
    orphaned_claims,
    unclaim_half_claimed_ids,
)
from queue_over_sql.recovery.expired_messages import end_expired, find_expired
from queue_over_sql.recovery.suspects import keeping_last_error, may_run_together, reason_of_death
from queue_over_sql.recovery.unknown_kinds import dead_letter_unknown
from queue_over_sql.recovery.unreadable_rows import UnreadableRows
from queue_over_sql.settling.operations import release, restore
from queue_over_sql.settling.settlements import Settlements
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.operations import apart, change_by_ids
from queue_over_sql.statements.parameters import batches
from queue_over_sql.statements.requests import Disposition, Settlement
from queue_over_sql.values.backoff import RateLimit
from queue_over_sql.values.durations import MICROSECOND, duration_text
from queue_over_sql.values.limits import LEAST_CLOCK_STEP_US
from queue_over_sql.values.reasons import (
    CONSUMER_DIED,
    LAST_BEFORE,
    LEASE_EXPIRED,
    OUT_OF_ATTEMPTS,
)
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import Claim, MessageRow
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.recovery.dead_claims import DeadClaim

    Find = Callable[..., list[DeadClaim]]
    _Groups = dict[tuple[Claim, str], list[int]]


_log = logging.getLogger(__name__)

BATCH = 500
# How long one queue is served before the next one has its turn.
_TURN_SECONDS = 0.25
# How often rows are looked through for claims that somebody has edited, and how many at once.
_EDITED_SECONDS: Final = 60.0
_EDITED_ROWS: Final = 1_000
_SECONDS_BETWEEN_REPAIRS: Final = 10.0
# Among how many rows at once messages that expired are looked for.
_EXPIRED_ROWS: Final = 10_000
_BEFORE_ALL: Final = -(2**63)
# How often long queues are looked through for groups that nobody would wake.
_LONG_LOOK_SECONDS: Final = 30.0
# How often rows of groups are looked through for idle ones, how many at once, and how old they are.
_IDLE_SECONDS: Final = 60.0
_GROUPS: Final = 500
_IDLE_US: Final = 600_000_000
# How often attempts are looked through for messages that are gone.
_ATTEMPTS_SECONDS: Final = 60.0
# How often what is in hand is compared with the slots of a limit.
_COUNTED_SECONDS: Final = 15.0
# How soon to try again what the database refused to give back, and when to forget that it did.
_REFUSED_SECONDS: Final = 5.0
_FORGET_SECONDS: Final = 600.0


class Recovery:
    """The reaper's operations on one queue."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._settlements = Settlements(context, lambda _: None)
        self.unreadable = UnreadableRows(context)
        # When to try again what the database refused to give back, on the monotonic clock.
        self._refused: dict[int, float] = {}
        # Limits how often a short claim recovers messages; a pass of the reaper delays it.
        self.pace = RateLimit(context.service.reaper_seconds, ready=False)
        # When rows were looked through for edited claims, and up to which.
        self._looked_through = (-math.inf, _BEFORE_ALL)
        # The last row that was looked at for messages that expired.
        self._expired_up_to = _BEFORE_ALL
        # The last row that was looked at for groups that nobody would wake.
        self._repaired_up_to: Place | None = None
        # Until when it leaves groups alone that it could not wake, by name.
        self._in_vain: dict[str, float] = {}
        # What the present look for them has read so far. It may take several turns.
        self._repair_pages = 0
        # When to begin the next look for them, on the monotonic clock.
        self._repair_at = -math.inf
        # When what is in hand was compared with the slots of the queue's limit.
        self._counted_at = -math.inf
        # When all attempts were looked through for messages that are gone, and up to which message.
        self._attempts_after = (-math.inf, _BEFORE_ALL)
        # When rows of groups were looked through, and up to which name.
        self._idle_after: tuple[float, str | None] = (-math.inf, None)

    def restore(self) -> int:
        """Recover all messages of dead consumers; returns how many were given back."""
        total, is_over = 0, False
        while not is_over:
            restored, is_over = self.restore_in_turn()
            total += restored
        return total

    def restore_in_turn(self) -> tuple[int, bool]:
        """Recover messages of dead consumers until a turn is over, as a pass does.

        Returns:
            How many were given back, and whether that was all except what others have locked.
        """
        reports: list[ReaperReport] = []
        is_over = True
        with self._context.connections.giving_way():
            for steps in (self.expired_leases, self._claims_of_dead):
                try:
                    is_over &= take_turn(steps(), reports.append)
                except Locked as error:
                    # The reaper logs it.
                    _log.debug("Queue %s: %s", self._context.name, error)
        return sum(report.restored for report in reports), is_over

    def expired_leases(self) -> Iterator[ReaperReport]:
        """Recover messages whose lease has expired, batch by batch."""
        return self._all(expired_leases, LEASE_EXPIRED)

    def orphaned_claims(self) -> Iterator[ReaperReport]:
        """Recover messages of consumers that are declared dead or gone, batch by batch."""
        return self._all(orphaned_claims, CONSUMER_DIED)

    def _claims_of_dead(self) -> Iterator[ReaperReport]:
        self._context.consumer.deaths.declare()
        return self.orphaned_claims()

    def held_by(self, consumer_ids: Sequence[str]) -> dict[str, int]:
        """How many messages each of these consumers holds."""
        count = held_by(self._context.tables, consumer_ids)
        return {row[0]: row[1] for row in self._context.run(lambda c: c.execute(count).all())}

    def edited_claims(self) -> Iterator[ReaperReport]:
        """Give back messages with a consumer but no lease, which only an edit by hand can leave.

        Messages of a priority that the queue does not have get its last one: who published them
        did not know yet that it has fewer.

        Each minute it looks through some of the rows, the oldest first, and then goes on there.
        """
        context, (looked_at, after) = self._context, self._looked_through
        began = time.monotonic()
        if began - looked_at < _EDITED_SECONDS:
            return
        while True:
            levels = context.settings.priorities
            look = partial(
                find_half_claimed, sql=context.sql, after=after, limit=_EDITED_ROWS, levels=levels
            )
            found, beyond, last = context.run(look)
            after = _BEFORE_ALL if last is None else last
            self._looked_through = (began, after)
            if found:
                clear = partial(
                    change_by_ids,
                    sql=context.sql,
                    builder=unclaim_half_claimed_ids,
                    ids=found,
                )
                count = context.run(Operation(clear, atomic=True))
                _log.warning(
                    "Gave back %d messages of queue %s: somebody had set their consumer_id, but "
                    "not the rest of a claim. To hold a message back, use hold().",
                    count,
                    context.name,
                )
                yield ReaperReport(restored=count)
            if beyond:
                self._move_to_last_level(beyond, levels)
            if last is None or time.monotonic() - began > _TURN_SECONDS:
                return

    def _move_to_last_level(self, ids: Sequence[int], levels: int) -> None:
        context = self._context
        # The queue may have got more of them since they were read.
        context.refresh()
        if context.settings.priorities > levels:
            return
        if count := context.run(move_to_last_level.of(context.sql, ids, levels)):
            _log.warning(
                "Moved %d messages of queue %s to its last priority, %d: it does not have theirs.",
                count,
                context.name,
                levels - 1,
            )
            context.wake_consumers()

    def clock_step(self, now: int) -> ClockStep | None:
        """The step back of the database's clock that its newest message proves; None: no proof.

        ``now`` is what the clock shows. A message whose time is ahead of it was written before.
        """
        sql = self._context.sql
        if self._context.tables.ends_in_place:
            # Its newest message may lie behind millions of finished rows.
            return None
        latest = self._context.run(lambda connection: clock_steps.latest_stamp(connection, sql))
        if latest is None or latest <= now + LEAST_CLOCK_STEP_US:
            return None
        return ClockStep(now, until=latest)

    def keep_due(self, step: ClockStep) -> int:
        """Make messages due again that were due before a step of the clock; returns how many."""
        sql = self._context.sql
        kept = 0
        for level in (*range(self._context.settings.priorities), None):
            keep = clock_steps.keep_due.of(sql, step=step, level=level, limit=BATCH)
            while changed := self._context.run(keep):
                kept += changed
        self._context.run(partial(clock_steps.let_all_look, sql=sql))
        if kept:
            self._context.wake_consumers()
            _log.warning(
                "The database's clock was set back by about %s. %d messages of queue %s that were "
                "due before stay due.",
                duration_text((step.until - step.now) // 1_000_000),
                kept,
                self._context.name,
            )
        return kept

    def unknown_kinds(self) -> Iterator[ReaperReport]:
        """End messages that were due for the ``kind_timeout`` and that no living consumer can read.

        It does so batch by batch. Only a service that has kinds does this.
        """
        context, kinds = self._context, self._context.kinds
        if kinds is None:
            return
        settings, sql = context.settings, context.sql
        context.declare_kinds()
        reason, feed = f"no consumer knew its kind for {settings.kind_timeout}", context.feed

        def disposition(row: MessageRow) -> Disposition:
            error = f"{reason}: {row.kind}"
            keep, blocks = settings.archive != "none", settings.blocks_groups
            return Disposition(keep, settings.dedup_us, error, blocks=blocks, feed=feed)

        bury = partial(
            dead_letter_unknown.of,
            sql,
            due_for=settings.kind_timeout // MICROSECOND,
            limit=BATCH,
            disposition=disposition,
        )
        for level in range(settings.priorities):
            found = BATCH
            while found == BATCH:
                ended, refused = context.run(bury(level=level))
                found = len(ended) + len(refused)
                yield self._note_ended(ended, refused)

    def expired_messages(self) -> Iterator[ReaperReport]:
        """End unclaimed messages that were not started in time, batch by batch.

        Each pass goes on where the last one stopped, and reads no queue without such messages.
        """
        context = self._context
        settings = context.settings
        if not (context.expiring or settings.expires):
            return
        feed = context.feed

        def disposition(row: MessageRow) -> Disposition:
            return expiry(row, settings, feed)

        while True:
            look = partial(
                find_expired, sql=context.sql, after=self._expired_up_to, limit=_EXPIRED_ROWS
            )
            found, last = context.run(look)
            for some in batches(found):
                end = end_expired.of(context.sql, some, disposition)
                yield self._note_ended(*context.run(end))
            self._expired_up_to = _BEFORE_ALL if last is None else last
            if last is None:
                return
            yield ReaperReport()

    def groups(self) -> Iterator[ReaperReport]:
        """Wake groups that nobody would wake, and remove the rows of idle ones, in turns."""
        context = self._context
        if not context.tables.grouped:
            return
        began = time.monotonic()
        if began >= self._repair_at:
            for report in self.repaired_groups():
                self._repair_pages += 1
                yield report
            if self._repair_pages > 1:
                # Such a look reads much, and each service looks.
                self._repair_at = began + _LONG_LOOK_SECONDS
            self._repair_pages = 0
        looked_at, after = self._idle_after
        began = time.monotonic()
        if began - looked_at < _IDLE_SECONDS:
            return
        yield from self._unblocked_groups()
        while True:
            removal = remove_idle.of(context.sql, after, _GROUPS, _IDLE_US)
            _, after = context.run(removal)
            self._idle_after = (began, after)
            if after is None or time.monotonic() - began >= _TURN_SECONDS:
                return
            yield ReaperReport()

    def attempts(self) -> Iterator[ReaperReport]:
        """Forget the failed attempts of messages that are gone; after the last, a minute's rest."""
        looked_at, after = self._attempts_after
        began = time.monotonic()
        if began - looked_at < _ATTEMPTS_SECONDS:
            return
        while True:
            last = self._forget_attempts(after)
            # The next pass goes on here. A turn may be over before anything after the yield is run.
            self._attempts_after = (began, _BEFORE_ALL) if last is None else (-math.inf, last)
            if last is None or time.monotonic() - began >= _TURN_SECONDS:
                return
            after = last
            yield ReaperReport()

    def forget_attempts(self) -> None:
        """Forget the failed attempts of all messages that are gone; never raises."""
        after: int | None = _BEFORE_ALL
        while after is not None:
            after = self._forget_attempts(after)

    def _forget_attempts(self, after: int) -> int | None:
        context = self._context
        prune = partial(prune_attempts, sql=context.sql, after=after, limit=BATCH)
        try:
            return context.run(prune)[1]
        except QueueError as error:
            # Messages matter more; the next look tries again.
            _log.debug("Queue %s: attempts are kept for longer: %s", context.name, error)
            return None

    def limits(self) -> Iterator[ReaperReport]:
        """Let what somebody claimed without regard to the limit of the queue count.

        And bring the row of its rate back, which somebody deleted.
        """
        context, began = self._context, time.monotonic()
        if not context.tables.bounded or began - self._counted_at < _COUNTED_SECONDS:
            return
        self._counted_at = began
        if context.tables.rated and context.run(lambda c: read_bucket(c, context.sql)) is None:
            yield ReaperReport(repaired=self._with_rate())
        if not context.tables.limited:
            return
        count = context.run(count_others.of(context.sql))
        if count:
            _log.warning(
                "Queue %s: %d messages were claimed without regard to its limit. They count now. "
                "Somebody must have claimed them by SQL, or before there was a limit.",
                context.name,
                count,
                extra={"queue": context.name},
            )
        yield ReaperReport(repaired=count)

    def _with_rate(self) -> int:
        context = self._context
        # Somebody may have changed the rate, or have turned it off.
        context.refresh()
        if not context.tables.rated:
            return 0
        sql, rate = context.sql, context.settings.queue_rate
        restored = context.run(restore_rate.of(sql, rate))
        if restored:
            _log.warning(
                "Queue %s: the row of its rate was gone, so that nobody could claim. It is there "
                "again. Somebody must have deleted it by SQL.",
                context.name,
                extra={"queue": context.name},
            )
            context.wake_consumers()
        return int(restored)

    def repaired_groups(self) -> Iterator[ReaperReport]:
        """Wake groups whose parked messages nobody would wake, from where the last turn ended."""
        context = self._context
        while context.tables.grouped:
            look = partial(
                find_broken,
                sql=context.sql,
                rules=GroupRules.of(context.settings),
                after=self._repaired_up_to,
                limit=_EXPIRED_ROWS,
            )
            broken, last = context.run(look)
            now, woken = time.monotonic(), list[str]()
            self._in_vain = {name: until for name, until in self._in_vain.items() if until > now}
            broken = [name for name in broken if name not in self._in_vain]
            if broken:
                # Its limit may have been changed since it was read.
                context.refresh()
                rules = GroupRules.of(context.settings)
                woken = context.run(repair.of(context.sql, rules, broken))
                # The database refuses to wake the others, or they need it no more.
                again = now + _SECONDS_BETWEEN_REPAIRS
                self._in_vain |= dict.fromkeys(set(broken) - set(woken), again)
            for name in woken:
                _log.warning(
                    "Queue %s: messages of the group %r waited for nothing, so they are ready now. "
                    "Somebody has changed the table by SQL, or died while raising the group limit.",
                    context.name,
                    name,
                    extra={"queue": context.name},
                )
            self._repaired_up_to = last
            if last is None:
                return
            yield ReaperReport(repaired=len(woken))

    def _unblocked_groups(self) -> Iterator[ReaperReport]:
        """Let groups go on whose dead letter somebody removed by SQL."""
        context, sql = self._context, self._context.sql
        if context.settings.archive == "none":
            # There it is only counted.
            return
        gone = context.run(lambda c: find_blocked_by_nothing(c, sql, _GROUPS))
        if not gone:
            return
        yield ReaperReport(repaired=context.run(unblock_all.of(sql, gone)))
        for name, message_id in gone:
            _log.warning(
                "Queue %s: dead letter %d blocked the group %r, but it is no longer there, so the "
                "group goes on. Somebody has removed it by SQL.",
                context.name,
                message_id,
                name,
                extra={"queue": context.name},
            )

    def _note_ended(
        self, ended: Mapping[int, Disposition], refused: Mapping[int, str]
    ) -> ReaperReport:
        self._settlements.note_ended(ended)
        self._settlements.log_refused(refused)
        return ReaperReport(dead_lettered=len(ended))

    def _all(self, find: Find, reason: str) -> Iterator[ReaperReport]:
        context = self._context
        forgotten = time.monotonic() - _FORGET_SECONDS
        self._refused = {id_: at for id_, at in self._refused.copy().items() if at > forgotten}

        def look(connection: Connection, limit: int) -> list[DeadClaim]:
            # What is refused must not fill the batch.
            refused, now = self._refused, time.monotonic()
            most, allowed = limit + len(refused), context.settings.max_attempts
            found = find(connection, sql=context.sql, max_attempts=allowed, limit=most)
            return [each for each in found if refused.get(each.message_id, now) <= now][:limit]

        # Usually there is nothing, and finding that out needs no transaction.
        if not context.run(partial(look, limit=1)):
            return
        while True:
            restore_some = Operation(
                lambda c: self._restored(c, look(c, limit=BATCH), reason), atomic=True
            )
            careful = context.was_refused
            # Failures that cannot be written keep no message waiting.
            try:
                found, told, spent, restored = self._settlements.attempts.run(
                    restore_some, context.run, lambda done: done[1]
                )
            except QueueError as error:
                if careful or not self._settlements.refuses_row(error):
                    raise
                continue
            yield ReaperReport(restored=restored)
            buried: list[int] = []
            if spent:
                # Apart, because a dead letter may have to wait for others.
                bury = Operation(
                    lambda c: self._buried(c, look(c, limit=BATCH), spent),  # noqa: B023 - runs at once
                    atomic=True,
                )
                told = self._settlements.attempts.run(bury, context.run, list)
                buried = sorted(each.message_id for each in told)
                self._note_dead(buried, reason)
                yield ReaperReport(dead_lettered=len(buried))
            # Rows that were found but not changed are being settled by another transaction.
            if found < BATCH or not (restored or buried):
                return

    def _in_turn(self, connection: Connection, dead: Sequence[DeadClaim]) -> set[str]:
        """The groups of which a consumer can have begun only the first one that it claimed."""
        settings, sql = self._context.settings, self._context.sql
        names = {each.group for each in dead if each.behind and each.group is not None}
        if not names or settings.group_order != "fifo":
            return set()
        own = own_limits(connection, sql, sorted(names))
        return {name for name in names if own.get(name, settings.group_limit) == 1}

    def _restored(
        self, connection: Connection, dead: Sequence[DeadClaim], reason: str
    ) -> tuple[int, list[Failure], _Groups, int]:
        """Restore claims.

        Returns:
            How many were found, the attempts that failed, the claims that are out of attempts, and
            how many were restored.
        """
        context, sql = self._context, self._context.sql
        held = Counter(found.claim.consumer_id for found in dead)
        holders = holders_of(connection, sql, list(held)) if held else {}
        spent: _Groups = {}
        counted: _Groups = {}
        forgiven: _Groups = {}
        in_turn = self._in_turn(connection, dead)
        not_begun: _Groups = {}
        for found in dead:
            if found.behind and found.group in in_turn:
                not_begun.setdefault((found.claim, ""), []).append(found.message_id)
                continue
            holder, here = holders.get(found.claim.consumer_id), held[found.claim.consumer_id] - 1
            others = here if holder is None else max(here, holder.others)
            why, forgive = reason, False
            # A lease may be shorter than the time after which its consumer is known to be dead.
            if reason == CONSUMER_DIED or holder is None or holder.late:
                why = reason_of_death(found.claim.consumer_id, holder, others)
                # Another of them may have killed it. But a single attempt is the last one. And a
                # consumer without a worker may always hold something of another queue.
                company = here > 0 or (others > 0 and may_run_together(found.last_error) is None)
                forgive = found.max_attempts > 1 and company and bool(may_run_together(why))
            group = forgiven if forgive else spent if found.out_of_attempts else counted
            text = keeping_last_error(why, found.last_error)
            group.setdefault((found.claim, text), []).append(found.message_id)
        told: list[Failure] = []
        for settlement in _settlements(counted):
            told += _lost(dead, settlement, self._given_back(connection, settlement, restore))
        released = sum(
            len(self._given_back(connection, settlement, release))
            for settlement in _settlements(not_begun)
        )
        once_more = partial(restore, max_attempts=context.settings.max_attempts)
        for settlement in _settlements(forgiven):
            told += _lost(dead, settlement, self._given_back(connection, settlement, once_more))
        return len(dead), told, spent, len(told) + released

    def _given_back(
        self, connection: Connection, settlement: Settlement, give: Callable[..., set[int]]
    ) -> set[int]:
        """As ``give``; what the database refuses to change stays, and keeps no other waiting."""
        context, sql = self._context, self._context.sql
        if not context.was_refused:
            return give(connection, sql, settlement)
        context.dialect.sessions.lock_for_writing(connection, sql)

        def give_some(ids: Sequence[int]) -> set[int]:
            return give(connection, sql, dataclasses.replace(settlement, ids=ids))

        def leave(ids: Sequence[int], reason: str) -> None:
            # It may be one that cannot be read.
            self.unreadable.note(DatabaseRefused(reason))
            for message_id in set(ids) - self._refused.keys():
                _log.error(
                    "Message %d of queue %s stays claimed, because the database refused to give it "
                    "back: %s. Mend what refuses it: then it comes back by itself.",
                    message_id,
                    context.name,
                    visible(reason, keep="").rstrip("."),
                    extra={"queue": context.name, "message_id": message_id},
                )
            self._refused |= dict.fromkeys(ids, time.monotonic() + _REFUSED_SECONDS)

        given, _ = apart(connection, sql, settlement.ids, give_some, leave)
        for message_id in given:
            self._refused.pop(message_id, None)
        return given

    def _buried(
        self, connection: Connection, dead: Sequence[DeadClaim], spent: _Groups
    ) -> list[Failure]:
        # A lease may have been renewed since they were found.
        still = {(found.message_id, found.claim) for found in dead}
        left = {
            (claim, why): [each for each in ids if (each, claim) in still]
            for (claim, why), ids in spent.items()
        }
        told: list[Failure] = []
        for settlement in _settlements(
            {key: ids for key, ids in left.items() if ids}, OUT_OF_ATTEMPTS
        ):
            told += _lost(dead, settlement, self._settlements.dead_letter(connection, settlement))
        return told

    def _note_dead(self, ids: Sequence[int], reason: str) -> None:
        context = self._context
        for message_id in ids:
            _log.error(
                "Message %d of queue %s became a dead letter, because it is out of attempts: %s",
                message_id,
                context.name,
                reason,
                extra={"queue": context.name, "message_id": message_id},
            )
        if context.observer is not None:
            context.observer.settled(context.name, Outcome.FAILED.value, ids)
            context.observer.dead_lettered(context.name, ids, f"{OUT_OF_ATTEMPTS}{reason}")


def _lost(dead: Sequence[DeadClaim], settlement: Settlement, ids: Collection[int]) -> list[Failure]:
    """The attempts that ended because their claims were lost."""
    reason = (settlement.error or "").partition(LAST_BEFORE)[0]
    return [
        Failure(
            found.message_id,
            found.attempts,
            found.claim.consumer_id,
            found.claimed_at,
            LOST,
            reason,
        )
        for found in dead
        if found.message_id in ids and found.claim == settlement.claim
    ]


def take_turn(steps: Iterator[ReaperReport], add: Callable[[ReaperReport], None]) -> bool:
    """Do steps until a turn is over, and ``add`` what each did; returns whether nothing is left."""
    until = time.monotonic() + _TURN_SECONDS
    for done in steps:
        add(done)
        if time.monotonic() >= until:
            return False
    return True


def _settlements(
    groups: Mapping[tuple[Claim, str], Sequence[int]], prefix: str = ""
) -> Iterator[Settlement]:
    """The claims of dead consumers as settlements, each fenced by the stamp of its claim."""
    for (claim, reason), ids in groups.items():
        yield Settlement(sorted(ids), claim, Outcome.FAILED, f"{prefix}{reason}")
