"""Workers of Django's tasks that are killed, beside other backends for Django's tasks.

In each turn each library gets tasks, and a worker group runs them: 4 at once, in processes and
threads as the library has them. When some have ended, the whole group is killed with SIGKILL, and
the next group goes on; the last one may finish. The tasks themselves write a journal, a file beside
the database. So it is known of each task how often it began and ended, whatever the library says.

All sites run on one Python with one Django, each library in its own database on one server.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.progress import Progress

from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.harness import (
    RESULTS,
    TITLES,
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    write_result,
)
from scripts.benchmarks.workloads_processes import PEERS, ROOT
from tests.contrib.django.site import database_of

NAME: Final = "django_kills"
ENGINES: Final = ("postgresql", "mariadb", "mysql", "sqlite")
PYTHON: Final = PEERS / "django" / "bin" / "python"
WORKERS: Final[dict[str, Sequence[Sequence[str]]]] = {
    "ours": [["queue_worker", "--concurrency", "4", "--log-level", "warning"]],
    "django-ox": [["ox_worker", "--concurrency", "4"]],
    "dj-queue": [["dj_queue"]],
    "django-tasks-db": [["db_worker", "--no-startup-delay"]] * 4,
}
"""The processes of a worker group, each as a command of Django."""
# How long a group may take for its share of the tasks, how long nothing may happen at the end, and
# how long the end of a turn may take.
_SHARE_SECONDS: Final = 60.0
_STILL_SECONDS: Final = 12.0
_END_SECONDS: Final = 180.0
_OVER: Final = {"SUCCESSFUL", "FAILED", "LOST", "DISCARDED"}


@dataclass
class Site:
    """A site of one library: its environment, its journal, and what happened in it.

    Attributes:
        library: its name.
        folder: of the journal and the log.
        url: of its database.
        ids: of the results of all tasks, in the order of their numbers.
        kills: how many groups were killed.
        waits: seconds of each turn from the last kill to the end of the last task.
        ended: what did not go as it should.
    """

    library: str
    folder: Path
    url: str
    ids: list[str] = field(default_factory=list)
    kills: int = 0
    waits: list[float] = field(default_factory=list)
    ended: str = ""

    def __post_init__(self) -> None:
        self.journal.touch()
        self._read = 0
        self._entries: dict[str, list[tuple[int, float]]] = {"began": [], "ended": []}
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "scripts.benchmarks.django_site.settings",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples" / "demo")]),
            "LIBRARY": self.library,
            "DATABASE": json.dumps(database_of(self.url)),
            "JOURNAL": str(self.journal),
        }

    @property
    def journal(self) -> Path:
        """The file that the tasks write."""
        return self.folder / f"{self.library}.journal"

    @property
    def log(self) -> Path:
        """What the workers print."""
        return self.folder / f"{self.library}.log"

    def entries(self) -> dict[str, list[tuple[int, float]]]:
        """The numbers and times of the tasks that began, and of those that ended, in order."""
        with self.journal.open(encoding="utf-8") as journal:
            journal.seek(self._read)
            while (line := journal.readline()).endswith("\n"):
                what, number, at = line.split()
                self._entries[what].append((int(number), float(at)))
                self._read += len(line)
        return self._entries

    def ended_numbers(self) -> set[int]:
        """The tasks that have ended at least once."""
        return {number for number, _ in self.entries()["ended"]}

    def run(self, *arguments: str, given: str = "") -> str:
        """Run a program of the site to its end; returns what it prints.

        Raises:
            SiteFailed: it fails.
        """
        ended = subprocess.run(
            [str(PYTHON), "-m", *arguments],
            env=self.environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=_END_SECONDS,
            check=False,
        )
        if ended.returncode:
            raise SiteFailed((ended.stdout + ended.stderr).strip().splitlines()[-1])
        return ended.stdout

    def ask(self, *arguments: str, given: str = "") -> Any:
        """What the program of the site answers."""
        return json.loads(self.run("scripts.benchmarks.django_site", *arguments, given=given))

    def states(self) -> Counter[str]:
        """How many tasks the library reports in each state."""
        return Counter(self.ask("states", given=json.dumps(self.ids)))

    @contextlib.contextmanager
    def group(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """A worker group; at the end all its processes are killed, with their children."""
        processes: list[subprocess.Popen[bytes]] = []
        with self.log.open("ab") as log:
            try:
                for command in WORKERS[self.library]:
                    process = subprocess.Popen(
                        [str(PYTHON), "-m", "django", *command],
                        env=self.environment,
                        cwd=self.folder,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                    processes.append(process)
                yield processes
            finally:
                self._kill_all()
                for process in processes:
                    process.wait()

    def _kill_all(self) -> None:
        """Kill whatever has this site's journal, because supervisors make groups of their own."""
        mark = f"JOURNAL={self.journal}".encode()
        found = [0]
        while found:  # one may have started another meanwhile
            found = [int(each.parent.name) for each in _environments() if mark in _content(each)]
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def turn(self, tasks: int, kills: int, limit: float) -> None:
        """Enqueue tasks, let groups run them that are killed, and let the last one finish.

        Args:
            tasks: how many.
            kills: how many groups are killed.
            limit: for how many seconds groups are killed.
        """
        self.ids += self.ask("enqueue", str(len(self.ids)), str(tasks))
        share = tasks // (kills + 2)
        moments = random.Random(len(self.ids))  # noqa: S311 - spreads, guards nothing
        until = time.monotonic() + limit
        for done in range(kills):
            if time.monotonic() > until:
                self.ended = f"{done} kills in the {limit:.0f} s of a turn"
                break
            had = len(self.ended_numbers())
            with self.group() as processes:
                self._wait_for(had + share, processes)
                time.sleep(moments.uniform(0, 0.1))
            self.kills += 1
        killed = time.monotonic()
        with self.group():
            self._wait_for_the_end()
        after = [at for _, at in self.entries()["ended"] if at > killed]
        self.waits.append(round(max(after, default=killed) - killed, 1))

    def _wait_for(self, count: int, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + _SHARE_SECONDS
        while len(self.ended_numbers()) < count:
            if all(process.poll() is not None for process in processes):
                raise SiteFailed(self.log.read_text(encoding="utf-8").strip().splitlines()[-1])
            if time.monotonic() > deadline:
                self.ended = f"a group did not get its share in {_SHARE_SECONDS:.0f} s"
                return
            time.sleep(0.05)

    def _wait_for_the_end(self) -> None:
        """Until each task is over, or nothing more happens."""
        began = changed = time.monotonic()
        states = Counter[str]()
        seen: Any = None
        while changed > time.monotonic() - _STILL_SECONDS:
            if time.monotonic() > began + _END_SECONDS:
                self.ended = f"not at rest after {_END_SECONDS:.0f} s"
                return
            # The states of all are dear, so they are asked when the journal says that it is time.
            quiet = changed < time.monotonic() - _STILL_SECONDS / 2
            if quiet or len(self.ended_numbers()) == len(self.ids):
                states = self.states()
                if not set(states) - _OVER:
                    return
            if (found := (self.journal.stat().st_size, states)) != seen:
                seen, changed = found, time.monotonic()
            time.sleep(0.1)

    def result(self) -> dict[str, Any]:
        """What became of the tasks."""
        entries = self.entries()
        ended = Counter(number for number, _ in entries["ended"])
        began = Counter(number for number, _ in entries["began"])
        return {
            "about": self.ask("about", self.library),
            "tasks": len(self.ids),
            "kills": self.kills,
            "begun_again": sum(count - 1 for count in began.values()),
            "never_finished": len(self.ids) - len(ended),
            "finished_twice": sum(count > 1 for count in ended.values()),
            "states": dict(self.states()),
            "seconds_after_the_last_kill": self.waits,
            "ended": self.ended,
        }


class SiteFailed(Exception):
    """A program of a site failed."""


def _environments() -> Iterable[Path]:
    return Path("/proc").glob("[0-9]*/environ")


def _content(environment: Path) -> list[bytes]:
    try:
        return environment.read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return []


def measure(engine: str, options: Any, progress: Progress) -> dict[str, Any]:
    """Let each library have its turns on one engine; returns results by library."""
    found: dict[str, Any] = {}
    with (
        databases_of(engine) as new_database,
        tempfile.TemporaryDirectory(prefix="queue-over-sql-kills-") as folder,
    ):
        sites: list[Site] = []
        for library in options.libraries.split(","):
            site = Site(library, Path(folder), new_database(library.replace("-", "_")))
            try:
                site.run("django", "migrate", "--verbosity", "0")
            except SiteFailed as error:
                progress.print(f"left out: {library}: {error}")
                found[library] = {"ended": str(error)}
                continue
            sites.append(site)
        for turn in range(options.turns):
            for site in sites[:: -1 if turn % 2 else 1]:
                try:
                    tasks, kills = options.tasks // options.turns, options.kills // options.turns
                    site.turn(tasks, kills, options.limit)
                except SiteFailed as error:
                    site.ended = str(error)
                progress.print(f"{engine}, {site.library}: {site.waits} s {site.ended}")
        return found | {site.library: site.result() for site in sites}


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the results."""
    results = {engine: read_result(f"{NAME}_{engine}") for engine in _measured()}
    first = next(iter(results.values()))
    lines = [
        "## Django's tasks while workers are killed",
        "",
        f"""\
{first["tasks"]:,} tasks of 20 ms for each library and engine, 4 at once, in {first["turns"]}
turns; all processes of the worker are killed with SIGKILL amid them, {first["kills"]} times, or as
often as there is time for. The tasks write a journal, which says how often each began and ended.
A dead worker counts as dead after
5 seconds, where a library can be told so. Tasks that never ended had not run to their end when
nothing happened any more, although workers ran. The library then still reports some as running, and
others as failed, though no task raises: dj-queue keeps these until an operator retries them, which
nobody did here. On SQLite ours sets WAL; the others ran with Django's default, which is slower with
several processes. A task that ended, whose worker was killed before it stored that, ends twice;
with the option `atomic` of ours, what it wrote in the database counts once. The seconds are from a
turn's last kill to the end of its last task, the median of the turns; other work on the machine
makes them longer, for all libraries.""",
        "",
        f"All tasks of these ended in the table: {', '.join(_lossless(results.values()))}.",
        "",
        "| engine | library | kills | not ended | running | failed | ended twice | seconds | |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for engine, result in results.items():
        label = TITLES[engine]
        for library, found in result["libraries"].items():
            cells = [label, library, *["-"] * 6, found["ended"]]
            if "states" in found:
                about = found["about"]
                cells[:2] = [f"{label} {about['server']}", f"{library} {about['version']}".strip()]
                numbers = [found["kills"], found["never_finished"]]
                numbers += [found["states"].get(state, 0) for state in ("RUNNING", "FAILED")]
                cells[2:7] = [f"{number:,}" for number in [*numbers, found["finished_twice"]]]
                cells[7] = f"{median(found['seconds_after_the_last_kill']):.1f}"
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *map(origin_of, results.values())]) + "\n"


def _lossless(results: Iterable[dict[str, Any]]) -> list[str]:
    """The libraries that finished all tasks, in each result."""
    found = [each["libraries"] for each in results]
    return [
        library
        for library in WORKERS
        if not any(each.get(library, {}).get("never_finished", 1) for each in found)
    ]


def _measured() -> list[str]:
    return [each for each in ENGINES if (RESULTS / f"{NAME}_{each}.json").exists()]


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=ENGINES)
    parser.add_argument("--libraries", default=",".join(WORKERS), help="by commas")
    parser.add_argument("--tasks", type=int, default=2000, help="of each library")
    parser.add_argument("--kills", type=int, default=20, help="of each library's worker groups")
    parser.add_argument("--turns", type=int, default=2, help="over which these are spread")
    parser.add_argument("--limit", type=float, default=120, help="seconds of kills in a turn")
    options = parser.options({"tasks": 200, "kills": 2, "turns": 1})
    if options.markdown:
        print(section(), end="")
        return
    # So that worker groups end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes = {name: getattr(options, name) for name in ("tasks", "kills", "turns")}
    with progress_bar() as progress:
        for engine in options.engines.split(","):
            options.engines = engine
            found = measure(engine, options, progress)
            command = parser.command(NAME, options)
            write_result(f"{NAME}_{engine}", command, {**sizes, "libraries": found})
    print(section())


if __name__ == "__main__":
    main()
