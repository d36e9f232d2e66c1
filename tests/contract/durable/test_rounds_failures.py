"""Failed messages of a round: retried or dead-lettered, as ordinary ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import FixedDelay, Observer, RoundsGone
from queue_over_sql.durable.consumer import DurableConsumer
from tests.contract.durable.queries import Query
from tests.contract.queue_state import counts
from tests.contract.retry_policies import POLICIES, NeverForBadValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.threads("a streaming engine reads by threads and processes")


@pytest.fixture
def queue(service: QueueService) -> Queue:
    """One that tries twice, at once."""
    return service.create_queue("jobs", max_attempts=2, retry=FixedDelay(0))


def test_a_failed_message_comes_again(queue: Queue) -> None:
    """It leaves its round, which is acknowledged without it, and keeps the reason."""
    queue.publish_many(["good", "bad"])
    query = Query(queue)
    (opened,) = query.plan()
    _, bad = query.ids(opened)
    assert {bad} == query.consumer.nack([(bad, 1, "broken")])
    assert ["good"] == query.read(opened)
    (waiting,) = queue.messages(status="ready").list()
    assert "bad" == waiting.payload
    assert "broken" == waiting.last_error
    assert 1 == waiting.attempt
    query.checkpoint = 1
    assert [["bad"]] == query.batch()


def test_one_that_failed_too_often_is_a_dead_letter(queue: Queue) -> None:
    """With the reason of the last attempt."""
    queue.publish("bad")
    query = Query(queue)
    for error in ("first", ValueError("second")):
        (opened,) = query.plan()
        query.checkpoint = opened.consumer_round
        query.consumer.nack([(query.ids(opened)[0], opened.consumer_round, error)])
    (dead,) = queue.archive.messages().list()
    assert "failed" == dead.outcome
    assert "ValueError: second" == dead.last_error
    assert (0, 0, 1) == counts(queue)


class Told(Observer):
    """Notes what became of messages."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, ...]] = []

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Note it."""
        self.ends.append((queue, outcome, list(ids)))

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Note it."""
        self.ends.append((queue, reason, list(ids)))


def test_failed_attempts_are_kept_and_told(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of an ordinary consumer are: to operators, observers and the log."""
    told = Told()
    service = make_service(observer=told, retry_policies=POLICIES)
    queue = service.create_queue("jobs", max_attempts=3, retry=NeverForBadValues())
    bad = queue.publish("bad").id
    query = Query(queue)
    with pytest.raises(ValueError, match="second") as raised:
        int("second")
    reason = f"ValueError: {raised.value}"
    for error in ("first", raised.value):
        (opened,) = query.plan()
        query.checkpoint = opened.consumer_round
        query.consumer.nack([(bad, opened.consumer_round, error)])
    first, second = queue.attempts(bad)
    assert (1, "retried", "first") == (first.attempt, first.outcome, first.error)
    assert (2, "failed", reason) == (second.attempt, second.outcome, second.error)
    assert first.began_at is not None
    assert first.began_at <= first.ended_at
    assert ("query", None) == (first.consumer_id, first.traceback)
    assert "int(" in str(second.traceback)
    assert [
        ("jobs", "retried", [bad]),
        ("jobs", "failed", [bad]),
        ("jobs", reason, [bad]),
    ] == told.ends
    [logged] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"Message {bad} of queue jobs became a dead letter" in logged.getMessage()


@pytest.mark.engines("sqlite")
def test_a_delay_may_be_given(queue: Queue) -> None:
    """Instead of the policy's."""
    queue.publish("bad")
    query = Query(queue)
    (opened,) = query.plan()
    query.consumer.nack([(query.ids(opened)[0], 1, None)], delay=3600)
    assert 1 == queue.stats().delayed


def test_only_what_a_round_still_holds_is_changed(queue: Queue) -> None:
    """A repetition, another round's message and one that is gone are passed over."""
    queue.publish_many(range(3))
    query = Query(queue)
    first, second = query.plan(each=2)
    mine, theirs = query.ids(first)[0], query.ids(second)[0]
    failures = [(mine, 1, "x"), (theirs, 1, "x"), (10**9, 1, "x")]
    assert {mine} == query.consumer.nack(failures)
    assert set() == query.consumer.nack(failures)
    assert (1, 2, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_a_reader_may_fail_messages_for_its_query(queue: Queue) -> None:
    """Under the query's epoch, from a process that has not taken anything over."""
    queue.publish(1)
    query = Query(queue)
    (opened,) = query.plan()
    failures = [(query.ids(opened)[0], 1, "x")]
    reader = DurableConsumer(queue, "query", owner="reader:1")
    assert set(query.ids(opened)) == reader.nack(failures, epoch=query.consumer.epoch)


@pytest.mark.engines("sqlite")
def test_failures_of_a_consumer_that_is_gone_are_refused(
    service: QueueService, queue: Queue
) -> None:
    """Its messages are others' by now."""
    queue.publish(1)
    query = Query(queue)
    (opened,) = query.plan()
    failures = [(query.ids(opened)[0], 1, "x")]
    service.drop_consumer("query")
    with pytest.raises(RoundsGone):
        query.consumer.nack(failures)
    assert (1, 0, 0) == counts(queue)


def test_many_fail_at_once(queue: Queue) -> None:
    """More than one statement names, with several reasons."""
    queue.publish_many(range(1300))
    query = Query(queue)
    (opened,) = query.plan(each=2000)
    ids = query.ids(opened)
    settled = query.consumer.nack([(each, 1, f"reason {each % 3}") for each in ids])
    assert set(ids) == settled
    assert (1300, 0, 0) == counts(queue)
