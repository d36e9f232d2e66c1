"""Order in groups beside other libraries on PostgreSQL, in turns.

Each library has its own database on one private server, with a backlog of many messages in 10,000
groups, published in turns. In each round each library claims and acks by 100 for some seconds, in
one or more processes, and its backlog is filled up again. Used are the programs of ``contenders``:
pgmq with its grouped read, pg-boss with its strict policy, and procrastinate with locks, whose
worker has no batches. The server breaks off a statement that takes longer than ``--limit``, and
that library gets no more rounds. Ours is FIFO with one message of a group in hand. To publish a
large backlog takes long: with ``--add`` a run adds its rounds to those of the last result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from rich.progress import Progress
from sqlalchemy import create_engine

from queue_over_sql.testing.servers import PrivateServer
from scripts.benchmarks.ageing import BYTES, SETTLE, numbers, parser_of
from scripts.benchmarks.groups import processor_of
from scripts.benchmarks.harness import (
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    write_result,
)
from scripts.benchmarks.workloads_processes import KINDS, ContenderFailed, Contestant, Kind

NAME: Final = "groups_peers"
ENGINE: Final = "postgresql"
OURS: Final = "ours"
LIBRARIES: Final = (OURS, "pgmq", "procrastinate", "pg_boss")
BATCH: Final = 100
GROUPS: Final = 10_000


@dataclass
class Case:
    """One library, and the measurements of its rounds.

    Attributes:
        contestant: the library.
        published: how many messages.
        came: the numbers of those that came.
        rates: messages a second of each round, by the number of processes.
        work: microseconds of the processor for each message, of server and library, likewise.
        disorder: how many messages came to a process after a later one of their group.
        ended: why it stopped.
    """

    contestant: Contestant
    published: int = 0
    came: list[int] = field(default_factory=list)
    rates: dict[str, list[int]] = field(default_factory=dict)
    work: dict[str, list[float]] = field(default_factory=dict)
    disorder: int = 0
    ended: str = ""

    def fill(self, backlog: int) -> None:
        """Publish as many as have come."""
        count = backlog - (self.published - len(self.came))
        wanted = {"first": self.published, "count": count, "bytes": BYTES, "groups": GROUPS}
        self.contestant.first.ask("publish_groups", **wanted)
        self.published += count

    def settle(self) -> None:
        """Do now the maintenance that the server does within a minute of such a change."""
        engine = create_engine(self.contestant.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("SET statement_timeout = 0").close()
            for statement in SETTLE[ENGINE]:
                connection.exec_driver_sql(statement).close()
        engine.dispose()

    def consume(
        self, processes: int, seconds: float, limit: float, server: int
    ) -> tuple[int, float]:
        """Consume for some seconds; returns the messages a second, and the work of each.

        It notes it as the end if the server broke off a call, at the ``limit``.
        """
        running = self.contestant.processes(processes)
        pids = [server, *[process.pid for process in running]]
        used = sum(map(processor_of, pids))
        for process in running:
            process.tell("consume_groups", batch=BATCH, seconds=seconds)
        answers = [process.answer() for process in running]
        used = sum(map(processor_of, pids)) - used
        rate = 0.0
        for answer in answers:
            self.came += answer["numbers"]
            rate += len(answer["numbers"]) / answer["seconds"]
            if answer.get("cut_short"):
                self.ended = f"one call had no answer within {limit:g} s"
            last: dict[int, int] = {}
            for number in answer["numbers"]:
                self.disorder += number < last.get(number % GROUPS, -1)
                last[number % GROUPS] = number
        self.contestant.keep(1)
        count = sum(len(answer["numbers"]) for answer in answers)
        return round(rate), round(1e6 * used / max(count, 1), 1)

    def result(self) -> dict[str, Any]:
        """The measurements."""
        return {
            "about": self.contestant.about,
            "rates": self.rates,
            "work": self.work,
            "published": self.published,
            "came": len(self.came),
            "twice": len(self.came) - len(set(self.came)),
            "disorder": self.disorder,
            "ended": self.ended,
        }


def limit_statements(url: str, seconds: float) -> None:
    """Let the server break off what takes longer, in each connection to this database from now."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    limit, name = round(1000 * seconds), engine.url.database
    with engine.connect() as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET statement_timeout = {limit}')
    engine.dispose()


