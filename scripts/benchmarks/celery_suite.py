"""Celery's own integration tests on queue_over_sql's transport and on Redis.

The tests come from Celery's source distribution, which pip downloads into a temporary folder. They
run from there as they are, with the broker of ``TEST_BROKER``; results are in Redis everywhere,
because half of the tests need it. Each file of tests runs by itself with an empty broker, because
workers of one file disturb the next; all brokers run it at once, since it mostly waits. Celery
itself marks most of them as flaky: those are repeated up to 5 times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress

from queue_over_sql.testing.servers import ServerMissing
from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.celery_kills import BROKERS, OURS, Broker, redis_server
from scripts.benchmarks.harness import (
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    sources_of,
    write_result,
)
from scripts.benchmarks.workloads_processes import PEERS, ROOT

NAME: Final = "celery_suite"
CELERY: Final = "5.6.3"
TESTS: Final = "t/integration"
FILES: Final = ("tasks", "canvas", "inspect", "loader", "serialization", "worker")
"""The files of tests; the others are about RabbitMQ, Azure or Django, or need no broker."""
PACKAGES: Final = (
    "pytest==8.4.2",
    "pytest-celery==1.3.0",
    "pytest-click==1.1.0",
    "pytest-order==1.5.0",
    "pytest-rerunfailures==16.7",
    "pytest-subtests==0.15.0",
    "pytest-timeout==2.4.0",
    "pydantic>=2.7",
    "django>=5.1",
)
"""What the tests need beside the peers' environment."""
# One of them waits 10 s seven times.
_TEST_SECONDS = 180
_OUTCOMES = ("passed", "failed", "skipped", "expected to fail")


def prepare(folder: Path) -> tuple[Path, Path]:
    """Install what Celery's tests need; returns the Python to use, and Celery's sources."""
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    requirements = str(ROOT / "scripts" / "benchmarks" / "contenders" / "requirements.txt")
    base = str(PEERS / "venv" / "bin" / "python")
    commands = [
        [base, "-m", "venv", str(folder / "venv")],
        [*pip, "install", "-r", requirements, *PACKAGES],
        # Later ones end a read after 5 s by default; the tests of this Celery read for 10 s.
        [*pip, "install", "redis<8"],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    # Workers are programs of their own in some tests, and are to know the URL, too.
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    (site / "broker.pth").write_text(f"{path}; import {OURS}\n", encoding="utf-8")
    return python, sources_of(f"celery=={CELERY}", folder, python)


def run_tests(
    python: Path, sources: Path, broker: str, backend: str, tests: list[str]
) -> dict[str, tuple[str, str]]:
    """Run tests; returns the outcome and the reason of each."""
    report = sources / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", *tests, "-v", f"--junit-xml={report}"]
    command += [f"--timeout={_TEST_SECONDS}", "-p", "no:cacheprovider"]
    address = backend.removeprefix("redis://").partition("/")[0].partition(":")
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "REDIS_HOST": address[0],
        "REDIS_PORT": address[2],
        "TEST_BROKER": broker,
        "TEST_BACKEND": backend,
    }
    with (sources / "tests.log").open("ab") as log:
        subprocess.run(
            command, cwd=sources, check=False, stdout=log, stderr=log, env=os.environ | environment
        )
    outcomes: dict[str, tuple[str, str]] = {}
    for case in ET.parse(report).iter("testcase") if report.exists() else ():  # noqa: S314
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome, reason = _outcome_of(case)
        # Parts of a test have an entry each.
        if outcomes.get(name, ("passed",))[0] != "failed":
            outcomes[name] = (outcome, reason)
    return outcomes


def _outcome_of(case: ET.Element) -> tuple[str, str]:
    for tag in ("failure", "error"):
        if (found := case.find(tag)) is not None:
            return "failed", found.get("message", "")[:300]
    if (found := case.find("skipped")) is not None:
        kind = "expected to fail" if found.get("type") == "pytest.xfail" else "skipped"
        return kind, found.get("message", "")[:300]
    return "passed", ""


def _named(address: Callable[[str], str], prefix: str, name: str) -> str:
    return address(f"{prefix}_{name}")


