"""Other libraries on PostgreSQL while one reader stays open, compared with ours.

As ``ageing_horizon``, with the programs of ``contenders``. Each library has its own database on one
server; in each database a connection has read once in a transaction and stays idle. Messages pass
in steps, in turns: published in bulk, consumed and acked by 100 (by its worker if a library cannot
claim), and then some one by one. A library stops when its consumers took more than ``--limit``
seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from rich.progress import Progress
from sqlalchemy import create_engine

from scripts.benchmarks.ageing import BYTES, Account, numbers, parser_of
from scripts.benchmarks.ageing_horizon import BATCH, BEGIN_READING, SINGLES, at_ends
from scripts.benchmarks.harness import (
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    write_result,
)
from scripts.benchmarks.workloads_processes import KINDS, ContenderFailed, Contestant, Kind

NAME = "ageing_peers"
ENGINE: Final = "postgresql"
OURS: Final = "ours"
LIBRARIES: Final = tuple(
    kind.name for kind in KINDS if ENGINE in kind.engines and (kind.peer or kind.name == OURS)
)
AT_ONCE: Final = 1000


@dataclass
class Case:
    """One library with a number of consumers.

    Attributes:
        contestant: the library.
        consumers: how many processes consume.
        account: of its messages.
        spent: seconds of consuming.
        points: milliseconds per message, by the number of messages before.
        ended: why it stopped.
    """

    contestant: Contestant
    consumers: int
    account: Account = field(default_factory=Account)
    spent: float = 0.0
    points: list[dict[str, float]] = field(default_factory=list)
    ended: str = ""

    def publish(self, count: int) -> None:
        """Publish a number of messages in the library's fastest way."""
        first, self.account.published = self.account.published, self.account.published + count
        wanted = {"first": first, "count": count, "bytes": BYTES}
        if self.contestant.can("load"):
            self.contestant.first.ask("load", **wanted)
            return
        many = AT_ONCE if self.contestant.can("publish_many") else 1
        self.contestant.first.ask("publish", **wanted, batch=many)

    def consume(self, batch: int, count: int) -> float:
        """Consume a number of messages; returns milliseconds per message.

        Raises:
            ContenderFailed: it failed, or not all messages came.
        """
        if self.contestant.can("consume"):
            command: dict[str, Any] = {"do": "consume", "batch": batch}
        else:
            command = {"do": "work", "threads": 1, "transactional": False}
        processes = self.contestant.processes(self.consumers)
        for process in processes:
            process.tell(**command, count=count)
        answers = [process.answer() for process in processes]
        came = [number for answer in answers for number in answer["numbers"]]
        self.account.numbers.extend(came)
        if len(came) != count:
            raise ContenderFailed(f"{len(came):,} of {count:,} came")
        seconds = float(max(answer["seconds"] for answer in answers))
        self.spent += seconds
        return round(1000 * seconds / count, 4)

    def step(self, count: int, limit: float) -> None:
        """Pass a number of messages through."""
        try:
            self.publish(count)
            batches = self.consume(BATCH, count)
            self.publish(SINGLES)
            singles = self.consume(1, SINGLES)
        except ContenderFailed as error:
            self.ended = str(error)
            return
        passed = self.account.published
        self.points.append({"passed": passed, "batch": batches, "single": singles})
        if self.contestant.name != OURS and self.spent > limit:
            self.ended = f"stopped after {limit:g} s of consuming"

    def result(self) -> dict[str, Any]:
        """The measurements; for a library also lost messages and duplicates."""
        came = set(self.account.numbers)
        return {
            "about": self.contestant.about,
            "ended": self.ended,
            "points": self.points,
            "published": self.account.published,
            "lost": self.account.published - len(came),
            "twice": len(self.account.numbers) - len(came),
        }


@dataclass(frozen=True)
class Plan:
    """The options.

    Attributes:
        consumers: numbers of consumer processes.
        messages: how many pass in each case.
        step: how many pass between samples.
        limit: seconds of consuming after which a library stops.
    """

    consumers: Sequence[int]
    messages: int
    step: int
    limit: float


