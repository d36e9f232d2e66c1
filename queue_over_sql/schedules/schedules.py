"""Schedules: messages that are published regularly, by any server.

There is no leader. Each server's reaper checks all schedules. It publishes the messages of a
schedule and increments the revision of its row in one transaction, so only one server succeeds.
Besides, each message has a unique key.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack

from queue_over_sql.errors import UNREADABLE, QueueError, ScheduleNotFound
from queue_over_sql.queue import Queue, core_of
from queue_over_sql.queues.context import TablesChanged
from queue_over_sql.schedules import operations, store
from queue_over_sql.schedules.definition import Definition, check_schedule_name, define
from queue_over_sql.schedules.firing import ScheduleAccess
from queue_over_sql.schedules.operations import Conflict, ScheduledMessages
from queue_over_sql.schedules.store import ScheduleRecord
from queue_over_sql.values.checks import check_name, check_whole
from queue_over_sql.values.durations import Duration, instant, optional_instant
from queue_over_sql.values.options import PUBLISH_DEFAULTS, ScheduleOptions, spelled_out
from queue_over_sql.values.states import PublishOutcome

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.message import Published
    from queue_over_sql.schedules.calendar import Missed
    from queue_over_sql.sql.operation import Operation


T = TypeVar("T")

# How often to retry if another process changed the same schedule at the same time.
_RACES: Final = 50


_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A message that is published regularly.

    Attributes:
        name: name of the schedule.
        queue: name of the queue to publish to.
        payload: payload of each message.
        cron: the cron expression; None if ``every`` is used.
        every: the interval; None if ``cron`` is used.
        timezone: name of the time zone of ``cron``.
        missed: ``"one"``, ``"all"`` or ``"skip"``.
        options: the options of ``publish``; durations are ``timedelta``.
        next_at: the next time; None if there is none, or while it is paused.
        paused: whether it is paused.
        created_at: when it was first added.
        last_runs: the ids of the last messages that it published, up to ten, by their times; the
            newest first.
    """

    name: str
    queue: str
    payload: Any
    cron: str | None
    every: timedelta | None
    timezone: str
    missed: Missed
    options: Mapping[str, Any]
    next_at: datetime | None
    paused: bool
    created_at: datetime
    last_runs: Mapping[datetime, int] = dataclasses.field(default_factory=dict, compare=False)


# Inside the class, ``list`` is a method.
Listed: TypeAlias = list[Schedule]
Instants: TypeAlias = list[datetime]


