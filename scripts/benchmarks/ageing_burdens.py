"""Other messages of a queue beside its ready ones: claimed, delayed, archived ones.

For each burden, one database has two queues with the same settings, of which only one has the
burden. In each round both get the same work in turn, as in ``ageing_backlog``. A ratio is the
median with the burden divided by the median without it.

claimed
    the oldest ``--burden`` messages are claimed and stay claimed.
delayed
    that many messages are not due yet.
levels
    a queue of four priorities: that many of the most urgent ones are not due yet, and the ready
    ones have the least urgent priority.
archived
    ``archive="all"``, and ``--archived`` finished messages in the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from rich.progress import Progress

from queue_over_sql import Publication, Queue, QueueService
from queue_over_sql.service import parts_of
from scripts.benchmarks.ageing import Account, figures, parser_of, settle, version_of
from scripts.benchmarks.ageing_backlog import BATCHES, MEASURES, SINGLES, WARM_UP, Subject, in_turns
from scripts.benchmarks.archived_history import Subject as WithHistory
from scripts.benchmarks.archived_history import fill_archive
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
)

NAME = "ageing_burdens"
READY = 1000
DAY = 86_400.0

Fill = Callable[[ExitStack, QueueService, Queue, int], int]


def claim_head(stack: ExitStack, service: QueueService, queue: Queue, count: int) -> int:
    """Claim the oldest messages for another consumer, which lives until the end."""
    queue.load(Account().new(count))
    engine = parts_of(service).connections.engine
    holder = QueueService(engine.url)
    stack.callback(holder.stop)
    held, held_queue = 0, holder.queue(queue.name)
    while held < count:
        held += len(held_queue.consume(min(1000, count - held), lease=DAY))
    return held


def delay(_: ExitStack, __: QueueService, queue: Queue, count: int) -> int:
    """Publish messages of the most urgent priority that are due much later."""
    return queue.load(Publication(each, delay=DAY) for each in Account().new(count))


def archive(_: ExitStack, service: QueueService, queue: Queue, count: int) -> int:
    """Fill the archive."""
    fill_archive(WithHistory(service, queue), count, lambda _: None)
    return 0


@dataclass(frozen=True)
class Burden:
    """One burden.

    Attributes:
        title: on the page.
        fill: adds it to a queue; returns how many of its messages stay live.
        settings: of both queues.
        priority: of the ready messages.
    """

    title: str
    fill: Fill
    settings: Mapping[str, Any]
    priority: int = 0


BURDENS: Final = {
    "claimed": Burden("claimed, at the head", claim_head, {"archive": "none"}),
    "delayed": Burden("delayed", delay, {"archive": "none"}),
    "levels": Burden(
        "delayed in the most urgent of 4 levels", delay, {"archive": "none", "priorities": 4}, 3
    ),
    "archived": Burden("archived", archive, {"archive": "all"}),
}


def measure(
    engine: str, burdens: Mapping[str, int], rounds: int, progress: Progress
) -> dict[str, Any]:
    """Measure all burdens on one engine.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a message was lost or came twice.
    """
    found: dict[str, Any] = {}
    version, published = "", 0
    with databases_of(engine) as new_database:
        for name, count in burdens.items():
            running = progress.add_task(f"{engine}: {name}", total=rounds + WARM_UP)
            with ExitStack() as stack:
                service = QueueService(new_database(name))
                stack.callback(service.stop)
                subjects = subjects_of(stack, service, BURDENS[name], count)
                settle(service)
                for done in in_turns(subjects, rounds):
                    progress.update(running, completed=done)
                published += sum(subject.check()["published"] for subject in subjects)
                version = version_of(service)
                found[name] = {"count": count} | compared(*subjects)
    return {"version": version, "published": published, "burdens": found}


def subjects_of(
    stack: ExitStack, service: QueueService, burden: Burden, count: int
) -> Sequence[Subject]:
    """The queue without the burden and the one with it."""
    free, burdened = (
        Subject(service.create_queue(name, **burden.settings), burden.priority)
        for name in ("free", "burdened")
    )
    burdened.burden = burden.fill(stack, service, burdened.queue, count)
    for subject in (free, burdened):
        subject.load(READY)
    return free, burdened


def compared(free: Subject, burdened: Subject) -> dict[str, Any]:
    """Statistics of both, by measure, and the ratio of their medians."""
    return {
        name: {
            "free": (without := figures(free.seconds[name])),
            "burdened": (with_it := figures(burdened.seconds[name])),
            "ratio": round(with_it["median"] / without["median"], 3),
        }
        for name in MEASURES
    }


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    published = sum(found["published"] for found in result["engines"].values())
    lines = [
        "## What a queue carries beside its ready messages",
        "",
        f"""\
Two queues of one database with the same settings and {READY:,} ready messages; one of them also
carries what the table says. In turns, {result["rounds"]} rounds of {SINGLES} single messages,
{BATCHES} batches of 100 and {SINGLES} publishes each. Median latencies in milliseconds without →
with the burden, and their ratio: 1.00 is no difference, more is slower. Commits reach the disk.""",
        "",
        f"| engine | burden | {' | '.join(MEASURES.values())} |",
        "|---" * (len(MEASURES) + 2) + "|",
    ]
    for engine, found in result["engines"].items():
        label = f"{TITLES[engine]} {found['version']}"
        for name, measured in found["burdens"].items():
            cells = [shown(measured[measure]) for measure in MEASURES]
            title = f"{measured['count']:,} {BURDENS[name].title}"
            lines.append(f"| {' | '.join([label, title, *cells])} |")
            label = ""
    lines += [
        "",
        f"{published:,} messages were published; none of those consumed was lost or came twice.",
        origin_of(result),
    ]
    return "\n".join(lines) + "\n"


def shown(measured: Mapping[str, Any]) -> str:
    """A cell of the table."""
    free, burdened = measured["free"]["median"], measured["burdened"]["median"]
    return f"{free:.2f} → {burdened:.2f} ({measured['ratio']:.2f})"


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--burdens", default=",".join(BURDENS), help="by commas")
    parser.add_argument("--burden", type=int, default=200_000, help="claimed or delayed messages")
    parser.add_argument("--archived", type=int, default=1_000_000, help="archived messages")
    parser.add_argument("--rounds", type=int, default=25, help="how often each queue runs")
    options = parser.options({"burden": 10_000, "archived": 20_000, "rounds": 4})
    if options.markdown:
        print(section(), end="")
        return
    burdens = {
        name: options.archived if name == "archived" else options.burden
        for name in options.burdens.split(",")
    }
    parser.measure_each(
        NAME,
        options,
        {"rounds": options.rounds},
        lambda engine, progress: measure(engine, burdens, options.rounds, progress),
    )
    print(section())


if __name__ == "__main__":
    main()
