"""Forks of this process: what it does before, and what a child must not inherit.

SQLite's connections do not survive a fork (``dialects/sqlite/forks.py``), so it closes them all
first: what runs ends, and what begins waits. Those of other databases survive in the parent, and a
child opens new ones. It never ends the inherited ones, because that would send a rollback through
the sockets that the parent still uses. On all databases a child frees the locks that other threads
of its parent had.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

# How long a fork waits for what other threads do with a file.
_TIMEOUT: Final = 5.0
_STEP: Final = 0.001


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
            if (do := interrupt()) is not None:
                do()

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


class Heir(Protocol):
    """What a child forgets of its parent."""

    def forked(self) -> None:
        """Forget it, in the child."""


_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()
# Reentrant, because a signal handler may fork while this thread is about to.
_forking = threading.RLock()
_followed: list[ForkGuard] = []
_heirs: weakref.WeakSet[Heir] = weakref.WeakSet()
_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
# Held while the list of connections changes, and during a fork.
_noting = threading.RLock()
_present: list[Connection] = []


def _before() -> None:
    _forking.acquire()
    _followed[:] = _guards
    for guard in _followed:
        guard.before_fork()
    deadline = time.monotonic() + _TIMEOUT
    for guard in _followed:
        guard.close(deadline)
    _noting.acquire()
    # A child loses at once what its parent's other threads hold.
    _present[:] = _connections


def _after_in_parent() -> None:
    _present.clear()
    _noting.release()
    for guard in _followed:
        guard.after_fork(in_child=False)
    _followed.clear()
    _forking.release()


def _after_in_child() -> None:
    _keep_for_good(list(_present))
    _connections.clear()
    _present.clear()
    for guard in _followed:
        guard.after_fork(in_child=True)
    _followed.clear()
    for lock in list(_locks):
        _free(lock)
    for heir in list(_heirs):
        heir.forked()
    # A server in C that forks calls nothing before.
    for held in (_noting, _forking):
        with contextlib.suppress(RuntimeError):
            held.release()


def _keep_for_good(inherited: list[Connection]) -> None:
    # Even when the interpreter ends, which empties all modules.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def note_connection(connection: Connection) -> None:
    """Keep a forked child from ending this connection of its parent."""
    with _noting:
        _connections.add(connection)


def note_heir(heir: Heir) -> None:
    """Call its ``forked`` in each forked child."""
    _heirs.add(heir)


def _free(lock: Any) -> None:
    # The standard library does the same with its own locks.
    if not lock._is_owned():  # noqa: SLF001 - this thread releases its own ones itself
        lock._at_fork_reinit()  # noqa: SLF001


def shared_lock() -> threading.RLock:
    """A reentrant lock that is free in a forked child if another thread held it.

    The child has no such thread, and would wait for it for ever.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
