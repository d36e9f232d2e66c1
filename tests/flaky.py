"""A case that fails is run once more, by itself, when all others have ended.

What passes then is listed under FLAKY with the output of both runs, and counted in the closing
line. It does not fail the run, but it is a defect to mend. ``--flaky=N`` turns this on, for up to N
failures: more than that is no bad luck.

What a failed case leaves behind, such as a thread that waits or an open connection, is let go
before the next case begins. Else that one would get its errors and warnings, and fail in its wake.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

_failed = pytest.StashKey[bool]()
# How long a case's threads may take to end when it has failed.
_END_SECONDS = 5.0
TITLE = "FLAKY: failed, then passed by itself. Each is a defect to mend"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--flaky`` and what the second run needs."""
    parser.addoption("--flaky", type=int, default=0, metavar="N", help="run up to N failures again")
    parser.addoption("--passed-to", metavar="FILE", help="write the names of passed cases to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run where one of the options asks for it; not in the processes of xdist."""
    if hasattr(config, "workerinput"):
        return
    if config.getoption("--passed-to"):
        config.pluginmanager.register(_Passed(Path(config.getoption("--passed-to"))))
    elif config.getoption("--flaky"):
        config.pluginmanager.register(_SecondRun(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which cases failed."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let go what a failed case left behind."""
    before = set(threading.enumerate())
    result = yield
    if item.stash.get(_failed, False):
        _end_threads(set(threading.enumerate()) - before)
        _collect()
    return result


def _end_threads(left: set[threading.Thread]) -> None:
    hook, threading.excepthook = threading.excepthook, lambda _: None
    ends_at = time.monotonic() + _END_SECONDS
    try:
        for thread in left:
            thread.join(max(0.0, ends_at - time.monotonic()))
    finally:
        threading.excepthook = hook


def _collect() -> None:
    # Pytest keeps the frames of the last failure there, for debuggers.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        with contextlib.suppress(AttributeError):
            delattr(sys, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


class _Passed:
    """Notes what passed in every phase."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and not report.failed

    def pytest_sessionfinish(self) -> None:
        names = [name for name, passed in self._passed.items() if passed]
        self._file.write_text("\n".join(names), encoding="utf-8")


class _SecondRun:
    """Runs the failures again, and takes what passes out of the failures of this run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._output = ""

    # After xdist has ended its processes, and with them the servers that would run beside.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        stats = self._terminal.stats
        bad = [*stats.get("failed", []), *stats.get("error", [])]
        names = list(dict.fromkeys(report.nodeid for report in bad))
        known = all(isinstance(report, pytest.TestReport) for report in bad)
        if not names or not known or len(names) > self._config.getoption("--flaky"):
            return
        passed, self._output = self._run_again(names)
        for kind in ("failed", "error"):
            kept = [report for report in stats.get(kind, []) if report.nodeid not in passed]
            stats[kind] = kept
            if not kept:
                stats.pop(kind, None)
        flaky = {report.nodeid: report for report in bad if report.nodeid in passed}
        if flaky:
            stats["flaky"] = list(flaky.values())
        if passed >= set(names):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        flaky = terminalreporter.stats.get("flaky", [])
        if not flaky:
            return
        terminalreporter.section(TITLE)
        for report in flaky:
            terminalreporter.write_line(f"FLAKY {report.nodeid}")
            terminalreporter.write_line("--- its first run:")
            terminalreporter.write_line(str(report.longrepr))
            for title, content in report.sections:
                terminalreporter.write_line(f"[{title}] {content}")
        terminalreporter.write_line("--- the second run of all that failed:")
        terminalreporter.write_line(self._output)
        for report in flaky:
            terminalreporter.write_line(f"FLAKY {report.nodeid}")

    def _run_again(self, names: list[str]) -> tuple[set[str], str]:
        self._terminal.write_line("")
        self._terminal.write_line(f"Running {len(names)} failed cases again, by themselves.")
        with tempfile.TemporaryDirectory() as folder:
            asked, passed = Path(folder, "asked"), Path(folder, "passed")
            asked.write_text("\n".join(names), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
            engines: str | None = self._config.getoption("--engines", None)
            options = [f"--engines={engines}"] if engines else []
            done = subprocess.run(
                [*command, "-rA", "-o", "addopts=--import-mode=importlib --strict-markers",
                 *options, f"--passed-to={passed}", f"@{asked}"],
                cwd=self._config.rootpath,
                capture_output=True,
                text=True,
                check=False,
            )  # fmt: skip
            found = passed.read_text(encoding="utf-8") if passed.exists() else ""
        return set(found.splitlines()) & set(names), done.stdout + done.stderr

    @property
    def _terminal(self) -> TerminalReporter:
        found = self._config.pluginmanager.get_plugin("terminalreporter")
        assert found is not None
        return found  # type: ignore[no-any-return]
