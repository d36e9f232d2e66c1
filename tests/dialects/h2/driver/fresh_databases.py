"""What the tests of the H2 driver share: fresh databases, and Python processes of their own.

The jar is the one that the driver finds, so ``H2_JAR`` chooses the version that is tested.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine

import sqlalchemy_h2  # noqa: F401 - registers the dialect

ROOT = Path(__file__).parents[4]
PRELUDE = """
import os, signal, sys, threading, time
from sqlalchemy import create_engine, exc
import sqlalchemy_h2
def count(engine):
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM t").scalar()
"""


def memory_url() -> str:
    """Return the URL of a database in memory that no other test has."""
    return f"h2+jaydebeapi:///mem:{uuid.uuid4().hex}"


@contextmanager
def memory_engine(**options: Any) -> Iterator[Engine]:
    """Make an engine on a fresh database in memory, which ends with the block."""
    engine = create_engine(memory_url(), **options)
    yield engine
    with engine.connect() as connection:
        connection.exec_driver_sql("SHUTDOWN IMMEDIATELY")
        connection.invalidate()
    engine.dispose()


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python process that runs :data:`PRELUDE` and ``code``, and keep its output."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(code: str, *arguments: str, seconds: float = 60) -> tuple[int, list[str]]:
    """Run such a process to its end; return its exit code and the lines that it printed.

    A process that hangs is killed and fails the test; so does one with a traceback.
    """
    process = start_python(code, *arguments)
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(f"hung for {seconds} s after printing {output!r}; {errors}") from None
    assert "Traceback" not in errors, errors
    return process.returncode, output.splitlines()
