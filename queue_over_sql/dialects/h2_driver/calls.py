"""Every call from Python into Java passes here, so that threads and the process can end.

At the end of the process daemon threads may still be inside of Java, and would come back to an
interpreter that is gone: the process would hang or abort. So the last act before JPype ends the
JVM is to let no thread in any more, and to wait shortly for those that are in.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import jpype.config

from . import jvm
from .errors import JException, JVMNotRunning, translate

_WAIT_AT_EXIT: Final = 2.0  # seconds
_LOOK_AGAIN: Final = 0.005  # seconds


class _Cancellable(Protocol):
    @property
    def reaches_out(self) -> bool:
        """Whether it only tries to connect to a server."""

    def cancel(self) -> None:
        """Ask what runs to stop soon."""


_inside: dict[int, _Cancellable] = {}
_main_thread: Final = threading.main_thread().ident


class _State:
    """What is known of the process."""

    ending = False


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Self = TypeVar("_Self", bound=_Cancellable)


def java_call(
    method: Callable[Concatenate[_Self, _P], _T],
) -> Callable[Concatenate[_Self, _P], _T]:
    """Let a method of a connection or cursor call Java; its exceptions become DB-API errors.

    Raises InterfaceError in a forked child, and SystemExit in a daemon thread when the process
    is ending.
    """

    @functools.wraps(method)
    def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        thread = threading.get_ident()
        if thread in _inside:
            return method(self, *args, **kwargs)
        _inside[thread] = self
        try:
            _enter(thread)
            return method(self, *args, **kwargs)
        except (JException, JVMNotRunning) as thrown:
            raise translate(thrown) from None
        finally:
            del _inside[thread]

    return call


def possible() -> bool:
    """Say whether this thread may call Java: what only tidies up leaves it alone otherwise."""
    return (
        jvm.is_running()
        and not jvm.is_forked()
        and not (_State.ending and threading.get_ident() != _main_thread)
    )


def _enter(thread: int) -> None:
    jvm.check_process()
    if not _thread_end.known:
        _thread_end.watch(thread)
    if _State.ending and thread != _main_thread:
        raise SystemExit


class _ThreadEnd(threading.local):
    """Per thread: an object that is deleted when the thread ends."""

    known = False
    guard: _Detacher | None = None

    def watch(self, thread: int) -> None:
        """Have this thread, unless it is the main one, detached from the JVM when it ends."""
        self.known = True
        if thread != _main_thread:
            self.guard = _Detacher()


class _Detacher:
    """Takes its thread off the JVM's list, where ended threads would pile up."""

    def __init__(self) -> None:
        # Kept here: when the interpreter ends the names of this module are gone before this.
        self._state = _State
        self._jvm = jvm

    def __del__(self) -> None:
        """Detach, while there is a JVM that belongs to this process."""
        if not (self._state.ending or self._jvm.is_forked()):
            self._jvm.java().Thread.detach()


_thread_end = _ThreadEnd()


@atexit.register
def _end() -> None:
    """Close Java for other threads, and empty it of them (runs before JPype's own exit)."""
    _State.ending = True
    if jvm.is_forked() or _emptied():
        return
    # Ending the JVM under a thread can hang. Without that H2 is left as after a kill.
    jpype.config.onexit = False


def _emptied() -> bool:
    """Cancel what runs in other threads, and say whether they have left Java in time."""
    me = threading.get_ident()
    deadline = time.monotonic() + _WAIT_AT_EXIT
    for thread, running in list(_inside.items()):
        if thread != me:
            with contextlib.suppress(JException, JVMNotRunning):
                running.cancel()
    while others := [running for thread, running in list(_inside.items()) if thread != me]:
        # Nothing ends an attempt to connect, and there is nothing that it could spoil.
        if time.monotonic() > deadline or all(running.reaches_out for running in others):
            return False
        time.sleep(_LOOK_AGAIN)
    return True
