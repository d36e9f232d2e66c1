"""How each workload runs, and how it is measured and checked."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

from sqlalchemy import Connection, create_engine, make_url

from scripts.benchmarks.workloads_list import PAYLOAD_BYTES, Workload
from scripts.benchmarks.workloads_processes import ContenderFailed, Contestant

_FILL_BATCH = 1_000
_DRAIN_BATCH = 100
_DRAIN_THREADS = 4
_PAUSE_BETWEEN = 0.05
# PostgreSQL's sessions report their counts after they have been idle for a second.
_REPORTED = 1.5


class MessagesLost(Exception):
    """Messages did not come, or came more than once."""


def measure(contestant: Contestant, workload: Workload, count: int) -> float:
    """Messages per second of one run.

    Raises:
        MessagesLost: the received messages are not the published ones.
        ContenderFailed: it answered with an error.
    """
    putting = workload.act in {"publish", "load"}
    return (_put if putting else _get)(contestant, workload, count)


def _put(contestant: Contestant, workload: Workload, count: int) -> float:
    first = contestant.numbers(count)
    content = {"first": first, "count": count, "bytes": workload.payload}
    answer = contestant.first.ask(workload.act, **content, **dict(workload.arguments))
    _check_drained(contestant, first, count, [])
    return count / float(answer["seconds"])


def _get(contestant: Contestant, workload: Workload, count: int) -> float:
    total = count + workload.backlog
    # First, because a consumer's warm-up may take a message.
    processes = contestant.processes(workload.processes)
    first = _fill(contestant, total, workload.payload)
    for process in processes:
        process.tell(workload.act, count=count, **dict(workload.arguments))
    answers = [process.answer() for process in processes]
    numbers = [number for answer in answers for number in answer["numbers"]]
    _check_drained(contestant, first, total, numbers)
    if not numbers:
        msg = f"{contestant.name}: none of {count} messages came before it took the queue for empty"
        raise ContenderFailed(msg)
    return count / max(float(answer["seconds"]) for answer in answers)


def _fill(contestant: Contestant, count: int, size: int) -> int:
    """Publish in the fastest way; returns the first number."""
    first = contestant.numbers(count)
    content = {"first": first, "count": count, "bytes": size}
    if contestant.can("load"):
        answer = contestant.first.ask("load", **content)
    else:
        batch = _FILL_BATCH if contestant.can("publish_many") else 1
        answer = contestant.first.ask("publish", batch=batch, **content)
    contestant.fill_rate = count / float(answer["seconds"])
    return first


def _check_drained(contestant: Contestant, first: int, count: int, received: Sequence[int]) -> None:
    """Take the remaining messages, and check that each came exactly once."""
    numbers = list(received)
    if left := count - len(numbers):
        if contestant.can("consume"):
            answer = contestant.first.ask("consume", batch=_DRAIN_BATCH, count=left)
        else:
            work = {"threads": _DRAIN_THREADS, "transactional": False}
            answer = contestant.first.ask("work", count=left, **work)
        numbers += answer["numbers"]
    counted = Counter(numbers)
    missing = sum(number not in counted for number in range(first, first + count))
    twice = sum(times > 1 for times in counted.values())
    foreign = sum(not first <= number < first + count for number in counted)
    remaining = contestant.first.ask("remaining")["count"]
    if missing or twice or foreign or remaining:
        msg = (
            f"{contestant.name}: of {count} messages {missing} did not come, {twice} came more than"
            f" once, {foreign} were others, {remaining} were left"
        )
        raise MessagesLost(msg)


def latency(contestant: Contestant, count: int) -> dict[str, float]:
    """Milliseconds from the end of a publish to the handler of a waiting consumer.

    Raises:
        MessagesLost: not all messages came.
    """
    first = contestant.numbers(count)
    consumer, publisher = contestant.processes(2)
    consumer.tell("latency", count=count)
    consumer.answer()  # it is ready
    content = {"first": first, "count": count, "bytes": PAYLOAD_BYTES, "pause": _PAUSE_BETWEEN}
    sent = publisher.ask("publish_spaced", **content)["sent"]
    received = consumer.answer()["received"]
    if sent.keys() != received.keys():
        msg = f"{contestant.name}: {len(sent)} messages were published, {len(received)} came"
        raise MessagesLost(msg)
    # A handler may start before the publisher has its answer.
    waits = [max(0.0, received[number] - moment) * 1000 for number, moment in sent.items()]
    cuts = quantiles(waits, n=100, method="inclusive")
    return {"p50_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3)}


def load_once(contestant: Contestant, count: int) -> float:
    """The rate of one large load; its messages are only counted.

    Raises:
        MessagesLost: the count is wrong afterwards.
    """
    content = {"first": contestant.numbers(count), "count": count, "bytes": PAYLOAD_BYTES}
    seconds = float(contestant.first.ask("load", **content)["seconds"])
    remaining = contestant.first.ask("remaining")["count"]
    if remaining != count:
        msg = f"{contestant.name}: {count} messages were loaded, and there are {remaining}"
        raise MessagesLost(msg)
    return count / seconds


def idle(contestant: Contestant, seconds: float, observer: Observer | None) -> float | None:
    """Statements per second of a worker on an empty queue; None if unknown.

    Measured twice, so that the statements of its start and its end cancel out.

    Args:
        contestant: no other contender may have a process on its server.
        seconds: the duration; three times as long in the second run.
        observer: counts the server's statements; None if the server does not.
    """
    contestant.keep(1)
    short, long = (statements_of(contestant, each, observer) for each in (seconds, 3 * seconds))
    return None if short is None or long is None else (long - short) / (2 * seconds)


def statements_of(contestant: Contestant, seconds: float, observer: Observer | None) -> int | None:
    """The number of statements of an idle worker from its start to its end."""
    if observer is None:
        own: int | None = contestant.first.ask("idle", seconds=seconds)["statements"]
        return own
    time.sleep(_REPORTED)
    before = observer.statements(contestant.url)
    contestant.first.ask("idle", seconds=seconds)
    time.sleep(_REPORTED)
    return observer.statements(contestant.url) - before - observer.own


@dataclass(frozen=True)
class Observer:
    """Asks a server how many statements it has run.

    Attributes:
        connection: to its own database.
        question: its last column is the count; it may name the database.
        own: how many statements of the observer are between two counts.
    """

    connection: Connection
    question: str
    own: int

    def statements(self, url: str) -> int:
        """Statements of all sessions of the server, or of the database if the server counts so."""
        name = make_url(url).database
        asked = self.connection.exec_driver_sql(self.question.format(name=name))
        return int(asked.fetchall()[0][-1])


@contextlib.contextmanager
def observer_of(engine: str, url: str) -> Iterator[Observer | None]:
    """An observer connected to this database; None if the server has no count."""
    if engine not in _QUESTIONS:
        yield None
        return
    asking = create_engine(url, isolation_level="AUTOCOMMIT")
    with asking.connect() as connection:
        yield Observer(connection, *_QUESTIONS[engine])
    asking.dispose()


_STATUS = ("SHOW GLOBAL STATUS LIKE 'Questions'", 1)
# PostgreSQL counts transactions per database; a polling worker's are single statements.
_QUESTIONS = {
    "postgresql": (
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{name}'",
        0,
    ),
    "mariadb": _STATUS,
    "mysql": _STATUS,
}
