"""A live consumer that lost its claim can change nothing; the new holder can."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, Row, text

from queue_over_sql import ClaimLost, Message, Queue
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import puppet
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

VERBS: dict[str, dict[str, Any]] = {
    "ack": {},
    "nack": {"error": "from the dead"},
    "release": {},
    "reject": {"reason": "from the dead"},
    "extend": {"lease": 600.0},
}
"""Every verb of a holder, with its arguments."""

LOST = {"ClaimLost", "ConsumerExpired"}


def rows(sql: Engine) -> Sequence[Row[Any]]:
    """All that a verb could change of any message of the queue."""
    with sql.connect() as connection:
        return connection.execute(
            text(
                "SELECT id, priority, available_at, attempt_count, consumer_id, consumer_round,"
                " claimed_at, lease_expires_at, last_attempt_at, last_error"
                " FROM queue_jobs ORDER BY id"
            )
        ).all()


def publish_one_for_each_verb(queue: Queue) -> list[int]:
    """As many messages as there are verbs; their ids."""
    return [p.id for p in queue.publish_many([{"token": verb} for verb in VERBS])]


def consume_all(
    queue: Queue, count: int, *, within: float = 20.0, lease: float | None = None
) -> list[Message]:
    """Claim so many messages, however many calls that takes."""
    found: list[Message] = []

    def look() -> bool:
        found.extend(queue.consume(count - len(found), lease=lease, wait=0.5))
        return len(found) == count

    eventually(look, f"{count} messages", within=within)
    return found


def check_refused(zombie: Sequence[Message], sql: Engine) -> None:
    """Each verb, each on a message of its own, raises and changes nothing."""
    before = rows(sql)
    for message, (verb, arguments) in zip(zombie, VERBS.items(), strict=True):
        with pytest.raises(ClaimLost) as refusal:
            getattr(message, verb)(**arguments)
        assert [message.id] == [lost.id for lost in refusal.value.messages]
    assert before == rows(sql)


def check_puppet_refused(zombie: Process, ids: Sequence[int], sql: Engine) -> None:
    """The same for a consumer in another process."""
    before = rows(sql)
    for message_id, (verb, arguments) in zip(ids, VERBS.items(), strict=True):
        assert zombie.ask(verb, id=message_id, **arguments)["error"] in LOST, verb
    assert before == rows(sql)


def test_a_claim_ends_with_its_lease(make_service: MakeService, sql: Engine) -> None:
    """A lives but let its lease expire; B claims: A's verbs are refused and B's ack works."""
    first = make_service().create_queue("jobs")
    second = make_service().queue("jobs")
    ids = publish_one_for_each_verb(first)
    zombie = first.consume(len(ids), lease=0.05)
    heir = consume_all(second, len(ids))

    assert ids == [message.id for message in zombie]
    assert ids == sorted(message.id for message in heir)
    assert {2} == {message.attempt for message in heir}
    check_refused(zombie, sql)
    second.ack(heir)
    assert [] == rows(sql)


def test_a_reaped_consumer_is_refused(make_service: MakeService, sql: Engine) -> None:
    """A was reaped as dead although it lives: A's verbs are refused and B's ack works."""
    zombie_service = make_service(consumer_timeout=60.0)
    first = zombie_service.create_queue("jobs")
    ids = publish_one_for_each_verb(first)
    zombie = first.consume(len(ids))
    with sql.begin() as connection:
        connection.execute(
            text("DELETE FROM queue_over_sql_consumers WHERE consumer_id = :consumer"),
            {"consumer": zombie_service.consumer_id},
        )
    with make_service(reaper_interval=0.2) as other:
        second = other.queue("jobs")
        heir = consume_all(second, len(ids))

        check_refused(zombie, sql)
        second.ack(heir)
        assert [] == rows(sql)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_stopped_process_wakes_up_as_nobody(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """SIGSTOP beyond the timeout, SIGCONT: A's verbs are refused, B's ack works, A starts anew."""
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs")
        ids = publish_one_for_each_verb(queue)
        zombie = crew.spawn(puppet.Arguments(database.url, consumer_timeout=1.5))
        zombie.expect("ready")
        claimed = zombie.ask("consume", count=len(ids))["messages"]
        zombie.freeze()
        heir = consume_all(queue, len(ids))
        zombie.thaw()

        assert ids == [message["id"] for message in claimed]
        check_puppet_refused(zombie, ids, sql)
        queue.ack(heir)
        assert [] == rows(sql)

        queue.publish({"token": "afterwards"})
        [message] = zombie.ask("consume", wait=10.0)["messages"]
        assert message["consumer_id"] != claimed[0]["consumer_id"]
        assert zombie.ask("ack", id=message["id"])["error"] is None
        assert [] == rows(sql)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_stopped_process_does_not_keep_its_messages(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """What A keeps is B's after the timeout; when A wakes up, it renews nothing of that."""
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs", lease=1)
        ids = publish_one_for_each_verb(queue)
        zombie = crew.spawn(puppet.Arguments(database.url, consumer_timeout=3.0))
        zombie.expect("ready")
        zombie.ask("consume", count=len(ids), keep=True)
        before = queue.messages().first()
        assert before is not None
        eventually(
            lambda: (
                (now := queue.messages().first()) is not None
                and now.lease_expires_at != before.lease_expires_at
            ),
            "the leases are renewed",
        )
        zombie.freeze()
        heir = consume_all(queue, len(ids), lease=60)
        claimed = rows(sql)
        zombie.thaw()
        check_puppet_refused(zombie, ids, sql)
        assert claimed == rows(sql)
        queue.ack(heir)
        assert [] == rows(sql)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_stopped_process_fences_itself(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Nobody has reaped A, but its own deadline has passed: it refuses to settle, and goes on."""
    queue = make_service().create_queue("jobs")
    ids = publish_one_for_each_verb(queue)
    zombie = crew.spawn(puppet.Arguments(database.url, consumer_timeout=1.0, started=False))
    zombie.expect("ready")
    claimed = zombie.ask("consume", count=len(ids))["messages"]
    zombie.freeze()
    time.sleep(2.0)
    before = rows(sql)
    zombie.thaw()

    for message_id, (verb, arguments) in zip(ids, VERBS.items(), strict=True):
        assert "ConsumerExpired" == zombie.ask(verb, id=message_id, **arguments)["error"], verb
    assert before == rows(sql)

    again = eventually(
        lambda: zombie.ask("consume", count=len(ids), wait=1.0)["messages"], "a new claim"
    )
    assert again[0]["consumer_id"] != claimed[0]["consumer_id"]
    assert zombie.ask("ack", id=again[0]["id"])["error"] is None
