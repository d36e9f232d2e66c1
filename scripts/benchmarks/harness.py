"""Benchmarks of queue_over_sql: how to run them, and their common parts.

One module is one benchmark, run from the root of the repository::

    python -m scripts.benchmarks.archived_history              # all engines, the size on the page
    python -m scripts.benchmarks.archived_history --engines sqlite --archived 50000 --rounds 3
    python -m scripts.benchmarks.page > docs/benchmarks.md     # the page, from the results

``./scripts/benchmarks/run archived_history`` does the same after installing what it needs.

A run starts private servers that write each commit to the disk, as in production, and ends them. It
writes ``scripts/benchmarks/results/<benchmark>.json``: the measurements of each round, the command,
and the machine's cores and memory. Nothing else about the machine is recorded.

Compared variants run in turns, round after round, so that a busy moment of the machine affects
both. A ratio is the median of the ratios of single rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from queue_over_sql import QueueService
from queue_over_sql.service import parts_of
from queue_over_sql.testing.servers import (
    DEFAULT_ENGINES,
    H2Server,
    MariadbServer,
    MysqlServer,
    PostgresqlServer,
    PrivateServer,
)
from queue_over_sql.testing.servers.process import numbers

RESULTS = Path(__file__).with_name("results")
ENGINES = DEFAULT_ENGINES
TITLES = {
    "postgresql": "PostgreSQL",
    "mariadb": "MariaDB",
    "mysql": "MySQL",
    "sqlite": "SQLite",
    "h2": "H2",
}
"""The names of the engines on the page, in order."""
_SERVERS: dict[str, type[PrivateServer]] = {
    server.engine: server for server in (PostgresqlServer, MariadbServer, MysqlServer, H2Server)
}
_GIB = 1 << 30
LARGE = 1_000_000


class NewDatabase(Protocol):
    """Makes an empty database on the present server."""

    def __call__(self, name: str) -> str:
        """Create the database `name` and return its SQLAlchemy URL."""
        ...


@contextlib.contextmanager
def databases_of(engine: str) -> Iterator[NewDatabase]:
    """Run a private, durable server of `engine`; SQLite's databases are files in a new folder.

    Raises:
        ServerMissing: the engine has no server here; the message says what to install.
    """
    if engine in _SERVERS:
        _prefer_cached_jar()
        with _SERVERS[engine](durable=True) as server:
            yield server.create_database
        return
    with tempfile.TemporaryDirectory(prefix="queue-over-sql-benchmark-") as folder:
        yield lambda name: f"sqlite:///{Path(folder) / name}.db"


def run_alone(service: QueueService, statements: Sequence[str]) -> None:
    """Run statements separately, outside of a transaction, as maintenance statements require."""
    engine = parts_of(service).connections.engine
    for statement in statements:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement).close()


def sources_of(requirement: str, folder: Path, python: Path) -> Path:
    """Download the source distribution of a package, and unpack it; returns its folder.

    Args:
        requirement: as for pip, such as ``celery==5.6.3``.
        folder: where to.
        python: the interpreter that it is for.
    """
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    options = ["--quiet", "--no-deps", "--no-binary", requirement.partition("==")[0]]
    subprocess.run([*pip, "download", *options, requirement], cwd=folder, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


def _prefer_cached_jar() -> None:
    """Let driver and server use the H2 jar of the scripts, as the tests do."""
    jars = sorted((RESULTS.parents[2] / ".cache").glob("h2-*.jar"), key=numbers)
    if jars:
        os.environ.setdefault("H2_JAR", str(jars[-1]))


@dataclass(frozen=True)
class Machine:
    """The description of the machine in a result."""

    cores: int
    memory_gib: int

    @staticmethod
    def here() -> Machine:
        """This machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Machine(len(os.sched_getaffinity(0)), round(memory / _GIB))

    def __str__(self) -> str:
        return f"{self.cores} cores, {self.memory_gib} GiB"


def write_result(name: str, command: str, measured: Mapping[str, Any]) -> Path:
    """Write the result file of the benchmark `name`; returns its path.

    Args:
        name: the benchmark's module.
        command: the command that was run.
        measured: JSON values.
    """
    content = {"command": command, "machine": asdict(Machine.here()), **measured}
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def read_result(name: str) -> dict[str, Any]:
    """Read the result file of the benchmark `name`.

    Raises:
        FileNotFoundError: it was never run.
    """
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def was_run(name: str) -> bool:
    """Whether the benchmark `name` has a result file, or one for each engine."""
    names = [name, *[f"{name}_{engine}" for engine in ENGINES]]
    return any((RESULTS / f"{each}.json").exists() for each in names)


def rounds_at(size: int, rounds: int) -> int:
    """The rounds for a number of messages: a third above a million, where noise is small."""
    return rounds if size <= LARGE else max(1, rounds // 3)


def origin_of(result: Mapping[str, Any]) -> str:
    """Where a result is from: its command, its machine, and the commands of what it kept."""
    said = f"Measured by `{result['command']}` on {Machine(**result['machine'])}."
    kept = ", ".join(f"`{command}`" for command in result.get("earlier", ()))
    return f"{said} What it did not measure was measured before by {kept}." if kept else said


def progress_bar() -> Progress:
    """A bar for long runs, on standard error, so that results can be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
