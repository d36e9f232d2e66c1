"""The archive never slows the live table: the same work with and without a long history.

Two databases of one server have a queue that archives everything. One archive is empty at first,
the other has ``--archived`` messages. In each round both do the same in turns:

publish
    1,000 messages in one ``publish_many``.
batches
    these, claimed and acked 100 at a time.
singles
    300 messages one by one, each acked together with the claim of the next (``exchange``).
reap
    one pass of the reaper with an ``archive_ttl`` that no message has reached, so that it finds
    nothing to prune.
reap_limit
    the same with an ``archive_limit`` that is not reached either, after all rounds.

At the end every message must have come exactly once, and be in the archive.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from rich.progress import Progress
from sqlalchemy import Connection, Table, insert, select

from queue_over_sql import Message, Queue, QueueService
from queue_over_sql.service import parts_of
from queue_over_sql.testing.servers import DEFAULT_ENGINES
from scripts.benchmarks.harness import (
    ENGINES,
    TITLES,
    NewDatabase,
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    run_alone,
    write_result,
)

NAME = "archived_history"
PUBLISHED, BATCH, SINGLES = 1_000, 100, 300
SEEDS, COPIES = 500, 25_000
TEXT = "x" * 100
TEN_YEARS = 10 * 365 * 86_400.0
# The time between two archived messages in microseconds: a million of them span a fortnight.
APART = 1_200_000

SETTLE = {
    "postgresql": ["VACUUM ANALYZE", "CHECKPOINT"],
    "mariadb": ["ANALYZE TABLE queue_jobs_archive"],
    "mysql": ["ANALYZE TABLE queue_jobs_archive"],
}
WARM_UP = 2

MEASURES = {
    "publish": "publish, 1,000 at once",
    "batches": "consume and ack, by 100",
    "singles": "exchange, one by one",
    "reap": "reaper, nothing past `archive_ttl`",
    "reap_limit": "reaper, nothing past `archive_limit`",
}
MESSAGES = {"publish": PUBLISHED, "batches": PUBLISHED, "singles": SINGLES}


@dataclass
class Subject:
    """One side of the comparison: a queue, and the account of its messages.

    Attributes:
        service: its service.
        queue: the queue.
        archived: the initial size of its archive.
        published: how many were published since.
        delivered: how often each message came.
        seconds: the duration of each round, by measure.
    """

    service: QueueService
    queue: Queue
    archived: int = 0
    published: int = 0
    delivered: Counter[int] = field(default_factory=Counter)
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def publish(self, count: int) -> None:
        """Publish a number of messages in one transaction."""
        numbers = range(self.published, self.published + count)
        self.queue.publish_many({"number": n, "text": TEXT} for n in numbers)
        self.published += count

    def note(self, messages: Sequence[Message]) -> None:
        """Record delivered messages."""
        self.delivered.update(message.payload["number"] for message in messages)

    def batches(self) -> None:
        """Consume and ack all messages by ``BATCH``."""
        while messages := self.queue.consume(BATCH):
            self.note(messages)
            self.queue.ack(messages)

    def singles(self) -> None:
        """Finish one message together with the claim of the next."""
        messages = self.queue.consume()
        while messages:
            self.note(messages)
            messages = self.queue.exchange(messages)

    def round(self) -> None:
        """Run one round, and time each part."""
        with self.timed("publish"):
            self.publish(PUBLISHED)
        with self.timed("batches"):
            self.batches()
        self.publish(SINGLES)
        with self.timed("singles"):
            self.singles()
        with self.timed("reap"):
            self.service.reap()

    @contextmanager
    def timed(self, measure: str) -> Iterator[None]:
        """Record the duration of a block."""
        began = time.perf_counter()
        yield
        self.seconds[measure].append(time.perf_counter() - began)

    def check(self) -> dict[str, int]:
        """Check the account at the end.

        Raises:
            SystemExit: a message was lost, came twice, or is not in the archive.
        """
        lost = self.published - len(self.delivered)
        twice = sum(1 for times in self.delivered.values() if times > 1)
        stats = self.queue.stats()
        missing = self.archived + self.published - stats.archived
        left = stats.ready + stats.delayed + stats.claimed + stats.held
        account = {"published": self.published, "lost": lost, "twice": twice, "left": left}
        if lost or twice or left or missing:
            raise SystemExit(
                f"{parts_of(self.service).connections.where}: {account}, {missing=} in archive"
            )
        return account


def fill_archive(subject: Subject, count: int, progress: Callable[[int], object]) -> None:
    """Fill a queue's archive: with finished messages, and with copies of them by SQL.

    The copies have smaller ids and earlier times than real messages, so that newly archived
    messages come after them, as in an old queue.
    """
    filled = min(SEEDS, count)
    subject.publish(filled)
    while messages := subject.queue.consume(BATCH):
        subject.note(messages)
        subject.queue.reject(messages[0], "one in a hundred")
        subject.queue.ack(messages[1:])
    subject.archived = count - filled
    engine, table = parts_of(subject.service).connections.engine, subject.queue.archive.table
    with engine.connect() as connection:
        newest = sorted(connection.scalars(select(table.c.id)))
    lowest = newest[0]
    while filled < count:
        copied = newest[-min(count - filled, COPIES) :]
        by = copied[-1] - lowest + 1
        with engine.begin() as connection:
            copy_down(connection, table, copied[0], by)
        lowest = copied[0] - by
        if len(newest) < COPIES:
            newest = [message_id - by for message_id in copied] + newest
        filled += len(copied)
        progress(filled)


def copy_down(connection: Connection, table: Table, start: int, by: int) -> None:
    """Copy archived messages from an id on, with ids lowered by a number, and older."""
    lower = {"id": by, "published_at": by * APART, "finished_at": by * APART}
    copies = [c - lower[c.name] if c.name in lower else c for c in table.c]
    source = select(*copies).where(table.c.id >= start)
    connection.execute(insert(table).from_select([c.name for c in table.c], source))


def settle(subject: Subject) -> None:
    """Let the server do now the maintenance that new rows would cause during the rounds."""
    engine = parts_of(subject.service).connections.engine
    run_alone(subject.service, SETTLE.get(engine.dialect.name, ()))


def measure(engine: str, archived: int, rounds: int, progress: Progress) -> dict[str, Any]:
    """Compare both sides on one engine.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a message was lost or came twice.
    """
    filling = progress.add_task(f"{engine}: filling the archive", total=archived)
    running = progress.add_task(f"{engine}: rounds", total=rounds + WARM_UP, start=False)
    with ExitStack() as stack:
        new_database = stack.enter_context(databases_of(engine))
        without, with_history = (
            new_subject(stack, new_database, name) for name in ("without_history", "with_history")
        )
        fill_archive(with_history, archived, lambda n: progress.update(filling, completed=n))
        settle(with_history)
        settle(without)
        progress.start_task(running)
        for number in range(rounds + WARM_UP):
            if number == WARM_UP:
                without.seconds.clear()
                with_history.seconds.clear()
            # The first one changes, so that none always follows the other.
            for subject in (without, with_history)[:: 1 if number % 2 else -1]:
                subject.round()
            progress.advance(running)
        reap_with_limit((without, with_history), rounds)
        accounts = without.check(), with_history.check()
        return {
            "version": version_of(without),
            "account": {key: sum(account[key] for account in accounts) for key in accounts[0]},
            "measures": {name: compared(name, without, with_history) for name in MEASURES},
        }


def new_subject(stack: ExitStack, new_database: NewDatabase, name: str) -> Subject:
    """A queue in its own database."""
    service = QueueService(new_database(name))
    stack.callback(service.stop)
    return Subject(service, service.create_queue("jobs", archive="all", archive_ttl=TEN_YEARS))


def reap_with_limit(subjects: Sequence[Subject], rounds: int) -> None:
    """Passes of the reaper with a limit of twice the size of the archive, in turns."""
    limit = 2 * max(subject.archived + subject.published for subject in subjects)
    for subject in subjects:
        subject.service.create_queue("jobs", archive_limit=limit)
        subject.service.reap()
    for _ in range(rounds):
        for subject in subjects:
            with subject.timed("reap_limit"):
                subject.service.reap()


def version_of(subject: Subject) -> str:
    """The version of the engine."""
    version = parts_of(subject.service).connections.engine.dialect.server_version_info or ()
    return ".".join(str(part) for part in version)


def compared(name: str, without: Subject, with_history: Subject) -> dict[str, Any]:
    """Seconds of both sides, round by round, and the ratio of the second to the first."""
    pairs = list(zip(without.seconds[name], with_history.seconds[name], strict=True))
    ratios = [slow / quick for quick, slow in pairs]
    low, middle, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {
        "without": [round(quick, 6) for quick, _ in pairs],
        "with": [round(slow, 6) for _, slow in pairs],
        "ratio": round(middle, 3),
        "ratio_quartiles": [round(low, 3), round(high, 3)],
    }


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    archived = f"{result['archived']:,}"
    lines = [
        "## Finished messages' history never slows the live table",
        "",
        *f"""\
