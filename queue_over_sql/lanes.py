"""Lanes: long-held connections that commit by themselves, and who may use each of them now."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

_log = logging.getLogger(__name__)

# A lane that was idle for longer is asked whether it still lives before it is used.
_IDLE_SECONDS = 5.0
# How long the stop of a service waits for a thread that is using its connection.
_CLOSE_SECONDS = 1.0


class Lane:
    """One long-held connection, and who may use it now."""

    def __init__(
        self, connection: Connection, restore: Callable[[Connection], None] | None = None
    ) -> None:
        self.connection = connection
        # Undoes what was set in its session, so that the pool may lend it to anybody.
        self._restore = restore
        self.lock = threading.RLock()
        self._closed = False
        self.used_at = time.monotonic()

    def alive(self) -> bool:
        """Whether the connection can be used; asks the server when it was idle."""
        if not self.usable:
            return False
        if time.monotonic() - self.used_at < _IDLE_SECONDS:
            return True
        try:
            self.connection.exec_driver_sql("SELECT 1").close()
        except SQLAlchemyError:
            return False
        return True

    @property
    def usable(self) -> bool:
        """Whether nothing happened to the connection, as far as is known on this side."""
        return not (self._closed or self.connection.closed or self.connection.invalidated)

    def close(self) -> None:
        """Give the connection back to the pool, once; a broken or busy one is only forgotten.

        The end of its thread and the stop of the service may come here at the same moment.
        """
        if not self.lock.acquire(timeout=_CLOSE_SECONDS):
            return
        try:
            if not self._closed:
                self._closed = True
                self._give_back()
        except Exception as error:  # noqa: BLE001 - drivers raise what they like on a dead socket
            _log.debug("A connection could not be given back: %s", error)
        finally:
            self.lock.release()

    def _give_back(self) -> None:
        broken = self.connection.closed or self.connection.invalidated
        try:
            if self._restore is not None and not broken:
                self._restore(self.connection)
        except BaseException:
            self.connection.invalidate()
            raise
        finally:
            self.connection.close()


class Lanes(Protocol):
    """The long-held connections of a service, each lent to one caller at a time."""

    def borrow(self, *, durable: bool) -> Lane:
        """A lane for the caller alone, who must give it back; again the same one until then."""
        ...

    def give_back(self, lane: Lane) -> None:
        """End what ``borrow`` began."""
        ...

    def guard(self) -> contextlib.AbstractContextManager[object]:
        """What keeps others off while the caller uses a connection that is no lane."""
        ...

    def drain(self, seconds: float) -> None:
        """Wait until others have given back what they borrowed, at most so long."""
        ...

    def close(self) -> None:
        """Close all that nobody uses; what is in use is forgotten."""
        ...


class ThreadLanes:
    """The lanes of one thread; they are given back when it ends and this object dies."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lanes: dict[bool, Lane] = {}

    def __del__(self) -> None:
        if self.pid == os.getpid():
            for lane in list(self.lanes.values()):
                lane.close()


class LanesOfThreads:
    """Each thread has its own lanes, which it keeps.

    Args:
        make: opens a lane, durable or not.
        forked: called before the first lane of a process that was forked.
    """

    def __init__(self, make: Callable[[bool], Lane], forked: Callable[[], None]) -> None:
        self._make = make
        self._forked = forked
        self._local = threading.local()
        self._all: weakref.WeakSet[ThreadLanes] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # Kept for ever in a forked child: to free them would send a rollback down the sockets
        # that the parent still uses.
        self._inherited: list[ThreadLanes] = []

    def borrow(self, *, durable: bool) -> Lane:
        """The thread's own lane, asked whether it still lives where it was idle."""
        lanes = getattr(self._local, "lanes", None)
        if lanes is None or lanes.pid != os.getpid():
            lanes = self._new_thread_lanes()
        lane: Lane | None = lanes.lanes.get(durable)
        if lane is None or not lane.alive():
            if lane is not None:
                lane.close()
            lane = lanes.lanes[durable] = self._make(durable)
        lane.lock.acquire()
        return lane

    def give_back(self, lane: Lane) -> None:
        """Let those who close lanes have it."""
        lane.lock.release()

    def guard(self) -> contextlib.AbstractContextManager[object]:
        """Nobody has to be kept off: every other connection has one user."""
        return contextlib.nullcontext()

    def drain(self, seconds: float) -> None:
        """Wait for the acts of other threads."""
        deadline = time.monotonic() + seconds
        for lane in self._own():
            if lane.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                lane.lock.release()

    def close(self) -> None:
        """Close the lanes of all threads of this process."""
        for lane in self._own():
            lane.close()

    def _own(self) -> list[Lane]:
        with self._lock:
            everybody = list(self._all)
        return [
            lane
            for lanes in everybody
            if lanes.pid == os.getpid()
            for lane in list(lanes.lanes.values())
        ]

    def _new_thread_lanes(self) -> ThreadLanes:
        with self._lock:
            if self._pid != os.getpid():
                self._forked()
                self._pid = os.getpid()
        inherited = getattr(self._local, "lanes", None)
        if inherited is not None:
            self._inherited.append(inherited)
        lanes = self._local.lanes = ThreadLanes()
        with self._lock:
            self._all.add(lanes)
        return lanes


class OneLane:
    """One lane for all callers, of a database that is no more than its connection.

    Args:
        make: opens it.
        lock: makes the locks that keep callers off each other.
    """

    def __init__(self, make: Callable[[bool], Lane], lock: Callable[[], Any]) -> None:
        self._make = make
        self._making = lock()
        self._using = lock()
        self._lane: Lane | None = None

    def borrow(self, *, durable: bool) -> Lane:
        """The lane, once everybody else has given it back."""
        del durable
        self._using.acquire()
        try:
            return self._opened()
        except BaseException:
            self._using.release()
            raise

    def give_back(self, lane: Lane) -> None:
        """Let the next one have it."""
        del lane
        self._using.release()

    def guard(self) -> contextlib.AbstractContextManager[object]:
        """Every connection is this one."""
        guard: contextlib.AbstractContextManager[object] = self._using
        return guard

    def drain(self, seconds: float) -> None:
        """Wait for the act of another."""
        if self._using.acquire(timeout=seconds):
            self._using.release()

    def close(self) -> None:
        """Close it."""
        if self._lane is not None:
            self._lane.close()

    def _opened(self) -> Lane:
        with self._making:
            if self._lane is None:
                self._lane = self._make(True)  # noqa: FBT003 - there is no other kind
            return self._lane
