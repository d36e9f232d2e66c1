"""A clock for tests, which moves the database's time forward for some services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam
from sqlalchemy.types import TypeDecorator

from queue_over_sql.durations import instant, to_microseconds
from queue_over_sql.queue import core_of
from queue_over_sql.service import parts_of
from queue_over_sql.store import consumers

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import ColumnElement

    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.durations import Duration
    from queue_over_sql.service import QueueService


class Clock:
    """Moves the database's clock forward for some services, so that tests need not sleep.

    It affects all that uses the database's clock: delays and due times of messages, leases,
    retries, dedup windows, schedules, age limits of the archive, and missed heartbeats. It works on
    every engine. The time of the server itself does not change, so it does not affect other
    services, the SQL API, and your own SQL. It also does not affect what Python measures:
    ``wait=``, the ``timeout`` of handlers and requests, and the pauses of workers.

    Args:
        service: the service whose clock moves.
        others: further services of the same test that use this clock.
    """

    def __init__(self, service: QueueService, *others: QueueService) -> None:
        self._services = (service, *others)
        self.microseconds = 0
        """How far the clock is ahead of the database."""

    def advance(self, by: Duration) -> None:
        """Move the clock forward, then run one pass of each service's reaper.

        The pass releases messages whose leases expired, and publishes the due messages of
        schedules. The services stay alive as consumers, as if they had sent heartbeats.

        Args:
            by: how far to move it, in seconds or as a ``timedelta``.

        Raises:
            TypeError, ValueError: it is not a duration above zero, or a service has another clock.
            DatabaseUnavailable: the database cannot be reached.
        """
        ahead = to_microseconds(by, "by")
        for service in self._services:
            self._install(parts_of(service))
            _outlive(parts_of(service), ahead)
        self.microseconds += ahead
        for service in self._services:
            parts = parts_of(service)
            parts.consumer.heartbeat()
            service.reap()
            for queue in parts.catalog.opened:
                core_of(queue).announce()

    def now(self) -> datetime:
        """The current time of the services, for ``at=``.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        parts = parts_of(self._services[0])
        self._install(parts)
        return instant(parts.connections.run(parts.connections.dialect.read_clock))

    def _install(self, parts: ServiceParts) -> None:
        dialect: Any = parts.connections.dialect
        if isinstance(dialect.now, _Shifted):
            if dialect.now.clock is not self:
                msg = "the service already has another Clock: use that one everywhere"
                raise ValueError(msg)
            return
        vars(dialect)["now"] = _Shifted(self, dialect.now)
        for queue in parts.catalog.opened:
            core_of(queue).context.sql.forget()


class _Shifted:
    """A dialect's ``now`` with a ``Clock``: the server's clock plus the clock's advance."""

    def __init__(self, clock: Clock, now: Callable[[], ColumnElement[int]]) -> None:
        self.clock = clock
        # A bind parameter whose value is read at each run of a statement.
        ahead = bindparam("p_clock_ahead", 0, _Ahead(clock))
        self._expression: ColumnElement[int] = now() + ahead

    def __call__(self) -> ColumnElement[int]:
        return self._expression


class _Ahead(TypeDecorator[int]):
    impl = BigInteger
    cache_ok = True

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        # SQLAlchemy includes it in its cache key of compiled statements, as it has no underscore.
        self.clock = clock

    def process_bind_param(self, value: int | None, dialect: object) -> int:
        del value, dialect
        return self.clock.microseconds


def _outlive(parts: ServiceParts, microseconds: int) -> None:
    consumer, connections, system = parts.consumer, parts.connections, parts.system()
    me = consumer.consumer_id
    if me is not None:
        until = consumer.timeout_us + microseconds
        connections.run(lambda c: consumers.renew(c, system, connections.dialect, me, until))
