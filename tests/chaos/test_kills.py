"""`kill -9` of consumers and publishers: claims come back, and commits stay."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine

from queue_over_sql import FixedDelay, Message, Publication
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import (
    Account,
    archived,
    archived_tokens,
    live_payloads,
    live_tokens,
    repeated,
)
from tests.chaos.processes import Crew
from tests.chaos.roles import consumer, publisher, puppet, worker
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(90)]

WAYS = ("one", "many", "load", "transaction")
"""Of publishing; each is the name of a publisher, too."""


def test_the_messages_of_a_killed_consumer_come_back_to_their_place(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Killed in the middle of a batch: the rest of it returns, before all younger ones."""
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs")
        ids = [p.id for p in queue.publish_many([{"token": str(n)} for n in range(20)])]
        victim = crew.spawn(puppet.Arguments(database.url, consumer_timeout=4.0))
        victim.expect("ready")
        claimed = [m["id"] for m in victim.ask("consume", count=10)["messages"]]
        for message_id in claimed[:3]:
            assert victim.ask("ack", id=message_id)["error"] is None
        victim.kill()

        eventually(lambda: queue.stats().claimed == 0, "the claims of the dead consumer are gone")
        messages: list[Message] = []
        # What was with it comes back apart.
        while found := queue.consume(20):
            assert 1 == len(found) or len(messages) > 7
            messages += found
        assert ids[:10] == claimed
        assert ids[3:] == [message.id for message in messages]
        assert [2] * 7 + [1] * 10 == [message.attempt for message in messages]
        queue.ack(messages)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_killed_consumer_is_replaced_without_a_reaper(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """No service is started anywhere: a consume that comes back short restores by itself."""
    queue = make_service().create_queue("jobs")
    published = queue.publish({"token": "orphan"})
    victim = crew.spawn(puppet.Arguments(database.url, consumer_timeout=1.0, started=False))
    victim.expect("ready")
    assert 1 == len(victim.ask("consume")["messages"])
    victim.kill()

    [message] = eventually(lambda: queue.consume(wait=0.5), "the message of the dead consumer")
    assert published.id == message.id
    assert 2 == message.attempt
    message.ack()


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_message_that_kills_its_consumers_ends_in_the_archive(
    make_service: MakeService,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
) -> None:
    """Workers die of a message until it is a dead letter with its reason; work goes on.

    It has three attempts, and one more if it was not alone at the first death.
    """
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs", archive="all", max_attempts=50)
        queue.publish({"token": "poison"}, max_attempts=3)
        queue.publish_many([{"token": f"harmless-{n}"} for n in range(3)])
        arguments = worker.Arguments(
            database.url, str(crew.journals), deadly="poison", consumer_timeout=3.0
        )
        workers = [crew.spawn(arguments) for _ in range(5)]
        for process in workers:
            process.expect("ready")

        eventually(lambda: archived_tokens(sql, "failed"), "the poison in the archive")
        eventually(lambda: not live_tokens(sql), "all others done")
        [dead] = queue.archive.messages(status="failed").list()
        assert {"token": "poison"} == dead.payload
        assert dead.attempt == dead.max_attempts
        assert dead.attempt in {3, 4}
        assert dead.attempt == crew.account().tokens("started").count("poison")
        eventually(lambda: sum(p.alive for p in workers) == 5 - dead.attempt, "dead workers")
        assert str(dead.last_error).startswith("out of attempts: the consumer died")
        assert ["poison"] == archived_tokens(sql, "failed")
        assert [f"harmless-{n}" for n in range(3)] == sorted(archived_tokens(sql, "done"))


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_killed_worker_repeats_only_what_it_finished_last(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """It claims ahead and acks behind: the last few are handled again, and no message is left."""
    queue = make_service().create_queue("jobs")
    tokens = [f"{number:04}" for number in range(3_000)]
    queue.publish_many([{"token": token} for token in tokens])
    arguments = worker.Arguments(
        database.url, str(crew.journals), concurrency=1, seconds=0.001, consumer_timeout=4.0
    )
    victim = crew.spawn(arguments)
    victim.expect("ready")
    eventually(lambda: len(crew.account().tokens("finished")) > 500, "it is at work")
    victim.kill()
    before = crew.account().tokens("finished")
    crew.spawn(arguments).expect("ready")
    eventually(lambda: not live_tokens(sql), "the other has done the rest", within=60)

    finished = crew.account().tokens("finished")
    again = repeated(finished)
    assert set(tokens) == set(finished)
    assert before[len(before) - len(again) :] == again
    # What it may have in hand: 25 ms of calls that take 1 ms or more, and as many finished ones.
    assert len(again) <= 60


@pytest.mark.default_on("sqlite", "postgresql")
def test_kills_around_the_end_of_what_expired(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Each message ends once: as expired, or done if the claim of it had begun its first attempt.

    One consumer dies between its claim of expired messages and their end, one after the end.
    """
    queue = make_service().create_queue("jobs", archive="all")
    late, fresh = ([f"{name}-{n}" for n in range(9)] for name in ("late", "fresh"))
    queue.publish_many([Publication({"token": token}, expires=0.001) for token in late])
    queue.publish_many([Publication({"token": token}, expires=3600) for token in fresh])
    for when, ended in (("before", []), ("after", late[3:6])):
        victim = crew.spawn(
            puppet.Arguments(
                database.url, consumer_timeout=1.0, started=False, dies_of_expired=when
            )
        )
        victim.expect("ready")
        victim.tell("consume", count=3)
        assert -signal.SIGKILL == victim.join()
        assert [(token, "expired") for token in ended] == archived(sql)
        assert 18 == len(live_tokens(sql)) + len(ended)

    crew.spawn(worker.Arguments(database.url, str(crew.journals))).expect("ready")
    eventually(lambda: not live_tokens(sql), "a worker and its reaper have done the rest")
    assert late[3:] == archived_tokens(sql, "expired")
    assert late[:3] + fresh == archived_tokens(sql, "done")
    assert 18 == len(archived(sql))
    assert sorted(late[:3] + fresh) == sorted(crew.account().tokens("started"))
    attempts = {m.payload["token"]: m.attempt for m in queue.archive.messages().list()}
    assert [2] * 3 + [1] * 15 == [attempts[token] for token in late + fresh]


def numbers_by_writer(tokens: Iterable[str]) -> dict[str, list[int]]:
    """The running numbers of each publisher's tokens, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for token in tokens:
        writer, _, number = token.rpartition("-")
        found[writer].append(int(number))
    return {writer: sorted(numbers) for writer, numbers in found.items()}


def check_no_half_batches(account: Account, present: set[str]) -> None:
    """Each publish that was begun is there whole or not at all; a load is many of them."""
    for batch in account.batches("intends"):
        if not any(token.startswith("load-") for token in batch):
            assert batch & present in (set(), batch)


def check_whole_loads(present: Iterable[str]) -> None:
    """A load was cut off between two of its batches, without holes."""
    numbers = numbers_by_writer(present)["load"]
    assert list(range(len(numbers))) == numbers
    assert 0 == len(numbers) % publisher.LOAD_BATCH


def has_published(crew: Crew, name: str) -> bool:
    """Whether this publisher has reported several publishes as committed."""
    return (crew.journals / f"{name}.jsonl").read_text().count('"published"') > 20


def test_killed_publishers_leave_what_they_committed(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Whatever was reported as committed is there, once and complete; no batch is there in half.

    One publisher for each way to publish; they die one after another while the others go on.
    """
    make_service().create_queue("jobs")
    publishers = [
        crew.spawn(publisher.Arguments(database.url, str(crew.journals), way, way)) for way in WAYS
    ]
    for process in publishers:
        process.expect("ready")
    for process in publishers:
        process.tell("go")
    for process, name in zip(publishers, WAYS, strict=True):
        eventually(partial(has_published, crew, name), f"{name} has published")
        time.sleep(0.15)  # somewhere within a later publish
        process.kill()

    account = crew.account()
    payloads = live_payloads(sql)
    present = [str(payload["token"]) for payload in payloads]
    assert [] == repeated(present)
    assert set() == set(account.tokens("published")) - set(present)
    assert set() == set(present) - set(account.tokens("intends"))
    assert [] == [p for p in payloads if p["ballast"] != str(p["token"]) * 20]
    check_whole_loads(present)
    check_no_half_batches(account, set(present))


@pytest.mark.default_on("sqlite", "postgresql", "mysql")
def test_kills_where_one_message_of_a_key_waits_while_others_are_in_work(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """What came in is done once, although its key went to others: no return is ever refused.

    Publishers and consumers die while others go on; those also give back at random.
    """
    settings: dict[str, Any] = {"archive": "all", "retry": FixedDelay(0), "max_attempts": 10_000}
    make_service().create_queue("jobs", unique="waiting", **settings)
    arguments = partial(publisher.Arguments, database.url, str(crew.journals), "few_keys")
    publishers = [crew.spawn(arguments(f"few_keys-{n}")) for n in range(2)]
    consumers = [
        crew.spawn(
            consumer.Arguments(
                database.url, str(crew.journals), batch=3, fickle=True, seed=n, consumer_timeout=2.0
            )
        )
        for n in range(4)
    ]
    for process in publishers + consumers:
        process.expect("ready")
    for process in publishers + consumers:
        process.tell("go")
    for number, victims in enumerate((consumers[:1], [publishers[0], consumers[1]])):
        known = len(crew.account().tokens("published"))
        done = partial(came_in_since, crew, known + 15 * (number + 1))
        eventually(done, "publishers and consumers are at work", within=40)
        for process in victims:
            process.kill()
    publishers[1].tell("stop")
    publishers[1].expect("done")
    eventually(lambda: not live_tokens(sql), "the rest is done", within=40)
    for process in consumers[2:]:
        process.check_alive()
        process.tell("stop")
        process.expect("done")
        assert 0 == process.join()

    account = crew.account()
    ended = archived_tokens(sql, "done")
    assert len(ended) == len(archived(sql))
    assert set() == set(ended) - set(account.tokens("intends"))
    assert [] == account.check(sql)


def came_in_since(crew: Crew, count: int) -> bool:
    """Whether as many messages were published as new ones."""
    return len(crew.account().tokens("published")) > count
