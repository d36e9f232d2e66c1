"""Celery's workers killed and stopped while 1,000 tasks run, on one broker after another.

The same Celery application (``contenders/celery_tasks.py``) runs on queue_over_sql's transport, on
kombu's SQLAlchemy transport and on Redis. Its tasks have ``acks_late`` and keep a journal
themselves, so nothing that is counted comes from a broker. Three scenarios, each with 2 groups of
worker processes that share the work:

- ``kills``: a whole group of processes is killed by ``kill -9`` while it has tasks in hand, several
  times, and a new one starts at once.
- ``children``: a child is replaced after 10 tasks (``--max-tasks-per-child``), and single children
  are killed by ``kill -9``.
- ``stops``: a group is stopped by SIGTERM, as a deployment does, several times, while tasks run
  that are retried, wait for their time, or belong to chords.

A dead worker's tasks return after the same time everywhere: ``visibility_timeout`` of Redis is as
long as ``consumer_timeout`` of queue_over_sql. No task takes that long, which is in Redis' favour:
it has no other way to know that a worker lives.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress
from sqlalchemy import make_url

from queue_over_sql.testing.servers import ServerMissing
from queue_over_sql.testing.servers.process import free_port
from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.contenders.celery_tasks import PARTS, Setup
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    write_result,
)
from scripts.benchmarks.workloads_processes import PEERS, ROOT

NAME: Final = "celery_kills"
APPLICATION: Final = "scripts.benchmarks.contenders.celery_tasks"
SCENARIOS: Final = {
    "kills": "A whole group killed",
    "stops": "Warm stops",
    "children": "Children replaced and killed",
}
OURS: Final = "queue_over_sql.contrib.kombu"
RETURNED_AFTER: Final = 10
"""Seconds until the tasks of a dead worker return."""
GROUPS: Final = 2
CHILDREN: Final = 2
# An ack goes out at once after the end of a task; a kill this soon after the end may hit it.
_ACK_SECONDS = 1.0
# Longer than any broker needs until it redelivers what a dead worker had: Redis looks every 10 s.
_PATIENCE = 3.0 * RETURNED_AFTER + 5
_LEG_SECONDS = 100.0
_STOP_SECONDS = 30.0
_TICK = 0.05


class LegFailed(Exception):
    """A program of the run did not do what it was started for."""


@dataclass(frozen=True)
class Broker:
    """A broker of the comparison.

    Attributes:
        name: in the result.
        title: on the page.
        engine: whose server it needs; empty: Redis.
        ours: whether it is queue_over_sql's transport.
    """

    name: str
    title: str
    engine: str
    ours: bool

    def setup(self, address: Callable[[str], str], journal: Path) -> Setup:
        """How its processes work; `address` makes an empty database and returns its URL."""
        if not self.engine:
            # By default it looks every 100 s for what was visible for too long; so every 10 s.
            options = {"visibility_timeout": RETURNED_AFTER, "unacked_restore_throttle": 1}
            return Setup(address("broker"), address("results"), str(journal), options)
        broker, backend = map(_with_driver, (address("broker"), address("results")))
        if not self.ours:
            return Setup(f"sqla+{broker}", f"db+{backend}", str(journal), {})
        ours = {"service": {"consumer_timeout": RETURNED_AFTER}}
        return Setup(f"queue-over-sql+{broker}", f"db+{backend}", str(journal), ours, OURS)


BROKERS: Final = (
    *[
        Broker(f"ours_{engine}", f"ours on {TITLES[engine]}", engine, ours=True)
        for engine in TITLES
    ],
    Broker("sqla_sqlite", "kombu's SQLAlchemy, SQLite", "sqlite", ours=False),
    Broker("sqla_postgresql", "kombu's SQLAlchemy, PostgreSQL", "postgresql", ours=False),
    Broker("redis", "Redis", "", ours=False),
)


def _with_driver(url: str) -> str:
    """The URL with the driver that the peers' environment has."""
    parsed = make_url(url)
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    scheme = parsed.get_backend_name()
    scheme = "mysql" if scheme == "mariadb" else scheme
    parsed = parsed.set(drivername=drivers.get(scheme, scheme))
    return parsed.render_as_string(hide_password=False)


