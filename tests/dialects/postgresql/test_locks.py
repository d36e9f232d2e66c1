"""Publishers of sorted batches and whoever settles such messages take locks in one order: by key.

In two orders each would wait for the other, until the server ends one of them after a second.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, create_engine, select, text

from queue_over_sql import Publication, QueueService
from queue_over_sql.queue import core_of
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from queue_over_sql import Message, Queue
    from queue_over_sql.settings import ArchivePolicy
    from queue_over_sql.testing.plugin import TestDatabase
    from queue_over_sql.values.states import OnConflict

pytestmark = pytest.mark.engines("postgresql")
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
# Python sorts capitals first, but most languages do not.
_KEYS = ("b", "a", "B", "A")


@pytest.fixture
def engine(database: TestDatabase) -> Iterator[Engine]:
    """What holds a lock, and looks at those of others."""
    engine = create_engine(database.url)
    yield engine
    engine.dispose()


def _waits_for(engine: Engine, queue: Queue, key: str, do: Callable[[], Any]) -> list[str | None]:
    """The keys of the messages that nobody has locked while ``do`` waits for one of them."""
    live = core_of(queue).context.tables.live
    of_key = select(live.c.id).where(live.c.message_key == key).with_for_update()
    free = select(live.c.message_key).order_by(live.c.id).with_for_update(skip_locked=True)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as holder, engine.connect() as other:
            holder.execute(of_key)
            done = pool.submit(do)
            eventually(lambda: done.done() or other.scalar(text(_WAITING)), "it waits for the key")
            found = list(other.scalars(free))
            other.rollback()
        done.result(30)
    return found


def _publish(queue: Queue, keys: Sequence[str], how: OnConflict) -> list[str]:
    messages = [Publication(how, key=key) for key in keys]
    return [each.outcome for each in queue.publish_many(messages, on_conflict=how)]


def test_messages_with_keys_are_settled_in_the_order_of_keys(
    service: QueueService, engine: Engine
) -> None:
    """Each verb that changes several messages locks what comes before a taken one, and no more."""
    ways: dict[str, Callable[[Queue, list[Message]], object]] = {
        "ack": lambda queue, messages: queue.ack(messages),
        "nack": lambda queue, messages: queue.nack(messages, error=ValueError("broken")),
        "release": lambda queue, messages: queue.release(messages),
        "reject": lambda queue, messages: queue.reject(messages, "unfit"),
        "extend": lambda queue, messages: queue.extend(messages),
        "exchange": lambda queue, messages: queue.exchange(messages),
    }
    archives: tuple[ArchivePolicy, ...] = ("all", "none")
    for archive in archives:
        for name, settle in ways.items():
            queue = service.create_queue(f"{name}-{archive}", archive=archive)
            _publish(queue, _KEYS, "raise")
            queue.publish("without a key")
            messages: list[Message] = queue.consume(5)
            free = _waits_for(engine, queue, "a", lambda: settle(queue, messages))  # noqa: B023 - runs at once
            assert ["b", None] == free, (name, archive)


@pytest.mark.parametrize("how", ["skip", "replace"])
def test_a_batch_takes_keys_in_its_order(
    service: QueueService, engine: Engine, how: OnConflict
) -> None:
    """It waits for a taken key before it inserts a free one, so that others can publish that."""
    queue = service.create_queue("jobs")
    queue.publish("there", key="a")
    others: list[str] = []

    def publish() -> None:
        others.extend(_publish(queue, ("a", "b"), how))

    def publish_beside() -> list[str]:
        return _publish(queue, ("b", "c"), "skip")

    with ThreadPoolExecutor(1) as pool, engine.connect() as holder, engine.connect() as other:
        live = core_of(queue).context.tables.live
        holder.execute(select(live.c.id).where(live.c.message_key == "a").with_for_update())
        done = pool.submit(publish)
        eventually(lambda: done.done() or other.scalar(text(_WAITING)), "it waits for the key")
        with ThreadPoolExecutor(1) as beside:
            second = beside.submit(publish_beside)
            eventually(
                lambda: second.done() or other.scalar(text(_WAITING)) > 1, "it is done, or waits"
            )
            is_free = second.done()
            holder.rollback()
            assert ["created", "created"] == second.result(30)
        done.result(30)
    assert is_free
    assert [{"skip": "skipped", "replace": "replaced"}[how]] == others[:1]
    assert ["a", "b", "c"] == sorted(message.key or "" for message in queue.consume(5))


def test_a_batch_with_a_key_twice_is_published_in_order(service: QueueService) -> None:
    """One statement cannot lock a message that it inserts, so such a batch goes another way."""
    queue = service.create_queue("jobs")
    assert ["created", "created", "skipped"] == _publish(queue, ("b", "a", "b"), "skip")
