"""Many consumers on one queue: no duplicates, no losses, and order for each consumer."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from queue_over_sql import Queue
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import Account, archived_count, archived_tokens, repeated
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import consumer
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@dataclasses.dataclass(frozen=True)
class Load:
    """What is published before and while others consume, and how much each of them claims."""

    early: int
    late: int
    batches: tuple[int, ...]

    @property
    def early_tokens(self) -> list[str]:
        """Those that are all there before the first claim."""
        return [f"early-{number:05}" for number in range(self.early)]

    @property
    def late_tokens(self) -> list[str]:
        """Those that are published while others consume."""
        return [f"late-{number:05}" for number in range(self.late)]

    @property
    def count(self) -> int:
        """How many there are."""
        return self.early + self.late


LARGE = Load(3_000, 1_000, (1, 2, 5, 10, 10, 25, 50, 100))
loads = pytest.mark.parametrize(
    "load",
    [Load(500, 200, (1, 5, 10, 50)), pytest.param(LARGE, marks=pytest.mark.full)],
    ids=["small", "large"],
)


def payloads(tokens: Sequence[str]) -> list[dict[str, str]]:
    """The messages that carry these tokens."""
    return [{"token": token} for token in tokens]


def publish_late(queue: Queue, tokens: Sequence[str]) -> None:
    """Publish while others consume: some one by one, most in batches."""
    singles, rest = tokens[:100], tokens[100:]
    for payload in payloads(singles):
        queue.publish(payload)
    for start in range(0, len(rest), 100):
        queue.publish_many(payloads(rest[start : start + 100]))


def check_exactly_once(load: Load, account: Account, sql: Engine) -> None:
    """Each message was delivered once, acknowledged once, and is finished."""
    published = sorted(load.early_tokens + load.late_tokens)
    assert [] == account.check(sql)
    assert [] == repeated(account.tokens("delivered"))
    assert published == sorted(account.tokens("settled", "ack"))
    assert published == sorted(archived_tokens(sql, "done"))


def early(tokens: Sequence[str]) -> list[str]:
    """Those that were all there before the first claim, so that their order is known."""
    return [token for token in tokens if token.startswith("early")]


def all_alive(consumers: Sequence[Process]) -> bool:
    """True; a consumer that ended too early fails the test with what it said."""
    for process in consumers:
        process.check_alive()
    return True


def finish(consumers: Sequence[Process]) -> None:
    """Stop the consumers, each after its current batch."""
    for process in consumers:
        process.tell("stop")
    for process in consumers:
        process.expect("done")
        assert 0 == process.join()


def finish_all(load: Load, consumers: Sequence[Process], sql: Engine) -> None:
    """Wait until the consumers have finished every message, and stop them."""
    eventually(
        lambda: all_alive(consumers) and archived_count(sql) >= load.count,
        "every message in the archive",
        within=150,
        every=0.2,
    )
    finish(consumers)


@loads
@pytest.mark.default_on("sqlite", "postgresql")
def test_processes_get_each_message_once(
    load: Load, make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Many processes on one queue: no message twice, none lost, each process in order."""
    queue = make_service().create_queue("jobs", archive="all")
    queue.load(payloads(load.early_tokens))
    consumers = [
        crew.spawn(
            consumer.Arguments(database.url, str(crew.journals), batch=size, reaper_interval=1.0)
        )
        for size in load.batches
    ]
    for process in consumers:
        process.expect("ready")
    for process in consumers:
        process.tell("go")
    publish_late(queue, load.late_tokens)
    finish_all(load, consumers, sql)

    account = crew.account()
    check_exactly_once(load, account, sql)
    sequences = [early(tokens) for tokens in account.sequences().values()]
    assert [sorted(tokens) for tokens in sequences] == sequences


def consume_until(stop: threading.Event, queue: Queue, size: int, journal: Journal) -> None:
    """One thread's share of the shared service."""
    while not stop.is_set():
        messages = queue.consume(size, wait=0.1)
        if messages:
            journal.delivered(messages)
            with journal.settling("ack", messages):
                queue.ack(messages)


@loads
@pytest.mark.default_on("sqlite", "postgresql")
def test_threads_share_one_service(
    load: Load, make_service: MakeService, sql: Engine, crew: Crew
) -> None:
    """Many threads of one QueueService: no round is used twice, and each message comes once."""
    service = make_service()
    queue = service.create_queue("jobs", archive="all")
    queue.load(payloads(load.early_tokens))
    journal = Journal(crew.journals)
    stop = threading.Event()
    with service, ThreadPoolExecutor(len(load.batches)) as threads:
        work = [threads.submit(consume_until, stop, queue, size, journal) for size in load.batches]
        try:
            publish_late(queue, load.late_tokens)
            eventually(
                lambda: archived_count(sql) >= load.count or any(w.done() for w in work),
                "every message in the archive",
                within=150,
                every=0.2,
            )
        finally:
            stop.set()
        for share in work:
            share.result()

    account = crew.account()
    assert [] == account.rounds_shared_by_batches()
    check_exactly_once(load, account, sql)