def measure(
    brokers: list[Broker], files: list[str], progress: Progress
) -> Iterator[dict[str, Any]]:
    """Run all files on all brokers; gives the outcomes and what did not pass after each file.

    Raises:
        ServerMissing: there is no Redis, which has the results.
    """
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-suite-")))
        python, unpacked = prepare(folder)
        addresses: dict[str, Callable[[str], str]] = {}
        for broker in brokers:
            engine = broker.engine
            try:
                server = stack.enter_context(databases_of(engine) if engine else redis_server())
            except ServerMissing as error:
                progress.print(f"left out: {error}")
                continue
            addresses[broker.name] = server
        bar = progress.add_task("files", total=len(addresses) * len(files))
        wanted = [broker for broker in brokers if broker.name in addresses]

        def run(broker: Broker, file: str, results: str) -> dict[str, Any]:
            named = partial(_named, addresses[broker.name], f"{broker.name}_{file}")
            setup = broker.setup(named, folder)
            sources = folder / broker.name
            shutil.copytree(unpacked, sources, dirs_exist_ok=True)
            tests = [f"{TESTS}/test_{file}.py"]
            outcomes = run_tests(python, sources, setup.broker, results, tests)
            counted = Counter(outcome for outcome, _ in outcomes.values())
            failed = {name: why for name, (what, why) in outcomes.items() if what == "failed"}
            entry = {"counts": {name: counted[name] for name in _OUTCOMES}, "failed": failed}
            progress.print(f"{file} {broker.name}: {entry}")
            progress.advance(bar)
            return entry

        for file in files:
            with ExitStack() as servers, ThreadPoolExecutor(len(wanted)) as pool:
                results = [servers.enter_context(redis_server())("") for _ in wanted]
                entries = pool.map(run, wanted, repeat(file), results)
                for broker, entry in zip(wanted, entries, strict=True):
                    found.setdefault(broker.name, {})[file] = entry
            yield found


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    files = result["files"]
    lines = [
        "## Celery's own integration tests",
        "",
        f"""\
The tests of Celery {result["celery"]} for {", ".join(files)}: how many pass, of those that are not
skipped and not expected to fail. Results are in Redis everywhere.""",
        "",
        f"| broker | {' | '.join(files)} |",
        f"|---|{'--:|' * len(files)}",
    ]
    brokers = [broker for broker in BROKERS if broker.name in result["brokers"]]
    for broker in brokers:
        found = result["brokers"][broker.name]
        cells = []
        for file in files:
            counts = found[file]["counts"]
            cells.append(f"{counts['passed']} of {counts['passed'] + counts['failed']}")
        lines.append(f"| {broker.title} | {' | '.join(cells)} |")
    failed = [
        f"- {broker.title}: `{name}`: {' '.join(why.split())[:160]}"
        for broker in brokers
        for file in files
        for name, why in result["brokers"][broker.name][file]["failed"].items()
    ]
    lines += ["", *(["What failed:", "", *failed, ""] if failed else []), origin_of(result)]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- the command


def _kept(options: Any) -> tuple[dict[str, Any], list[str]]:
    """The last results and their commands, with ``--keep``.

    Raises:
        SystemExit: they are of another Celery.
    """
    if not options.keep:
        return {}, []
    last = read_result(NAME)
    if last["celery"] != CELERY:
        raise SystemExit("keep results only of the same release of Celery")
    return last["brokers"], [*last.get("earlier", []), last["command"]]


def main() -> None:
    """Run the tests, or print their part of the page."""
    parser = parser_of(__doc__, engines=("sqlite", "postgresql"))
    parser.add_argument("--files", default=",".join(FILES), help="of tests, by commas")
    parser.add_argument("--keep", action="store_true", help="keep what it does not run again")
    options = parser.options({"files": "inspect"})
    if options.markdown:
        print(section(), end="")
        return
    files = options.files.split(",")
    engines = ["", *options.engines.split(",")]
    brokers = [
        each for each in BROKERS if each.engine in engines and (each.ours or not each.engine)
    ]
    kept, earlier = _kept(options)
    command = parser.command(NAME, options).replace(" --keep False", "").replace(" True", "")
    with progress_bar() as progress:
        for found in measure(brokers, files, progress):
            merged = {name: kept.get(name, {}) | found.get(name, {}) for name in (*kept, *found)}
            run = [name for name in FILES if all(name in each for each in merged.values())]
            content = {"celery": CELERY, "earlier": earlier, "files": run, "brokers": merged}
            progress.print(f"it is in {write_result(NAME, command, content)}")
    print(section())


if __name__ == "__main__":
    main()
