"""The streaming source: what comes in which batch, what a replay reads, what is acknowledged."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import NullPool

from queue_over_sql import (
    CheckpointBehind,
    ConsumerFenced,
    Queue,
    QueueService,
    RoundsGone,
)
from queue_over_sql.testing.plugin import TestDatabase
from tests.contract.entities import Invoice, create_invoices, statuses
from tests.spark.micro_batches import Action, Checkpoint, Stop, Stream, numbers


@pytest.fixture
def stream(database: TestDatabase) -> Stream:
    """Queries on the queue `jobs` under the consumer id `reports`, which never wait."""
    return Stream(
        {"url": database.url, "queue": "jobs", "consumerId": "reports", "pollInterval": "1ms"}
    )


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


def fill(queue: Queue, count: int, first: int = 0) -> list[int]:
    """Publish so many numbered messages; their numbers."""
    found = list(range(first, first + count))
    queue.publish_many([{"n": n} for n in found])
    return found


def expire(database: TestDatabase, service: QueueService) -> None:
    """Let no durable consumer have been heard of for its timeout; none is forgotten yet."""
    engine = create_engine(database.url, poolclass=NullPool)
    consumers = service._parts.system().consumers
    with engine.begin() as connection:
        connection.execute(consumers.update().where(consumers.c.durable == 1).values(expires_at=1))
    engine.dispose()


def without_registration(offset: str) -> str:
    """An offset as the first versions wrote it."""
    written = json.loads(offset)
    del written["registered"]
    return json.dumps(written)


def test_a_queue_is_drained_in_batches_and_acknowledged_to_the_last(
    stream: Stream, service: QueueService
) -> None:
    """Each message comes once, no batch is larger than told, and nothing is left: not the last."""
    queue = service.create_queue("jobs", archive="all")
    sent = fill(queue, 250)
    came = stream.run(Checkpoint(), maxMessagesPerTrigger="100", messagesPerPartition="40")
    assert sent == sorted(numbers(came))
    assert [100, 100, 50] == [len(rows) for rows in came]
    assert (0, 250) == (queue.stats().live, queue.stats().done)
    assert {1} == {row["attempt"] for rows in came for row in rows}
    assert {"reports"} == {row["consumer_id"] for rows in came for row in rows}


def test_a_partition_is_a_round(stream: Stream, service: QueueService) -> None:
    """Its messages carry its number, oldest first."""
    queue = service.create_queue("jobs")
    fill(queue, 50)
    query = stream.start(Checkpoint(), messagesPerPartition="20")
    rows = [query.read(part) for part in query.plan()]
    assert [{1}, {2}, {3}] == [{row["consumer_round"] for row in part} for part in rows]
    assert [17, 17, 16] == [len(part) for part in rows]
    assert rows == [sorted(part, key=lambda row: row["id"]) for part in rows]


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


def test_a_batch_that_failed_is_read_again_as_it_was(stream: Stream, service: QueueService) -> None:
    """With another partition size and messages that are more urgent: the same rows as before."""
    queue = service.create_queue("jobs", priorities=2)
    fill(queue, 90)
    log = Checkpoint()
    with pytest.raises(Stop):
        stream.run(log, fail_in=[0], maxMessagesPerTrigger="60", messagesPerPartition="20")
    queue.publish({"n": 1000})
    with pytest.raises(Stop):
        stream.run(log, fail_in=[1], maxMessagesPerTrigger="50", messagesPerPartition="7")
    stream.run(log)
    assert [0, 0, 1, 1] == [number for number, _ in stream.batches]
    first, again, second, once_more = [rows for _, rows in stream.batches]
    assert first == again
    assert second == once_more
    assert [*range(90), 1000] == sorted(numbers([first, second]))
    assert 0 == queue.stats().live


def test_a_second_action_sees_what_the_first_saw(stream: Stream, service: QueueService) -> None:
    """Also in a round that was empty, because somebody took its messages before it was claimed."""
    queue = service.create_queue("jobs")
    fill(queue, 30)
    seen: list[tuple[list[int], list[int]]] = []

    def rob(action: Action, number: int) -> None:
        if number == 0:
            queue.ack(queue.consume(30))
        first = numbers([action()])
        fill(queue, 5, first=100 * (number + 1))
        seen.append((first, numbers([action()])))

    query = stream.start(Checkpoint(), until_empty=False, messagesPerPartition="10")
    for _ in range(3):
        query.step(during=rob)
    assert [(first, first) for first, _ in seen] == seen
    assert 3 == len(seen)


def test_rounds_that_never_reached_the_checkpoint_are_the_next_batch(
    stream: Stream, service: QueueService
) -> None:
    """Killed between the claim and Spark's log: another start finds them, and no others."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 40)
    log = Checkpoint()
    lost = stream.start(log, maxMessagesPerTrigger="30")
    lost.reader.latestOffset(lost.reader.initialOffset(), lost.reader.getDefaultReadLimit())
    came = stream.run(log)
    assert [30, 10] == [len(rows) for rows in came]
    assert sent == sorted(numbers(came))