def measure(kinds: Sequence[Kind], plan: Plan, progress: Progress) -> dict[str, dict[str, Any]]:
    """Pass messages through all libraries, in turns; returns results by number of consumers.

    Raises:
        ServerMissing: PostgreSQL is not available here.
    """
    with ExitStack() as stack:
        new_database = stack.enter_context(databases_of(ENGINE))
        cases = []
        for kind in kinds:
            for count in plan.consumers:
                url = new_database(f"{kind.name}_{count}")
                try:
                    contestant = Contestant(kind, url)
                    # Before there are messages, because some libraries warm up with a claim.
                    contestant.processes(count)
                except ContenderFailed as error:
                    progress.print(f"left out: {error}")
                    continue
                stack.callback(contestant.end)
                stack.enter_context(reading(url))
                cases.append(Case(contestant, count))
        running = progress.add_task("passing", total=plan.messages * len(cases))
        for case in cases:
            # The first messages of a process prepare statements for the next ones.
            case.step(max(SINGLES, BATCH * case.consumers), plan.limit)
            case.points.clear()
            case.spent = 0.0
        for _ in range(0, plan.messages, plan.step):
            for case in cases:
                if not case.ended:
                    case.step(plan.step, plan.limit)
                    progress.print(f"{case.contestant.name}, {case.consumers}: {case.points[-1:]}")
                progress.advance(running, plan.step)
        found: dict[str, dict[str, Any]] = {}
        for case in cases:
            by_count = found.setdefault(case.contestant.name, {})
            by_count[str(case.consumers)] = case.result()
        return found


def reading(url: str) -> ExitStack:
    """Keep a transaction open that has read, until the stack is closed."""
    stack = ExitStack()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    stack.callback(engine.dispose)
    connection = stack.enter_context(engine.connect())
    connection.exec_driver_sql(BEGIN_READING[ENGINE])
    connection.exec_driver_sql("SELECT count(*) FROM pg_class").all()
    return stack


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Peers while a reader stays open",
        "",
        f"""\
PostgreSQL, one idle transaction in each database that has read once. Milliseconds per message,
claim and ack, in the first and in the last steps of {result["step"]:,} messages, each followed by
{SINGLES} one by one; where a library has no call that claims, its worker is measured. Libraries in
turns; each stops after {result["limit"]:g} seconds of consuming, ours never. Commits reach the
disk where `durability` does not say otherwise.""",
        "",
        "| library | consumers | passed | one by one | | ratio | by 100 | | ratio | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, count, measured in each_case(result):
        points = measured["points"]
        about = measured["about"]
        cells = [f"{about['name']} {about['version']}", count, f"{points[-1]['passed']:,}"]
        for size in ("single", "batch"):
            start, end = at_ends([point[size] for point in points])
            cells += [f"{start:.3f}", f"{end:.3f}", f"{end / start:.2f}"]
        lines.append(f"| {' | '.join([*cells, note(name, measured)])} |")
    lines += ["", origin_of(result)]
    return "\n".join(lines) + "\n"


def note(name: str, measured: Mapping[str, Any]) -> str:
    """Further notes on a library."""
    said = [measured["about"]["durability"]] if name != OURS else []
    said += [measured["ended"]] if measured["ended"] else []
    said += [f"{measured[what]:,} {what}" for what in ("lost", "twice") if measured[what]]
    return "; ".join(said).replace("|", "/")


def each_case(result: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Library, number of consumers and measurements, of those that passed a step."""
    for name, by_count in result["libraries"].items():
        for count, measured in by_count.items():
            if measured["points"]:
                yield name, count, measured


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=(ENGINE,))
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="by commas")
    parser.add_argument("--messages", type=int, default=300_000, help="how many pass")
    parser.add_argument("--step", type=int, default=15_000, help="messages between samples")
    parser.add_argument("--consumers", default="1,4", help="numbers of consumer processes")
    parser.add_argument("--limit", type=float, default=25, help="seconds of a peer's consuming")
    options = parser.options({"messages": 6_000, "step": 2_000, "limit": 10.0})
    if options.markdown:
        print(section(), end="")
        return
    if options.engines != ENGINE:
        parser.error(f"only {ENGINE} is for this benchmark")
    wanted = options.libraries.split(",")
    kinds = [kind for kind in KINDS if kind.name in wanted]
    counts = numbers(options.consumers)
    plan = Plan(counts, options.messages, options.step, options.limit)
    with progress_bar() as progress:
        found = measure(kinds, plan, progress)
    result = {"step": options.step, "limit": options.limit, "libraries": found}
    path = write_result(NAME, parser.command(NAME, options), result)
    print(path, json.dumps({name: list(by_count) for name, by_count in found.items()}))
    print(section())


if __name__ == "__main__":
    main()
