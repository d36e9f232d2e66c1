"""Publishing the messages of schedules, in a background loop of each service."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import (
    UNREADABLE,
    DatabaseUnavailable,
    Locked,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    ServiceClosed,
)
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queue import Queue, core_of, name_of
from queue_over_sql.schedules import operations, store
from queue_over_sql.schedules.definition import Definition
from queue_over_sql.schedules.operations import Conflict, Fired, ScheduledMessages
from queue_over_sql.schedules.store import ScheduleRecord, SchedulesOfPrefix
from queue_over_sql.values.backoff import OutageLog, Turns
from queue_over_sql.values.texts import is_storable

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.schedules.store import PendingSchedule, Version
    from queue_over_sql.schema.queue_tables import QueueTables


class ScheduleAccess:
    """The schedules of one service in its database."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self.run = parts.connections.run
        self.giving_way = parts.connections.giving_way
        self.observer = parts.observer

    def publishing(
        self, queue: Queue, count: int
    ) -> contextlib.AbstractContextManager[dict[str, Any]]:
        """Wraps a publish to a queue; yields headers for the messages."""
        if self.observer is None:
            return contextlib.nullcontext({})
        return self.observer.publishing(queue.name, count)

    def scope(self) -> SchedulesOfPrefix:
        """The schedules of this service; raises if the service is closed."""
        self._parts.check_open()
        prefix = self._parts.settings.table_prefix
        return SchedulesOfPrefix(self._parts.system(), self._parts.connections.dialect, prefix)

    def stored(self, name: str) -> ScheduleRecord | None:
        """The record of a schedule; None if there is none."""
        if not is_storable(name):
            return None
        scope = self.scope()
        return self.run(lambda connection: store.schedule_record(connection, scope, name))

    def open(self, queue: str | Queue) -> Queue:
        """Open a queue for a schedule; ValueError if it is an adopted table."""
        opened = self._parts.queue(name_of(queue))
        msg = (
            f"queue {opened.name!r} is an adopted table, which a schedule cannot fill: let "
            "the schedule publish to another queue, and insert the rows in its handler"
        )
        core_of(opened).context.tables.expect_payloads(ValueError(msg))
        return opened

    def messages(self, stored: ScheduleRecord) -> ScheduledMessages:
        """The messages of a schedule, encoded for its queue, which ``open`` opens."""
        definition = Definition.from_json(stored.name, stored.definition)
        try:
            return ScheduledMessages(self.open(stored.queue), stored.name, definition)
        except (QueueNotFound, QueueSchemaMismatch):
            # It may have been created again, unlike the one that this service has opened.
            self._parts.catalog.forget(stored.queue)
            return ScheduledMessages(self.open(stored.queue), stored.name, definition)

    def tables_of(self, queue: str) -> QueueTables | None:
        """The present tables of a queue, which may have come again; None if it was dropped."""
        try:
            try:
                core_of(self._parts.queue(queue)).context.look_again()
            except QueueSchemaMismatch:
                self._parts.catalog.forget(queue)
            return core_of(self._parts.queue(queue)).context.tables
        except QueueNotFound:
            return None


_log = logging.getLogger(__name__)

# The limit of transactions per schedule and pass, so that every schedule gets its turn.
_BATCHES_PER_PASS: Final = 20


class ScheduleFirer:
    """Publishes the messages of all schedules, shortly before their times."""

    def __init__(self, parts: ServiceParts) -> None:
        self._access = ScheduleAccess(parts)
        # When to look at each schedule again, as long as it does not change.
        self._wake_at: dict[str, tuple[Version, int]] = {}
        self._turns = Turns[str]("The publishing of schedules")
        # Schedules whose failure was logged, so that it is not logged in each pass.
        self._complaints: dict[str, str] = {}
        self._outage = OutageLog("The publishing of schedules")
        self._refusal: str | None = None

    def fire_due(self) -> ReaperReport:
        """Publish what is due, the schedules in turn; a failed one stops no other."""
        scope, fired = self._access.scope(), 0
        pending = self._access.run(lambda connection: store.pending_schedules(connection, scope))
        due = [schedule.name for schedule in pending if self._may_be_due(schedule)]
        for name in self._turns.of(due):
            fired += self._fire_or_complain(name)
        self._forget_all_but({schedule.name for schedule in pending})
        return ReaperReport(scheduled=fired)

    def fire_all(self) -> ReaperReport:
        """As ``fire_due``, and look at each schedule, whenever its next turn is."""
        self._wake_at.clear()
        return self.fire_due()

    def run_if_due(self) -> None:
        """Publish what is due; never raises for a database that cannot be reached."""
        try:
            with self._access.giving_way():
                report = self.fire_due()
            self._outage.ended()
        except ServiceClosed:
            return
        except DatabaseUnavailable as error:
            self._outage.began(error)
        except QueueError as error:
            if self._refusal != str(error):
                self._refusal = str(error)
                _log.warning("Schedules cannot publish their messages: %s", error)
        else:
            if report.scheduled:
                _log.info("Schedules published %d messages.", report.scheduled)

    def _may_be_due(self, schedule: PendingSchedule) -> bool:
        version, wake_at = self._wake_at.get(schedule.name, (None, 0))
        return version != schedule.version or wake_at <= schedule.now

    def _fire_or_complain(self, name: str) -> int:
        try:
            fired = self._fire(name)
        except Locked as error:
            self._turns.blocked(name, error)
            return 0
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except (QueueError, *UNREADABLE) as error:
            if self._complaints.get(name) != str(error):
                _log.warning("Schedule %r cannot publish its messages: %s", name, error)
            self._complaints[name] = str(error)
            return 0
        self._turns.served(name)
        self._complaints.pop(name, None)
        return fired

    def _fire(self, name: str) -> int:
        total = 0
        for _ in range(_BATCHES_PER_PASS):
            fired = self._fire_batch(name)
            if fired is None:
                break
            total += fired.count
            self._wake_at[name] = fired.version, fired.wake_at
            if not fired.goes_on:
                break
        return total

    def _fire_batch(self, name: str) -> Fired | None:
        stored = self._access.stored(name)
        if stored is None or stored.paused:
            return None
        messages = self._access.messages(stored)
        firing = operations.look(messages, stored)
        if not firing.instants and not self._is_lost(messages, stored):
            return Fired(0, 0, False, False, stored.version, firing.wake_at)  # noqa: FBT003
        fired = self._fire_now(messages, stored, len(firing.instants) or 1)
        if fired is not None and fired.late:
            core_of(messages.queue).wake_consumers()
        return fired

    def _is_lost(self, messages: ScheduledMessages, stored: ScheduleRecord) -> bool:
        context = core_of(messages.queue).context
        return None is not context.run(
            lambda connection: operations.lost(connection, messages, stored)
        )

    def _fire_now(
        self, messages: ScheduledMessages, stored: ScheduleRecord, count: int
    ) -> Fired | None:
        scope, observer, queue = self._access.scope(), self._access.observer, messages.queue
        began = time.monotonic()
        with self._access.publishing(queue, count) as headers:
            if headers:
                messages.add_headers(headers)
            try:
                fired = core_of(queue).context.run(operations.fire.of(scope, messages, stored))
            except Conflict:
                return None
            if fired is not None and fired.count and observer is not None:
                observer.schedule_fired(stored.name, queue.name, fired.count)
                observer.published(queue.name, fired.added, time.monotonic() - began, ())
        return fired

    def _forget_all_but(self, names: set[str]) -> None:
        for memory in (self._wake_at, self._complaints):
            for gone in set(memory) - names:
                memory.pop(gone, None)
