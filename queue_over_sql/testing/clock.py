"""A clock for tests, which moves the database's time forward for some services."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakSet

from sqlalchemy import BigInteger, bindparam, literal, update
from sqlalchemy.types import TypeDecorator

from queue_over_sql import inside
from queue_over_sql.inside.testing import declare_dead, host_name, replace_clock
from queue_over_sql.values.durations import NEVER, instant, to_microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement

    from queue_over_sql import QueueService
    from queue_over_sql.values.durations import Duration


class Clock:
    """Moves the database's clock forward for some services, so that tests need not sleep.

    It affects all that uses the database's clock: delays and due times of messages, leases,
    retries, dedup windows, schedules, age limits of the archive, and the heartbeats of other
    services of this process, which count as missed. It works on every engine. The time of the
    server itself does not change, so it does not affect the SQL API, your own SQL, and the
    consumers of other processes. It also does not affect what Python measures: ``wait=``, the
    ``timeout`` of handlers and requests, and the pauses of workers.

    A service has one time. If a service of this clock already follows another ``Clock``, this clock
    joins it: both show the same time, and each moves the services of both. So a service that lives
    longer than a test keeps the time that the earlier tests reached.

    Args:
        service: the service whose clock moves.
        others: further services of the same test that use this clock.
    """

    def __init__(self, service: QueueService, *others: QueueService) -> None:
        self._services = (service, *others)
        self._time = _Time()

    @property
    def microseconds(self) -> int:
        """How far the clock is ahead of the database."""
        return self._time.microseconds

    def advance(self, by: Duration) -> None:
        """Move the clock forward, then run one pass of each service's reaper.

        The pass releases messages whose leases expired, and publishes the due messages of
        schedules. The services stay alive as consumers, as if they had sent heartbeats. Other
        services of this process count as dead if their last heartbeat is too long ago by then.

        Args:
            by: how far to move it, in seconds or as a ``timedelta``.

        Raises:
            TypeError, ValueError: it is not a duration above zero, or the services already follow
                clocks that show different times.
            DatabaseUnavailable: the database cannot be reached.
        """
        ahead = to_microseconds(by, "by")
        self._join()
        services = self._time.services(self._services)
        _miss_heartbeats(services, ahead)
        self._time.microseconds += ahead
        for service in services:
            service.reap()
            for queue in inside.opened(service):
                inside.wake_consumers(queue)

    def now(self) -> datetime:
        """The current time of the services, for ``at=``.

        Raises:
            ValueError: the services already follow clocks that show different times.
            DatabaseUnavailable: the database cannot be reached.
        """
        self._join()
        return instant(inside.read_clock(self._services[0]))

    def _join(self) -> None:
        """Let all services follow one time: that of an earlier clock, or this clock's own."""
        present = [
            now.time
            for service in self._services
            if isinstance(now := inside.engine(service).now, _Shifted)
        ]
        # Time never goes back, and a jump would surprise the other clock's test.
        if any(time is not present[0] for time in present):
            msg = (
                "the services already follow different Clocks: use one Clock for all of them from "
                "the start, as in Clock(service, other)"
            )
            raise ValueError(msg)
        self._time = present[0] if present else self._time
        for service in self._services:
            self._time.add(service)
            _install(service, self._time)


class _Time:
    """How far the services of some clocks are ahead."""

    def __init__(self) -> None:
        self.microseconds = 0
        # Weak, because a clock of a long-lived service sees the services of many tests.
        self._all: WeakSet[QueueService] = WeakSet()

    def add(self, service: QueueService) -> None:
        self._all.add(service)

    def services(self, named: Sequence[QueueService]) -> list[QueueService]:
        """All services that follow this time; of those not named, the ones still in use."""
        unnamed = [each for each in self._all if each not in named]
        others = [each for each in unnamed if not inside.Vitals(each).closed]
        return [*named, *others]


def _install(service: QueueService, time: _Time) -> None:
    now = inside.engine(service).now
    if not isinstance(now, _Shifted):
        replace_clock(service, _Shifted(time, now))


class _Shifted:
    """A dialect's ``now`` with a ``Clock``: the server's clock plus the clock's advance."""

    def __init__(self, time: _Time, now: Callable[[], ColumnElement[int]]) -> None:
        self.time = time
        # A bind parameter whose value is read at each run of a statement.
        ahead = bindparam("p_clock_ahead", 0, _Ahead(time))
        self._expression: ColumnElement[int] = now() + ahead

    def __call__(self) -> ColumnElement[int]:
        return self._expression


class _Ahead(TypeDecorator[int]):
    impl = BigInteger
    cache_ok = True

    def __init__(self, time: _Time) -> None:
        super().__init__()
        # SQLAlchemy includes it in its cache key of compiled statements, as it has no underscore.
        self.time = time

    def process_bind_param(self, value: int | None, dialect: object) -> int:
        del value, dialect
        return self.time.microseconds


def _miss_heartbeats(following: Sequence[QueueService], microseconds: int) -> None:
    """Let the consumers of this process, except those that follow the clock, miss heartbeats."""
    service, mine = following[0], [each.consumer_id for each in following]
    table = inside.system(service).consumers
    c = table.c
    others = (
        c.host == host_name(),
        c.pid == os.getpid(),
        c.consumer_id.not_in([each for each in mine if each is not None]),
        c.expires_at != literal(NEVER, BigInteger()),
    )
    earlier = update(table).where(*others).values(expires_at=c.expires_at - microseconds)
    inside.run(service, lambda connection: connection.execute(earlier))
    # So that no late heartbeat comes before the reaper.
    declare_dead(service)
