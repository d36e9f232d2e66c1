"""Firing: what each pass of the reaper does about the schedules."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import UNREADABLE, DatabaseUnavailable, QueueError, ServiceClosed
from queue_over_sql.restoring import ReaperReport
from queue_over_sql.schedules import acts
from queue_over_sql.schedules.acts import Met
from queue_over_sql.store import schedules as store

if TYPE_CHECKING:
    from queue_over_sql.schedules.access import ScheduleAccess
    from queue_over_sql.schedules.acts import Fired
    from queue_over_sql.store.schedules import Version

_log = logging.getLogger(__name__)

# How often one pass goes on with the same schedule, so that all get their turn.
_BATCHES_PER_PASS: Final = 20


class ScheduleFirer:
    """Publishes the messages of all schedules, a little ahead of their instants."""

    def __init__(self, access: ScheduleAccess) -> None:
        self._access = access
        # When to look at which schedule again, as long as it is the same.
        self._wake_at: dict[str, tuple[Version, int]] = {}
        # What was said of schedules that cannot be fired need not be said at each pass.
        self._complaints: dict[str, str] = {}

    def fire_due(self) -> ReaperReport:
        """Publish what is to be published now; see ``Schedules.fire_due``."""
        scope, fired = self._access.scope(), 0
        pending = self._access.run(lambda connection: store.pending_schedules(connection, scope))
        for schedule in pending:
            version, wake_at = self._wake_at.get(schedule.name, (None, 0))
            if version != schedule.version or wake_at <= schedule.now:
                fired += self._fire_or_complain(schedule.name)
        self._forget_all_but({schedule.name for schedule in pending})
        return ReaperReport(fired=fired)

    def _fire_or_complain(self, name: str) -> int:
        try:
            fired = self._fire(name)
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except (QueueError, *UNREADABLE) as error:
            if self._complaints.get(name) != str(error):
                _log.warning("Schedule %r cannot be fired: %s", name, error)
            self._complaints[name] = str(error)
            return 0
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
        """Publish up to a hundred messages; None where somebody else does."""
        scope, stored = self._access.scope(), self._access.stored(name)
        if stored is None or stored.paused:
            return None
        messages = self._access.messages(stored)
        if not acts.look(messages, stored).instants:
            return acts.nothing_to_fire(messages, stored)
        try:
            fired = messages.queue.context.run(
                lambda connection: acts.fire(connection, scope, messages, stored),
                atomic=True,
                durable=True,
            )
        except Met:
            return None
        if fired is not None and fired.late:
            messages.queue.announce()
        return fired

    def _forget_all_but(self, names: set[str]) -> None:
        for memory in (self._wake_at, self._complaints):
            for gone in set(memory) - names:
                memory.pop(gone, None)
