"""Why a message does not run: exactly one reason for each message."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Final

from queue_over_sql.consumers.registrations import ConsumerInfo, handlers_of
from queue_over_sql.errors import visible
from queue_over_sql.groups.strategy import GroupRules
from queue_over_sql.limits.slots import has_room
from queue_over_sql.limits.tokens import read as read_bucket
from queue_over_sql.queues.context import once_more
from queue_over_sql.selection.why_statements import (
    MOST_COUNTED,
    ahead_of,
    earlier_of_group,
    holders,
    living_consumers,
    permanent_consumers,
    read_ended,
    read_group,
    read_live,
)
from queue_over_sql.values.durations import NEVER, duration_text, instant
from queue_over_sql.values.humanize import counted, instant_words
from queue_over_sql.values.reasons import REFUSED, SUSPECT, UNREADABLE
from queue_over_sql.values.states import Outcome, Reason, Status, status_of
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from queue_over_sql.consumers.handling import HandledQueue
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.selection.why_statements import Ended, GroupOf, Live


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Why a message does not run.

    Attributes:
        message_id: id of the message.
        queue: name of its queue.
        reason: the one reason.
        text: the reason for people, and what to do about it; it may quote ``last_error``.
        since: when it was claimed or finished, or when the queue was paused; None for other
            reasons.
        until: when the reason ends by itself; None if nobody knows.
        position: its place in line, from 1. None if it is not ready, or if more than 10,000 ready
            messages come before it. In a queue with ``group_fair``: its place in its group.
        consumer_id: the consumer that has it in hand, or had it when that died; None if none has.
        consumer: this consumer; None if it is not registered any more.
        waits_for: the message of its group that it waits for: the head, or the dead letter that
            blocks the group. ``since``, ``until`` and the consumer are then those of the head.
    """

    message_id: int
    queue: str
    reason: Reason
    text: str
    since: datetime | None = None
    until: datetime | None = None
    position: int | None = None
    consumer_id: str | None = None
    consumer: ConsumerInfo | None = None
    waits_for: int | None = None


@once_more
def explain(context: QueueContext, message_id: int) -> Explanation:
    """Why a message of a queue does not run; see ``Queue.why``."""
    return _Why(context, message_id).answer()


# So often the place of a message is counted anew because it moved meanwhile.
_TRIES: Final = 5
_LONGEST_ERROR: Final = 300


