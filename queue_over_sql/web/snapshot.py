"""What all viewers share: one reading of all queues and consumers, and one check-up."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from queue_over_sql import ConsumerInfo, HandledQueue, QueueService, inside
from queue_over_sql.errors import QueueError
from queue_over_sql.inside import Inspection
from queue_over_sql.observability import (
    COUNTED,
    Check,
    Counting,
    Finding,
    QueueCounts,
    SharedSnapshot,
    check_queues,
    diagnose,
)
from queue_over_sql.observability.history import Minute, read_history
from queue_over_sql.values.durations import instant
from queue_over_sql.values.states import DEAD, Status
from queue_over_sql.web.problems import problem_of
from queue_over_sql.web.shown_messages import Held, held_of

COUNT_LIMIT: Final = 10_000
"""The limit of counts."""
COARSE_LIMIT: Final = 1_000
"""The limit in the list of more than ``MANY`` queues."""
MANY: Final = 20

# The largest share of the time for looks, so that twenty viewers of a hundred queues cost the
# database less than twenty claims a second.
_SHARE: Final = 0.02
# What the list of queues shows.
_LISTED: Final = (*(status.value for status in Status), *DEAD)

_HISTORY_SECONDS: Final = 15.0
_CHECKUP_SECONDS: Final = 10.0
_LONGEST_PAUSE: Final = 60.0
# With the longest pause between them, longer looks would take a larger share of the time.
_LOOK_SECONDS: Final = _SHARE * _LONGEST_PAUSE


@dataclasses.dataclass(frozen=True)
class Overview:
    """All queues at one moment.

    Attributes:
        at: when it was read, in UTC.
        queues: by name.
        consumers: how many are alive, without the permanent ones of HTTP and SQL clients.
        dead_consumers: how many have expired and wait for the reaper.
        history: the activity of the last hour, by queue and minute; see ``read_history``.
        problem: why the last reading failed; then everything else is from the one before.
        counted_at: when the queues were counted for which this reading had no time, by name.
    """

    at: datetime
    queues: Sequence[QueueCounts] = ()
    consumers: int = 0
    dead_consumers: int = 0
    history: Mapping[str, Sequence[Minute]] = dataclasses.field(default_factory=dict)
    problem: str | None = None
    counted_at: Mapping[str, datetime] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class CheckedUp:
    """What a check-up of the database found.

    Attributes:
        at: when it ended, in UTC.
        took: seconds.
        checks: whether the queues are served.
        findings: of the doctor.
        problem: why the doctor failed; None if it did not.
    """

    at: datetime
    took: float
    checks: Sequence[Check]
    findings: Sequence[Finding]
    problem: str | None


class Snapshots:
    """Reads the queues when somebody asks, at most every ``interval`` seconds.

    If a reading is slow, the pause grows, up to a minute, so that it takes 2 % of the time. What
    would take longer is stretched over several readings: each counts those queues first that were
    not counted for the longest time. All viewers share a reading; without viewers nothing is read.

    Args:
        service: the service with the queues.
        interval: seconds between two readings.
        timeout: the time limit of a statement in seconds.
    """

    def __init__(self, service: QueueService, interval: float = 2.0, timeout: float = 5.0) -> None:
        self._service = service
        self._timeout = timeout
        self._interval = interval
        self._counting = _counting(COUNT_LIMIT, _LISTED)
        self._coarse = _counting(COARSE_LIMIT, _LISTED)
        self._claimed = Counting([Status.CLAIMED.value], limit=1)
        # Of those whose page was opened since the last change here.
        self._queues: dict[str, SharedSnapshot[QueueCounts | None]] = {}
        self._shared = SharedSnapshot(self._read, interval, _LONGEST_PAUSE, share=_SHARE)
        self._held = SharedSnapshot(self._look_at_held, interval, _LONGEST_PAUSE, share=_SHARE)
        self._checkups = SharedSnapshot(self._check_up, _CHECKUP_SECONDS, _LONGEST_PAUSE)
        self._checking: threading.Thread | None = None
        self._history: dict[str, list[Minute]] = {}
        self._history_at = float("-inf")
        self._looks = 0
        # Of each queue the number of the reading that counted it, and its time.
        self._counted: dict[str, tuple[int, datetime, QueueCounts]] = {}
        # Those that were changed here since they were counted.
        self._changed: set[str] = set()
        self._lock = threading.Lock()

    def overview(self, every: float = 0.0) -> Overview:
        """The last reading, or a new one if it is too old.

        ``every``: after how many seconds it is too old for the caller.
        """
        last = self._shared.last
        return last if last is not None and self.age < every else self._shared.seen()

    @property
    def age(self) -> float:
        """How many seconds ago the last reading began."""
        return self._shared.age

    @property
    def pause(self) -> float | None:
        """Seconds between two readings, if they are so slow that it is not the interval."""
        pause = self._shared.pause
        return pause if pause > self._interval else None

    def queue(self, name: str) -> QueueCounts | None:
        """The counts of one queue, without a reading of all; None if it does not exist.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        if (known := self._queues.get(name)) is None:
            read = functools.partial(self._read_one, _counting(COUNT_LIMIT), name)
            known = SharedSnapshot(read, self._interval, _LONGEST_PAUSE, share=_SHARE)
            self._queues[name] = known
        return known.seen()

    def handlers(self, name: str) -> Sequence[tuple[ConsumerInfo, HandledQueue]]:
        """The living consumers that handle a queue, and what they say of it.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        inspection = Inspection(self._service, self._timeout)
        return inspection.handlers_of(inspection.consumers()[0], name)

    def held(self) -> Mapping[str, Sequence[Held]]:
        """What consumers hold, by their ids: queues that cannot be read are left out."""
        return self._held.seen()

    def checked_up(self, wait: float) -> CheckedUp | None:
        """The last check-up of the database; None while the first one runs.

        With many queues a check-up takes seconds, so it has a thread of its own.

        Args:
            wait: how many seconds to wait for a new one.
        """
        running = self._checking
        if running is None or not running.is_alive():
            running = threading.Thread(target=self._checkups.seen, name="check-up", daemon=True)
            self._checking = running
            running.start()
        running.join(wait)
        return self._checkups.last

    @property
    def is_checking(self) -> bool:
        """Whether a check-up runs, so that what ``checked_up`` returned is from an earlier one."""
        return self._checking is not None and self._checking.is_alive()

    def forget(self, queue: str = "") -> None:
        """Read again at the next request, because something was changed here.

        ``queue``: the one that was changed, which is counted first.
        """
        with self._lock:
            self._changed.add(queue)
        self._queues.clear()
        self._shared.forget()
        self._held.forget()
        self._checkups.forget()

    def _read(self, before: Overview | None) -> Overview:
        inspection = Inspection(self._service, self._timeout)
        try:
            now = instant(inspection.now())
            records = inspection.records()
            counting = self._counting if len(records) <= MANY else self._coarse
            alive, dead = inspection.consumers()
            queues = self._count(counting, inspection, records, alive, now)
            running = [each for each in alive if not each.permanent]
            with inside.limited(self._service, self._timeout):
                self._read_history()
        except QueueError as error:
            problem = problem_of(error).text
            return dataclasses.replace(before or Overview(datetime.now(UTC)), problem=problem)
        counted = self._counted.items()
        earlier = {name: at for name, (look, at, _) in counted if look != self._looks}
        facts = len(running), len(dead), self._history
        return Overview(now, queues, *facts, counted_at=earlier)

    def _count(
        self,
        counting: Counting,
        inspection: Inspection,
        records: Sequence[inside.QueueRecord],
        alive: Sequence[ConsumerInfo],
        now: datetime,
    ) -> list[QueueCounts]:
        there, before = {each.name: each for each in records}, self._counted
        with self._lock:
            changed, self._changed = self._changed, set()

        def turn(record: inside.QueueRecord) -> tuple[bool, int]:
            return record.name not in changed, before.get(record.name, (0,))[0]

        # Nobody would understand a first page without figures.
        seconds = _LOOK_SECONDS if before else math.inf
        counted: Sequence[QueueCounts] = ()
        try:
            counted = counting.count(inspection, sorted(records, key=turn), alive, seconds=seconds)
        finally:
            with self._lock:
                self._changed |= changed & there.keys() - {each.name for each in counted}
        self._looks += 1
        found = before | {each.name: (self._looks, now, each) for each in counted}
        self._counted = {name: found[name] for name in there if name in found}
        return [
            dataclasses.replace(each, paused=there[each.name].paused)
            for _, _, each in self._counted.values()
        ]

    def _read_one(self, counting: Counting, name: str, before: object) -> QueueCounts | None:
        del before
        inspection = Inspection(self._service, self._timeout)
        records = [each for each in inspection.records() if each.name == name]
        alive, _ = inspection.consumers()
        return next(iter(counting.count(inspection, records, alive)), None)

    def _look_at_held(self, before: object) -> dict[str, list[Held]]:
        del before
        found: dict[str, list[Held]] = {}
        inspection = Inspection(self._service, self._timeout)
        for each in self._claimed.count(inspection, inspection.records()):
            if not each.counts.get(Status.CLAIMED):
                continue
            with contextlib.suppress(QueueError):
                with inside.limited(self._service, self._timeout):
                    held = held_of(self._service.queue(each.name))
                for consumer, one in held.items():
                    found.setdefault(consumer, []).append(one)
        return found

    def _check_up(self, before: object) -> CheckedUp:
        del before
        began = time.monotonic()
        findings: Sequence[Finding] = ()
        problem = None
        try:
            findings = diagnose(self._service)
        except QueueError as error:
            problem = problem_of(error).text
        checks = check_queues(self._service)
        return CheckedUp(datetime.now(UTC), time.monotonic() - began, checks, findings, problem)

    def _read_history(self) -> None:
        if time.monotonic() < self._history_at + _HISTORY_SECONDS:
            return
        found: dict[str, list[Minute]] = {}
        for minute in read_history(self._service, 3600):
            found.setdefault(minute.queue, []).append(minute)
        self._history, self._history_at = found, time.monotonic()


def _counting(limit: int, names: Sequence[str] = COUNTED) -> Counting:
    return Counting(names, limit=limit, error_text=lambda error: problem_of(error).text)