def test_without_its_checkpoint_a_query_gets_what_was_not_acknowledged(
    stream: Stream, service: QueueService
) -> None:
    """The rounds of the unfinished batch come first, then the others; nothing is stuck."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 120)
    sizes: dict[str, Any] = {"maxMessagesPerTrigger": "50", "messagesPerPartition": "20"}
    with pytest.raises(Stop):
        stream.run(Checkpoint(), fail_in=[1], **sizes)
    finished, outstanding = [rows for _, rows in stream.batches]
    came = stream.run(Checkpoint(), **sizes)
    assert outstanding == came[0]
    assert sent == sorted(numbers([finished, *came]))
    assert 0 == queue.stats().live


@pytest.mark.parametrize("finished", [0, 1])
def test_an_old_checkpoint_is_refused(finished: int, stream: Stream, service: QueueService) -> None:
    """Its next rounds are acknowledged: loud by default, skipped where the user says so."""
    queue = service.create_queue("jobs")
    fill(queue, 10)
    old = Checkpoint()
    with pytest.raises(Stop):
        stream.run(old, fail_in=[finished], maxMessagesPerTrigger="5")
    stream.run(Checkpoint())
    sent = fill(queue, 10, first=100)
    with pytest.raises((CheckpointBehind, RoundsGone), match="failOnDataLoss=false"):
        stream.run(old)
    came = stream.run(old, failOnDataLoss="false")
    assert sent == sorted(numbers(came))
    assert 0 == queue.stats().live


def test_a_checkpoint_far_behind_costs_no_more_than_a_near_one(
    stream: Stream, service: QueueService
) -> None:
    """Where the user lets it go on, what is gone is not asked for round by round."""
    queue = service.create_queue("jobs")
    asked: list[str] = []

    def note(*execution: Any) -> None:
        asked.append(execution[2])

    costs = []
    for behind in (5, 300):
        old = Checkpoint()
        fill(queue, 1 + behind)
        with pytest.raises(Stop):
            stream.run(old, fail_in=[0], maxMessagesPerTrigger="1")
        stream.run(Checkpoint(), messagesPerPartition="1")
        sent = fill(queue, 1)
        asked.clear()
        event.listen(Engine, "before_cursor_execute", note)
        try:
            assert sent == numbers(stream.run(old, failOnDataLoss="false"))
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        costs.append(len(asked))
    near, far = costs
    assert 0 < far <= near + 10


@pytest.mark.parametrize("verb", ["release_consumer", "drop_consumer"])
@pytest.mark.parametrize("finished", [0, 1])
def test_what_an_operator_gave_back_is_refused_and_comes_again(
    verb: str, finished: int, stream: Stream, service: QueueService
) -> None:
    """The unfinished batch cannot be replayed; its messages come in new rounds, uncounted."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 20)
    log = Checkpoint()
    with pytest.raises(Stop):
        stream.run(log, fail_in=[finished], maxMessagesPerTrigger="10")
    getattr(service, verb)("reports")
    assert 20 - 10 * finished == queue.stats().ready
    with pytest.raises(RoundsGone, match="failOnDataLoss=false"):
        stream.run(log)
    came = stream.run(log, failOnDataLoss="false")
    assert sent[10 * finished :] == sorted(numbers(came))
    assert {1} == {row["attempt"] for rows in came for row in rows}
    assert 0 == queue.stats().live


