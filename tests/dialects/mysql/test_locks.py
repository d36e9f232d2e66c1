"""Consumers do not wait for rows that others have locked, nor lock more than they take.

The servers would look for a few ids by reading the whole table, if it seems to be short. They also
lock gaps between rows, and keep the lock of an index entry whose row they skip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, select, update

from queue_over_sql import Publication, QueueService
from queue_over_sql.claiming.operations import claim_of_groups
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.groups import operations
from queue_over_sql.queue import core_of
from queue_over_sql.sql.operation import Operation
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine, Table

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("mysql", "mariadb")
COUNT = 50


@pytest.fixture
def impatient(database: TestDatabase) -> Iterator[Engine]:
    """An engine whose statements wait for a lock for a second, which is the least."""
    engine = create_engine(database.url)

    @event.listens_for(engine, "connect")
    def hurry(raw: Any, _record: object) -> None:
        with raw.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")

    yield engine
    engine.dispose()


def _take(queue: Queue, engine: Engine, count: int = COUNT) -> None:
    with engine.begin() as caller:
        assert count == len(queue.take(count, connection=caller))


def _consume(queue: Queue, engine: Engine) -> None:
    del engine
    assert COUNT == len(queue.consume(COUNT))


def _release(queue: Queue, engine: Engine) -> None:
    messages: list[Message] = queue.consume(COUNT)
    with engine.begin() as caller:
        queue.release(messages, connection=caller)


def _ack(queue: Queue, engine: Engine) -> None:
    messages: list[Message] = queue.consume(COUNT)
    with engine.begin() as caller:
        queue.ack(messages, connection=caller)


def _nobody_waits(engine: Engine, operation: Callable[[Queue, Engine], None]) -> None:
    with QueueService(engine) as service:
        queue = service.create_queue("jobs")
        queue.publish_many(list(range(COUNT + 1)))
        with engine.begin() as other:
            assert 1 == len(queue.take(connection=other))
            operation(queue, engine)


@pytest.mark.parametrize("operation", [_take, _consume, _release, _ack])
def test_nobody_waits_for_messages_of_others(
    impatient: Engine, operation: Callable[[Queue, Engine], None]
) -> None:
    """The oldest message is locked by another consumer's transaction, which has not ended."""
    _nobody_waits(impatient, operation)


def test_a_caller_who_meets_a_lock_learns_to_repeat(impatient: Engine) -> None:
    """The server has ended the statement or, after a deadlock, the transaction."""
    with QueueService(impatient) as service:
        queue = service.create_queue("jobs")
        queue.publish("one")
        (message,) = queue.consume()
        with impatient.begin() as other, impatient.begin() as caller:
            queue.ack(message, connection=other)
            with pytest.raises(DatabaseUnavailable, match="Roll your transaction back and repeat"):
                queue.ack(message, connection=caller)
            caller.rollback()


def _grouped(service: QueueService) -> Queue:
    """A queue with four messages of each of two groups, which have rows."""
    queue = service.create_queue("jobs", group_limit=2)
    queue.publish_many([Publication(n, group=group) for group in "ab" for n in range(4)])
    context = core_of(queue).context
    context.run(lambda c: operations.know(c, context.sql, ["a", "b"]))
    return queue


def test_a_claim_from_groups_leaves_the_others_free(impatient: Engine) -> None:
    """While its transaction is open, others publish to its group, and claim and edit the rest."""
    with QueueService(impatient) as service, QueueService(impatient) as others:
        queue = _grouped(service)
        core, other = core_of(queue), others.queue("jobs")
        request = core.claimer._group_request(0, 2, None, None)

        def claim(connection: Connection) -> None:
            found = claim_of_groups(connection, core.context.sql, request)
            assert ["0", "1"] == [row.payload for row in found.rows]
            later = [other.publish(3, group=group).id for group in ("a", "b", "new")]
            claimed = [*other.consume(20), *other.consume(20)]
            assert {"b", "new"} == {message.group for message in claimed}
            assert other.delete(later[0])

        core.context.run(Operation(claim, atomic=True))
        assert [2, 3] == [m.payload for m in queue.messages().list() if m.group == "a"][2:]


