"""A case that fails is run once more, by itself, when all others have ended.

What passes then is listed under FLAKY with the output of both runs, and counted in the closing
line. It does not fail the run, but it is a defect to mend. ``--flaky=N`` turns this on, for up to N
failures: more than that is no bad luck.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

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