@pytest.mark.parametrize("ending", ["dropped", "expired"])
@pytest.mark.parametrize("finished", [0, 1])
def test_rounds_of_another_registration_are_not_taken_for_its_own(
    ending: str, finished: int, stream: Stream, service: QueueService, database: TestDatabase
) -> None:
    """Also where the new consumer has opened, and not done, the rounds of the same numbers."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 20)
    old = Checkpoint()
    sizes: dict[str, Any] = {"maxMessagesPerTrigger": "10"}
    with pytest.raises(Stop):
        stream.run(old, fail_in=[finished], **sizes)
    if ending == "dropped":
        service.drop_consumer("reports")
    else:
        expire(database, service)
    with pytest.raises(Stop):
        stream.run(Checkpoint(), fail_in=[2 - finished], maxMessagesPerTrigger="5")
    with pytest.raises(RoundsGone, match=r"registered anew at 2.*failOnDataLoss=false"):
        stream.run(old, **sizes)
    came = stream.run(old, failOnDataLoss="false", **sizes)
    done = 10 * finished + 5 * (2 - finished)
    assert sent[done:] == sorted(numbers(came))
    assert 0 == queue.stats().live
    sent = fill(queue, 10, first=100)
    assert sent == numbers(stream.run(old))


def test_a_checkpoint_that_names_no_registration_goes_on(
    stream: Stream, service: QueueService
) -> None:
    """As those do that an older version wrote; its next batch names it."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 20)
    log = Checkpoint()
    with pytest.raises(Stop):
        stream.run(log, fail_in=[1], maxMessagesPerTrigger="10")
    log.offsets = [without_registration(offset) for offset in log.offsets]
    came = stream.run(log)
    assert sent[10:] == sorted(numbers(came))
    assert "registered" not in log.offsets[-1]
    fill(queue, 1)
    stream.run(log)
    assert "registered" in log.offsets[-1]


def test_of_two_queries_with_one_name_the_later_goes_on(
    stream: Stream, service: QueueService
) -> None:
    """The earlier one can neither plan nor read nor acknowledge, and says who has taken over."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 60)
    sizes: dict[str, Any] = {"maxMessagesPerTrigger": "20", "messagesPerPartition": "10"}
    earlier = stream.start(Checkpoint(), until_empty=False, **sizes)
    assert earlier.step()
    late_parts = earlier.plan()
    came = stream.run(Checkpoint(), **sizes)
    for act in (
        earlier.step,
        earlier.plan,
        lambda: earlier.read(late_parts[0]),
        lambda: earlier.reader.commit({"round": 4, "after": 2}),
    ):
        with pytest.raises((ConsumerFenced, CheckpointBehind), match="taken over"):
            act()
    assert sent == sorted(numbers([stream.batches[0][1], *came]))
    assert 0 == queue.stats().live


def test_a_task_that_reads_while_another_query_takes_over_fails(
    stream: Stream, service: QueueService
) -> None:
    """What it has read may be half of a round by then; a batch must not end with it."""
    queue = service.create_queue("jobs")
    fill(queue, 2000)
    query = stream.start(Checkpoint(), batchBytes="10k")
    [part] = query.plan()
    batches = query.reader.read(part)
    next(batches)
    service.release_consumer("reports")
    with pytest.raises((ConsumerFenced, RoundsGone)):
        list(batches)


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


def test_the_progress_tells_what_waits(stream: Stream, service: QueueService) -> None:
    """`backlog` is what could be claimed, and is not counted at each question."""
    queue = service.create_queue("jobs")
    fill(queue, 40)
    query = stream.start(Checkpoint(), until_empty=False)
    assert {"backlog": 40} == query.reader.reportLatestOffset()
    fill(queue, 1)
    assert {"backlog": 40} == query.reader.reportLatestOffset()


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


@pytest.mark.parametrize(("ending", "kept"), [("queue", 0), ("archive", 10), ("delete", 0)])
def test_what_becomes_of_acknowledged_messages(
    ending: str, kept: int, stream: Stream, service: QueueService
) -> None:
    """`onAck` goes before the queue's own setting."""
    queue = service.create_queue("jobs")
    fill(queue, 10)
    stream.run(Checkpoint(), onAck=ending)
    assert (0, kept) == (queue.stats().live, queue.stats().done)


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


def test_rows_of_an_adopted_table_end_in_place(
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


def test_a_query_that_is_busy_keeps_what_it_has_claimed(
    stream: Stream, service: QueueService
) -> None:
    """A batch, and the wait for the next trigger, may take longer than ``consumerTimeout``."""
    queue = service.create_queue("jobs")
    sent = fill(queue, 5)
    query = stream.start(Checkpoint(), until_empty=False, consumerTimeout="6s")

    def slow(action: Action, number: int) -> None:
        del number
        action()
        time.sleep(8)
        service.reap()
        assert 0 == queue.stats().ready

    assert query.step(during=slow)
    assert not query.step()
    time.sleep(8)
    sent += fill(queue, 5, first=5)
    assert query.step()
    assert sent == sorted(numbers([rows for _, rows in stream.batches]))
