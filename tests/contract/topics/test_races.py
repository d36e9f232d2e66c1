"""Topics while subscriptions and queues change: no publish fails, and no fan-out is partial."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, func, select

from queue_over_sql import Published, QueueNotFound
from queue_over_sql.topics.fan_out import FanOut
from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService

STAYING = ("a", "c", "e")


def stored(service: QueueService, name: str) -> list[Any]:
    """All payloads of a queue."""
    return payloads(service.queue(name).messages().list(10_000))


def prepared(service: QueueService) -> None:
    """A topic with three queues that stay."""
    topic = service.create_topic("events")
    for name in STAYING:
        topic.subscribe(service.create_queue(name))


def publishing(service: QueueService, name: str, stop: threading.Event) -> list[str]:
    """Publish until told to stop, at least a few times; which messages were published."""
    topic, done = service.topic("events"), list[str]()
    while len(done) < 5 or not stop.is_set():
        token = f"{name}-{len(done)}"
        topic.publish(token, routing_key="x", key=token)
        done.append(token)
    return done


def while_publishing(
    make_service: MakeService, disturb: Callable[[QueueService], None]
) -> list[str]:
    """Disturb two publishers; which messages they published."""
    service, stop = make_service(), threading.Event()
    prepared(service)
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(publishing, make_service(), name, stop) for name in ("first", "second")
        ]
        try:
            disturb(service)
        finally:
            stop.set()
        return [token for each in running for token in each.result()]


@pytest.mark.default_on("sqlite", "postgresql", "mariadb")
@pytest.mark.parametrize("payload", ["json", pytest.param("text", marks=pytest.mark.full)])
def test_a_queue_dropped_under_publishers_is_not_missed(
    make_service: MakeService, payload: Any
) -> None:
    """It comes and goes; what stays has each message once, and nobody notices."""

    def disturb(service: QueueService) -> None:
        for _ in range(5):
            service.topic("events").subscribe(service.create_queue("d", payload=payload))
            service.drop_queue("d")

    published = while_publishing(make_service, disturb)
    for name in STAYING:
        assert sorted(published) == sorted(stored(make_service(), name))


@pytest.mark.default_on("sqlite", "postgresql")
def test_subscribers_come_and_go_under_publishers(make_service: MakeService) -> None:
    """Each message is in the others once, and in the fickle one at most once."""

    def disturb(service: QueueService) -> None:
        topic, fickle = service.topic("events"), service.create_queue("d")
        for _ in range(20):
            topic.subscribe(fickle)
            topic.unsubscribe(fickle)

    published = while_publishing(make_service, disturb)
    for name in STAYING:
        assert sorted(published) == sorted(stored(make_service(), name))
    assert {1} >= set(Counter(stored(make_service(), "d")).values())


def test_publishers_of_one_key_agree(make_service: MakeService) -> None:
    """Ten at once with the same keys: no deadlock, and each queue has each key once."""
    services = [make_service() for _ in range(5)]
    prepared(services[0])

    def publish(service: QueueService) -> None:
        for number in range(6):
            service.topic("events").publish(
                number, routing_key="x", key=str(number), on_conflict="skip"
            )

    with ThreadPoolExecutor(len(services)) as pool:
        list(pool.map(publish, services * 2))
    for name in STAYING:
        assert [*range(6)] == sorted(stored(services[0], name))


def test_subscribers_of_one_pattern_at_once_are_one(make_service: MakeService) -> None:
    """Twenty servers boot: one subscription, nobody fails."""
    services = [make_service() for _ in range(5)]
    services[0].create_queue("a")

    def boot(service: QueueService) -> None:
        service.create_topic("events").subscribe(service.create_queue("a"), "x", {"n": 1})

    with ThreadPoolExecutor(len(services)) as pool:
        list(pool.map(boot, services * 4))
    assert 1 == len(services[0].topic("events").subscriptions())


def test_no_subscription_outlives_its_queue(make_service: MakeService) -> None:
    """Subscribing races with dropping: either it is refused, or it goes with the queue."""
    one, other = make_service(), make_service()
    topic = one.create_topic("events")
    for _ in range(10):
        one.create_queue("a")
        with ThreadPoolExecutor(2) as pool:
            dropped = pool.submit(other.drop_queue, "a")
            with contextlib.suppress(QueueNotFound):
                topic.subscribe("a")
            assert dropped.result()
        assert [] == topic.subscriptions()


@pytest.mark.default_on("sqlite", "postgresql", "mysql")
def test_nobody_sees_a_queue_half_dropped(make_service: MakeService, engine: Engine) -> None:
    """After each statement of the drop: the queue and its subscription, or neither."""
    service, seen = make_service(), list[tuple[int, int]]()
    service.create_topic("events").subscribe(service.create_queue("a"))
    system = service._parts.system()

    def look(*_: object) -> None:
        with engine.connect() as other:
            counts = [
                other.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (system.queues, system.subscriptions)
            ]
        seen.append((counts[0], counts[1]))

    event.listen(service._parts.connections.engine, "after_cursor_execute", look)
    service.drop_queue("a")
    event.remove(service._parts.connections.engine, "after_cursor_execute", look)
    look()
    assert {(1, 1), (0, 0)} == set(seen)


def test_a_queue_that_is_gone_is_left_out_of_a_callers_transaction(
    make_service: MakeService, engine: Engine
) -> None:
    """Its snapshot may still show the subscription; the others get their copies all the same."""
    service, other = make_service(), make_service()
    prepared(service)
    topic = service.topic("events")
    topic.publish("before", routing_key="x")
    other.create_queue("unrelated")
    with engine.connect() as caller:
        if engine.dialect.name != "sqlite":  # whose writers wait for each other
            caller.execution_options(isolation_level="REPEATABLE READ")
            service.queue("e").publish("own", connection=caller)
            caller.exec_driver_sql("SELECT count(*) FROM queue_over_sql_subscriptions").scalar()
        other.drop_queue("c")
        published = topic.publish("after", routing_key="x", connection=caller)
        caller.commit()
    assert ["a", "e"] == [one.queue for one in published]
    assert ["before", "after"] == stored(service, "a")
    assert "after" in stored(service, "e")


@pytest.mark.engines("sqlite")
@pytest.mark.threads("drops the queue in the middle of a call")
def test_a_queue_that_is_dropped_after_a_publish_does_not_fail_it(
    service: QueueService, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published: who were told that it failed would do it again."""
    prepared(service)
    publish = FanOut._publish

    def dropped_after(*arguments: Any) -> list[list[Published]]:
        published = publish(*arguments)
        make_service().drop_queue("c")
        # As the reaper does, which finds that it is gone.
        assert ["a", "e"] == [queue.name for queue in service.queues()]
        return published

    monkeypatch.setattr(FanOut, "_publish", dropped_after)
    published = service.topic("events").publish("x", routing_key="r")
    assert set(STAYING) == {one.queue for one in published}
    assert ["x"] == stored(service, "a")
    assert ["x"] == stored(service, "e")
