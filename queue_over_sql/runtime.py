"""Runtime: all that waits, in one place, so that the same core serves threads and an event loop.

Whatever may last is asked of a ``Runtime``: locks that are held while SQL runs, sleeping, waiting
for arrivals, work beside the caller, and which connection the caller works on. ``Threads`` is the
runtime of ``QueueService``; that of an event loop is in ``queue_over_sql.aio``.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from queue_over_sql.background import Background
from queue_over_sql.dialects.engines import OpenedEngine, open_engine
from queue_over_sql.lanes import Lane, Lanes, LanesOfThreads

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")


class Held(Protocol):
    """What is held inside a ``with``."""

    def __enter__(self) -> object: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class Lock(Held, Protocol):
    """A lock that its holder may take again; it may be held while SQL runs."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: D102
    def release(self) -> None: ...  # noqa: D102


class Condition(Held, Protocol):
    """What happens now and then, for those who wait for it; used inside its own ``with``."""

    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102
    def notify_all(self) -> None: ...  # noqa: D102


class Event(Protocol):
    """What happens once; may be set from the handler of a signal."""

    def is_set(self) -> bool: ...  # noqa: D102
    def set(self) -> None: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102


class Running(Protocol):
    """Work that was started beside the caller."""

    def is_alive(self) -> bool: ...  # noqa: D102
    def join(self, timeout: float | None = None) -> None: ...  # noqa: D102


class Runtime(Protocol):
    """How one service waits, and does several things at once."""

    def open_engine(self, database: Any) -> OpenedEngine:
        """Make the engine that the service works with."""
        ...

    def lanes(self, make: Callable[[bool], Lane], forked: Callable[[], None]) -> Lanes:
        """The long-held connections, which ``make`` opens."""
        ...

    def lock(self) -> Lock:
        """A lock for what lasts."""
        ...

    def condition(self) -> Condition:
        """Something to wait for, again and again."""
        ...

    def event(self) -> Event:
        """Something to wait for once."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        ...

    def me(self) -> Hashable:
        """Who is calling: one of those that can hold a lock."""
        ...

    def undisturbed(self, act: Callable[[], T]) -> T:
        """Do it to its end, although the caller may have been told to stop meanwhile."""
        ...

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """Get something; what a caller that was told to stop cannot take is given back.

        Raises:
            TimeoutError: it took too long.
        """
        ...

    def start(self, name: str, function: Callable[..., object], *arguments: object) -> Running:
        """Run a function beside the caller, until it ends or the process does."""
        ...

    def stop(self, running: Running) -> bool:
        """End what was started; returns whether that can be done from outside."""
        ...

    def background(self) -> Background:
        """What runs jobs at their intervals."""
        ...

    def at_exit(self, function: Callable[[], object]) -> None:
        """Have a function called in the end, where nobody has ended things before."""
        ...

    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Have a function called for signals meanwhile, where this caller can have that."""
        ...


class Threads:
    """Threads: whoever calls waits by itself, and the operating system runs the others."""

    def open_engine(self, database: Any) -> OpenedEngine:
        """An engine of a synchronous driver."""
        return open_engine(database)

    def lanes(self, make: Callable[[bool], Lane], forked: Callable[[], None]) -> Lanes:
        """Each thread has its own."""
        return LanesOfThreads(make, forked)

    def lock(self) -> Lock:
        """Held by a thread."""
        return threading.RLock()

    def condition(self) -> Condition:
        """Notified from any thread."""
        return threading.Condition()

    def event(self) -> Event:
        """Set from any thread."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Let this thread do nothing for so long."""
        time.sleep(seconds)

    def me(self) -> Hashable:
        """The thread."""
        return threading.get_ident()

    def undisturbed(self, act: Callable[[], T]) -> T:
        """Nothing but a signal disturbs a thread."""
        return act()

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """The caller takes what it got."""
        del give_back
        return get()

    def start(self, name: str, function: Callable[..., object], *arguments: object) -> Running:
        """A thread that does not keep the process from ending."""
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def stop(self, running: Running) -> bool:
        """Nobody can end a thread from outside: what it holds is given back, and it is left."""
        del running
        return False

    def background(self) -> Background:
        """Jobs in threads."""
        return Background()

    def at_exit(self, function: Callable[[], object]) -> None:
        """Call it when the process ends."""
        atexit.register(function)

    @contextlib.contextmanager
    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> Iterator[None]:
        """Only the main thread can have that; any other goes without."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, lambda number, _: handler(number)) for n in numbers}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)


THREADS = Threads()
"""The one runtime of threads; it has no state of its own."""
