"""The streaming source: the content of each batch, and what is acknowledged."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from queue_over_sql import Publication, QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.contract.existing_tables.users_tables import Invoice, create_invoices, statuses
from tests.spark.stream.micro_batches import Action, Checkpoint, Stop, Stream, fill, numbers
from tests.waiting import eventually

twice = pytest.mark.default_on("sqlite", "postgresql")


@pytest.fixture
def new_database(engine_name: str, servers: Any, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes one more database on the engine of the test; returns its URL."""
    with ExitStack() as stack:

        def make() -> str:
            name = f"test_{uuid.uuid4().hex[:12]}"
            if engine_name == "sqlite":
                return f"sqlite:///{tmp_path / name}.db"
            server = servers.get(engine_name)
            stack.callback(server.drop_database, name)
            url: str = server.create_database(name)
            return url

        yield make


def test_a_queue_is_drained_in_batches_and_acknowledged_to_the_last(
    stream: Stream, service: QueueService
) -> None:
    """Each message comes once, no batch is larger than told, and nothing is left: not the last."""
    queue = service.create_queue("jobs", archive="all")
    sent = fill(queue, 250)
    came = stream.run(Checkpoint(), maxMessagesPerTrigger="100", messagesPerPartition="40")
    assert sent == sorted(numbers(came))
    assert [100, 100, 50] == [len(rows) for rows in came]
    assert 0 == queue.stats().live
    assert 250 == queue.stats().done
    assert {1} == {row["attempt"] for rows in came for row in rows}
    assert {"reports"} == {row["consumer_id"] for rows in came for row in rows}


@twice
def test_a_partition_has_the_order_of_groups(stream: Stream, service: QueueService) -> None:
    """A retry comes before those behind it, although it is due later."""
    queue = service.create_queue("jobs", group_limit=1)
    groups = [*"aabacbca"]
    ids = [each.id for each in queue.publish_many([Publication("x", group=g) for g in groups])]
    [first] = queue.consume(1)
    first.nack("again", delay=0)
    query = stream.start(Checkpoint())
    [part] = query.plan()
    read = [row["id"] for row in query.read(part)]
    assert sorted(ids) == sorted(read)
    for group in "abc":
        mine = [each for each in ids if groups[ids.index(each)] == group]
        assert mine == [each for each in read if each in mine]


@twice
def test_a_partition_is_a_round(stream: Stream, service: QueueService) -> None:
    """Its messages carry its number, oldest first."""
    queue = service.create_queue("jobs")
    fill(queue, 50)
    query = stream.start(Checkpoint(), messagesPerPartition="20")
    rows = [query.read(part) for part in query.plan()]
    assert [{1}, {2}, {3}] == [{row["consumer_round"] for row in part} for part in rows]
    assert [17, 17, 16] == [len(part) for part in rows]
    assert rows == [sorted(part, key=lambda row: row["id"]) for part in rows]


@twice
def test_the_driver_claims_strictly_in_order(stream: Stream, service: QueueService) -> None:
    """Every message of a partition is older than those of the next one, however they are read."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 60)
    query = stream.start(Checkpoint(), claimMode="driver", messagesPerPartition="25")
    rows = [query.read(part) for part in reversed(query.plan())]
    assert sent == numbers(rows[::-1])


def test_tasks_claim_side_by_side(stream: Stream, service: QueueService) -> None:
    """However many of them at once, also twice the same one: no message is in two rounds."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 400)
    query = stream.start(Checkpoint(), messagesPerPartition="50")
    parts = query.plan()
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(query.read, parts * 2))
    assert rows[: len(parts)] == rows[len(parts) :]
    assert sent == sorted(numbers(rows[: len(parts)]))


@twice
def test_a_run_until_empty_ends_with_what_was_there(stream: Stream, service: QueueService) -> None:
    """What is published or comes due while it runs is left to the next run."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 20)
    queue.publish({"n": 99}, delay=3600.0)

    def more(_: Action, number: int) -> None:
        if number == 0:
            fill(queue, 20, first=200)
            queue.messages(status="delayed").reschedule(delay=0.0)

    came = stream.run(Checkpoint(), during=more, maxMessagesPerTrigger="10")
    assert sent == sorted(numbers(came))
    assert 21 == queue.stats().ready


@twice
def test_the_progress_tells_what_waits(stream: Stream, service: QueueService) -> None:
    """`backlog` is what could be claimed, and is not counted at each question."""
    queue = service.create_queue("jobs")
    fill(queue, 40)
    query = stream.start(Checkpoint(), until_empty=False)
    assert {"backlog": 40} == query.reader.reportLatestOffset()
    fill(queue, 1)
    assert {"backlog": 40} == query.reader.reportLatestOffset()


@twice
def test_a_paused_queue_gives_nothing(stream: Stream, service: QueueService) -> None:
    """As to every consumer; what was claimed before is still replayed."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 10)
    log = Checkpoint()
    with pytest.raises(Stop):
        stream.run(log, fail_in=[0], maxMessagesPerTrigger="6")
    queue.pause()
    assert 6 == len(numbers(stream.run(log)))
    queue.resume()
    stream.run(log)
    assert sent == sorted(numbers([rows for _, rows in stream.batches[1:]]))