def test_who_ends_a_message_locks_nothing_of_those_behind(impatient: Engine) -> None:
    """A claim that has locked one of them may write it while the caller's transaction is open."""
    with QueueService(impatient) as service:
        queue = _grouped(service)
        held = queue.consume(2)
        live = core_of(queue).context.tables.live
        behind = live.c.id == held[-1].id + 1
        of_group = live.c.group_key == "a"
        eventually(
            lambda: not queue.consume(where=of_group) and _parked(impatient, live) == 2,
            "those behind them are parked",
        )
        # Otherwise MariaDB locks the row behind a range of ids, too.
        committed = impatient.execution_options(isolation_level="READ COMMITTED")
        with committed.begin() as claim, committed.begin() as caller:
            assert claim.execute(select(live.c.id).where(behind).with_for_update()).all()
            queue.ack(held, connection=caller)
            assert 1 == claim.execute(update(live).where(behind).values(consumer_id="x")).rowcount


def _parked(engine: Engine, live: Table) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(live.c.id).where(live.c.parked_at.is_not(None))).all())


_SETTLES: dict[str, Callable[..., object]] = {
    "ack": lambda queue, held, **c: queue.ack(held, **c),
    "nack": lambda queue, held, **c: queue.nack(held, error="no", **c),
    "reject": lambda queue, held, **c: queue.reject(held, "no", **c),
    "release": lambda queue, held, **c: queue.release(held, **c),
    "release later": lambda queue, held, **c: queue.release(held, delay=3600, **c),
    "extend": lambda queue, held, **c: queue.extend(held, **c),
}
_QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "keeping": {"archive": "all", "dedup_window": 60},
    "grouped": {"group_limit": 1000, "archive": "all"},
}


@pytest.mark.parametrize("kind", _QUEUES)
@pytest.mark.parametrize("isolation", [None, "READ COMMITTED", "REPEATABLE READ"])
def test_an_open_publish_delays_no_settle(
    impatient: Engine, kind: str, isolation: str | None
) -> None:
    """Of one message or many, in a transaction of ours or of a caller with any isolation."""
    options = _QUEUES[kind]
    with QueueService(impatient) as service:
        queue = service.create_queue("jobs", max_attempts=9, **options)
        for count in (1, 20, 300):
            for name, settle in _SETTLES.items():
                new = [
                    Publication(n, group=kind if kind == "grouped" else None) for n in range(count)
                ]
                queue.publish_many(new)
                held = queue.consume(count)
                assert count == len(held), name
                with impatient.begin() as publisher:
                    queue.publish("open", connection=publisher)
                    if isolation is None:
                        settle(queue, held)
                    else:
                        at = impatient.execution_options(isolation_level=isolation)
                        with at.begin() as caller:
                            settle(queue, held, connection=caller)
                    publisher.rollback()
                queue.purge(claimed=True)


@pytest.mark.parametrize("options", [{}, {"archive": "all"}, {"group_limit": 1}])
def test_an_open_publish_delays_nobody_who_names_a_message(
    impatient: Engine, options: dict[str, Any]
) -> None:
    """Even if there are two rows in the table, the servers find the message by its id."""
    with QueueService(impatient) as service:
        queue = service.create_queue("jobs", max_attempts=1, **options)
        group = "a" if "group_limit" in options else None
        for end in (
            lambda published: queue.cancel(published.id),
            lambda published: queue.delete(published.id),
            lambda published: queue.messages(where=queue.table.c.id == published.id).hold(),
            lambda _: _take(queue, impatient, 1),
            lambda _: queue.consume()[0].nack(error="no"),
            lambda _: queue.consume()[0].reject("no"),
        ):
            published = queue.publish("one", group=group)
            with impatient.begin() as publisher:
                queue.publish("open", group=group, connection=publisher)
                assert end(published) is not False
                publisher.rollback()
            queue.purge(claimed=True)
