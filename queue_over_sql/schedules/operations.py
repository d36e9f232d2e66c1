"""Changes of a schedule in one transaction: add, change, fire, run, pause, resume, remove.

Each locks the schedule's row before it changes messages, so that no reaper publishes one after they
were removed. If the row differs from what was ``seen``, it raises ``Conflict``. The callers open
the transaction; they read the queue's settings and encode its messages before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import GroupFull, QueueError, QueueNotFound
from queue_over_sql.publishing.operations import publish_many
from queue_over_sql.publishing.publisher import with_headers
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.schedules import store
from queue_over_sql.schedules.calendar import Firing, alone_ahead, plan
from queue_over_sql.schedules.definition import Definition
from queue_over_sql.schedules.store import (
    Run,
    ScheduleRecord,
    SchedulesOfPrefix,
    Version,
    message_key,
)
from queue_over_sql.sql.operation import operation
from queue_over_sql.values.durations import instant
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.states import PublishOutcome

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.message import Published
    from queue_over_sql.queue import Queue
    from queue_over_sql.schedules.calendar import Trigger
    from queue_over_sql.schema.queue_tables import QueueTables


_NEW: Final = (PublishOutcome.CREATED, PublishOutcome.REPLACED)


class Conflict(QueueError):
    """Another process changed the same schedule; nothing was done, and the caller may retry.

    After many retries the user gets it as a ``QueueError``. It is a ``QueueError`` so that the
    connection on which it is raised is not considered broken.
    """

    def __init__(self, schedule: str) -> None:
        super().__init__(
            f"Other processes keep changing schedule {schedule!r} at the same time. Nothing was "
            "changed; try again."
        )


@dataclasses.dataclass(frozen=True)
class Fired:
    """The result of firing a schedule.

    Attributes:
        count: messages published.
        added: those of them that replaced no other message.
        late: whether some of them are already due.
        goes_on: whether more are left for another transaction.
        version: version of the schedule afterwards.
        wake_at: when to fire it again, in microseconds.
    """

    count: int
    added: int
    late: bool
    goes_on: bool
    version: Version
    wake_at: int


class ScheduledMessages:
    """The messages of one schedule, encoded for its queue; made outside of transactions.

    Raises:
        PayloadInvalid, PayloadTooLarge, TypeError, ValueError: the queue refuses them.
        QueueNotFound: the queue no longer exists.
    """

    def __init__(self, queue: Queue, schedule: str, definition: Definition) -> None:
        self.queue = queue
        self.schedule = schedule
        self.definition = definition
        self._template = core_of(queue).publisher.encode_plain(definition.publication(schedule))

    @property
    def ahead(self) -> bool:
        """Whether they may be in the queue before their times.

        In a group the others would wait for them, and in a queue that may be full they would take
        the room of others, or be left out long before they are due.
        """
        return self._template.room is None and self._template.content.get(GROUP_KEY) is None

    def add_headers(self, headers: Mapping[str, Any]) -> None:
        """Add these headers to each of them."""
        publication = self.definition.publication(self.schedule)
        self._template = core_of(self.queue).publisher.encode_plain(
            with_headers(publication, headers)
        )

    @property
    def tables(self) -> QueueTables:
        """The tables of their queue."""
        return core_of(self.queue).context.tables

    def key(self, at: int) -> str:
        """The key of the message for a time."""
        return message_key(self.schedule, instant(at))

    def plan(self, trigger: Trigger, next_at: int | None, now: int) -> Firing:
        """Plan what to publish at a moment, as ``calendar.plan``."""
        return plan(trigger, next_at, now, self.definition.missed, ahead=self.ahead)

    def is_due(self, at: int, now: int) -> bool:
        """Whether the message for a time is due now."""
        return at + self._template.delay <= now

    def publish(self, connection: Connection, instants: Sequence[int]) -> list[Run]:
        """Publish the messages for some times; returns those that did not exist yet."""
        return _runs(self.published(connection, instants))

    def published(
        self, connection: Connection, instants: Sequence[int], *, insists: bool = False
    ) -> list[tuple[int, Published]]:
        """Publish the messages for some times; one that exists already is skipped.

        So is one for which a limit leaves no room, unless it ``insists``.

        Raises:
            GroupFull: it insists, and a limit leaves no room.
        """
        delay, expires = self._template.delay, self._template.expires
        # An expiry counts from the time at which the message is due, which includes the delay.
        template = self._template._replace(expires=None if expires is None else expires - delay)
        messages = [template._replace(key=self.key(at), at=at + delay) for at in instants]
        if not messages:
            return []
        sql = core_of(self.queue).context.sql
        if template.room is None:
            made = publish_many(connection, sql, messages, "skip")
            return [*zip(instants, made, strict=True)]
        published: list[tuple[int, Published]] = []
        for at, message in zip(instants, messages, strict=True):
            try:
                published += [(at, one) for one in publish_many(connection, sql, [message], "skip")]
            except GroupFull as error:
                # A queue that is full must not stop its schedules.
                if insists:
                    raise GroupFull(error.queue, error.group, error.limit) from None
        return published


@operation(atomic=True, durable=True)
def put(
    connection: Connection,
    scope: SchedulesOfPrefix,
    messages: ScheduledMessages,
    seen: ScheduleRecord | None,
    before: QueueTables | None,
) -> ScheduleRecord:
    """Add a schedule, or change the one with this name; returns the stored one.

    ``seen`` is None if there was none. ``before`` has the tables of the queue that it published to
    before. Raises QueueNotFound if the new queue was dropped.
    """
    name, queue = messages.schedule, messages.queue.name
    if not registry.hold_queue(connection, scope.system, scope.prefix, queue):
        raise QueueNotFound(queue)
    record = store.locked_schedule(connection, scope, name)
    if _content(record) != _content(seen):
        raise Conflict(name)
    now = store.clock(connection, scope)
    previous = None if record is None else Definition.if_readable(name, record.definition)
    definition = messages.definition.counted_from(now, previous)
    runs = [] if record is None or record.queue != queue else [*record.last_runs]
    if before is not None:
        stays = record is not None and record.queue == queue

        def keeps(at: int) -> bool:
            return stays and (at <= now or definition.trigger.after(at - 1) == at)

        removed = store.remove_ahead(connection, before, name, now, passed=True, keeps=keeps)
        # Those of passed times, which wait because of a delay, would not come again.
        runs = [run for run in runs if run.at not in removed]
        runs += messages.publish(connection, [at for at in removed if at <= now])
    next_at = _first_without_message(record, previous, definition, now)
    if record is None or not record.paused:
        firing = messages.plan(definition.trigger, next_at, now)
        runs += messages.publish(connection, firing.instants)
        next_at = firing.next_at
    values = {
        "queue": queue,
        "definition": definition.to_json(),
        "next_at": next_at,
        "last_runs": store.runs_text(runs, now),
    }
    if record is not None:
        done = store.change_schedule(connection, scope, record, **values)
    else:
        done = store.add_schedule(connection, scope, name, {**values, "created_at": now})
    written = store.schedule_record(connection, scope, name) if done else None
    if written is None:
        raise Conflict(name)
    return written


def _first_without_message(
    record: ScheduleRecord | None, previous: Definition | None, definition: Definition, now: int
) -> int | None:
    same = record is not None and not record.paused and definition.same_times_as(previous)
    if record is not None and same and record.next_at is not None and record.next_at <= now:
        return record.next_at
    return definition.trigger.after(now)


def look(messages: ScheduledMessages, record: ScheduleRecord) -> Firing:
    """What to publish for a schedule as it was read."""
    return messages.plan(messages.definition.trigger, record.next_at, record.now)


def lost(connection: Connection, messages: ScheduledMessages, record: ScheduleRecord) -> int | None:
    """The next time if it had a message ahead that was removed; None if all is as it should be."""
    if not messages.ahead:
        return None
    at = alone_ahead(messages.definition.trigger, record.next_at, record.now)
    if at is None or store.is_there(connection, messages.tables, messages.key(at)):
        return None
    return at


@operation(atomic=True, durable=True)
def fire(
    connection: Connection,
    scope: SchedulesOfPrefix,
    messages: ScheduledMessages,
    seen: ScheduleRecord,
) -> Fired | None:
    """Publish what is due for a schedule; None if another process is working on it."""
    name = messages.schedule
    record = store.locked_schedule(connection, scope, name, wait=False)
    if record is None or record.paused or record.version != seen.version:
        return None
    gone = lost(connection, messages, record)
    # Only now: a consumer may have had the message of a time that has come meanwhile.
    now = store.clock(connection, scope)
    next_at = record.next_at if gone is None or gone <= now else gone
    firing = look(messages, dataclasses.replace(record, next_at=next_at, now=now))
    published = messages.published(connection, firing.instants)
    runs, version = _runs(published), record.version
    if runs or firing.next_at != record.next_at:
        values = {
            "next_at": firing.next_at,
            "last_runs": store.runs_text([*record.last_runs, *runs], now),
        }
        if not store.change_schedule(connection, scope, record, **values):
            raise Conflict(name)
        version = version._replace(revision=record.revision + 1)
    late = any(messages.is_due(at, now) for at in firing.instants)
    added = sum(one.outcome is PublishOutcome.CREATED for _, one in published)
    return Fired(len(runs), added, late, firing.wake_at <= now, version, firing.wake_at)


@operation(atomic=True, durable=True, repeatable=False)
def run(
    connection: Connection,
    scope: SchedulesOfPrefix,
    messages: ScheduledMessages,
    seen: ScheduleRecord,
) -> tuple[Published, bool] | None:
    """Publish the message for this instant, and say if it is due; None where there is no schedule.

    The row stays as it is: its next instant is published besides.
    """
    record = store.locked_schedule(connection, scope, messages.schedule)
    if record is None:
        return None
    if _content(record) != _content(seen):
        raise Conflict(messages.schedule)
    now = store.clock(connection, scope)
    [(_, published)] = messages.published(connection, [now], insists=True)
    if published.outcome not in _NEW:
        # Clocks may be coarse: another one came in this very instant.
        raise Conflict(messages.schedule)
    store.note_runs(connection, scope, record, [Run(now, published.id)])
    return published, messages.is_due(now, now)


@operation(atomic=True, counts=True)
def pause(
    connection: Connection,
    scope: SchedulesOfPrefix,
    tables: QueueTables | None,
    seen: ScheduleRecord,
) -> bool:
    """Pause a schedule and remove its messages for times to come; False if there is none."""
    record = _locked(connection, scope, seen)
    if record is None or record.paused:
        return record is not None
    now, removed = _remove_ahead(connection, scope, tables, seen.name)
    left = store.runs_text([run for run in record.last_runs if run.at not in removed], now)
    return store.change_schedule(connection, scope, record, paused_at=now, last_runs=left)


@operation(atomic=True, counts=True)
def remove(
    connection: Connection,
    scope: SchedulesOfPrefix,
    tables: QueueTables | None,
    seen: ScheduleRecord,
) -> bool:
    """Remove a schedule and its messages for times to come; False if there is none."""
    if _locked(connection, scope, seen) is None:
        return False
    _remove_ahead(connection, scope, tables, seen.name)
    return store.remove_schedule(connection, scope, seen.name)


@operation(atomic=True, durable=True)
def resume(
    connection: Connection,
    scope: SchedulesOfPrefix,
    messages: ScheduledMessages,
    seen: ScheduleRecord,
) -> bool:
    """Resume a paused schedule and publish its next message; False if there is none."""
    record = store.locked_schedule(connection, scope, messages.schedule)
    if record is None or not record.paused:
        return record is not None
    if record.version != seen.version:
        raise Conflict(messages.schedule)
    now = store.clock(connection, scope)
    trigger = messages.definition.trigger
    firing = messages.plan(trigger, trigger.after(now), now)
    runs = [*record.last_runs, *messages.publish(connection, firing.instants)]
    values = {
        "next_at": firing.next_at,
        "paused_at": None,
        "last_runs": store.runs_text(runs, now),
    }
    return store.change_schedule(connection, scope, record, **values)


def _runs(published: Sequence[tuple[int, Published]]) -> list[Run]:
    return [Run(at, one.id) for at, one in published if one.outcome in _NEW]


def _content(record: ScheduleRecord | None) -> tuple[str, str] | None:
    return None if record is None else (record.queue, record.definition)


def _locked(
    connection: Connection, scope: SchedulesOfPrefix, seen: ScheduleRecord
) -> ScheduleRecord | None:
    record = store.locked_schedule(connection, scope, seen.name)
    if record is not None and record.queue != seen.queue:
        raise Conflict(seen.name)
    return record


def _remove_ahead(
    connection: Connection, scope: SchedulesOfPrefix, tables: QueueTables | None, name: str
) -> tuple[int, list[int]]:
    now = store.clock(connection, scope)
    removed = [] if tables is None else store.remove_ahead(connection, tables, name, now)
    return now, removed
