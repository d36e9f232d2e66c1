"""The reaper: regular cleanup passes over all queues.

Every server runs the same reaper. Each step is idempotent and works in bounded batches, so many
reapers may run at once. The cost of a pass decides when the next one starts, so that the reaper
uses at most about 5 % of the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Final

from queue_over_sql.consumers import registrations
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    Locked,
    NotPermitted,
    QueueError,
    QueueNotFound,
    ServiceClosed,
)
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queue import core_of
from queue_over_sql.recovery.clock_steps import ClockStep
from queue_over_sql.recovery.recovery import take_turn
from queue_over_sql.recovery.staged_writes import drop_stages, orphaned_stages, prune_commits
from queue_over_sql.values.backoff import OutageLog, RateLimit, Turns
from queue_over_sql.values.durations import elapsed_clock
from queue_over_sql.values.limits import LEAST_CLOCK_STEP_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.observer import Observer
    from queue_over_sql.queue import Queue, QueueCore


_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Pass:
    """The results of one pass.

    Attributes:
        failure: why something could not be served, if anything.
        is_over: whether nothing is left to do, except what failed.
    """

    report: ReaperReport = dataclasses.field(default_factory=ReaperReport)
    failure: QueueError | None = None
    is_over: bool = True

    def add(self, done: ReaperReport) -> None:
        """Count what was done."""
        self.report += done

    def fail(self, error: QueueError) -> None:
        """Keep the worst failure: a lock will be released, another failure may last."""
        if self.failure is None or isinstance(self.failure, Locked):
            self.failure = error


@dataclasses.dataclass(frozen=True)
class _Task:
    """One task for one queue, in steps."""

    core: QueueCore
    steps: Callable[[], Iterator[ReaperReport]]


class Reaper:
    """Releases messages of dead consumers, dead-letters, prunes archives, and runs other chores.

    It gives way: a task that waits for the lock of another transaction is put off, and everything
    else is done. Queues take turns, so that one with much to do does not delay the others.

    Args:
        queues: returns the queues to serve.
        dead_consumers: declares consumers dead; returns the ids of all that are declared dead.
        forget_consumer: deletes the registration of a consumer.
        chores: other jobs to run at each interval.
        elsewhere: jobs that have a loop of their own; ``run_once`` does them, too.
        observer: notified of each pass.
        giving_way: the context in which operations do not wait long for the locks of others.
    """

    def __init__(
        self,
        queues: Callable[[], Iterable[Queue]],
        dead_consumers: Callable[[], list[str]],
        forget_consumer: Callable[[str], None],
        *,
        chores: Sequence[Callable[[], ReaperReport]] = (),
        elsewhere: Sequence[Callable[[], ReaperReport]] = (),
        observer: Observer | None = None,
        giving_way: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._queues = queues
        self._dead_consumers = dead_consumers
        self._forget_consumer = forget_consumer
        self._chores = chores
        self._elsewhere = elsewhere
        self._observer = observer
        self._giving_way = giving_way
        self._turns = Turns[str]("The reaper")
        # The scheduler keeps the interval. This adds a pause after a slow pass.
        self._rate_limit = RateLimit(0.0, ready=True)
        self._outage = OutageLog("The reaper")
        # Refused operations, each logged once; the reapers of other services do them.
        self._refused: set[str] = set()

    def run_once(self) -> ReaperReport:
        """Run passes over all queues until nothing is left to do.

        Raises:
            DatabaseUnavailable: the database cannot be reached, or others held a lock for too
                long; the next pass continues.
            QueueError: a queue could not be served; all others were.
        """
        report, chores = ReaperReport(), [*self._chores, *self._elsewhere]
        failure: QueueError | None = None
        with self._giving_way():
            while True:
                done = self._pass(chores, patient=False)
                report, failure, chores = report + done.report, failure or done.failure, []
                if done.is_over:
                    break
        if failure is not None:
            raise failure
        return report

    def run_if_due(self) -> None:
        """Run one pass, or only the chores if slow passes delayed the next one.

        If a queue has more to do than one turn allows, the next pass follows at once, so that the
        other queues have their turns between.
        """
        try:
            with self._giving_way():
                if self._rate_limit.due():
                    self._run_passes()
                else:
                    self._do(self._chores, _Pass())
            self._outage.ended()
        except ServiceClosed:
            return
        except DatabaseUnavailable as error:
            self._outage.began(error)
        except NotPermitted as error:
            self._leave_to_others(error)
        except QueueError as error:
            _log.warning("A pass of the reaper failed; the next pass tries again: %s", error)

    def _run_passes(self) -> None:
        is_over = False
        while not is_over:
            with self._rate_limit.running():
                is_over = self._pass(self._chores, patient=True).is_over
                if not is_over:
                    self._rate_limit.go_on()

    def _pass(self, chores: Sequence[Callable[[], ReaperReport]], *, patient: bool) -> _Pass:
        began, done = time.monotonic(), _Pass()
        # Fixed before the pass: only the messages of these consumers are certainly all released.
        dead = self._find_dead(done)
        tasks = {
            f"queue {queue.name} ({what})": task
            for queue in self._queues()
            for what, task in _tasks(
                core_of(queue), self._rate_limit.spare, patient=patient
            ).items()
            # Those would wait for the same lock.
            if dead is not None or what not in _ABOUT_CONSUMERS
        }
        unusable: set[QueueCore] = set()
        for name in self._turns.of(tasks):
            if tasks[name].core not in unusable and not self._serve(name, tasks[name], done):
                unusable.add(tasks[name].core)
        self._do(chores, done)
        if done.failure is None and done.is_over:
            self._forget(dead or [], done)
        if self._observer is not None:
            self._observer.reaped(done.report, time.monotonic() - began)
        level = logging.DEBUG if done.report == ReaperReport() else logging.INFO
        _log.log(level, "Reaper: %s", done.report)
        return done

    def _find_dead(self, done: _Pass) -> list[str] | None:
        """The dead consumers; None if others have locked the consumers."""
        began = time.monotonic()
        try:
            return self._dead_consumers()
        except Locked as error:
            _log.debug("The reaper declares nobody dead now: %s", error)
            done.fail(error)
            self._rate_limit.spare(time.monotonic() - began)
            return None

    def _serve(self, name: str, task: _Task, done: _Pass) -> bool:
        """Do a task for one turn; False if the queue cannot be served now."""
        began, before = time.monotonic(), done.report.restored
        queue, tables = task.core.context.name, task.core.context.tables
        try:
            done.is_over &= take_turn(task.steps(), done.add)
        except Locked as error:
            self._turns.blocked(name, error)
            done.fail(error)
            self._rate_limit.spare(time.monotonic() - began)
            return True
        except QueueNotFound:
            _log.debug("Queue %s was dropped during the pass.", queue)
            return False
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except NotPermitted as error:
            self._leave_to_others(error)
            done.fail(error)
            return False
        except (QueueError, UnicodeError) as error:
            if task.core.context.tables is not tables:
                # It was dropped, and created again with other tables, which the next pass knows.
                done.is_over = False
                return False
            # One queue that cannot be served must not stop the work on the others.
            task.core.recovery.unreadable.note(error)
            _log.warning("The reaper cannot serve queue %s: %s", queue, error)
            done.fail(_as_refused(error, queue))
            self._rate_limit.spare(time.monotonic() - began)
            return False
        finally:
            if done.report.restored > before:
                task.core.wake_consumers()
        self._turns.served(name)
        return True

    def _do(self, chores: Sequence[Callable[[], ReaperReport]], done: _Pass) -> None:
        began = time.monotonic()
        for chore in chores:
            try:
                done.add(chore())
            except NotPermitted as error:
                self._leave_to_others(error)
            except Locked as error:
                _log.debug("The reaper puts a chore off: %s", error)
                done.fail(error)
            except (DatabaseUnavailable, ServiceClosed):
                raise
            except QueueError as error:
                _log.warning("The reaper cannot do a chore; the next pass tries again: %s", error)
                done.fail(error)
        # They are done at each interval anyway, and may have waited for others.
        self._rate_limit.spare(time.monotonic() - began)

    def _forget(self, dead: Sequence[str], done: _Pass) -> None:
        for consumer_id in dead:
            try:
                self._forget_consumer(consumer_id)
            except Locked as error:
                _log.debug("Consumer %s is forgotten later: %s", consumer_id, error)
            else:
                done.add(ReaperReport(consumers=1))

    def _leave_to_others(self, error: NotPermitted) -> None:
        if str(error) not in self._refused:
            self._refused.add(str(error))
            _log.info(
                "The reaper leaves a task to other services, because its login lacks a right: %s",
                error,
            )


def _as_refused(error: QueueError | UnicodeError, queue: str) -> QueueError:
    # Some drivers raise the other one if they cannot decode a text.
    if isinstance(error, QueueError):
        return error
    return DatabaseRefused(f"A text of queue {queue!r} cannot be read: {error}")


_DEAD_CONSUMERS: Final = "dead consumers"
_UNKNOWN_KINDS: Final = "unknown kinds"
_ABOUT_CONSUMERS: Final = {_DEAD_CONSUMERS, _UNKNOWN_KINDS}


def _tasks(core: QueueCore, spare: Callable[[float], None], *, patient: bool) -> dict[str, _Task]:
    """What is to be done for a queue, apart, so that a lock delays only one of these."""
    recovery = core.recovery

    def lost_answers() -> Iterator[ReaperReport]:
        yield ReaperReport(restored=core.claimer.recall())

    def dead_consumers() -> Iterator[ReaperReport]:
        yield from recovery.orphaned_claims()
        recovery.pace.put_off()

    def archive() -> Iterator[ReaperReport]:
        # What fills the archive must not fill it faster than the reaper may remove it.
        yield core.pruning.prune(patient=patient, spare=spare)

    def errors() -> Iterator[ReaperReport]:
        for _ in core.errors.marking():
            yield ReaperReport()

    tasks = {
        "lost answers": lost_answers,
        "unreadable rows": recovery.unreadable.hold_all,
        "expired leases": recovery.expired_leases,
        _DEAD_CONSUMERS: dead_consumers,
        _UNKNOWN_KINDS: recovery.unknown_kinds,
        "expired messages": recovery.expired_messages,
        "edited claims": recovery.edited_claims,
        "groups": recovery.groups,
        "limits": recovery.limits,
        "attempts": recovery.attempts,
        "archive": archive,
        "errors": errors,
    }
    return {name: _Task(core, steps) for name, steps in tasks.items()}


class ClockWatch:
    """Notices when the database's clock is set back, and keeps due what was due; a chore.

    The monotonic clock of this process tells what the database's clock should show.
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
        began = elapsed_clock()
        now = connections.run(connections.dialect.read_clock)
        seen, shown = self._seen, (now, elapsed_clock())
        if seen is None:
            # If this fails, the next look is the first one again.
            if self._serve(self._queues(), lambda queue: self._find_step(queue, now)):
                self._seen = shown
            return ReaperReport()
        self._seen = shown
        passed = round((began - seen[1]) * 1_000_000)
        if seen[0] + passed - now > LEAST_CLOCK_STEP_US:
            # A lock may have put off what an earlier step owes.
            before = 0 if self._owed is None else self._owed.until
            self._owed = ClockStep(now, until=max(seen[0] + passed, before))
        if self._owed is not None:
            step = dataclasses.replace(self._owed, now=now)
            system, expressions = self._parts.system(), connections.dialect.expressions
            connections.run(
                lambda c: registrations.set_back(c, system, expressions, step.until - step.now)
            )
            everything = self._queues(temporary=True)
            if self._serve(everything, lambda queue: core_of(queue).recovery.keep_due(step)):
                self._owed = None
        return ReaperReport()

    def _find_step(self, queue: Queue, now: int) -> None:
        recovery = core_of(queue).recovery
        if step := recovery.clock_step(now):
            recovery.keep_due(step)

    def _serve(self, queues: Iterable[Queue], serve: Callable[[Queue], object]) -> bool:
        """Serve all; False if others held locks on some, so that the caller tries again."""
        all_served = True
        for queue in queues:
            try:
                serve(queue)
            except Locked as error:
                all_served = False
                _log.debug("The messages of queue %s wait for a lock: %s", queue.name, error)
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
        return all_served


