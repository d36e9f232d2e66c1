"""Claims while one reader's transaction stays open, which prevents all cleanup.

A connection reads once in a transaction and then stays idle, like a forgotten session or a long
report. On PostgreSQL this holds back the vacuum, on MariaDB the purge of old versions, on SQLite
the checkpoint of the write-ahead log; on H2 old versions stay in the file. Meanwhile ``--messages``
messages are loaded and consumed by 100. After each ``--step`` of them, some single messages are
published and claimed one by one.

States, in turns, each on its own server, with 1 and with 4 consumer processes:

held
    the reader is open.
held, no mark
    the same without the low watermark: each claim searches from the beginning.
free
    no reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress, TaskID
from sqlalchemy import create_engine, make_url, text

from queue_over_sql import Queue, QueueService
from queue_over_sql.service import parts_of
from scripts.benchmarks.ageing import (
    Account,
    Helper,
    Taken,
    claim_and_ack,
    figures,
    helpers_of,
    numbers,
    parser_of,
    together,
    version_of,
)
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
)

NAME = "ageing_horizon"
STATES = {"held": (True, True), "held, no mark": (True, False), "free": (False, True)}
"""Whether the reader is open, and whether claims use the low watermark."""
BATCH = 100
SINGLES = 200
# How many points at each end make the values of the table.
ENDS = 3
MESSAGES = {"postgresql": 1_000_000}
OTHERS = 200_000

BEGIN_READING = {
    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "mariadb": "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "sqlite": "BEGIN",
    "h2": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}
OBSERVED = {
    "postgresql": {
        "dead rows": "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'queue_jobs'",
        "bytes of the table": "SELECT pg_total_relation_size('queue_jobs')",
    },
    "mariadb": {
        "history list": "SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'innodb_history_list_length'"
    },
}


@dataclass
class Case:
    """One state with a number of consumers.

    Attributes:
        name: of the state.
        url: of its database.
        service: the publisher.
        queue: its queue.
        consumers: the processes that consume.
        reader: ends the open transaction, if there is one.
        marked: whether its consumers use the low watermark.
        account: of its messages.
        spent: seconds of consuming.
        points: the measurements, by the number of messages so far.
    """

    name: str
    url: str
    service: QueueService
    queue: Queue
    consumers: list[Helper]
    reader: ExitStack
    marked: bool = True
    account: Account = field(default_factory=Account)
    spent: float = 0.0
    points: list[dict[str, Any]] = field(default_factory=list)

    def load(self, count: int) -> None:
        """Publish by the bulk path."""
        self.queue.load(self.account.new(count))

    def consume(self, batch: int, times: int) -> Taken:
        """All consumers claim and ack at the same time."""
        taken, began = Taken(), time.perf_counter()
        for part in together(self.consumers, claim_and_ack, batch, times):
            taken.add(part)
        self.spent += time.perf_counter() - began
        self.account.numbers.extend(taken.numbers)
        return taken

    def step(self, count: int) -> None:
        """Pass a number of messages through, and take samples."""
        self.load(count)
        batches = self.consume(BATCH, count)
        self.load(SINGLES)
        singles = self.consume(1, SINGLES)
        self.points.append(
            {
                "passed": self.account.published,
                "batch": batches.summary(),
                "single": singles.summary(),
                "first_claim_ms": figures([self.first_claim()])["median"],
                **self.observed(),
            }
        )

    def first_claim(self) -> float:
        """The duration of the first claim of a new consumer, in seconds."""
        self.load(1)
        with QueueService(self.url) as service:
            queue = service.queue("jobs")
            queue.stats()
            taken = claim_and_ack(queue, 1, 1)
        self.account.numbers.extend(taken.numbers)
        return taken.claims[0]

    def observed(self) -> dict[str, int]:
        """What the server, or the file, shows about old versions."""
        engine = parts_of(self.service).connections.engine
        if engine.dialect.name == "sqlite":
            log = Path(f"{make_url(self.url).database}-wal")
            return {"bytes of the log": log.stat().st_size if log.exists() else 0}
        statements = OBSERVED.get(engine.dialect.name, {})
        with engine.connect() as connection:
            return {
                name: int(connection.execute(text(statement)).scalar() or 0)
                for name, statement in statements.items()
            }

    def result(self, end: str) -> dict[str, Any]:
        """The checked result, after the reader ended and some more messages passed."""
        self.account.check(self.name, self.queue.stats().live)
        self.reader.close()
        after = []
        for _ in range(2):
            time.sleep(1)
            self.load(1000)
            self.consume(BATCH, 1000)
            after.append(self.observed())
        account = self.account.check(self.name, self.queue.stats().live)
        return {"ended": end, "points": self.points, "after_reader": after, "account": account}


def begin_reading(url: str, engine: str) -> ExitStack:
    """Open a transaction, read in it, and stay idle until the stack is closed."""
    stack = ExitStack()
    reading = create_engine(url, isolation_level="AUTOCOMMIT")
    stack.callback(reading.dispose)
    connection = stack.enter_context(reading.connect())
    connection.exec_driver_sql(BEGIN_READING[engine])
    if engine == "h2":
        connection.exec_driver_sql("SET AUTOCOMMIT FALSE")
    connection.exec_driver_sql("SELECT count(*) FROM queue_jobs").all()
    return stack


@dataclass(frozen=True)
class Plan:
    """The options for an engine.

    Attributes:
        messages: how many pass in each case.
        step: how many pass between samples.
        states: names of ``STATES``.
        consumers: numbers of consumer processes.
        limit: seconds of consuming after which a case without the watermark ends.
    """

    messages: int
    step: int
    states: Sequence[str]
    consumers: Sequence[int]
    limit: float


def measure(engine: str, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Let messages pass in all cases, in turns.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a message was lost or came twice.
    """
    with ExitStack() as stack:
        cases = list(open_cases(stack, engine, plan.states, plan.consumers))
        bars = {id(case): _bar(progress, engine, case, plan.messages) for case in cases}
        running = list(cases)
        ended: dict[int, str] = {}
        while running:
            for case in list(running):
                case.step(min(plan.step, plan.messages))
                progress.update(bars[id(case)], completed=case.account.published)
                if case.account.published >= plan.messages:
                    ended[id(case)] = "all passed"
                elif not case.marked and case.spent > plan.limit:
                    ended[id(case)] = f"stopped after {plan.limit:g} s of consuming"
                if id(case) in ended:
                    running.remove(case)
        version = version_of(cases[0].service)
        found: dict[str, dict[str, Any]] = {}
        for case in cases:
            by_count = found.setdefault(case.name, {})
            by_count[str(len(case.consumers))] = case.result(ended[id(case)])
        return {"version": version, "messages": plan.messages, "step": plan.step, "states": found}


