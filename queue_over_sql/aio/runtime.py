"""The runtime of an event loop: the synchronous core runs in greenlets and awaits on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import signal
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

from queue_over_sql.database.runtime import Runtime
from queue_over_sql.errors import ServiceClosed
from queue_over_sql.sql.driver_calls import pause_on_loop
from queue_over_sql.values.checks import check_whole

if TYPE_CHECKING:
    from queue_over_sql.database.runtime import Condition, Event, Interruption, Lock, Running
    from queue_over_sql.database.sessions import Session, Sessions


class TaskLock:
    """A reentrant lock for tasks."""

    def __init__(self, me: Callable[[], Hashable]) -> None:
        self._me = me
        self._lock = asyncio.Lock()
        self._holder: Hashable | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._me()
        if self._holder == me:
            self._depth += 1
            return True
        if self._lock.locked() and not blocking:
            return False
        if not await_only(self._taken(None if timeout < 0 else timeout)):
            return False
        self._holder, self._depth = me, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *failure: object) -> None:
        self.release()

    async def _taken(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._lock.acquire()
        except TimeoutError:
            return False


class TaskCondition:
    """A condition for tasks that wait for repeated events."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def wait(self, timeout: float | None = None) -> bool:
        loop = asyncio.get_running_loop()
        happened = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _resolve, happened, False)  # noqa: FBT003
        self._waiting[happened] = None
        try:
            return bool(await_only(happened))
        finally:
            del self._waiting[happened]
            if timer is not None:
                timer.cancel()

    def notify(self, n: int = 1) -> None:
        """Wake this many waiting tasks, the longest waiting first."""
        for happened in itertools.islice([each for each in self._waiting if not each.done()], n):
            _resolve(happened, True)  # noqa: FBT003

    def notify_all(self) -> None:
        for happened in self._waiting:
            _resolve(happened, True)  # noqa: FBT003

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """There is nothing to unlock."""


class TaskEvent:
    """An event that happens once."""

    def __init__(self) -> None:
        self._happened = False
        self._condition = TaskCondition()

    def is_set(self) -> bool:
        return self._happened

    def set(self) -> None:
        self._happened = True
        self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._happened:
            self._condition.wait(timeout)
        return self._happened


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


_DRAIN_STEP = 0.01


@dataclasses.dataclass
class _Loan:
    """A session lent to a task, the place that it takes, and how often it was borrowed."""

    session: Session
    durable: bool
    place: asyncio.Semaphore | None
    depth: int = 0