# How long the writer of a batch has to drop its staging tables before the reaper does.
_ABANDONED_US: Final = 300_000_000
_CLEANUP_SECONDS: Final = 60.0


class StagedWriteCleanup:
    """Drops staging tables of crashed writers; a chore of every reaper."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._rate_limit = RateLimit(_CLEANUP_SECONDS, ready=True)
        self._refused: set[str] = set()
        self._turns = Turns[str]("The removal of staging tables")

    def run_if_due(self) -> ReaperReport:
        """Clean up at most once a minute."""
        if not self._rate_limit.due():
            return ReaperReport()
        with self._rate_limit.running():
            return ReaperReport(cleaned=self.clean_up())

    def clean_up(self) -> int:
        """Drop abandoned staging tables, forget old commits, and return how many were dropped."""
        connections, system = self._parts.connections, self._parts.system()
        expressions = connections.dialect.expressions
        try:
            connections.run(lambda c: prune_commits(c, system, expressions))
        except Locked as error:
            _log.debug("Old commits of staged writes are removed later: %s", error)
        names = connections.run(
            lambda c: orphaned_stages(c, system, expressions, timeout=_ABANDONED_US)
        )
        return sum(self._drop(name) for name in self._turns.of(names))

    def _drop(self, name: str) -> bool:
        connections, system = self._parts.connections, self._parts.system()
        began = time.monotonic()
        try:
            connections.run(drop_stages.of(system, [name]))
        except Locked as error:
            self._turns.blocked(name, error)
            self._rate_limit.spare(time.monotonic() - began)
            return False
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            if name not in self._refused:
                self._refused.add(name)
                _log.warning("The staging table %s cannot be dropped: %s", name, error)
            return False
        self._turns.served(name)
        return True
