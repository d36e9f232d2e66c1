"""take(): remove messages inside the caller's own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contract.caller_transactions import OPENERS, opened
from tests.contract.queue_state import add_effect, archived, effect_count, live_rows, payloads
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService


def test_a_take_follows_the_callers_transaction(queue: Queue, effects_engine: Engine) -> None:
    """After a rollback the messages stand as before; a commit removes them, oldest first."""
    for number, opener in enumerate(OPENERS.values()):
        queue.publish_many(["a", "b", "c"])
        before = live_rows(effects_engine, queue)
        with opened(opener, effects_engine) as caller:
            assert ["a"] == payloads(queue.take(connection=caller))
            add_effect(caller, number)
            caller.rollback()
            assert before == live_rows(effects_engine, queue)
            assert number == effect_count(effects_engine)
            assert ["a", "b"] == payloads(queue.take(2, connection=caller))
            add_effect(caller, number)
            caller.commit()
        assert effect_count(effects_engine) == number + 1
        (last,) = consume_exactly(queue, 1)
        assert "c" == last.payload
        assert 1 == last.attempt
        last.ack()


def test_take_obeys_the_rules_of_a_claim(service: QueueService, effects_engine: Engine) -> None:
    """Priority, due time, pause and claims of others count for take too."""
    queue = service.create_queue("levels", priorities=2, archive="all")
    queue.publish("claimed")
    queue.consume()
    queue.publish("later", delay=60)
    queue.publish("low", priority=1)
    queue.publish("high")
    with effects_engine.begin() as caller:
        assert ["high", "low"] == payloads(queue.take(5, connection=caller))
        assert [] == queue.take(connection=caller)
    assert ["high", "low"] == sorted(message.payload for message in archived(queue))
    queue.publish("paused")
    queue.pause()
    with effects_engine.begin() as caller:
        assert [] == queue.take(connection=caller)


def test_where_chooses_what_is_taken(queue: Queue, effects_engine: Engine) -> None:
    """An SQL expression over the queue's table narrows the take."""
    for number, kind in enumerate(["a", "b", "a"]):
        queue.publish(number, kind=kind)
    with effects_engine.begin() as caller:
        taken = queue.take(5, connection=caller, where=queue.table.c.kind == "a")
    assert [0, 2] == payloads(taken)
    assert [1] == payloads(queue.consume(5))
