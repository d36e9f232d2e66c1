"""Runs the real command in a process of its own, as a user or a script would.

`run` and `succeed` take that process from one that has imported everything (see
``warm_process.py``); the others start it from the beginning.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.warm_process import warm

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
SPARK_SECONDS = 300.0
# The last one is another in each test, and so would be the process that is kept for its variables.
SETTINGS = (
    "QUEUE_OVER_SQL_URL",
    "QUEUE_OVER_SQL_SCHEMA",
    "QUEUE_OVER_SQL_TABLE_PREFIX",
    "PYTEST_CURRENT_TEST",
)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    out: str
    err: str

    @property
    def records(self) -> list[Any]:
        """Standard output read as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> Any:
        """The one JSON line of standard output."""
        [record] = self.records
        return record


def command(*arguments: str) -> list[str]:
    """The command line of ``queue-over-sql`` with `arguments`."""
    return [sys.executable, "-m", "queue_over_sql", *arguments]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of the command, plus `variables`."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    paths = [str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "100",
        "TERMINAL_WIDTH": "100",
        **variables,
    }


def run(
    *arguments: str,
    url: str | None = None,
    stdin: str | bytes = b"",
    cwd: Path | None = None,
    seconds: float = SECONDS,
    **variables: str,
) -> Ended:
    """Run the command to its end; `url` goes by the environment."""
    if url is not None:
        variables["QUEUE_OVER_SQL_URL"] = url
    ended = warm(tuple(environment().items())).run(
        arguments,
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        environment=environment(**variables),
        cwd=cwd,
        seconds=seconds,
    )
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def run_spark(*arguments: str, url: str, cwd: Path | None = None) -> Ended:
    """Run a command of the group ``spark`` with ``--json``, in a small session of its own."""
    return run(
        *("spark", *arguments, "--json", "--master", "local[2]"),
        *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"),
        url=url,
        cwd=cwd,
        seconds=SPARK_SECONDS,
    )


def succeed(*arguments: str, url: str, stdin: str | bytes = b"") -> Ended:
    """Run the command and insist on exit code 0."""
    ended = run(*arguments, url=url, stdin=stdin)
    assert 0 == ended.exit_code, ended.err
    return ended


@contextmanager
def started(
    *arguments: str, url: str, log: Path, cwd: Path | None = None, group: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command and let it run; standard error goes to `log`, output to ``log + .out``.

    With `group` it leads a process group of its own.
    """
    with log.open("wb") as err, Path(f"{log}.out").open("wb") as out:
        process = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(QUEUE_OVER_SQL_URL=url),
            cwd=cwd,
            process_group=0 if group else None,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def on_terminal(
    *arguments: str, url: str, seconds: float = SECONDS, **variables: str
) -> tuple[int, str]:
    """Run the command with a terminal as its output; returns the exit code and all it wrote."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment(QUEUE_OVER_SQL_URL=url, TERM="xterm", **variables),
    )
    os.close(theirs)
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        written = b"".join(_until_closed(ours))
        return process.wait(), written.decode()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        os.close(ours)


def _until_closed(terminal: int) -> Iterator[bytes]:
    # Linux reports the end of a terminal as an input/output error.
    with suppress(OSError):
        while data := os.read(terminal, 65_536):
            yield data
