"""The runtime of an event loop: the synchronous core runs in greenlets and awaits on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

from queue_over_sql.aio.background import TaskBackground
from queue_over_sql.aio.lanes import LanesOfTasks
from queue_over_sql.aio.waiting import TaskCondition, TaskEvent, TaskLock
from queue_over_sql.dialects.async_engines import open_async_engine
from queue_over_sql.pauses import pause_on_loop
from queue_over_sql.settings import check_whole

if TYPE_CHECKING:
    from queue_over_sql.dialects.engines import OpenedEngine
    from queue_over_sql.lanes import Lane, Lanes
    from queue_over_sql.runtime import Condition, Event, Lock, Running

_log = logging.getLogger(__name__)
T = TypeVar("T")

# How long it may take to connect. Drivers give up earlier, but aiomysql not on a server that lets
# it connect and then says nothing.
_OBTAIN_SECONDS = 15.0


class TaskRunning:
    """Work in a task of its own."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self.task.done()

    def join(self, timeout: float | None = None) -> None:
        """Let other tasks run until it ends, or for so long."""
        if not self.task.done():
            await_only(asyncio.wait([self.task], timeout=timeout))


class EventLoop:
    """Tasks: what waits lets the other tasks of the loop run.

    Args:
        max_connections: how many acts may run on the database at once; a caller more waits.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = check_whole("max_connections", max_connections)
        self._tasks: set[asyncio.Task[object]] = set()
        self._leaving: list[AsyncGenerator[None, None]] = []
        self._jobs: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._acting_for: weakref.WeakKeyDictionary[asyncio.Task[Any], Hashable] = (
            weakref.WeakKeyDictionary()
        )

    def open_engine(self, database: Any) -> OpenedEngine:
        """An engine of an asynchronous driver."""
        return open_async_engine(database)

    def lanes(self, make: Callable[[bool], Lane], forked: Callable[[], None]) -> Lanes:
        """Lent to one task after the other."""
        del forked  # An event loop does not outlive a fork.
        return LanesOfTasks(make, self.me, self._max_connections, self._is_job)

    def lock(self) -> Lock:
        """Held by a task."""
        return TaskLock(self.me)

    def condition(self) -> Condition:
        """Notified by tasks of the same loop."""
        return TaskCondition()

    def event(self) -> Event:
        """Set by tasks and callbacks of the same loop."""
        return TaskEvent()

    def sleep(self, seconds: float) -> None:
        """Let the other tasks run for so long."""
        pause_on_loop(seconds)

    def me(self) -> Hashable:
        """The task, or the one that it does something for."""
        task = asyncio.current_task()
        return task if task is None else self._acting_for.get(task, task)

    def undisturbed(self, act: Callable[[], T]) -> T:
        """Do it in a task of its own, which a cancelled caller waits for before it ends."""
        task = asyncio.get_running_loop().create_task(greenlet_spawn(act))
        self._acting_for[task] = self.me()
        return await_only(_finished(task))

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """Get it in a task of its own, which goes on without the caller when that is cancelled."""
        task = asyncio.get_running_loop().create_task(greenlet_spawn(get))
        self._acting_for[task] = self.me()
        try:
            await_only(asyncio.wait([task], timeout=_OBTAIN_SECONDS))
        except asyncio.CancelledError:
            self._keep(task)
            task.add_done_callback(lambda ended: self._return(ended, give_back))
            raise
        if task.done():
            return task.result()
        self._keep(task)
        task.add_done_callback(lambda ended: self._return(ended, give_back))
        task.cancel()
        msg = f"no answer within {_OBTAIN_SECONDS:.0f} s"
        raise TimeoutError(msg)

    def start(self, name: str, function: Callable[..., object], *arguments: object) -> Running:
        """A task, which is cancelled when its loop ends."""
        spawned = greenlet_spawn(function, *arguments)
        task = asyncio.get_running_loop().create_task(spawned, name=name)
        self._keep(task)
        return TaskRunning(task)

    def stop(self, running: Running) -> bool:
        """Cancel the task."""
        return isinstance(running, TaskRunning) and running.task.cancel()

    def background(self) -> TaskBackground:
        """Jobs in tasks."""
        return TaskBackground(self._run_job)

    @contextlib.contextmanager
    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> Iterator[None]:
        """Only a loop in the main thread of a POSIX system can have that; any other goes without.

        The function is called by the loop, between two steps of its tasks.
        """
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in numbers}
        taken: list[signal.Signals] = []
        try:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                for number in numbers:
                    loop.add_signal_handler(number, handler, number)
                    taken.append(number)
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def at_exit(self, function: Callable[[], object]) -> None:
        """Call it when the loop ends: ``asyncio.run()`` closes generators last of all."""

        async def leaving() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                await greenlet_spawn(function)

        generator = leaving()
        self._leaving.append(generator)
        await_only(anext(generator))

    def _is_job(self) -> bool:
        return asyncio.current_task() in self._jobs

    def _run_job(self, job: Callable[[], None]) -> Coroutine[Any, Any, None]:
        async def run() -> None:
            task = asyncio.current_task()
            if task is not None:
                self._jobs.add(task)
            await greenlet_spawn(job)

        return run()

    def _keep(self, task: asyncio.Task[Any]) -> None:
        # The loop itself would let it be collected while it runs.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _return(self, task: asyncio.Task[T], give_back: Callable[[T], object]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.start("queue-over-sql-return", give_back, task.result())

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("The task %s failed.", task.get_name(), exc_info=error)


async def _finished(task: asyncio.Task[T]) -> T:
    """The result of a task that goes on to its end although its caller is cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()
    raise cancelled
