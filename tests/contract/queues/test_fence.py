"""The fence: only the holder of the current claim may change a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost, Message, Queue
from tests.contract.queue_state import archived, ids, live_rows
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides

Verb = Callable[[Queue, list[Message]], object]

VERBS: dict[str, Verb] = {
    "ack": lambda _, messages: messages[0].ack(),
    "nack": lambda _, messages: messages[0].nack("too late", delay=0),
    "release": lambda _, messages: messages[0].release(),
    "reject": lambda _, messages: messages[0].reject("too late"),
    "extend": lambda _, messages: messages[0].extend(lease=900),
    "batch ack": lambda queue, messages: queue.ack(messages),
    "batch nack": lambda queue, messages: queue.nack(messages, error="too late", delay=0),
    "batch release": lambda queue, messages: queue.release(messages),
    "batch reject": lambda queue, messages: queue.reject(messages, "too late"),
    "batch extend": lambda queue, messages: queue.extend(messages, lease=900),
    "exchange": lambda queue, messages: queue.exchange(messages, 1),
}


def assert_refused(
    engine: Engine, queue: Queue, messages: list[Message], verbs: Iterable[str] = VERBS
) -> None:
    """Each verb raises ClaimLost for these messages and changes nothing."""
    before, dead = live_rows(engine, queue), len(archived(queue))
    for name in verbs:
        with pytest.raises(ClaimLost) as caught:
            VERBS[name](queue, messages)
        assert ids(messages) == ids(caught.value.messages), name
        assert (before, dead) == (live_rows(engine, queue), len(archived(queue))), name


def unclaimed(engine: Engine, queue: Queue) -> bool:
    """Whether no live row carries a claim."""
    return all(row[4] is None for row in live_rows(engine, queue))


def test_a_zombie_changes_nothing_after_another_claimed(
    make_service: MakeService, engine: Engine
) -> None:
    """A's lease expires and B claims: A is refused, and B's ack works."""
    a = make_service().create_queue("jobs")
    b = make_service(reaper_interval=0.05).queue("jobs")
    a.publish("x")
    zombie = a.consume(lease=0.05)
    holder = consume_exactly(b, 1)
    assert ids(zombie) == ids(holder)
    assert holder[0].attempt == 2
    assert_refused(engine, a, zombie)
    holder[0].ack()
    assert live_rows(engine, b) == []


def test_a_zombie_changes_nothing_after_it_was_restored(
    make_service: MakeService, engine: Engine
) -> None:
    """A's lease expires and a reaper restores: A is refused though nobody claimed."""
    a = make_service().create_queue("jobs")
    a.publish("x")
    zombie = a.consume(lease=0.05)
    with make_service(reaper_interval=0.05) as reaper:
        wait_until(lambda: unclaimed(engine, a))
        assert_refused(engine, a, zombie)
        assert ids(consume_exactly(reaper.queue("jobs"), 1)) == ids(zombie)


def test_an_older_claim_of_the_same_consumer_is_no_claim(queue: Queue, engine: Engine) -> None:
    """The round tells two claims of one consumer apart."""
    queue.publish("x")
    old = queue.consume()
    queue.release(old)
    new = consume_exactly(queue, 1)
    assert (old[0].id, old[0].consumer_id) == (new[0].id, new[0].consumer_id)
    assert_refused(engine, queue, old)
    new[0].ack()
    assert live_rows(engine, queue) == []


@pytest.mark.threads("the statements are those of the tests above")
def test_a_service_cannot_settle_the_message_of_another(
    make_service: MakeService, engine: Engine
) -> None:
    """A message handed to another service is not that service's to change."""
    a = make_service().create_queue("jobs")
    b = make_service().queue("jobs")
    a.publish_many(["for a", "for b"])
    of_a, of_b = a.consume(), b.consume()
    of_a_queue = [name for name in VERBS if " " in name or name == "exchange"]
    assert_refused(engine, a, of_b, of_a_queue)
    a.ack(of_a)
    b.ack(of_b)
    assert live_rows(engine, a) == []


@pytest.mark.threads("the statements are those of the tests above")
def test_a_mixed_batch_settles_only_the_own(make_service: MakeService, engine: Engine) -> None:
    """In one batch of valid and zombie claims the zombie's are lost, the valid settled."""
    a = make_service().create_queue("jobs")
    b = make_service(reaper_interval=0.05).queue("jobs")
    a.publish_many(["quick", "slow"])
    held = a.consume(lease=60)
    zombie = a.consume(lease=0.05)
    taken = consume_exactly(b, 1)
    with pytest.raises(ClaimLost) as caught:
        a.ack([*zombie, *held])
    assert ids(zombie) == ids(caught.value.messages)
    assert ids(taken) == [row[0] for row in live_rows(engine, b)]
    b.ack(taken)