def measure(kinds: Sequence[Kind], options: Any, progress: Progress) -> dict[str, Any]:
    """Let all libraries consume, in turns; returns results by library.

    Raises:
        ServerMissing: PostgreSQL is not available here.
    """
    with ExitStack() as stack:
        new_database = stack.enter_context(databases_of(ENGINE))
        server = getattr(new_database, "__self__", None)
        if not isinstance(server, PrivateServer) or server.pid is None:
            raise TypeError  # PostgreSQL is one
        pid = server.pid
        cases: list[Case] = []
        found: dict[str, Any] = {}
        for kind in kinds:
            try:
                url = new_database(kind.name)
                limit_statements(url, options.limit)
                contestant = Contestant(kind, url)
            except ContenderFailed as error:
                progress.print(f"left out: {error}")
                found[kind.name] = {"ended": str(error)}
                continue
            stack.callback(contestant.end)
            contestant.first.ask("prepare_groups")
            cases.append(Case(contestant))
        for case in cases:
            # Few messages, so that all prepare their statements.
            case.fill(1_000)
            case.consume(1, 1.0, options.limit, pid)
        for processes in options.consumers:
            for turn in range(options.rounds):
                for case in cases[:: -1 if turn % 2 else 1]:
                    if case.ended:
                        continue
                    try:
                        case.fill(options.backlog)
                        case.settle()
                        rate, work = case.consume(processes, options.seconds, options.limit, pid)
                    except ContenderFailed as error:
                        case.ended = str(error)
                        progress.print(f"{case.contestant.name}: {error}")
                        continue
                    case.rates.setdefault(str(processes), []).append(rate)
                    case.work.setdefault(str(processes), []).append(work)
                    progress.print(f"{case.contestant.name} x {processes}: {rate}, {work} µs")
        return found | {case.contestant.name: case.result() for case in cases}


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Groups beside other libraries",
        "",
        f"""\
PostgreSQL, {result["backlog"]:,} messages in {GROUPS:,} groups that wait, first in first out.
Messages a second by {BATCH}, in rounds of {result["seconds"]:g} seconds, libraries in turns; the
ratio is how many times as many ours handles, the median of those of single rounds; in brackets, for
as much of the processor's time, which other work on the machine disturbs less. pgmq by
`read_grouped`, with its index for groups; pg-boss by `key_strict_fifo`; procrastinate by `lock`, in
its worker, because it has no batches. The goal is 5 for pgmq, and 1 for the others.""",
        "",
        "| library | processes | messages/s | lowest, highest | ours is | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    ours = result["libraries"][OURS]
    for name, measured in result["libraries"].items():
        if "rates" not in measured:
            lines.append(f"| {name} | - | - | - | - | {measured['ended']} |")
            continue
        about = measured["about"]
        for processes, rates in measured["rates"].items():
            pairs = zip(ours["rates"][processes], rates, strict=False)
            ratio = median(one / max(other, 1) for one, other in pairs)
            less = zip(ours["work"][processes], measured["work"][processes], strict=False)
            work = median(other / one for one, other in less)
            # Of one that had nothing there is no more to say.
            times = f"{ratio:,.1f} ({work:,.1f})" if min(rates) else f"more than {ratio:,.0f}"
            cells = [f"{about['name']} {about['version']}", processes, f"{median(rates):,.0f}"]
            cells += [f"{min(rates):,}, {max(rates):,}", "" if name == OURS else times]
            lines.append(f"| {' | '.join([*cells, _note(measured)])} |")
    runs = result.get("runs", 1)
    lines += ["", origin_of(result) + (f" The rounds are of {runs} such runs." if runs > 1 else "")]
    return "\n".join(lines) + "\n"


def _note(measured: Mapping[str, Any]) -> str:
    said = [f"{measured[what]:,} {what}" for what in ("twice", "disorder") if measured[what]]
    return "; ".join([*said, *([measured["ended"]] if measured["ended"] else [])])


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=(ENGINE,))
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="by commas")
    parser.add_argument("--backlog", type=int, default=200_000, help="messages that wait")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round of one library")
    parser.add_argument("--rounds", type=int, default=3, help="with each number of processes")
    parser.add_argument("--consumers", default="1,4", help="numbers of processes")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one statement")
    parser.add_argument("--add", action="store_true", help="to the rounds of the last result")
    options = parser.options({"backlog": 4_000, "seconds": 2.0, "rounds": 1})
    if options.markdown:
        print(section(), end="")
        return
    if options.engines != ENGINE:
        parser.error(f"only {ENGINE} is for this benchmark")
    command = parser.command(NAME, options)
    options.consumers = numbers(options.consumers)
    wanted = options.libraries.split(",")
    kinds = [kind for kind in KINDS if kind.name in wanted]
    with progress_bar() as progress:
        found = measure(kinds, options, progress)
    sizes = {name: getattr(options, name) for name in ("backlog", "seconds", "limit")}
    result = {**sizes, "libraries": found}
    print(write_result(NAME, command, _added(result) if options.add else result))
    print(section())


def _added(result: dict[str, Any]) -> dict[str, Any]:
    """The result with the rounds of the last one, which was measured with the same sizes."""
    last = read_result(NAME)
    for size in ("backlog", "seconds", "limit"):
        if last[size] != result[size]:
            sys.exit(f"the last result has {size} {last[size]}: its rounds cannot be added to")
    for name, case in result["libraries"].items():
        before = last["libraries"].get(name, {})
        for what in ("rates", "work"):
            for processes, rounds in before.get(what, {}).items():
                case.setdefault(what, {}).setdefault(processes, [])[:0] = rounds
        for what in ("published", "came", "twice", "disorder"):
            case[what] = case.get(what, 0) + before.get(what, 0)
        case.setdefault("about", before.get("about"))
        case["ended"] = case["ended"] or before.get("ended", "")
    return {"runs": last.get("runs", 1) + 1, **result}


if __name__ == "__main__":
    main()
