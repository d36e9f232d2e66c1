"""One test for each mistake of the design's Java ancestor that no other chaos test repeats.

Double deliveries, lost rounds and indexes without the queue's name are tested in
`test_delivery.py` and `test_boot.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from queue_over_sql import ClaimLost, QueueError
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew
from tests.chaos.roles import puppet
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


def row_versions(sql: Engine) -> list[tuple[Any, ...]]:
    """The claim of each message of the queue as it is stored."""
    with sql.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT id, consumer_id, consumer_round, claimed_at, lease_expires_at,"
                " available_at, attempt_count FROM queue_jobs ORDER BY id"
            )
        )
        return [tuple(row) for row in rows]


def heartbeat(sql: Engine, consumer_id: str | None) -> tuple[int, int]:
    """When a consumer was last alive, and until when it counts as such, in microseconds."""
    with sql.connect() as connection:
        row = connection.execute(
            text(
                "SELECT heartbeat_at, expires_at FROM queue_over_sql_consumers"
                " WHERE consumer_id = :consumer"
            ),
            {"consumer": consumer_id},
        ).one()
    return int(row[0]), int(row[1])


@pytest.mark.default_on("sqlite", "postgresql")
def test_nobody_removes_what_another_one_holds(make_service: MakeService, sql: Engine) -> None:
    """A message that was only looked at carries no claim: none of its verbs can touch the row."""
    owner = make_service().create_queue("jobs")
    published = owner.publish({"token": "mine"})
    stranger = make_service().queue("jobs")
    [waiting] = stranger.messages().list()
    [held] = owner.consume()
    [seen] = stranger.messages(status="claimed").list()
    before = row_versions(sql)
    for message in (waiting, seen):
        for verb in (message.ack, message.nack, message.release, message.extend):
            with pytest.raises(ClaimLost):
                verb()
        with pytest.raises(ClaimLost):
            message.reject("not mine")
    assert before == row_versions(sql)
    assert published.id == held.id
    held.ack()


def test_a_batch_comes_back_in_order(make_service: MakeService) -> None:
    """Batches are sorted by when they were due, not by id and not by how the rows lie."""
    queue = make_service().create_queue("jobs")
    past = datetime.now(UTC) - timedelta(hours=1)
    due = [(number * 37) % 50 for number in range(50)]
    for minute in due:
        queue.publish({"minute": minute}, at=past + timedelta(seconds=minute))
    taken: list[int] = []
    while messages := queue.consume(7):
        taken += [message.payload["minute"] for message in messages]
        queue.ack(messages)
    assert list(range(50)) == taken


def test_the_unit_of_the_heartbeat_is_seconds(
    make_service: MakeService,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
) -> None:
    """A timeout of 2 means two seconds: a dead consumer keeps its claim until then, not longer."""
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs")
        queue.publish({"token": "held"})
        victim = crew.spawn(puppet.Arguments(database.url, consumer_timeout=2.0))
        victim.expect("ready")
        [claimed] = victim.ask("consume")["messages"]
        victim.kill()
        last, until = heartbeat(sql, claimed["consumer_id"])
        assert 2_000_000 == until - last

        [message] = eventually(lambda: queue.consume(wait=0.5), "the message of the dead consumer")
        assert message.claimed_at is not None
        again = round(message.claimed_at.timestamp() * 1_000_000)
        assert again >= until
        message.ack()


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_heartbeat_outlives_its_timeout_without_touching_claims(
    make_service: MakeService, sql: Engine
) -> None:
    """A heartbeat renews the consumer's one row; what it has claimed stays as it was written."""
    with make_service(reaper_interval=0.2):
        service = make_service(consumer_timeout=4.0)
        queue = service.create_queue("jobs")
        queue.publish_many([{"token": str(number)} for number in range(20)])
        messages = queue.consume(20)
        before = row_versions(sql)
        _, until = heartbeat(sql, service.consumer_id)
        eventually(lambda: heartbeat(sql, service.consumer_id)[0] > until, "several heartbeats")
        assert before == row_versions(sql)
        queue.ack(messages)
        assert [] == row_versions(sql)


def test_an_error_is_not_an_empty_answer(make_service: MakeService, sql: Engine) -> None:
    """A queue whose table is gone raises on every verb instead of looking empty."""
    queue = make_service().create_queue("jobs")
    queue.publish({"token": "lost"})
    with sql.begin() as connection:
        connection.execute(text("DROP TABLE queue_jobs"))
    for verb in (lambda: queue.publish({"token": "unseen"}), queue.consume, queue.stats):
        with pytest.raises(QueueError):
            verb()
