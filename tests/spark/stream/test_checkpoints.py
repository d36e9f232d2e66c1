"""The streaming source and its checkpoints: what a replay reads, and which of them are refused.

What the databases do for it is proved by the rounds of durable consumers, on every engine. Here the
reader decides: two engines in the default tier, and one way of reaching a place that others share.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import NullPool

from queue_over_sql import (
    CheckpointBehind,
    ConsumerFenced,
    QueueService,
    RoundsGone,
)
from queue_over_sql.testing.plugin import TestDatabase
from tests.spark.stream.micro_batches import Action, Checkpoint, Stop, Stream, fill, numbers

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


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


@pytest.mark.engines("sqlite")
def test_a_checkpoint_far_behind_costs_no_more_than_a_near_one(
    stream: Stream, service: QueueService
) -> None:
    """Where the user lets it go on, what is gone is not asked for round by round."""
    queue = service.create_queue("jobs")
    asked: list[str] = []

    def note(*execution: Any) -> None:
        asked.append(execution[2])

    costs = []
    for behind in (5, 60):
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


@pytest.mark.parametrize(("verb", "finished"), [("release_consumer", 1), ("drop_consumer", 0)])
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


@pytest.mark.parametrize(("ending", "finished"), [("dropped", 0), ("expired", 1)])
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
    with pytest.raises(RoundsGone, match=r"registered again at 2.*failOnDataLoss=false"):
        stream.run(old, **sizes)
    came = stream.run(old, failOnDataLoss="false", **sizes)
    done = 10 * finished + 5 * (2 - finished)
    assert sent[done:] == sorted(numbers(came))
    assert 0 == queue.stats().live
    sent = fill(queue, 10, first=100)
    assert sent == numbers(stream.run(old))


@pytest.mark.engines("sqlite")
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
    for operation in (
        earlier.step,
        earlier.plan,
        lambda: earlier.read(late_parts[0]),
        lambda: earlier.reader.commit({"round": 4, "after": 2}),
    ):
        with pytest.raises((ConsumerFenced, CheckpointBehind), match="taken over"):
            operation()
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
