"""The same work with more and more waiting messages: nothing may depend on their number.

One database has a queue per size. In each round every queue gets the same work in turn: ``SINGLES``
messages are claimed and acked one by one, ``BATCHES`` batches of 100, and ``SINGLES`` are published
one by one. Then missing messages are replaced, so that each queue keeps its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from rich.progress import Progress

from queue_over_sql import Publication, Queue, QueueService
from scripts.benchmarks.ageing import (
    Account,
    claim_and_ack,
    figures,
    numbers,
    parser_of,
    publish_singly,
    settle,
    version_of,
)
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
)

NAME = "ageing_backlog"
BATCH, BATCHES, SINGLES = 100, 3, 20
WARM_UP = 2
# Engines that also get the largest size.
LARGEST = ("postgresql",)
MEASURES: Final = {
    "single": "claim and ack of 1",
    "batch": f"claim and ack of {BATCH}",
    "publish": "publish 1",
}


@dataclass
class Subject:
    """A queue of one size.

    Attributes:
        queue: the queue.
        priority: of the published messages.
        burden: how many further messages are in the queue, which are never delivered.
        account: of its messages.
        seconds: of each sample, by measure.
    """

    queue: Queue
    priority: int = 0
    burden: int = 0
    account: Account = field(default_factory=Account)
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def load(self, count: int) -> None:
        """Publish by the bulk path."""
        messages = self.account.new(count)
        self.queue.load(Publication(each, priority=self.priority) for each in messages)

    def round(self) -> None:
        """Run one round."""
        for measure, batch, times in (("single", 1, SINGLES), ("batch", BATCH, BATCHES)):
            taken = claim_and_ack(self.queue, batch, times)
            self.account.numbers.extend(taken.numbers)
            self.seconds[measure] += taken.both
            self.seconds[f"{measure}, claim"] += taken.claims
        self.seconds["publish"] += publish_singly(
            self.queue, self.account.new(SINGLES), self.priority
        )
        self.load(BATCH * BATCHES)

    def check(self) -> dict[str, int]:
        """Check the account at the end.

        Raises:
            SystemExit: a message was lost or came twice.
        """
        return self.account.check(self.queue.name, self.queue.stats().live - self.burden)


def in_turns(subjects: Sequence[Subject], rounds: int) -> Iterator[int]:
    """Rounds of all subjects; warm-up rounds do not count. Yields after each."""
    for number in range(rounds + WARM_UP):
        if number == WARM_UP:
            for subject in subjects:
                subject.seconds.clear()
        # The first one changes, so that none always follows the same one.
        for subject in subjects[:: 1 if number % 2 else -1]:
            subject.round()
        yield number + 1


def measure(engine: str, sizes: Sequence[int], rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure all sizes on one engine.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a message was lost or came twice.
    """
    filling = progress.add_task(f"{engine}: filling", total=sum(sizes))
    running = progress.add_task(f"{engine}: rounds", total=rounds + WARM_UP, start=False)
    with ExitStack() as stack:
        service = QueueService(stack.enter_context(databases_of(engine))("backlog"))
        stack.callback(service.stop)
        subjects = []
        for size in sizes:
            subject = Subject(service.create_queue(f"with_{size}", archive="none"))
            subject.load(size)
            progress.advance(filling, size)
            subjects.append(subject)
        settle(service)
        progress.start_task(running)
        for done in in_turns(subjects, rounds):
            progress.update(running, completed=done)
        accounts = [subject.check() for subject in subjects]
        return {
            "version": version_of(service),
            "published": sum(account["published"] for account in accounts),
            "sizes": {
                str(size): {name: figures(found) for name, found in subject.seconds.items()}
                for size, subject in zip(sizes, subjects, strict=True)
            },
        }


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    published = sum(found["published"] for found in result["engines"].values())
    lines = [
        "## The backlog grows",
        "",
        f"""\
A queue of each size, and the same work with each of them in turns, {result["rounds"]} rounds of
{SINGLES} single messages, {BATCHES} batches and {SINGLES} publishes; each keeps its size.
Median latencies in milliseconds; the ratio is the largest size by the smallest. Commits reach the
disk.""",
        "",
        *table(result["engines"]),
        "",
        f"{published:,} messages were published; none of those consumed was lost or came twice.",
        origin_of(result),
    ]
    return "\n".join(lines) + "\n"


def table(engines: Mapping[str, Any]) -> Iterable[str]:
    """A row for each engine and measure, a column for each size."""
    sizes = sorted({int(size) for found in engines.values() for size in found["sizes"]})
    heads = " | ".join(f"{size:,}" for size in sizes)
    yield f"| engine | | {heads} | ratio |"
    yield "|---" * (len(sizes) + 3) + "|"
    for engine, found in engines.items():
        label = f"{TITLES[engine]} {found['version']}"
        for name, title in MEASURES.items():
            medians = [
                found["sizes"][str(size)][name]["median"]
                for size in sizes
                if str(size) in found["sizes"]
            ]
            cells = [f"{each:.2f}" for each in medians] + [""] * (len(sizes) - len(medians))
            ratio = f"{medians[-1] / medians[0]:.2f}"
            yield f"| {' | '.join([label, title, *cells, ratio])} |"
            label = ""


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", default="1000,10000,100000,1000000", help="by commas")
    parser.add_argument(
        "--largest", type=int, default=5_000_000, help="one more size, on PostgreSQL; 0: none"
    )
    parser.add_argument("--rounds", type=int, default=25, help="how often each size runs")
    options = parser.options({"sizes": "1000,10000,50000", "largest": 0, "rounds": 4})
    if options.markdown:
        print(section(), end="")
        return

    def one(engine: str, progress: Progress) -> dict[str, Any]:
        more = [options.largest] if options.largest and engine in LARGEST else []
        return measure(engine, numbers(options.sizes) + more, options.rounds, progress)

    parser.measure_each(NAME, options, {"rounds": options.rounds}, one)
    print(section())


if __name__ == "__main__":
    main()
