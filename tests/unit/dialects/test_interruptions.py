"""A signal's exception during the driver's work does not count as a failure of the driver."""

from __future__ import annotations

import asyncio
import socket
import struct

import pymysql
from sqlalchemy.exc import DBAPIError

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