@contextmanager
def redis_server() -> Iterator[Callable[[str], str]]:
    """Run a private Redis; gives what returns the URL of its next empty database.

    Raises:
        ServerMissing: there is none here.
    """
    program = shutil.which("redis-server")
    if program is None:
        msg = "there is no redis-server: apt-get install redis-server"
        raise ServerMissing(msg)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="queue-over-sql-benchmark-") as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        # The file of each write, so that it keeps what it accepted as the databases do.
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                numbers = count()
                yield lambda _: f"redis://127.0.0.1:{port}/{next(numbers)}"
            finally:
                process.terminate()


# ---------------------------------------------------------------- processes


def python() -> str:
    """The Python of the peers' environment, which has Celery and all clients.

    Raises:
        LegFailed: it is not installed.
    """
    program = PEERS / "venv" / "bin" / "python"
    if not program.exists():
        msg = "Celery is not installed: ./scripts/benchmarks/run celery_kills installs it"
        raise LegFailed(msg)
    return str(program)


def _environment(setup: Setup) -> dict[str, str]:
    return os.environ | setup.environment() | {"PYTHONPATH": str(ROOT)}


def start(setup: Setup, *arguments: str) -> subprocess.Popen[str]:
    """Start the application as a program."""
    return subprocess.Popen(
        [python(), "-m", APPLICATION, *arguments],
        env=_environment(setup),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer_of(program: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a program's answer.

    Raises:
        LegFailed: it failed, or took too long.
    """
    try:
        said, errors = program.communicate(timeout=_LEG_SECONDS)
    except subprocess.TimeoutExpired as error:
        program.kill()
        program.communicate()
        msg = f"a program took over {_LEG_SECONDS:.0f} s"
        raise LegFailed(msg) from error
    if program.returncode:
        raise LegFailed(" ".join(errors.strip().splitlines()[-3:])[-500:])
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


def ask(setup: Setup, *arguments: str) -> dict[str, Any]:
    """Run the application as a program; returns its answer."""
    return answer_of(start(setup, *arguments))


class Group:
    """One Celery worker with its children, in a group of processes of its own."""

    _started = 0

    def __init__(self, setup: Setup, log: Path, *options: str) -> None:
        Group._started += 1
        self.name = f"w{Group._started}"
        self._setup = replace(setup, worker=self.name)
        command = [python(), "-m", "celery", "-A", APPLICATION, "worker", "--pool", "prefork"]
        command += ["--concurrency", str(CHILDREN), "--hostname", f"{self.name}@%h"]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, "--loglevel", "WARNING", *options],
                env=_environment(self._setup) | {"C_FORCE_ROOT": "1"},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether the worker is no more."""
        return self._process.poll() is not None

    def kill(self) -> float:
        """Kill all its processes at once; returns when."""
        os.killpg(self._process.pid, signal.SIGKILL)
        at = time.time()
        self._process.wait()
        return at

    def stop(self) -> float | None:
        """Stop it by SIGTERM, so that it finishes what it has.

        Returns:
            The seconds that it took; None if it had to be killed.
        """
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        return round(time.monotonic() - began, 1)


# ---------------------------------------------------------------- the account


@dataclass(frozen=True)
class Run:
    """One run of one task in one process."""

    number: int
    worker: str
    pid: int
    began: float


@dataclass
class Account:
    """What the journal says.

    Attributes:
        tasks: how many were published.
        path: the journal.
        runs: all that began, with their end; None: it did not end.
        ends: of each task, its ends, in order: when, and by which run.
        short: numbers of the bodies of chords that did not get all results.
        deaths: when a process was killed.
    """

    tasks: int
    path: Path
    runs: dict[Run, float | None] = field(default_factory=dict)
    ends: dict[int, list[tuple[float, Run]]] = field(default_factory=lambda: defaultdict(list))
    short: set[int] = field(default_factory=set)
    deaths: dict[int, float] = field(default_factory=dict)
    _open: dict[tuple[int, int], Run] = field(default_factory=dict)
    _read: int = 0

    def read(self) -> bool:
        """Read what was written since; returns whether there was something."""
        if not self.path.exists():
            return False
        with self.path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1]
        self._read += len(lines)
        for line in lines.splitlines():
            self._take(json.loads(line))
        return bool(lines)

    def _take(self, line: Mapping[str, Any]) -> None:
        number, pid = line["n"], line["pid"]
        if line["what"] == "start":
            run = Run(number, line["worker"], pid, line["time"])
            self.runs[run] = None
            self._open[number, pid] = run
            return
        run = self._open.pop((number, pid))
        self.runs[run] = line["time"]
        if line["what"] == "end":
            self.ends[number].append((line["time"], run))
            if line.get("parts", PARTS) != PARTS:
                self.short.add(number)

    @property
    def finished(self) -> int:
        """How many tasks ended at least once."""
        return len(self.ends)

    def in_hand(self, worker: str) -> list[Run]:
        """What a worker's processes run at present."""
        return [run for run in self._open.values() if run.worker == worker]

    def note_death(self, at: float, *, worker: str = "", pid: int = 0) -> None:
        """Note that a worker's processes, or one process, were killed."""
        for run in self.runs:
            if run.worker == worker or run.pid == pid:
                self.deaths.setdefault(run.pid, at)
        # What a dead process had begun is in nobody's hand.
        self._open = {key: run for key, run in self._open.items() if run.pid not in self.deaths}

    def twice(self) -> dict[str, int]:
        """Tasks that ended more than once, and those of them that no kill explains.

        A kill explains it if it came before the ack of the end that went before.
        """
        extra = [pairwise(ends) for ends in self.ends.values() if len(ends) > 1]
        beyond = sum(any(not self._unacked(run, end) for (end, run), _ in pairs) for pairs in extra)
        return {"twice": len(extra), "beyond": beyond}

    def _unacked(self, run: Run, end: float) -> bool:
        return end <= self.deaths.get(run.pid, 0) <= end + _ACK_SECONDS

    def overlapping(self) -> int:
        """Tasks that two living processes ran at the same moment."""
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for run, end in self.runs.items():
            died = self.deaths.get(run.pid, time.time())
            spans[run.number].append((run.began, died if end is None else end))
        return sum(
            any(later < end for (_, end), (later, _) in pairwise(sorted(found)))
            for found in spans.values()
        )

    def result(self) -> dict[str, int]:
        """The figures."""
        begun = Counter(run.number for run, end in self.runs.items() if end is None)
        return {
            "published": self.tasks,
            "finished": self.finished,
            **self.twice(),
            "overlapping": self.overlapping(),
            "short": len(self.short),
            "cut_off": len(begun),
        }


# ---------------------------------------------------------------- one broker, one scenario


class Leg:
    """One broker in one scenario.

    Args:
        setup: how its processes work; nothing was published yet.
        scenario: which.
        folder: for logs.
        tasks: how many.
        strikes: how often something is killed or stopped.
    """

    def __init__(self, setup: Setup, scenario: str, folder: Path, tasks: int, strikes: int) -> None:
        self._setup = setup
        self._scenario = scenario
        self._log = folder / "workers.log"
        self._strikes = strikes
        self._account = Account(tasks, Path(setup.journal))
        self._began = time.monotonic()
        self._struck: list[float] = []
        self._stops: list[float | None] = []
        options = ("--max-tasks-per-child", "10") if scenario == "children" else ()
        self._options = options
        # Two workers of kombu's SQLAlchemy transport that start at once fail to create its tables.
        ask(setup, "prepare")
        self._groups = [self._start() for _ in range(GROUPS)]

    def _start(self) -> Group:
        return Group(self._setup, self._log, *self._options)

    def run(self) -> dict[str, Any]:
        """Publish, strike, wait and count; ends all processes.

        Raises:
            LegFailed: a program of it failed.
        """
        try:
            publisher = start(self._setup, "publish", self._scenario, str(self._account.tasks))
            self._wait(lambda: bool(self._account.runs))
            began = time.time()
            for strike in range(self._strikes):
                goal = (strike + 1) / (self._strikes + 1) * self._account.tasks
                if not self._wait(partial(self._reached, goal)):
                    break
                self._strike(strike % GROUPS)
            answer_of(publisher)
            done = self._wait(partial(self._reached, self._account.tasks))
            left = self._settled() if done else ask(self._setup, "count")
            last = max((ends[0][0] for ends in self._account.ends.values()), default=began)
            self._stops += [group.stop() for group in self._groups]
            self._account.read()
            left = ask(self._setup, "count") if done else left
        finally:
            for group in self._groups:
                if not group.ended:
                    group.kill()
        found = self._account.result()
        missing = found["published"] - found["finished"]
        return {
            **found,
            "left": left["waiting"] + left["in_hand"],
            "lost": max(0, missing - left["waiting"] - left["in_hand"]),
            "strikes": len(self._struck),
            "wanted": self._strikes,
            "seconds": round(last - began, 1),
            "after_last": round(last - max(self._struck, default=began), 1),
            "stops": self._stops,
        }

    def _reached(self, goal: float) -> bool:
        return self._account.finished >= goal

    def _wait(self, ready: Callable[[], bool]) -> bool:
        """Wait until it is so; returns False if nothing happens any more, or the time is over."""
        heard = time.monotonic()
        while not ready():
            if self._account.read():
                heard = time.monotonic()
                continue
            now = time.monotonic()
            if now - heard > _PATIENCE or now - self._began > _LEG_SECONDS:
                return False
            for group in self._groups:
                if group.ended:
                    raise LegFailed(f"a worker ended: {self._last_words()}")
            time.sleep(_TICK)
        return True

    def _strike(self, index: int) -> None:
        group = self._groups[index]
        # All groups work on the same queue, so this one has a task in hand again before long.
        if not self._wait(lambda: bool(self._account.in_hand(group.name))):
            return
        if self._scenario == "children":
            pid = self._account.in_hand(group.name)[0].pid
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # It was replaced at this moment; the journal says what it ended before.
                self._account.read()
                self._strike(index)
                return
            at = time.time()
            self._account.read()
            self._account.note_death(at, pid=pid)
        elif self._scenario == "kills":
            at = group.kill()
            self._account.read()
            self._account.note_death(at, worker=group.name)
        else:
            at = time.time()
            self._stops.append(group.stop())
            if self._stops[-1] is None:
                self._account.read()
                self._account.note_death(time.time(), worker=group.name)
        self._struck.append(at)
        if group.ended:
            self._groups[index] = self._start()

    def _settled(self) -> dict[str, int]:
        """Wait until nothing can come again; returns what the broker still has."""
        until = time.monotonic() + _PATIENCE
        left = ask(self._setup, "count")
        while any(left.values()) and time.monotonic() < until:
            time.sleep(1)
            left = ask(self._setup, "count")
        self._account.read()
        return left

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " ".join(lines[-3:])[-500:]


def measure(
    brokers: Sequence[Broker], scenarios: Sequence[str], options: Any, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Run each scenario on all brokers, in turns; gives the results after each of them."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        addresses: dict[str, Callable[[str], str]] = {}
        for engine in dict.fromkeys(broker.engine for broker in brokers):
            try:
                addresses[engine] = stack.enter_context(
                    databases_of(engine) if engine else redis_server()
                )
            except ServerMissing as error:
                progress.print(f"left out: {error}")
        bar = progress.add_task("legs", total=len(scenarios) * len(brokers))
        for scenario in scenarios:
            results = found[scenario] = {}
            for broker in brokers:
                progress.advance(bar)
                if broker.engine not in addresses:
                    results[broker.name] = {"ended": "no server here"}
                    continue
                measured = _leg(broker, addresses[broker.engine], scenario, options, progress)
                results[broker.name] = measured
                progress.print(f"{scenario} {broker.name}: {measured}")
                yield found


def _leg(
    broker: Broker,
    address: Callable[[str], str],
    scenario: str,
    options: Any,
    progress: Progress,
) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="queue-over-sql-celery-"))

    def named(name: str) -> str:
        return address(f"{broker.name}_{scenario}_{name}")

    try:
        setup = broker.setup(named, folder / "journal")
        measured = Leg(setup, scenario, folder, options.tasks, options.strikes).run()
    except LegFailed as error:
        measured = {"ended": str(error)}
    if measured.get("ended") or measured["lost"] or measured["beyond"]:
        progress.print(f"logs and journal are in {folder}")
    else:
        shutil.rmtree(folder)
    return measured


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Celery's workers killed",
        "",
        f"""\
{result["tasks"]:,} tasks of Celery with `acks_late`, {GROUPS} workers of {CHILDREN} prefork
children, brokers in turns. Tasks keep a journal themselves; all figures are from it. *Lost* did not
end and never will; *left* still waits in the broker. *Twice* ended more than once; *beyond* are
those of them that no kill explains, because the process that ended it first lived for
{_ACK_SECONDS:g} s more. *At once* were with two living processes at the same moment. *Seconds* are
until the last end, from the first start and from the last kill or stop. What a dead worker had
returns after {RETURNED_AFTER} s: by `consumer_timeout` of ours, by `visibility_timeout` of
Redis, which no task here exceeds, with `unacked_restore_throttle` 1, because it looks only every
100 s by default. kombu's SQLAlchemy transport returns nothing.""",
    ]
    for scenario, found in result["scenarios"].items():
        lines += [
            "",
            f"### {SCENARIOS[scenario]}",
            "",
            _ABOUT[scenario].format(strikes=result["strikes"]),
            "",
            "| broker | lost | left | twice | beyond | at once | seconds | after the last | |",
            "|---|--:|--:|--:|--:|--:|--:|--:|---|",
        ]
        lines += [_row(broker, found[broker.name]) for broker in BROKERS if broker.name in found]
    lines += ["", origin_of(result)]
    return "\n".join(lines) + "\n"