@twice
def test_workers_and_a_query_share_a_queue(stream: Stream, service: QueueService) -> None:
    """Both claim from one table: each message goes to one of them."""
    queue = service.create_queue("jobs", archive="all")
    sent = fill(queue, 600)
    mine: list[int] = []

    def work() -> None:
        while messages := queue.consume(7):
            mine.extend(message.payload["n"] for message in messages)
            queue.ack(messages)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        came = stream.run(Checkpoint(), maxMessagesPerTrigger="60", messagesPerPartition="20")
        working.result(60.0)
    assert Counter(sent) == Counter(mine + numbers(came))
    assert 600 == queue.stats().done


@twice
def test_what_becomes_of_acknowledged_messages(stream: Stream, service: QueueService) -> None:
    """`onAck` goes before the queue's own setting."""
    queue = service.create_queue("jobs")
    for ending, kept in (("queue", 0), ("delete", 0), ("archive", 10)):
        fill(queue, 10)
        stream.run(Checkpoint(), onAck=ending)
        assert 0 == queue.stats().live, ending
        assert kept == queue.stats().done, ending


@twice
def test_several_databases_are_one_stream(new_database: Callable[[], str]) -> None:
    """One query, one checkpoint; a database that joins later is read, too."""
    urls = {place: new_database() for place in ("north", "south", "west")}
    queues = {}
    with ExitStack() as stack:
        for place, url in urls.items():
            service = QueueService(url)
            stack.callback(service.stop)
            queues[place] = service.create_queue("jobs")
        sent = fill(queues["north"], 30) + fill(queues["south"], 50, first=100)
        sizes = {"maxMessagesPerTrigger": "40", "messagesPerPartition": "7"}
        stream = Stream({"queue": "jobs", "consumerId": "reports", "pollInterval": "1ms", **sizes})
        two = {place: urls[place] for place in ("north", "south")}
        log = Checkpoint()
        with pytest.raises(Stop):
            stream.run(log, fail_in=[1], urls=json.dumps(two))
        sent += fill(queues["west"], 20, first=1000)
        stream.run(log, urls=json.dumps(urls))
        batches = [rows for _, rows in stream.batches]
        assert batches[1] == batches[2]
        assert sent == sorted(numbers([batches[0], *batches[2:]]))
        assert [0, 0, 0] == [queue.stats().live for queue in queues.values()]
        with pytest.raises(ValueError, match="other databases"):
            stream.run(log, urls=json.dumps({"north": urls["north"]}))


@twice
def test_rows_of_an_existing_table_end_in_place(
    stream: Stream, service: QueueService, database: TestDatabase
) -> None:
    """They come with the user's columns, and an acknowledged row stays, as done."""
    engine = create_engine(database.url, poolclass=NullPool)
    create_invoices(engine, 9)
    queue = service.adopt_queue("jobs", Invoice)
    queue.enqueue()
    came = stream.run(Checkpoint(), messagesPerPartition="4")
    rows = sorted((row["id"], row["title"]) for row in came[0])
    assert [(n, f"no {n}") for n in range(1, 10)] == rows
    assert {"SUCCESS"} == set(statuses(engine, queue).values())
    engine.dispose()


@twice
def test_a_job_made_for_kafka_finds_its_columns(stream: Stream, service: QueueService) -> None:
    """The same names and kinds of values; the offset is the message's id."""
    queue = service.create_queue("jobs")
    published = queue.publish({"n": 1}, key="first", headers={"trace": "a"})
    [[row]] = stream.run(
        Checkpoint(), schemaStyle="kafka", columns="offset,key,value,topic,headers"
    )
    assert {
        "offset": published.id,
        "key": b"first",
        "value": b'{"n":1}',
        "topic": "jobs",
        "headers": [{"key": "trace", "value": b"a"}],
    } == row


@twice
def test_a_query_that_is_busy_keeps_what_it_has_claimed(
    stream: Stream, service: QueueService
) -> None:
    """It gives signs of life within a batch, and while it waits for the next trigger."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 5)
    query = stream.start(Checkpoint(), until_empty=False, consumerTimeout="6s")

    def expires_at() -> dt.datetime:
        [consumer] = [one for one in service.consumers() if one.durable]
        return consumer.expires_at

    def await_sign_of_life() -> None:
        before = expires_at()
        eventually(lambda: expires_at() > before, "a sign of life")

    def slow(action: Action, number: int) -> None:
        del number
        action()
        await_sign_of_life()
        service.reap()
        assert 0 == queue.stats().ready

    assert query.step(during=slow)
    assert not query.step()
    await_sign_of_life()
    sent += fill(queue, 5, first=5)
    assert query.step()
    assert sent == sorted(numbers([rows for _, rows in stream.batches]))
