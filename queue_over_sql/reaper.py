"""The reaper: regular cleanup passes over all queues.

Every server runs the same reaper. Each step is idempotent and works in bounded batches, so many
reapers may run at once. The cost of a pass decides when the next one starts, so that the reaper
uses at most about 5 % of the time.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Final

from queue_over_sql.backoff import OutageLog, RateLimit
from queue_over_sql.consumer import elapsed_clock
from queue_over_sql.errors import (
    DatabaseUnavailable,
    NotPermitted,
    QueueError,
    QueueNotFound,
    ServiceClosed,
)
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queue import core_of
from queue_over_sql.queues.recovery import LEAST_STEP_US
from queue_over_sql.store import recovery
from queue_over_sql.store.clock_steps import ClockStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.observer import Observer
    from queue_over_sql.queue import Queue

_log = logging.getLogger(__name__)


class Reaper:
    """Releases messages of dead consumers, dead-letters, prunes archives, and runs other chores.

    Args:
        queues: returns the queues to serve.
        expired_consumers: returns the ids of the consumers whose heartbeat is overdue.
        forget_consumer: deletes the registration of a consumer.
        chores: other jobs to run at each interval.
        observer: notified of each pass.
    """

    def __init__(
        self,
        queues: Callable[[], Iterable[Queue]],
        expired_consumers: Callable[[], list[str]],
        forget_consumer: Callable[[str], None],
        chores: Sequence[Callable[[], ReaperReport]] = (),
        observer: Observer | None = None,
    ) -> None:
        self._queues = queues
        self._expired_consumers = expired_consumers
        self._forget_consumer = forget_consumer
        self._chores = chores
        self._observer = observer
        # The scheduler keeps the interval. This adds a pause after a slow pass.
        self._rate_limit = RateLimit(0.0, ready=True)
        self._outage = OutageLog("The reaper")
        # Refused operations, each logged once; the reapers of other services do them.
        self._refused: set[str] = set()

    def run_once(self, *, patient: bool = False) -> ReaperReport:
        """Run one pass over all queues.

        Args:
            patient: run slow steps only in some of the passes.

        Raises:
            DatabaseUnavailable: the pass was interrupted; the next pass continues.
            QueueError: a queue could not be served; all others were.
        """
        began = time.monotonic()
        # Fixed before the pass: only the messages of these consumers are certainly all released.
        dead = self._expired_consumers()
        report = ReaperReport(consumers=len(dead))
        failure: QueueError | None = None
        for queue in self._queues():
            try:
                report += self._reap(queue, patient=patient)
            except QueueNotFound:
                _log.debug("Queue %s was dropped during the pass.", queue.name)
            except (DatabaseUnavailable, ServiceClosed):
                raise
            except NotPermitted as error:
                self._leave_to_others(error)
                failure = error
            except QueueError as error:
                # One queue that cannot be served must not stop the work on the others.
                _log.warning("The reaper cannot serve queue %s: %s", queue.name, error)
                failure = error
        report += self._do_chores()
        if self._observer is not None:
            self._observer.reaped(report, time.monotonic() - began)
        if failure is not None:
            raise failure
        for consumer_id in dead:
            self._forget_consumer(consumer_id)
        _log.log(logging.DEBUG if report == ReaperReport() else logging.INFO, "Reaper: %s", report)
        return report

    def run_if_due(self) -> None:
        """Run one pass, or only the chores if slow passes delayed the next one.

        Chores always run, because schedules cannot wait.
        """
        try:
            if self._rate_limit.due():
                with self._rate_limit.running():
                    self.run_once(patient=True)
            else:
                self._do_chores()
            self._outage.ended()
        except ServiceClosed:
            return
        except DatabaseUnavailable as error:
            self._outage.began(error)
        except NotPermitted as error:
            self._leave_to_others(error)
        except QueueError as error:
            _log.warning("A pass of the reaper failed; the next pass tries again: %s", error)

    def _do_chores(self) -> ReaperReport:
        report = ReaperReport()
        for chore in self._chores:
            try:
                report += chore()
            except NotPermitted as error:
                self._leave_to_others(error)
        return report

    def _leave_to_others(self, error: NotPermitted) -> None:
        if str(error) not in self._refused:
            self._refused.add(str(error))
            _log.info(
                "The reaper leaves a task to other services, because its login lacks a right: %s",
                error,
            )

    def _reap(self, queue: Queue, *, patient: bool) -> ReaperReport:
        core = core_of(queue)
        acts = core.recovery
        report = ReaperReport(restored=core.claimer.recall())
        report += acts.expired_leases() + acts.orphaned_claims()
        acts.pace.put_off()
        if report.restored:
            core.announce()
        # What fills the archive must not fill it faster than the reaper may remove it.
        pruned = acts.prune(patient=patient, spare=self._rate_limit.spare)
        return report + acts.unknown_kinds() + pruned


class ClockWatch:
    """Notices when the database's clock is set back, and keeps due what was due; a chore.

    The clock of this process that nobody sets tells what the database's should show.
    """

    def __init__(self, parts: ServiceParts, queues: Callable[..., Iterable[Queue]]) -> None:
        self._parts = parts
        self._queues = queues
        # What the database's clock showed, and when, by the clock of this process.
        self._seen: tuple[int, float] | None = None
        # A step that is not dealt with yet.
        self._owed: ClockStep | None = None

    def look(self) -> ReaperReport:
        """Compare the clocks; after a step back, go through all queues."""
        connections = self._parts.connections
        asked = elapsed_clock()
        now = connections.run(connections.dialect.read_clock)
        seen, self._seen = self._seen, (now, elapsed_clock())
        if seen is None:
            self._serve(self._queues(), lambda queue: self._find_step(queue, now))
            return ReaperReport()
        passed = round((asked - seen[1]) * 1_000_000)
        if seen[0] + passed - now > LEAST_STEP_US:
            self._owed = ClockStep(now, until=seen[0] + passed)
        if self._owed is not None:
            step = dataclasses.replace(self._owed, now=now)
            everything = self._queues(temporary=True)
            self._serve(everything, lambda queue: core_of(queue).recovery.keep_due(step))
            self._owed = None
        return ReaperReport()

    def _find_step(self, queue: Queue, now: int) -> None:
        acts = core_of(queue).recovery
        if step := acts.clock_step(now):
            acts.keep_due(step)

    def _serve(self, queues: Iterable[Queue], serve: Callable[[Queue], object]) -> None:
        for queue in queues:
            try:
                serve(queue)
            except QueueNotFound:
                _log.debug("Queue %s was dropped meanwhile.", queue.name)
            except (DatabaseUnavailable, ServiceClosed):
                raise
            except NotPermitted as error:
                _log.info(
                    "The messages of queue %s are left to other services: %s", queue.name, error
                )
            except QueueError as error:
                _log.warning("The messages of queue %s cannot be kept due: %s", queue.name, error)


# How long the writer of a batch has to drop its staging tables before the reaper does.
_ABANDONED_US: Final = 300_000_000
_CLEANUP_SECONDS: Final = 60.0


class StagedWriteCleanup:
    """Drops staging tables of crashed writers; a chore of every reaper."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._rate_limit = RateLimit(_CLEANUP_SECONDS, ready=True)
        self._refused: set[str] = set()

    def run_if_due(self) -> ReaperReport:
        """Clean up at most once a minute."""
        if not self._rate_limit.due():
            return ReaperReport()
        with self._rate_limit.running():
            return ReaperReport(cleaned=self.clean_up())

    def clean_up(self) -> int:
        """Drop abandoned staging tables, forget old commits, and return how many were dropped."""
        connections, system = self._parts.connections, self._parts.system()
        dialect = connections.dialect
        connections.run(lambda c: recovery.prune_commits(c, system, dialect))
        names = connections.run(
            lambda c: recovery.orphaned_stages(c, system, dialect, patience=_ABANDONED_US)
        )
        return sum(self._drop(name) for name in names)

    def _drop(self, name: str) -> bool:
        connections, system = self._parts.connections, self._parts.system()
        try:
            connections.run(lambda c: recovery.drop_stages(c, system, [name]), atomic=True)
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            if name not in self._refused:
                self._refused.add(name)
                _log.warning("The staging table %s cannot be dropped: %s", name, error)
            return False
        return True