Two databases of one server have a queue with `archive="all"`. One archive is empty at first, the
other holds {archived} messages. In turns, {result["rounds"]} rounds each: publish 1,000 messages
of about 130 bytes in one `publish_many`; consume and ack them 100 at a time; `exchange` 300
messages one by one; a pass of the reaper with an `archive_ttl` that nothing has reached, and, at
the end, one with an `archive_limit` of about twice the history.

The ratio is the time with history by the time without it: the median over the rounds and, in
brackets, the quartiles, which show how much else the machine did. 1.00 is no difference, more is
slower. Commits reach the disk.

Publishing and consuming do not feel the history, nor does the look for what is too old. With an
`archive_limit` the reaper counts through what is kept, so that pass does grow with it: it runs
beside the consumers, and so seldom that it takes at most about a twentieth of the time.""".split(
            "\n"
        ),
        "",
        f"| engine | | empty archive | {archived} archived | ratio of times |",
        "|---|---|---|---|---|",
    ]
    published = 0
    for engine, found in result["engines"].items():
        label = f"{TITLES[engine]} {found['version']}"
        for name, measured in found["measures"].items():
            lines.append(row(label, name, measured))
            label = ""
        published += found["account"]["published"]
    lines += [
        "",
        f"{published:,} messages went through; none was lost, none came twice, and all were in",
        "their archives at the end.",
        origin_of(result),
    ]
    return "\n".join(lines) + "\n"


def row(label: str, name: str, measured: Mapping[str, Any]) -> str:
    """One row of the table."""
    low, high = measured["ratio_quartiles"]
    without, with_history = (shown(name, measured[side]) for side in ("without", "with"))
    ratio = f"{measured['ratio']:.2f} ({low:.2f} to {high:.2f})"
    return f"| {label} | {MEASURES[name]} | {without} | {with_history} | {ratio} |"


def shown(name: str, seconds: Sequence[float]) -> str:
    """The median; as a rate if messages were counted."""
    if name in MESSAGES:
        return f"{MESSAGES[name] / median(seconds):,.0f}/s"
    return f"{median(seconds) * 1000:.1f} ms"


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--engines", default=",".join(DEFAULT_ENGINES), help=", ".join(ENGINES))
    parser.add_argument("--archived", type=int, default=1_000_000, help="length of the history")
    parser.add_argument("--rounds", type=int, default=25, help="how often each side runs")
    parser.add_argument("--markdown", action="store_true", help="print the last result instead")
    options = parser.parse_args()
    if options.markdown:
        print(section(), end="")
        return
    engines = options.engines.split(",")
    if unknown := set(engines) - set(ENGINES):
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    arguments = f"--engines {options.engines} --archived {options.archived}"
    command = f"python -m scripts.benchmarks.{NAME} {arguments} --rounds {options.rounds}"
    result: dict[str, Any] = {"archived": options.archived, "rounds": options.rounds, "engines": {}}
    with progress_bar() as progress:
        for engine in engines:
            measured = measure(engine, options.archived, options.rounds, progress)
            result["engines"][engine] = measured
            # After each engine, so that an interrupted run has results.
            path = write_result(NAME, command, result)
            progress.print(f"{engine} is in {path}")
    print(section())


class _Raw(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the description's layout, and shows defaults."""


if __name__ == "__main__":
    main()