class TaskSessions:
    """Lends sessions to tasks; when all are lent, the next task waits for its turn.

    Args:
        at_most: the largest number of sessions of each kind.
        beside: whether the caller is a background job, which must not wait behind other tasks.
        few: whether it is one of those jobs of which only ``at_most`` have sessions at once.
    """

    def __init__(
        self,
        make: Callable[[bool], Session],
        me: Callable[[], Hashable],
        at_most: int,
        beside: Callable[[], bool],
        few: Callable[[], bool],
    ) -> None:
        self._make = make
        self._me = me
        self._beside = beside
        self._few = few
        self._free: dict[bool, list[Session]] = {True: [], False: []}
        self._places = {kind: asyncio.Semaphore(at_most) for kind in self._free}
        self._places_of_few = {kind: asyncio.Semaphore(at_most) for kind in self._free}
        self._lent: dict[Hashable, _Loan] = {}
        # Counts sessions that are being opened or closed, too.
        self._busy: set[Hashable] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def borrow(self, *, durable: bool) -> Session:
        """A session that no other task uses; inside an operation, the session of that operation.

        Raises:
            RuntimeError: the caller is in another event loop than the first caller.
        """
        me = self._me()
        loan = self._lent.get(me)
        if loan is None:
            self._check_loop()
            place = self._place(durable=durable)
            if place is not None:
                await_only(place.acquire())
            self._busy.add(me)
            try:
                loan = self._lent[me] = _Loan(self._next(durable=durable), durable, place)
            except BaseException:
                self._leave(me, place)
                raise
        loan.depth += 1
        return loan.session

    def give_back(self, session: Session) -> None:
        me = self._me()
        loan = self._lent[me]
        loan.depth -= 1
        if loan.depth:
            return
        del self._lent[me]
        try:
            if self._closed or session.unwanted:
                session.close()
            elif session.usable:
                self._free[loan.durable].append(session)
        finally:
            self._leave(me, loan.place)

    def drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._busy - {self._me()} and time.monotonic() < deadline:
            pause_on_loop(_DRAIN_STEP)

    def renew(self) -> None:
        for session in [
            *(each for free in self._free.values() for each in free),
            *(loan.session for loan in self._lent.values()),
        ]:
            session.unwanted = True

    def close(self) -> None:
        """Close all sessions that are not lent now; the others close when given back."""
        self._closed = True
        for sessions in self._free.values():
            while sessions:
                sessions.pop().close()

    def _place(self, *, durable: bool) -> asyncio.Semaphore | None:
        if self._few():
            return self._places_of_few[durable]
        return None if self._beside() else self._places[durable]

    def _leave(self, me: Hashable, place: asyncio.Semaphore | None) -> None:
        self._busy.discard(me)
        if place is not None:
            place.release()

    def _next(self, *, durable: bool) -> Session:
        if self._closed:
            raise ServiceClosed
        sessions = self._free[durable]
        while sessions:
            session = sessions.pop()
            if session.alive():
                return session
            session.close()
        return self._make(durable)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            msg = (
                "this AsyncQueueService belongs to another event loop. Create one service in each "
                "event loop."
            )
            raise RuntimeError(msg)


_log = logging.getLogger(__name__)
T = TypeVar("T")

# How long a connect may take. Drivers give up earlier, except aiomysql if a server accepts the
# connection but then does not answer.
_OBTAIN_SECONDS = 15.0
_FIRST = asyncio.FIRST_COMPLETED