_ABOUT: Final = {
    "kills": """\
{strikes} times `kill -9` of all processes of one worker, by turns; a new one starts at once.""",
    "children": """\
`--max-tasks-per-child 10`, and {strikes} times `kill -9` of a child with a task in hand, with
`task_reject_on_worker_lost`.""",
    "stops": """\
{strikes} times SIGTERM to one worker and a new one in its place, while a fifth of the tasks are
retried after 1 s, a fifth have a `countdown` of 2 to 9 s, and a fifth belong to chords of 10.
Those beyond had begun just before the stop. A child tells the pool of Celery that it begins a
task. At a stop the pool forgets each task of which it has not read that yet (`AsynPool.flush`), so
nobody acks it. If nothing else runs, the pool reads no result either, and the child waits 30 s for
that; a worker that had not ended by then was killed. No transport hears of such a task, nor does
that of Redis.""",
}


def _row(broker: Broker, found: Mapping[str, Any]) -> str:
    if found.get("ended"):
        return f"| {broker.title} | - | - | - | - | - | - | - | {found['ended']} |"
    columns = ("lost", "left", "twice", "beyond", "overlapping", "seconds", "after_last")
    notes = []
    if found["strikes"] < found["wanted"]:
        notes.append(
            f"only {found['strikes']} of {found['wanted']} times, then it was done or stood"
        )
    if found["short"]:
        notes.append(f"{found['short']} chords without all results")
    if killed := found["stops"].count(None):
        notes.append(f"{killed} workers did not stop in {_STOP_SECONDS:.0f} s")
    cells = [broker.title, *[f"{found[column]:,}" for column in columns], "; ".join(notes)]
    return f"| {' | '.join(cells)} |"


