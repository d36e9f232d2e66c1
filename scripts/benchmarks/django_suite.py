"""Django's own tests of tasks, with our backend in the place of Django's two.

The tests come from Django's source distribution, which pip downloads into a temporary folder. They
run from there as they are (``django_site/suite.py``), in a database that Django makes for them.
What demands something of Django's backends that is no promise of a backend is told apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.django_kills import PYTHON
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
    sources_of,
    write_result,
)
from scripts.benchmarks.workloads_processes import ROOT
from tests.contrib.django.site import database_of

NAME: Final = "django_suite"
DJANGO: Final = "6.0.10"
OF_OTHERS: Final = {
    "ImmediateBackendTestCase.test_cannot_get_result": (
        "that results cannot be read; ours reads them"
    ),
    "ImmediateBackendTestCase.test_cannot_refresh_result": (
        "that results cannot be read; ours reads them"
    ),
    "ImmediateBackendTestCase.test_cannot_pass_run_after": (
        "that `run_after` is refused; ours takes it"
    ),
    "DummyBackendTestCase.test_refresh_result": (
        "to change a stored result in memory; ours is in the database"
    ),
    "DummyBackendTestCase.test_refresh_result_async": (
        "to change a stored result in memory; ours is in the database"
    ),
    "TaskTestCase.test_unknown_queue_name": (
        "that with an empty `QUEUES` any name is a queue; each of ours is a table"
    ),
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "that a task runs before the transaction that enqueued it commits; ours waits for that"
    ),
}
"""Tests of Django's backends that ours is not to pass, and what they demand."""
_SECONDS: Final = 300


def measure(engine: str) -> dict[str, Any]:
    """Run the tests on an engine; returns how many ran, and what those say that failed."""
    with (
        databases_of(engine) as new_database,
        tempfile.TemporaryDirectory(prefix="queue-over-sql-suite-") as name,
    ):
        folder = Path(name)
        sources = sources_of(f"django=={DJANGO}", folder, PYTHON)
        database = database_of(new_database("tasks"))
        if engine == "sqlite":
            database["TEST"] = {"NAME": str(folder / "test.db")}
        ended = subprocess.run(
            [str(PYTHON), "-m", "scripts.benchmarks.django_site.suite", str(sources / "tests")],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "DATABASE": json.dumps(database),
                # Django's runner keeps its own files there.
                "TMPDIR": name,
            },
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    print(ended.stdout, ended.stderr, file=sys.stderr)
    ended.check_returncode()
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Django's own tests of tasks",
        "",
        f"""\
All tests of tasks of Django {DJANGO}, with our backend in the place of Django's two. The settings
whose `QUEUES` is empty get those that the tests use. Some tests demand what only Django's backends
do; they fail with ours, and are counted in the last column.""",
        "",
        "| engine | tests | pass | fail | only of Django's backends |",
        "|---|--:|--:|--:|--:|",
    ]
    wrong: list[str] = []
    others: dict[str, str] = {}
    for engine, found in result["engines"].items():
        failed: dict[str, str] = found["failed"]
        real = {name: why for name, why in failed.items() if _short(name) not in OF_OTHERS}
        others |= {_short(name): OF_OTHERS[_short(name)] for name in failed.keys() - real.keys()}
        wrong += [f"- {TITLES[engine]}: `{name}`: {why[:160]}" for name, why in real.items()]
        numbers = [found["tests"], found["tests"] - len(failed), len(real)]
        numbers.append(len(failed) - len(real))
        lines.append(f"| {TITLES[engine]} | {' | '.join(map(str, numbers))} |")
    lines += ["", *(["What failed:", "", *wrong, ""] if wrong else [])]
    if others:
        said = [f"- `{name}`: {what}." for name, what in sorted(others.items())]
        lines += ["Only Django's backends are to pass these, which demand:", "", *said, ""]
    return "\n".join([*lines, origin_of(result)]) + "\n"


def _short(name: str) -> str:
    """The class and the test."""
    return ".".join(name.split(".")[-2:])


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the tests, or print their part of the page."""
    parser = parser_of(__doc__, engines=("sqlite", "postgresql"))
    options = parser.options({})
    if not options.markdown:
        found = {engine: measure(engine) for engine in options.engines.split(",")}
        print(write_result(NAME, parser.command(NAME, options), {"engines": found}))
    print(section(), end="")


if __name__ == "__main__":
    main()
