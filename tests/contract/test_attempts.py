"""Each failed attempt of a message is told: who had it, from when to when, and why it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import column, func, select, table, text, update

from queue_over_sql import FixedDelay
from queue_over_sql.attempts import AttemptLog
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.queue import core_of
from queue_over_sql.recovery import recovery
from tests.contract.queue_state import set_columns

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Attempt, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

attempts_table = table("queue_over_sql_attempts", column("message_id"))
consumers = table(
    "queue_over_sql_consumers",
    column("consumer_id"),
    column("heartbeat_at"),
    column("expires_at"),
)


def _told(attempts: list[Attempt]) -> list[tuple[int, str, str | None]]:
    return [(each.attempt, each.outcome, each.error) for each in attempts]


def _fail(number: int) -> None:
    msg = f"no {number}"
    raise ValueError(msg)


def test_each_failed_attempt_is_told(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """What failed or was rejected has its row, also in the archive; a success has none."""
    queue = service.create_queue("jobs", max_attempts=3, retry=FixedDelay(0))
    good, bad = queue.publish("good").id, queue.publish("bad").id
    for number in (1, 2):
        for message in queue.consume(2):
            if message.id == good:
                message.ack()
                continue
            try:
                _fail(number)
            except ValueError as error:
                message.nack(error, delay=0)
    other = make_service(consumer_name="other")
    (message,) = other.queue("jobs").consume()
    with engine.connect() as connection:
        message.nack("rolled back", connection=connection)
        connection.rollback()
    assert [1, 2] == [each.attempt for each in queue.attempts(bad)]
    (message,) = other.queue("jobs").messages().list()
    set_columns(engine, queue, bad, lease_expires_at=None, consumer_id=None, attempt_count=2)
    (message,) = other.queue("jobs").consume()
    with engine.begin() as connection:
        message.nack("in my transaction", connection=connection)

    attempts = queue.attempts(bad)
    assert [
        (1, "retried", "ValueError: no 1"),
        (2, "retried", "ValueError: no 2"),
        (3, "failed", "in my transaction"),
    ] == _told(attempts)
    assert [] == queue.attempts(good)
    first, _, last = attempts
    assert (service.consumer_id, first.host) == (first.consumer_id, first.worker)
    assert (other.consumer_id, "other") == (last.consumer_id, last.worker)
    assert "_fail" in str(first.traceback)
    assert last.traceback is None
    moments = [moment for each in attempts for moment in (each.began_at, each.ended_at)]
    assert moments == sorted(moments, key=str)

    assert 1 == queue.archive.messages().requeue()
    (again,) = queue.consume()
    again.reject("wrong")
    assert [1, 2, 3, 1] == [each.attempt for each in queue.attempts(again.id)]
    assert (1, "rejected", "wrong") == _told(queue.attempts(again.id))[-1]


def test_a_lost_claim_is_told(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """The reaper says whose claims were lost: of a dead consumer, and of one that took too long."""
    queue = service.create_queue("jobs", max_attempts=2, lease=3600)
    lost = queue.publish("a").id
    dead = make_service(consumer_name="dead")
    assert [lost] == [message.id for message in dead.queue("jobs").consume()]
    with engine.begin() as connection:
        late = update(consumers).where(consumers.c.consumer_id == dead.consumer_id)
        connection.execute(late.values(heartbeat_at=0, expires_at=1))
    service.reap()
    (message,) = queue.consume()
    set_columns(engine, queue, lost, lease_expires_at=1)
    service.reap()

    first, second = queue.attempts(lost)
    assert (1, "lost", dead.consumer_id, "dead") == (
        first.attempt,
        first.outcome,
        first.consumer_id,
        first.worker,
    )
    assert "died" in str(first.error)
    assert (2, "lost", service.consumer_id) == (second.attempt, second.outcome, second.consumer_id)
    assert message.claimed_at == second.began_at
    assert first.ended_at <= second.ended_at
    assert 1 == queue.archive.messages().count()


def test_a_story_ends_with_its_message(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last 20 attempts are kept; those of removed messages and dropped queues go."""
    monkeypatch.setattr(recovery, "_ATTEMPTS_SECONDS", 0)
    queue = service.create_queue("jobs", max_attempts=100)
    kept = queue.publish("kept").id
    for _ in range(22):
        (message,) = queue.consume()
        message.nack("no", delay=0)
    assert list(range(3, 23)) == [each.attempt for each in queue.attempts(kept)]
    (message,) = queue.consume()
    message.ack()
    gone = _failed(queue)
    service.reap()
    assert ([], 1) == (queue.attempts(kept), len(queue.attempts(gone)))
    assert 1 == queue.purge()
    assert [] == queue.attempts(gone)
    assert _failed(queue)
    assert service.drop_queue("jobs")
    with engine.connect() as connection:
        assert 0 == connection.execute(select(func.count()).select_from(attempts_table)).scalar()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_forgetting_goes_on_in_the_next_pass(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a turn that ended early it begins neither anew nor a minute later."""
    queue = service.create_queue("jobs", archive="none")
    _failed(queue)
    assert 1 == queue.messages().hold()
    for _ in range(2):
        _failed(queue)
        queue.consume()[0].ack()
    monkeypatch.setattr(recovery, "BATCH", 1)
    for _ in range(3):
        for _ in core_of(queue).recovery.attempts():
            break
    with engine.connect() as connection:
        assert 1 == connection.execute(select(func.count()).select_from(attempts_table)).scalar()


def _failed(queue: Queue) -> int:
    published = queue.publish("x").id
    (message,) = queue.consume()
    message.nack("no", delay=0)
    return published


def test_a_story_that_is_refused_stops_no_settle(
    service: QueueService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the table, failures are settled, claims of the dead come back, and a line warns."""
    queue = service.create_queue("jobs", retry=FixedDelay(0), max_attempts=9)
    queue.publish_many(["alone", "inside", "rejected"])
    alone, inside, rejected = queue.consume(3)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE queue_over_sql_attempts"))
    with engine.begin() as connection:
        inside.nack("no", connection=connection)
    assert 1 == caplog.text.count("cannot be written to queue_over_sql_attempts")
    alone.nack("no")
    rejected.reject("no")
    again = queue.consume(3)
    assert {(alone.id, 2), (inside.id, 2)} == {(each.id, each.attempt) for each in again}
    for message in again:
        set_columns(engine, queue, message.id, lease_expires_at=1)
    assert 2 == service.reap().restored
    assert 1 == queue.archive.messages().count()


@pytest.mark.engines("sqlite")
def test_the_first_refusal_stops_no_settle(service: QueueService, engine: Engine) -> None:
    """Also if it comes in a transaction of ours: that is done again without the row."""
    queue = service.create_queue("jobs", retry=FixedDelay(0))
    published = queue.publish("x").id
    (message,) = queue.consume()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE queue_over_sql_attempts"))
    message.nack("no")
    (again,) = queue.consume()
    assert (published, 2, "no") == (again.id, again.attempt, again.last_error)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_broken_connection_says_nothing_of_the_table(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is settled without a row, and the next one is told at once."""
    queue = service.create_queue("jobs", retry=FixedDelay(0))
    published = queue.publish("x").id

    def broken(*_: Any) -> None:
        raise DatabaseUnavailable("the connection broke")

    with monkeypatch.context() as during:
        during.setattr(AttemptLog, "_write", broken)
        queue.consume()[0].nack("not told")
    queue.consume()[0].nack("told")
    assert [(2, "told")] == [(each.attempt, each.error) for each in queue.attempts(published)]
    assert "cannot be written" not in caplog.text