class TaskRunning:
    """Work in its own task."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task

    def is_alive(self) -> bool:
        return not self.task.done()

    def join(self, timeout: float | None = None) -> None:
        if not self.task.done():
            await_only(asyncio.wait([self.task], timeout=timeout))


class TaskInterruption:
    """Cancels a task, and undoes this when the task has handled it.

    Args:
        task: the task.
        stopped: whether its end was requested.
    """

    def __init__(self, task: asyncio.Task[Any], stopped: Callable[[], bool]) -> None:
        self._task = task
        self._before = task.cancelling()
        self.stopped = stopped

    def begin(self) -> None:
        self._task.cancel()

    def end(self) -> bool:
        if not self.stopped() and self._task.cancelling() > self._before:
            # What the work of the task has cancelled, too.
            while self._task.cancelling() > self._before:
                self._task.uncancel()
            # It may not have been raised yet.
            with contextlib.suppress(asyncio.CancelledError):
                pause_on_loop(0)
        return self.stopped()


class EventLoop(Runtime):
    """Tasks: while one waits, the other tasks of the loop run.

    Args:
        max_connections: the largest number of operations on the database at once; further callers
            wait.
    """

    has_threads = False

    def __init__(self, max_connections: int) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._max_connections = check_whole("max_connections", max_connections)
        self._tasks: set[asyncio.Task[object]] = set()
        self._leaving: list[AsyncGenerator[None, None]] = []
        self._jobs: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._few: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._stopped: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        # The caller's task that a task works for, and how often that was cancelled before.
        self._owners: weakref.WeakKeyDictionary[
            asyncio.Task[Any], tuple[asyncio.Task[Any], int]
        ] = weakref.WeakKeyDictionary()
        self._acting_for: weakref.WeakKeyDictionary[asyncio.Task[Any], Hashable] = (
            weakref.WeakKeyDictionary()
        )

    def sessions(self, make: Callable[[bool], Session], forked: Callable[[], None]) -> Sessions:
        del forked  # An event loop does not outlive a fork.
        return TaskSessions(
            make,
            self.me,
            self._max_connections,
            beside=lambda: self.me() in self._jobs,
            few=lambda: self.me() in self._few,
        )

    def lock(self) -> Lock:
        return TaskLock(self.me)

    def condition(self) -> Condition:
        return TaskCondition()

    def event(self) -> Event:
        return TaskEvent()

    def sleep(self, seconds: float) -> None:
        pause_on_loop(seconds)

    def let_others_run(self) -> None:
        pause_on_loop(0)

    def me(self) -> Hashable:
        """The current task, or the task on whose behalf it runs."""
        task = asyncio.current_task()
        return task if task is None else self._acting_for.get(task, task)

    def undisturbed(self, do: Callable[[], T]) -> T:
        """Run it in its own task. A cancelled caller waits until this task has ended."""
        task = asyncio.get_running_loop().create_task(greenlet_spawn(do))
        self._acting_for[task] = self.me()
        return await_only(_finished(task))

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """Get it in its own task, which continues without the caller if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        there: asyncio.Future[T] = loop.create_future()
        taken: asyncio.Future[None] = loop.create_future()

        async def bring() -> None:
            there.set_result(await greenlet_spawn(get))
            try:
                await taken
            except asyncio.CancelledError:
                if not taken.cancelled():
                    raise
                # Another task could be cancelled before its first step, when the loop ends.
                await greenlet_spawn(give_back, there.result())

        task = loop.create_task(bring())
        self._acting_for[task] = self.me()
        either: list[asyncio.Future[Any]] = [task, there]
        try:
            await_only(asyncio.wait(either, timeout=_OBTAIN_SECONDS, return_when=_FIRST))
        except asyncio.CancelledError:
            taken.cancel()
            self._keep(task)
            raise
        if there.done():
            taken.set_result(None)
            return there.result()
        taken.cancel()
        if task.done():
            task.result()
        self._keep(task)
        task.cancel()
        msg = f"no answer within {_OBTAIN_SECONDS:.0f} s"
        raise TimeoutError(msg)

    def start(
        self,
        name: str,
        function: Callable[..., object],
        *arguments: object,
        job: bool = False,
        few: bool = False,
    ) -> Running:
        """Start a task, which is cancelled when its loop ends."""
        spawned = greenlet_spawn(function, *arguments)
        self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(spawned, name=name)
        if (here := asyncio.current_task()) is not None:
            self._owners[task] = self._owners.get(here, (here, here.cancelling()))
        self._keep(task)
        if job:
            self._jobs.add(task)
        if few:
            self._few.add(task)
        return TaskRunning(task)

    def start_from_outside(self, name: str, function: Callable[[], object]) -> None:
        if self._loop is None:
            msg = "the service is not started"
            raise RuntimeError(msg)
        self._loop.call_soon_threadsafe(lambda: self.start(name, function, job=True))

    def stop(self, running: Running) -> bool:
        if not isinstance(running, TaskRunning):
            return False
        self._stopped.add(running.task)
        return running.task.cancel()

    def interruption(self) -> Interruption | None:
        task = asyncio.current_task()
        return None if task is None else TaskInterruption(task, lambda: self._is_stopped(task))

    def _is_stopped(self, task: asyncio.Task[Any]) -> bool:
        # Who ends the loop cancels all tasks, also the one that the others work for.
        owner, before = self._owners.get(task, (task, 0))
        return task in self._stopped or owner.cancelling() > before

    @contextlib.contextmanager
    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> Iterator[None]:
        """Call a function on signals; only possible for a loop in the main thread on POSIX.

        The loop calls the function between two steps of its tasks.
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
        """Call a function when ``asyncio.run()`` closes generators, as its last step."""

        async def leaving() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                await greenlet_spawn(function)

        generator = leaving()
        self._leaving.append(generator)
        await_only(anext(generator))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        # The loop itself only keeps weak references to running tasks.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning(
                "The background task %s ended with an error.", task.get_name(), exc_info=error
            )


async def _finished(task: asyncio.Task[T]) -> T:
    """The result of a task that continues to its end even if its caller is cancelled."""
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
