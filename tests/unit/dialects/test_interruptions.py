"""A signal's exception during the driver's work does not count as a failure of the driver."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.sql.driver_calls import interruption_behind


class TimedOut(Exception):
    """What somebody's alarm raises."""


def failure(inside: BaseException) -> DBAPIError:
    """What a driver makes of an exception in the middle of its work."""
    try:
        try:
            raise inside
        finally:
            raise pymysql.OperationalError(2003, "cannot connect")
    except pymysql.OperationalError as error:
        return DBAPIError("SELECT 1", None, error)


def test_the_callers_exception_is_found() -> None:
    alarm = TimedOut()
    assert interruption_behind(failure(alarm)) is alarm
    stop = KeyboardInterrupt()
    assert interruption_behind(failure(stop)) is stop


def test_failures_of_the_driver_are_its_own() -> None:
    for inside in (
        *(socket.gaierror(), ConnectionResetError(), ValueError(), TimeoutError()),
        *(asyncio.IncompleteReadError(b"", 4), struct.error()),
    ):
        assert interruption_behind(failure(inside)) is None


def test_what_the_caller_handles_is_no_interruption() -> None:
    """Who publishes while it handles an error of its own learns that the database is away."""
    service = QueueService("sqlite:////missing/folder/queues.db")
    alarm, handled = TimedOut(), ValueError()

    def look() -> None:
        with pytest.raises(DatabaseUnavailable):
            service.create_queue("jobs")
        assert interruption_behind(failure(alarm), handled) is alarm
        assert interruption_behind(failure(OSError()), handled) is None

    while_handling(handled, look)
    service.stop()


def while_handling(error: Exception, act: Callable[[], object]) -> None:
    def fail() -> None:
        raise error

    try:
        fail()
    except type(error):
        act()
