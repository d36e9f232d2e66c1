"""Lanes of tasks: some long-held connections, each lent to one task for one act at a time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from sqlalchemy.util import await_only

from queue_over_sql.errors import ServiceClosed
from queue_over_sql.pauses import pause_on_loop

if TYPE_CHECKING:
    from queue_over_sql.lanes import Lane

_DRAIN_STEP = 0.01


@dataclasses.dataclass
class _Loan:
    """A lane that is lent, of which kind, from which room, and how often it was borrowed."""

    lane: Lane
    durable: bool
    room: asyncio.Semaphore | None
    depth: int = 0


class LanesOfTasks:
    """Lends lanes to tasks; when all are lent, the next task waits for its turn.

    Args:
        make: opens a lane, durable or not.
        me: tells who is calling.
        at_most: lanes of each kind.
        beside: whether the caller is a job that must not wait behind the others.
    """

    def __init__(
        self,
        make: Callable[[bool], Lane],
        me: Callable[[], Hashable],
        at_most: int,
        beside: Callable[[], bool],
    ) -> None:
        self._make = make
        self._me = me
        self._beside = beside
        self._free: dict[bool, list[Lane]] = {True: [], False: []}
        self._room = {kind: asyncio.Semaphore(at_most) for kind in self._free}
        self._lent: dict[Hashable, _Loan] = {}
        # Also those whose lane is just being opened or closed.
        self._busy: set[Hashable] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def borrow(self, *, durable: bool) -> Lane:
        """A lane that no other task uses; inside an act, the one that the act runs on.

        Raises:
            RuntimeError: the caller is in another event loop than the one before.
        """
        me = self._me()
        loan = self._lent.get(me)
        if loan is None:
            self._check_loop()
            room = self._enter(durable=durable)
            self._busy.add(me)
            try:
                loan = self._lent[me] = _Loan(self._next(durable=durable), durable, room)
            except BaseException:
                self._busy.discard(me)
                _leave(room)
                raise
        loan.depth += 1
        return loan.lane

    def give_back(self, lane: Lane) -> None:
        """Lend it to the next task."""
        me = self._me()
        loan = self._lent[me]
        loan.depth -= 1
        if loan.depth:
            return
        del self._lent[me]
        try:
            if self._closed:
                lane.close()
            elif lane.usable:
                self._free[loan.durable].append(lane)
        finally:
            self._busy.discard(me)
            _leave(loan.room)

    def guard(self) -> contextlib.AbstractContextManager[object]:
        """Nobody has to be kept off: every other connection has one user."""
        return contextlib.nullcontext()

    def drain(self, seconds: float) -> None:
        """Wait for the acts of other tasks."""
        deadline = time.monotonic() + seconds
        while self._busy - {self._me()} and time.monotonic() < deadline:
            pause_on_loop(_DRAIN_STEP)

    def close(self) -> None:
        """Close what is not lent now; the rest is closed when it comes back."""
        self._closed = True
        for lanes in self._free.values():
            while lanes:
                lanes.pop().close()

    def _enter(self, *, durable: bool) -> asyncio.Semaphore | None:
        """Wait until there is room for one lane more."""
        if self._beside():
            return None
        room = self._room[durable]
        await_only(room.acquire())
        return room

    def _next(self, *, durable: bool) -> Lane:
        """The lane that was used last, asked whether it still lives where it was idle."""
        if self._closed:
            raise ServiceClosed
        lanes = self._free[durable]
        while lanes:
            lane = lanes.pop()
            if lane.alive():
                return lane
            lane.close()
        return self._make(durable)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            msg = (
                "this AsyncQueueService belongs to another event loop: its connections cannot "
                "leave it. Make one service in each loop."
            )
            raise RuntimeError(msg)


def _leave(room: asyncio.Semaphore | None) -> None:
    if room is not None:
        room.release()