def _bar(progress: Progress, engine: str, case: Case, messages: int) -> TaskID:
    title = f"{engine}: {case.name}, {len(case.consumers)} consumers"
    return progress.add_task(title, total=messages)


def open_cases(
    stack: ExitStack, engine: str, states: Sequence[str], consumers: Sequence[int]
) -> Iterable[Case]:
    """A server for each state, because InnoDB's purge is shared by all databases of a server."""
    for state in states:
        held, marked = STATES[state]
        new_database = stack.enter_context(databases_of(engine))
        for count in consumers:
            url = new_database(f"with_{count}")
            service = QueueService(url)
            stack.callback(service.stop)
            queue = service.create_queue("jobs", archive="none")
            queue.load(Account().new(0))
            reader = begin_reading(url, engine) if held else ExitStack()
            stack.enter_context(reader)
            processes = helpers_of(stack, url, count, marked=marked)
            case = Case(state, url, service, queue, processes, reader, marked)
            # The first claims of a connection prepare their statements.
            case.load(count * 20)
            case.consume(1, 10)
            case.consume(BATCH, count * 20)
            case.spent = 0.0
            yield case


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    steps = ", ".join(f"{TITLES[e]} {found['step']:,}" for e, found in result["engines"].items())
    lines = [
        "## A reader stays open while messages pass",
        "",
        f"""\
One connection reads in a transaction and then sits idle, so that nothing that ends after it can
be cleaned up. Meanwhile messages of 200 bytes pass, consumed and acked by {BATCH}; after each step
({steps}) {SINGLES} are claimed one by one. Each figure is the median
latency of a claim in milliseconds, in the first and in the last {ENDS} steps; `held, no mark` is
the same code without its low-water mark, and stops after {result["limit"]:g} seconds of consuming.
`new consumer` is the first claim of one that was started at the end, which has no mark yet. Steps
of all states in turns, each state on a server of its own, commits reach the disk.""",
        "",
        (
            "| engine | state | consumers | passed | claim of 1 | | ratio | claim of 100 | | ratio "
            "| mean of 100 | new consumer |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    published = 0
    for engine, found in result["engines"].items():
        label = f"{TITLES[engine]} {found['version']}"
        for state, by_count in found["states"].items():
            for count, measured in by_count.items():
                lines.append(row([label, state, count], measured))
                label = ""
                published += measured["account"]["published"]
    lines += ["", *left_behind(result), ""]
    lines += [
        f"{published:,} messages went through; none was lost, none came twice.",
        origin_of(result),
    ]
    return "\n".join(lines) + "\n"


def row(labels: Sequence[str], measured: dict[str, Any]) -> str:
    """One row of the table."""
    points = measured["points"]
    cells = [*labels, f"{points[-1]['passed']:,}"]
    for size in ("single", "batch"):
        start, end = at_ends([point[size]["claim"]["median"] for point in points])
        cells += [f"{start:.2f}", f"{end:.2f}", f"{end / start:.2f}"]
    means = at_ends([point["batch"]["claim"]["mean"] for point in points])
    newcomer = median(point["first_claim_ms"] for point in points[-ENDS:])
    cells += [" → ".join(f"{each:.2f}" for each in means), f"{newcomer:.1f}"]
    return f"| {' | '.join(cells)} |"


def at_ends(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last few points, because single ones are noisy."""
    few = max(1, min(ENDS, len(values) // 2))
    return median(values[:few]), median(values[-few:])


def left_behind(result: dict[str, Any]) -> Iterable[str]:
    """What servers and files kept because of the reader, and after it ended."""
    known = {"passed", "batch", "single", "first_claim_ms"}
    for engine, found in result["engines"].items():
        for state, by_count in found["states"].items():
            measured = next(iter(by_count.values()))
            last, after = measured["points"][-1], measured["after_reader"][-1]
            for name in sorted(set(last) - known):
                yield (
                    f"- {TITLES[engine]}, {state}: {name} {last[name]:,} after "
                    f"{last['passed']:,} messages; {after[name]:,} two seconds and 2,000 messages "
                    "after the reader ended."
                )


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--messages", type=int, default=0, help="how many pass; 0: 1M on PostgreSQL, else 200k"
    )
    parser.add_argument(
        "--step", type=int, default=0, help="messages between samples; 0: a twentieth"
    )
    parser.add_argument("--states", default=";".join(STATES), help="separated by semicolons")
    parser.add_argument("--consumers", default="1,4", help="numbers of consumer processes")
    parser.add_argument(
        "--limit", type=float, default=60, help="seconds of consuming for a case without the mark"
    )
    options = parser.options({"messages": 20_000, "step": 5_000, "limit": 20})
    if options.markdown:
        print(section(), end="")
        return
    plan = Plan(
        options.messages,
        options.step,
        options.states.split(";"),
        numbers(options.consumers),
        options.limit,
    )
    options.states = f"'{options.states}'"

    def one(engine: str, progress: Progress) -> dict[str, Any]:
        messages = plan.messages or MESSAGES.get(engine, OTHERS)
        mine = replace(plan, messages=messages, step=plan.step or max(1, messages // 20))
        return measure(engine, mine, progress)

    parser.measure_each(NAME, options, {"limit": options.limit}, one)
    print(section())


if __name__ == "__main__":
    main()