class _Why:
    def __init__(self, context: QueueContext, message_id: int) -> None:
        self._context = context
        self._id = message_id

    def answer(self) -> Explanation:
        looked = False
        for _ in range(_TRIES):
            found = self._live()
            answer = self._gone(looked) if found is None else self._of(found)
            if answer is not None:
                return answer
            looked = found is None
        text = "It is ready, and its place in line changes all the time. Ask again."
        return self._because(Reason.IN_LINE, text)

    def _live(self) -> Live | None:
        sql = self._context.sql
        return self._context.run(lambda c: read_live(c, sql, self._id))

    def _because(self, reason: Reason, text: str, **facts: Any) -> Explanation:
        return Explanation(self._id, self._context.name, reason, text, **facts)

    def _of(self, found: Live) -> Explanation | None:
        status = status_of(
            claimed=found.consumer_id is not None, held=found.available_at is None, due=found.due
        )
        if status is Status.CLAIMED or found.expires_at is None:
            return _BY_STATUS[status](self, found)
        at = _at(instant(found.expires_at))
        if found.expired and status is not Status.HELD:
            seconds = duration_text(self._context.service.reaper_seconds)
            text = (
                f"It expired{at}, because nobody had started it. It becomes a dead letter when a "
                f"consumer claims it, or within about {seconds} by the reaper of any running "
                "service. Start a service if none runs."
            )
            return self._because(Reason.EXPIRED, text)
        answer = _BY_STATUS[status](self, found)
        if answer is None:
            return None
        ends = "expired" if found.expired else "expires"
        unless = "and ends once it is released" if found.expired else "unless it is started before"
        return dataclasses.replace(answer, text=f"{answer.text} It {ends}{at}, {unless}.")

    # -- finished

    def _gone(self, looked: bool) -> Explanation | None:
        context, sql = self._context, self._context.sql
        ended = context.run(lambda c: read_ended(c, sql, self._id))
        if ended is not None:
            return self._finished(ended)
        if not looked:
            # A row of an adopted table may have been requeued between the two looks.
            return None
        why = _NO_ROW if context.tables.ends_in_place else _KEPT[context.settings.archive]
        return self._because(
            Reason.MISSING, f"Queue {context.name} has no message {self._id}. {why}"
        )

    def _finished(self, ended: Ended) -> Explanation:
        at = instant(ended.finished_at)
        most = ended.max_attempts or self._context.settings.max_attempts
        how = _BY_OUTCOME.get(ended.outcome, f"It ended as {_quoted(ended.outcome)}")
        text = f"{how}{_at(at)}, at attempt {ended.attempts} of {most}"
        if ended.outcome != Outcome.DONE and ended.last_error is not None:
            text += f": {_quoted(ended.last_error)}"
        again = f"To run it again: queue-over-sql requeue {self._context.name} {self._id}"
        return self._because(Reason.FINISHED, f"{_ended(text)} {again}", since=at)

    # -- claimed

    def _claimed(self, found: Live) -> Explanation:
        holder = found.holder if isinstance(found.holder, ConsumerInfo) else None
        since, until = _moment(found.claimed_at), _moment(found.lease_expires_at)
        of = {"since": since, "consumer_id": found.consumer_id, "consumer": holder}
        name = _name(found.consumer_id, holder)
        seconds = duration_text(self._context.service.reaper_seconds)
        back = f"The reaper of any running service gives it back within about {seconds}"
        if not found.claim_whole:
            text = (
                "Somebody changed its claim by SQL, so that no consumer holds it. The reaper of "
                "any running service gives it back within a few minutes."
            )
            return self._because(Reason.CLAIM_BROKEN, text, **of)
        if found.lease_over:
            text = f"{name} claimed it{_at(since)}, but its lease ended{_at(until)}. {back}."
            return self._because(Reason.LEASE_EXPIRED, text, **of)
        if found.holder_dead:
            text = f"{name} claimed it{_at(since)} and died. {back}. Start a service if none runs."
            return self._because(Reason.CONSUMER_DIED, text, **of)
        attempt = f"attempt {found.attempts} of {self._most(found)}"
        text = f"{name} has had it in hand since{_at(since, '')}, for {attempt}. "
        if until is None:
            text += "Its claim has no end of its own."
        else:
            text += f"Its lease ends{_at(until)}, unless the consumer extends it."
        if _is_suspect(found):
            text += " It runs alone there, because a consumer died with it in hand."
        return self._because(Reason.CLAIMED, text, until=until, **of)

    def _most(self, found: Live) -> int:
        return found.max_attempts or self._context.settings.max_attempts

    # -- not due

    def _held(self, found: Live) -> Explanation:
        error, release = found.last_error, f"edit {self._context.name} {self._id} --unhold"
        if isinstance(error, str) and error.startswith((REFUSED, UNREADABLE)):
            text = f"It is held. {_ended(_quoted(error))} Correct the cause, then release it: "
            return self._because(Reason.REFUSED, f"{text}queue-over-sql {release}")
        text = f"An operator holds it. To release it: queue-over-sql {release}"
        return self._because(Reason.HELD, text)

    def _delayed(self, found: Live) -> Explanation:
        at = _moment(found.available_at)
        now = f"To make it due now: queue-over-sql edit {self._context.name} {self._id} --delay 0"
        if found.last_error is None:
            return self._because(Reason.DUE_LATER, f"It is due{_at(at)}. {now}", until=at)
        # A message that does not fit its kind comes back with its attempt not counted.
        tried = f", because attempt {found.attempts} of {self._most(found)} failed"
        text = f"It is tried again{_at(at)}{tried if found.attempts else ''}"
        text = f"{text}: {_quoted(found.last_error)}"
        return self._because(Reason.RETRY_LATER, f"{_ended(text)} {now}", until=at)

    # -- ready

    def _ready(self, found: Live) -> Explanation | None:
        name, levels = self._context.name, self._context.settings.priorities
        if found.paused_at is not None:
            at = _moment(found.paused_at)
            text = f"Queue {name} has been paused since{_at(at, '')}."
            resume = f"To deliver its messages again: queue-over-sql resume {name}"
            return self._because(Reason.QUEUE_PAUSED, f"{text} {resume}", since=at)
        if not 0 <= found.priority < levels:
            text = (
                f"Its priority is {found.priority}, but queue {name} has only the priorities 0 to "
                f"{levels - 1}, so no consumer claims it. Give it another one: queue-over-sql edit "
                f"{name} {self._id} --priority {levels - 1}"
            )
            return self._because(Reason.NO_SUCH_PRIORITY, text)
        sql, prefix = self._context.sql, self._context.tables.prefix
        alive = self._context.run(lambda c: living_consumers(c, sql))
        handlers = handlers_of(alive, prefix, name)
        known = any(found.kind is None or _knows(each, found.kind) for _, each in handlers)
        handling = {each.consumer_id for each, _ in handlers}
        if not (known or self._is_claimed_from(alive, handling)):
            if not handlers:
                return self._because(Reason.NO_CONSUMER, self._nobody(alive))
            text = (
                f"Consumers handle queue {name}, but none that is alive knows its kind "
                f"{_quoted(found.kind)}. Start a worker that knows this kind."
            )
            return self._because(Reason.UNKNOWN_KIND, text)
        if found.group is not None:
            return self._in_group(found, found.group)
        return self._in_line(found)

    def _in_group(self, found: Live, group: str) -> Explanation | None:
        context, name = self._context, self._context.name
        sql, settings = context.sql, context.settings
        known = context.run(lambda c: read_group(c, sql, group))
        called, words = f"group '{_quoted(group)}'", f"{name} {shlex.quote(group)}"
        if known.paused_at is not None:
            at = _moment(known.paused_at)
            text = f"Its {called} has been paused since{_at(at, '')}."
            resume = f"To deliver its messages again: queue-over-sql group resume {words}"
            return self._because(Reason.GROUP_PAUSED, f"{text} {resume}", since=at)
        if known.blocked_by is not None:
            text = (
                f"Dead letter {known.blocked_by} blocks its {called}. To go on without that one: "
                f"queue-over-sql group unblock {words}"
            )
            return self._because(Reason.GROUP_BLOCKED, text, waits_for=known.blocked_by)
        limit = known.own_limit or settings.group_limit or 1
        ordered = settings.group_order == "fifo"
        if known.claimed_count >= limit and not (ordered and limit == 1):
            ids = ", ".join(map(str, known.claimed))
            more = ", …" if known.claimed_count > len(known.claimed) else ""
            text = (
                f"Its {called} has {known.claimed_count:,} messages in hand ({ids}{more}), and its "
                f"limit is {limit:,}. It starts after one of them ends."
            )
            return self._because(Reason.GROUP_LIMIT, text)
        if settings.group_fair and not ordered:
            return self._by_rate(known, called) or self._in_turn(found, group, known)
        head = next(iter(known.claimed), None) if limit == 1 else None
        if head is None:
            head = known.first if known.first is not None and known.first < self._id else None
        if head is None or not ordered:
            return self._by_rate(known, called) or self._in_line(found)
        return self._behind(head, called)

    def _by_rate(self, known: GroupOf, called: str) -> Explanation | None:
        bucket = None
        if known.rate is not None:
            bucket = GroupRules.of(self._context.settings).bucket(known.rate)
        if bucket is None or bucket.tokens:
            return None
        at = _moment(bucket.next_at)
        text = (
            f"Its {called} has used up its rate of {bucket.rate}. The next message of it may "
            f"start{_at(at)}."
        )
        return self._because(Reason.GROUP_RATE, text, until=at)

    def _in_turn(self, found: Live, group: str, known: GroupOf) -> Explanation:
        sql, called = self._context.sql, f"group '{_quoted(group)}'"
        before = self._context.run(
            lambda c: earlier_of_group(c, sql, self._id, group, found.priority)
        )
        place = None if before > MOST_COUNTED else before + 1
        where = "it is next" if place == 1 else f"{before:,} ready messages come before it"
        if place is None:
            where = f"more than {MOST_COUNTED:,} ready messages come before it"
        text = (
            f"It is ready. In its {called} {where}. Groups share: this one has the weight "
            f"{known.weight or 1} and {known.claimed_count:,} in hand. {_FASTER}"
        )
        return self._because(Reason.IN_LINE, text, position=place)

    def _behind(self, head: int, called: str) -> Explanation | None:
        first = _Why(self._context, head).answer()
        if head == self._id or first.reason in {Reason.FINISHED, Reason.MISSING}:
            # It has changed meanwhile.
            return None
        return dataclasses.replace(
            first,
            message_id=self._id,
            reason=Reason.GROUP_HEAD,
            text=f"In its {called} message {head} comes first. About that one: {first.text}",
            position=None,
            waits_for=head,
        )

    def _full(self) -> Explanation | None:
        context, sql = self._context, self._context.sql
        if not context.tables.limited or context.run(lambda c: has_room(c, sql)):
            return None
        limit = context.settings.queue_limit or 0
        text = (
            f"Queue {context.name} has as many messages in hand as its limit allows: {limit:,}. It "
            "starts after some of them end. To allow more: queue-over-sql create "
            f"{context.name} --queue-limit {limit + 1}"
        )
        return self._because(Reason.QUEUE_LIMIT, text)

    def _throttled(self) -> Explanation | None:
        context, sql = self._context, self._context.sql
        bucket = context.run(lambda c: read_bucket(c, sql)) if context.tables.rated else None
        if bucket is None or bucket.tokens:
            return None
        at = _moment(bucket.next_at)
        text = (
            f"Queue {context.name} has used up its rate of {bucket.rate}. The next message may "
            f"start{_at(at)}. To allow more: queue-over-sql create {context.name} --queue-rate RATE"
        )
        return self._because(Reason.QUEUE_RATE, text, until=at)

    def _is_claimed_from(self, alive: Sequence[ConsumerInfo], handling: Container[str]) -> bool:
        """Whether a consumer claims from the queue that has not had a heartbeat to say so."""
        sql = self._context.sql
        silent = {
            each.consumer_id
            for each in alive
            if not (each.durable or each.permanent) and each.consumer_id not in handling
        }
        return bool(silent) and not silent.isdisjoint(self._context.run(lambda c: holders(c, sql)))

    def _nobody(self, alive: Sequence[ConsumerInfo]) -> str:
        name, sql = self._context.name, self._context.sql
        clients = self._context.run(lambda c: permanent_consumers(c, sql))
        running = sum(not each.permanent for each in alive)
        text = "No consumer is alive"
        if running:
            is_are = "is" if running == 1 else "are"
            text = f"{counted(running, 'consumer')} {is_are} alive, but none handles queue {name}"
        text = f"{text}. Start a worker for queue {name}."
        if clients:
            names = ", ".join(map(_quoted, clients[:3])) + (", …" if len(clients) > 3 else "")  # noqa: PLR2004 - as many as are shown
            text += (
                f" Clients of {names} could still claim it: nobody knows whether they are there."
            )
        return text

    def _in_line(self, found: Live) -> Explanation | None:
        if (stopped := self._full() or self._throttled()) is not None:
            return stopped
        sql, place = self._context.sql, (found.priority, found.available_at)
        ahead = self._context.run(lambda c: ahead_of(c, sql, self._id, place))
        if ahead is None:
            return None
        before, urgent = ahead
        if before > MOST_COUNTED:
            text = f"It is ready. More than {MOST_COUNTED:,} ready messages come before it"
            return self._because(Reason.IN_LINE, f"{text}{_urgent(urgent)}. {_FASTER}")
        if before:
            text = f"It is ready, at position {before + 1:,} in line"
            text = f"{text}{_urgent(urgent)}. {_FASTER}"
            return self._because(Reason.IN_LINE, text, position=before + 1)
        if _is_suspect(found):
            text = (
                "It is next in line, but a consumer died with it in hand, so it has to run alone: "
                "a consumer begins it when it has nothing else in hand. Start another worker if "
                "all are busy."
            )
            return self._because(Reason.SUSPECT, text, position=1)
        text = (
            "It is next in line. If it stays there, all consumers are busy, or they claim with a "
            "condition (where=) that it does not meet: start another worker."
        )
        return self._because(Reason.IN_LINE, text, position=1)