# ---------------------------------------------------------------- the command


def _kept(options: Any) -> tuple[dict[str, Any], list[str]]:
    """The last results and their commands, with ``--keep``.

    Raises:
        SystemExit: they are of other sizes.
    """
    if not options.keep:
        return {}, []
    last = read_result(NAME)
    if (last["tasks"], last["strikes"]) != (options.tasks, options.strikes):
        raise SystemExit("keep results only with the same --tasks and --strikes")
    return last["scenarios"], [*last["earlier"], last["command"]]


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("sqlite", "postgresql", "mysql", "mariadb"))
    names = [broker.name for broker in BROKERS]
    parser.add_argument("--brokers", default=",".join(names), help="by commas, on these engines")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="by commas")
    parser.add_argument("--keep", action="store_true", help="keep what it does not measure again")
    parser.add_argument("--tasks", type=int, default=1000, help="of each broker in each scenario")
    parser.add_argument("--strikes", type=int, default=5, help="kills or stops while they run")
    options = parser.options({"tasks": 200, "strikes": 2})
    if options.markdown:
        print(section(), end="")
        return
    scenarios = options.scenarios.split(",")
    if unknown := set(scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    engines = ["", *options.engines.split(",")]
    wanted = options.brokers.split(",")
    brokers = [each for each in BROKERS if each.engine in engines and each.name in wanted]
    kept, earlier = _kept(options)
    sizes = {"tasks": options.tasks, "strikes": options.strikes}
    command = parser.command(NAME, options).replace(" --keep False", "").replace(" True", "")
    with progress_bar() as progress:
        for found in measure(brokers, scenarios, options, progress):
            merged = {name: kept.get(name, {}) | found.get(name, {}) for name in SCENARIOS}
            shown = {name: results for name, results in merged.items() if results}
            content = {**sizes, "earlier": earlier, "scenarios": shown}
            progress.print(f"it is in {write_result(NAME, command, content)}")
    print(section())


if __name__ == "__main__":
    main()
