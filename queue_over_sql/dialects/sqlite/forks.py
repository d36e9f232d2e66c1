"""Forks of a process that uses SQLite, which does not survive them.

A child inherits SQLite's notes of the locks on a file, but not the locks of the operating system.
So it takes locks that it does not have, and others do not see it. Its parent, or any other process,
may delete the log into which the child writes, with all that the child has published. And if a
thread of the parent is inside SQLite when it forks, the child waits for it for ever.
https://www.sqlite.org/howtocorrupt.html, section 2.6

So a fork closes all connections first: what runs ends, and what begins waits. The child refuses a
file that was open nevertheless.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How long a fork waits for what other threads do with a file.
_PATIENCE: Final = 5.0
_STEP: Final = 0.001
# The system's lists of the files that this process has open.
_OPEN_FILES: Final = (Path("/proc/self/fd"), Path("/dev/fd"))


class ForkGuard:
    """Closes one service's connections before this process forks.

    Each use of a connection is noted by an object and the thread that uses it.
    """

    def __init__(self) -> None:
        self._uses: dict[object, int] = {}
        self._shut = False
        self._opened = threading.Event()
        self._close: Callable[[], Callable[[], None] | None] = lambda: None
        self._interrupts: list[Callable[[], Callable[[], None] | None]] = []

    def follow(self, close: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Set what closes all connections, while nobody uses one."""
        self._close = close
        _guards.add(self)

    def interrupt(self, interrupt: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Add what ends a long use of a connection; its user uses another one after the fork."""
        self._interrupts.append(interrupt)

    @property
    def forking(self) -> bool:
        """Whether the process forks now, so that connections are to be given back."""
        return self._shut

    def enter(self, use: object) -> None:
        """Note a use that begins; it waits while the process forks."""
        me = threading.get_ident()
        self._uses[use] = me
        while self._shut and list(self._uses.values()).count(me) == 1:
            # A thread that uses another connection meanwhile must go on, so that it ends.
            del self._uses[use]
            self._opened.wait()
            self._uses[use] = me

    def leave(self, use: object) -> None:
        """Note that a use has ended."""
        self._uses.pop(use, None)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Note a use during the block."""
        use = object()
        self.enter(use)
        try:
            yield
        finally:
            self.leave(use)

    def before_fork(self) -> None:
        """Let each new use wait, and interrupt the long ones."""
        self._opened.clear()
        self._shut = True
        for interrupt in self._interrupts:
            if (act := interrupt()) is not None:
                act()

    def close(self, deadline: float) -> None:
        """Wait until nobody uses a connection, and close all; leave them open after the deadline.

        They also stay open if the thread that forks uses one of them.
        """
        me = threading.get_ident()
        while others := set(self._uses.values()):
            if others == {me} or time.monotonic() > deadline:
                return
            time.sleep(_STEP)
        if (close := self._close()) is not None:
            close()

    def after_fork(self, *, in_child: bool) -> None:
        """Let everybody go on; a child has none of its parent's other threads."""
        if in_child:
            me = threading.get_ident()
            self._uses = {use: user for use, user in self._uses.items() if user == me}
            self._opened = threading.Event()
        self._shut = False
        self._opened.set()


class NoForkGuard(ForkGuard):
    """For databases whose connections survive a fork of this process: it does nothing."""

    def follow(self, close: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Nothing is closed."""

    def interrupt(self, interrupt: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Nothing is interrupted."""

    def enter(self, use: object) -> None:
        """No use is noted."""

    def leave(self, use: object) -> None:
        """No use was noted."""


_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()
# Reentrant, because a signal handler may fork while this thread is about to.
_forking = threading.RLock()
_followed: list[ForkGuard] = []
# The files that a parent had open: their numbers here, with device and inode.
_inherited: dict[int, tuple[int, int]] = {}


def _before() -> None:
    _forking.acquire()
    _followed[:] = _guards
    for guard in _followed:
        guard.before_fork()
    deadline = time.monotonic() + _PATIENCE
    for guard in _followed:
        guard.close(deadline)


def _after_in_parent() -> None:
    for guard in _followed:
        guard.after_fork(in_child=False)
    _followed.clear()
    _forking.release()


def _after_in_child() -> None:
    for guard in _followed:
        guard.after_fork(in_child=True)
    _followed.clear()
    _inherited.clear()
    _inherited.update(_open_files())
    # A server in C that forks calls nothing before.
    with contextlib.suppress(RuntimeError):
        _forking.release()


def _open_files() -> dict[int, tuple[int, int]]:
    found = {}
    folder = next((each for each in _OPEN_FILES if each.is_dir()), None)
    for name in [] if folder is None else os.listdir(folder):  # noqa: PTH208 - only numbers
        # One of them is the list itself, which is closed by now.
        with contextlib.suppress(OSError, ValueError):
            about = os.fstat(int(name))
            if stat.S_ISREG(about.st_mode):
                found[int(name)] = about.st_dev, about.st_ino
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


def refuse_inherited(file: str) -> None:
    """Refuse a file that this process's parent had open when it forked.

    Raises:
        DatabaseUnavailable: it had.
    """
    if not _inherited or not file:
        return
    try:
        about = Path(file).stat()
    except OSError:
        return
    wanted = about.st_dev, about.st_ino
    for number in [number for number, known in _inherited.items() if known == wanted]:
        try:
            now = os.fstat(number)
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != wanted:
            del _inherited[number]
            continue
        msg = (
            f"The database {file} was open in the parent process when it forked this process. "
            "SQLite's locks do not survive that, so messages would be lost. Start processes with "
            "the start method 'spawn', or let the parent close its connections and transactions "
            "before it forks."
        )
        raise DatabaseUnavailable(msg)
