"""Lanes: the long-held connections of one thread, which commit by themselves."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_log = logging.getLogger(__name__)

# A lane that was idle for longer is asked whether it still lives before it is used.
_IDLE_SECONDS = 5.0
# How long the stop of a service waits for a thread that is using its connection.
_CLOSE_SECONDS = 1.0


class Lane:
    """One long-held connection, and who may use it now."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lock = threading.RLock()
        self._closed = False
        self.used_at = time.monotonic()

    def alive(self) -> bool:
        """Whether the connection can be used; asks the server when it was idle."""
        if self.connection.closed or self.connection.invalidated:
            return False
        if time.monotonic() - self.used_at < _IDLE_SECONDS:
            return True
        try:
            self.connection.exec_driver_sql("SELECT 1").close()
        except SQLAlchemyError:
            return False
        return True

    def close(self) -> None:
        """Give the connection back to the pool, once; a broken or busy one is only forgotten.

        The end of its thread and the stop of the service may come here at the same moment.
        """
        if not self.lock.acquire(timeout=_CLOSE_SECONDS):
            return
        try:
            if not self._closed:
                self._closed = True
                self.connection.close()
        except Exception as error:  # noqa: BLE001 - drivers raise what they like on a dead socket
            _log.debug("A connection could not be given back: %s", error)
        finally:
            self.lock.release()


class ThreadLanes:
    """The lanes of one thread; they are given back when it ends and this object dies."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lanes: dict[bool, Lane] = {}

    def __del__(self) -> None:
        if self.pid == os.getpid():
            for lane in list(self.lanes.values()):
                lane.close()
