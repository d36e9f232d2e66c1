"""Transactional handlers: effects and ack in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contract.looking import add_effect, archived, counts, effect_count
from tests.contract.waiting import wait_until
from tests.contract.working import HandlerFailed, running

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.worker import Worker


def test_effects_and_ack_commit_together(
    worker: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """A transactional handler writes on the connection it is given."""

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload)

    outside.publish_many(list(range(10)))
    with running(worker):
        wait_until(lambda: outside.messages().count() == 0)
    assert effect_count(effects_engine) == 10
    assert counts(outside) == (0, 0, 0)


def test_a_failed_transaction_leaves_neither_effects_nor_ack(
    worker: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """The effects of every failed attempt are rolled back; the message is a dead letter."""

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload * 10 + message.attempt)
        if message.payload == 1:
            raise HandlerFailed("after the effect")

    outside.publish_many([1, 2])
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 1))
    assert effect_count(effects_engine) == 1
    (dead,) = archived(outside)
    assert (1, 3) == (dead.payload, dead.attempt)
