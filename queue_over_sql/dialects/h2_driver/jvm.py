"""The Java virtual machine of this process: started once, never ended, never used after a fork.

Threads: JPype attaches a Python thread to the JVM as a daemon when it first calls Java, so that
the process can end while such threads live. Only the thread that starts the JVM is attached
otherwise, which :func:`start` mends. JPype ends the JVM by :mod:`atexit`, so functions that were
registered there before the first engine for H2 was made find it gone. :mod:`.calls` sees
to the ends of threads and of the process.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

import jpype
import jpype.config

from .errors import InterfaceError, JException
from .locate import Jar, Runtime, find_jar, find_runtime

JVM_FLAGS: Final = (
    "-Xrs",  # SIGINT and SIGTERM stay Python's
    "-Xmx256m",  # Java's own default is a quarter of the machine
    "-Dh2.bindAddress=127.0.0.1",  # AUTO_SERVER would listen on every interface
)
"""Flags of every JVM that is started here; ``?jvm_args=`` come after them and so win."""

_NATIVE_ACCESS: Final = "--enable-native-access=ALL-UNNAMED"
_NATIVE_ACCESS_SINCE: Final = 24

_logger = logging.getLogger(__name__)
_lock = threading.Lock()


class Java:
    """The Java classes that the driver uses, looked up once."""

    def __init__(self) -> None:
        """Look the classes up; raises a Java exception when H2 is not on the class path."""
        find = jpype.JClass
        self.Driver = find("org.h2.Driver")
        self.Properties = find("java.util.Properties")
        self.Thread = find("java.lang.Thread")
        self.BigDecimal = find("java.math.BigDecimal")
        self.UUID = find("java.util.UUID")
        self.ByteArray = jpype.JArray(jpype.JByte)
        for name in ("LocalDate", "LocalTime", "LocalDateTime", "OffsetDateTime", "OffsetTime"):
            setattr(self, name, find(f"java.time.{name}"))
        for name in ("Byte", "Short", "Integer", "Long", "Float", "Double", "Boolean"):
            setattr(self, name, find(f"java.lang.{name}"))

    def __getattr__(self, name: str) -> Any:
        """Satisfy type checkers: every class is set in ``__init__``."""
        raise AttributeError(name)


class _State:
    """What :func:`start` has done in this process."""

    pid: int | None = None
    java: Java | None = None


def start(jar: str | None = None, jvm: str | None = None, arguments: tuple[str, ...] = ()) -> Java:
    """Start the JVM, or take the running one, and return the Java classes.

    ``jar``, ``jvm`` and ``arguments`` are those of the URL; the first connection of a process
    decides. Raises InterfaceError when the jar or Java is missing, Java is too old for the jar,
    or the process was forked after the JVM had started.
    """
    check_process()
    if _State.java is not None:
        return _State.java
    with _lock:
        if _State.java is None:
            if jpype.isJVMStarted():
                _add_jar(jar)
            else:
                _start(find_jar(jar), jvm, arguments)
            _State.pid = os.getpid()
            _State.java = Java()
    return _State.java


def java() -> Java:
    """Return the Java classes; the JVM must have been started."""
    if _State.java is None:
        raise InterfaceError("the JVM has not been started")
    return _State.java


def is_running() -> bool:
    """Say whether there is a JVM: none is left when the process has ended it."""
    return bool(jpype.isJVMStarted())


def is_forked() -> bool:
    """Say whether this process was forked from one that had started the JVM."""
    return _State.pid is not None and _State.pid != os.getpid()


def check_process() -> None:
    """Raise InterfaceError in a child process that was forked after the JVM started.

    Such a child holds the JVM's memory without its threads: it works for a while, then hangs
    in the first garbage collection.
    """
    if is_forked():
        raise InterfaceError(
            "the JVM was started before this process was forked and cannot be used in it: start "
            "processes with the 'spawn' method (or subprocess), or fork before the first "
            "connection to H2"
        )


def _start(jar: Jar, jvm: str | None, arguments: tuple[str, ...]) -> None:
    runtime = find_runtime(jar, jvm)
    flags = [*JVM_FLAGS, *_version_flags(runtime), *arguments]
    _logger.debug("starting Java %s for H2 %s", runtime, jar)
    try:
        jpype.startJVM(runtime.library, *flags, classpath=[jar.path], convertStrings=False)
    except (OSError, RuntimeError, JException) as error:
        raise InterfaceError(f"could not start Java ({runtime.library}): {error}") from error
    if threading.current_thread() is not threading.main_thread():
        _become_daemon()


def _version_flags(runtime: Runtime) -> list[str]:
    new = runtime.version is not None and runtime.version >= _NATIVE_ACCESS_SINCE
    return [_NATIVE_ACCESS] if new else []


def _become_daemon() -> None:
    """Attach this thread anew: the JVM would wait for ever for the thread that started it."""
    thread = jpype.JClass("java.lang.Thread")
    thread.detach()
    thread.attachAsDaemon()


def _add_jar(jar: str | None) -> None:
    """Make H2 known to a JVM that other code has started."""
    try:
        jpype.JClass("org.h2.Driver")
    except (TypeError, JException):
        jpype.addClassPath(find_jar(jar).path)


def _leave_jvm_alone() -> None:
    """Keep a forked child from waiting, as it exits, for the JVM's threads: it has none."""
    if jpype.isJVMStarted():
        jpype.config.onexit = False


os.register_at_fork(after_in_child=_leave_jvm_alone)
