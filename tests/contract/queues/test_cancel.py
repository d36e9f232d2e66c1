"""An operator cancels a message that a consumer holds; a release with a delay."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import ClaimLost
from tests.contract.queue_state import add_effect, archived, close, counts
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql.testing.plugin import MakeService


def test_a_message_that_waits_is_cancelled(make_service: MakeService) -> None:
    """Ready, delayed or held, it is a rejected one with the reason, and was never attempted."""
    queue = make_service().create_queue("jobs", dedup_window=3600)
    ready = queue.publish("ready", key="k").id
    delayed = queue.publish("delayed", delay=900).id
    held = queue.publish("held", kind="h").id
    queue.messages(kind="h").hold()

    assert queue.cancel(ready, "wrong customer") is True
    assert queue.cancel(delayed) is True
    assert queue.cancel(held) is True
    assert queue.cancel(ready) is False
    assert queue.cancel(held + 1) is False

    assert (0, 0, 3) == counts(queue)
    found = {m.payload: (m.outcome, m.attempt, m.last_error, m.key) for m in archived(queue)}
    assert {
        "ready": ("rejected", 0, "cancelled by operator: wrong customer", "k"),
        "delayed": ("rejected", 0, "cancelled by operator", None),
        "held": ("rejected", 0, "cancelled by operator", None),
    } == found
    assert "skipped" == queue.publish("again", key="k", on_conflict="skip").outcome


def test_a_claimed_message_is_cancelled_and_its_holder_fenced_out(
    make_service: MakeService,
) -> None:
    """Each verb of the holder is refused; the archive shows who held it; the rest is untouched."""
    queue, outside = make_service().create_queue("jobs"), make_service().queue("jobs")
    queue.publish_many(["a", "b"])
    a, b = queue.consume(2)

    assert outside.cancel(a.id) is True
    verbs: list[Callable[[], None]] = [a.ack, a.nack, a.release, a.extend, partial(a.reject, "no")]
    for verb in verbs:
        with pytest.raises(ClaimLost):
            verb()
    b.ack()
    (dead,) = archived(queue)
    assert "a" == dead.payload
    assert "rejected" == dead.outcome
    assert 1 == dead.attempt
    assert a.consumer_id == dead.consumer_id
    assert "cancelled by operator" == dead.last_error
    assert (0, 0, 1) == counts(queue)


def test_cancelled_messages_of_a_queue_without_an_archive_are_counted(
    make_service: MakeService,
) -> None:
    """They leave no trace but the number of discarded ones."""
    queue = make_service().create_queue("jobs", archive="none")
    published = queue.publish_many(["a", "b"])
    (a,) = queue.consume()
    assert all(queue.cancel(each.id) for each in published)
    stats = queue.stats()
    assert 0 == stats.ready
    assert 0 == stats.claimed
    assert 2 == stats.discarded
    with pytest.raises(ClaimLost):
        a.ack()


@pytest.mark.threads("another thread cancels while a transaction of this one is open")
def test_a_cancel_that_meets_the_ack_waits_for_its_transaction(
    make_service: MakeService, effects_engine: Engine
) -> None:
    """Whichever comes first counts: an ack that commits leaves nothing to cancel."""
    queue, outside = make_service().create_queue("jobs"), make_service().queue("jobs")
    for commits in (True, False):
        queue.publish("x")
        (message,) = queue.consume()
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(outside.cancel(message.id)))  # noqa: B023
        with effects_engine.connect() as connection, connection.begin() as transaction:
            add_effect(connection, int(commits))
            message.ack(connection=connection)
            other.start()
            assert not found
            if not commits:
                transaction.rollback()
        other.join(30)
        assert [not commits] == found
    wait_until(lambda: counts(queue) == (0, 0, 1))


@pytest.mark.engines("sqlite")
def test_what_cannot_be_cancelled_is_refused(make_service: MakeService) -> None:
    """An id is a whole number, a reason is text."""
    queue = make_service().create_queue("jobs")
    published = queue.publish("x")
    wrong: Any
    for wrong, error in (("1", TypeError), (2**63, ValueError)):
        with pytest.raises(error, match="message_id"):
            queue.cancel(wrong)
    wrong = 7
    with pytest.raises(TypeError, match="reason"):
        queue.cancel(published.id, wrong)
    assert (1, 0, 0) == counts(queue)


def test_a_snooze_counts_no_attempt(make_service: MakeService) -> None:
    """What is released with a delay is due then, at that place; without one, at its own place."""
    queue = make_service().create_queue("jobs", max_attempts=1)
    queue.publish_many(["a", "b", "c", "d"])
    a, b, c, _ = queue.consume(4)
    a.release(delay=900)
    queue.release([b], delay=timedelta(0))
    c.release()

    (snoozed,) = queue.messages(status="delayed").list()
    assert "a" == snoozed.payload
    assert 0 == snoozed.attempt
    assert snoozed.last_error is None
    assert snoozed.available_at is not None
    assert close(snoozed.available_at, snoozed.published_at + timedelta(seconds=900), 120)
    again = queue.consume(4)
    assert [("c", 1), ("b", 1)] == [(message.payload, message.attempt) for message in again]
    with pytest.raises(ClaimLost):
        a.release(delay=1)


def test_a_snooze_in_the_callers_transaction(make_service: MakeService, engine: Engine) -> None:
    """It commits and rolls back with it; a negative delay is refused."""
    queue = make_service().create_queue("jobs")
    queue.publish("x")
    (message,) = queue.consume()
    with pytest.raises(ValueError, match="delay"):
        message.release(delay=-1)
    with engine.connect() as connection:
        with connection.begin() as transaction:
            message.release(connection, delay=900)
            transaction.rollback()
        assert (0, 1, 0) == counts(queue)
        with connection.begin():
            message.release(connection, delay=900)
    assert 1 == queue.stats().delayed