class Schedules:
    """The schedules of a service's queues, as ``service.schedules``. Any thread may use it."""

    def __init__(self, parts: ServiceParts) -> None:
        self._access = ScheduleAccess(parts)

    @spelled_out(ScheduleOptions, PUBLISH_DEFAULTS)
    def add(
        self,
        name: str,
        queue: str | Queue,
        payload: Any,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | tzinfo = "UTC",
        missed: Missed = "one",
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Add a schedule, or change it; safe to call from many servers at once.

        If an equal schedule with this name exists, nothing changes. If it differs, it is changed,
        and so are its messages that are not due yet, except those that a consumer holds, and those
        that an operator holds for a time that it still has. A paused schedule stays paused. If its
        row cannot be read, it is replaced, with a warning in the log.

        Args:
            name: 1 to 150 characters.
            queue: the queue or its name.
            payload: payload of each message, as in ``publish``.
            cron: minute, hour, day of month, month and day of week, as in a crontab (0 and 7 are
                Sunday); or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` or ``@yearly``.
            every: the interval, at least 0.1 s; it starts when the schedule is added.
            timezone: time zone of ``cron``: its name or a ``ZoneInfo``.
            missed: what to publish for the times at which no server ran: ``"one"`` message for the
                latest of them, ``"all"`` of them, or ``"skip"`` them.
            options: those of ``Publication``, without ``key`` and ``at``; ``delay`` and
                ``expires`` count from each time, and ``expires`` of a missed time from its publish.
                The queue's own columns as in ``Queue.publish``.

        Raises:
            QueueNotFound: there is no such queue.
            PayloadInvalid, PayloadTooLarge: the queue would refuse the messages.
            TypeError, ValueError: an argument has an invalid value, or the queue is an adopted
                table.
            QueueError: other processes kept changing this schedule; nothing was changed.
        """
        target, name = self._access.open(queue), check_schedule_name(name)
        wanted = define(
            name,
            core_of(target).publisher,
            payload,
            cron=cron,
            every=every,
            timezone=timezone,
            missed=missed,
            options=options,
        )
        with self._access.publishing(target, 0) as headers:
            return _schedule(self._again(lambda: self._put(target, name, wanted, headers)))

    def list(self) -> Listed:
        """List all schedules by name; those that cannot be read are logged and left out."""
        scope = self._access.scope()
        records = self._access.run(lambda connection: store.schedule_records(connection, scope))
        found: Listed = []
        for record in records:
            try:
                if isinstance(record, QueueError):
                    raise record
                found.append(_schedule(record))
            except QueueError as error:
                _log.warning("A schedule is left out of the list: %s", error)
        return found

    def get(self, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            ScheduleNotFound: there is no schedule with this name.
        """
        return _schedule(self._record(name))

    def upcoming(self, name: str, count: int = 5) -> Instants:
        """The next times of a schedule in UTC, even if it is paused.

        Raises:
            ScheduleNotFound: there is no schedule with this name.
            QueueError: its time zone is unknown on this system, or its row cannot be read.
        """
        check_whole("count", count)
        record = self._record(name)
        definition, moment = Definition.from_json(record.name, record.definition), record.now
        found: Instants = []
        try:
            trigger = definition.trigger
            while len(found) < count and (following := trigger.after(moment)) is not None:
                moment = following
                found.append(instant(moment))
        except UNREADABLE as error:
            msg = f"The times of schedule {name!r} cannot be calculated: {error}"
            raise QueueError(msg) from error
        return found

    def remove(self, name: str) -> bool:
        """Remove a schedule and its messages for times to come; False if there is none.

        Messages for times that have passed, also those that wait for their ``delay``, and messages
        that a consumer holds stay.

        Raises:
            QueueError: other processes kept changing this schedule; nothing was changed.
        """
        check_name(name)
        return self._again(lambda: self._end(operations.remove.of, name))

    def pause(self, name: str) -> None:
        """Publish nothing until ``resume``, and remove its messages for times to come.

        Messages for times that have passed, also those that wait for their ``delay``, stay.

        Raises:
            ScheduleNotFound: there is no schedule with this name.
            QueueError: other processes kept changing this schedule; nothing was changed.
        """
        if not self._again(lambda: self._end(operations.pause.of, name)):
            raise ScheduleNotFound(name)

    def resume(self, name: str) -> None:
        """Continue with the next time; the times during the pause do not count as missed.

        Raises:
            ScheduleNotFound: there is no schedule with this name.
            PayloadInvalid, PayloadTooLarge: the queue now refuses the messages.
            QueueError: other processes kept changing this schedule; nothing was changed.
        """
        if not self._again(lambda: self._resume(name)):
            raise ScheduleNotFound(name)

    def run(self, name: str) -> Published:
        """Publish one message now, as the schedule does at its times, and leave these as they are.

        The message is due now (plus ``delay``), and its key has this instant. Each call publishes
        another message, also while the schedule is paused. The schedule's row is locked meanwhile,
        so what another process changes or removes at the same time is not published as it was.

        Returns:
            The id of the message; its outcome is ``created``, or ``replaced`` if the queue is full
            and has ``when_full="replace"``.

        Raises:
            ScheduleNotFound: there is no schedule with this name.
            PayloadInvalid, PayloadTooLarge: the queue now refuses the messages.
            GroupFull: the queue has no room for it, and ``when_full="reject"``.
            DatabaseUnavailable: if the connection broke, it is unknown whether the message was
                published.
            QueueError: other processes kept changing this schedule; nothing was published.
        """
        published = self._again(lambda: self._run(name))
        if published is None:
            raise ScheduleNotFound(name)
        return published

    # -- adding and changing

    def _put(
        self, target: Queue, name: str, wanted: Definition, headers: Mapping[str, Any]
    ) -> ScheduleRecord:
        scope, stored = self._access.scope(), self._access.stored(name)
        before = None
        if stored is not None:
            present = Definition.if_readable(stored.name, stored.definition)
            if present is None:
                _log.warning("Schedule %r could not be read, and is written anew.", name)
            elif stored.queue == target.name and wanted.same_as(present):
                return stored
            before = self._access.tables_of(stored.queue)
        messages = ScheduledMessages(target, name, wanted)
        if headers:
            messages.add_headers(headers)
        return core_of(target).context.run(operations.put.of(scope, messages, stored, before))

    def _end(self, end: Callable[..., Operation[bool]], name: str) -> bool:
        scope, stored = self._access.scope(), self._access.stored(name)
        if stored is None:
            return False
        tables = self._access.tables_of(stored.queue)
        return self._access.run(end(scope, tables, stored))

    def _resume(self, name: str) -> bool:
        scope, stored = self._access.scope(), self._access.stored(name)
        if stored is None:
            return False
        messages = self._access.messages(stored)
        return core_of(messages.queue).context.run(operations.resume.of(scope, messages, stored))

    def _run(self, name: str) -> Published | None:
        scope, stored = self._access.scope(), self._access.stored(name)
        if stored is None:
            return None
        messages, began = self._access.messages(stored), time.monotonic()
        core, observer = core_of(messages.queue), self._access.observer
        with self._access.publishing(messages.queue, 1) as headers:
            if headers:
                messages.add_headers(headers)
            done = core.context.run(operations.run.of(scope, messages, stored))
            if done is None:
                return None
            if observer is not None:
                observer.schedule_fired(name, messages.queue.name, 1)
                added = int(done[0].outcome is PublishOutcome.CREATED)
                observer.published(messages.queue.name, added, time.monotonic() - began, ())
        published, is_due = done
        if is_due:
            core.wake_consumers()
        return published

    def _again(self, do: Callable[[], T]) -> T:
        for _ in range(_RACES):
            try:
                return do()
            except (Conflict, TablesChanged):
                continue
        return do()

    def _record(self, name: str) -> ScheduleRecord:
        record = self._access.stored(name)
        if record is None:
            raise ScheduleNotFound(name)
        return record


def _schedule(record: ScheduleRecord) -> Schedule:
    definition = Definition.from_json(record.name, record.definition)
    past = [run for run in reversed(record.last_runs) if run.at <= record.now]
    return Schedule(
        name=record.name,
        queue=record.queue,
        payload=definition.payload,
        cron=definition.cron,
        every=definition.every,
        timezone=definition.timezone,
        missed=definition.missed,
        options=MappingProxyType(dict(definition.options)),
        next_at=None if record.paused else optional_instant(_following(definition, record)),
        paused=record.paused,
        created_at=instant(record.created_at),
        last_runs=MappingProxyType(
            {instant(run.at): run.message_id for run in past[: store.RUNS_SHOWN]}
        ),
    )


def _following(definition: Definition, record: ScheduleRecord) -> int | None:
    try:
        return definition.trigger.after(record.now)
    except UNREADABLE:
        # If this system does not know the time zone, keep the other server's result.
        return record.next_at