_FASTER: Final = "Start more workers if that takes too long."
_BY_STATUS: Final[Mapping[Status, Callable[[_Why, Live], Explanation | None]]] = {
    Status.READY: _Why._ready,  # noqa: SLF001 - its own class
    Status.DELAYED: _Why._delayed,  # noqa: SLF001
    Status.CLAIMED: _Why._claimed,  # noqa: SLF001
    Status.HELD: _Why._held,  # noqa: SLF001
}
_BY_OUTCOME: Final[Mapping[str, str]] = {
    Outcome.DONE: "It is done. It ended",
    Outcome.FAILED: "It is a dead letter. It failed for the last time",
    Outcome.REJECTED: "It is a dead letter. It was rejected",
    Outcome.EXPIRED: "It is a dead letter. It expired",
}
_NO_ROW: Final = "The table has no such row, or it was never enqueued."
_KEPT: Final[Mapping[str, str]] = {
    "all": "It was deleted, pruned from the archive or requeued with a new id, or never existed.",
    "failed": "The archive keeps only dead letters, so it may be done. Or it was deleted, pruned or"
    " requeued with a new id, or never existed.",
    "none": "The queue keeps no archive, so it may have ended, been deleted, or never existed.",
}


def _knows(handled: HandledQueue, kind: str) -> bool:
    return handled.kinds is None or kind in handled.kinds


def _is_suspect(found: Live) -> bool:
    return isinstance(found.last_error, str) and SUSPECT.match(found.last_error) is not None


def _moment(microseconds: int | None) -> datetime | None:
    """A time; None also for the leases of durable consumers, which never end."""
    if microseconds is None or microseconds > NEVER - 86_400_000_000:
        return None
    return instant(microseconds)


def _at(at: datetime | None, preposition: str = " at") -> str:
    return "" if at is None else f"{preposition} {instant_words(at)} UTC"


def _name(consumer_id: str | None, consumer: ConsumerInfo | None) -> str:
    if consumer is None:
        return f"Consumer {_quoted(consumer_id)}, which is no longer registered,"
    process = "" if consumer.permanent else f"process {consumer.pid} on "
    return f"Consumer {_quoted(consumer.name)} ({process}{_quoted(consumer.host)})"


def _urgent(urgent: int) -> str:
    return f", {urgent:,} of them more urgent" if urgent else ""


def _quoted(text: object) -> str:
    """A stored text on one line, shortened."""
    line = " ".join(visible(printable(str(text)) or "").split())
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
