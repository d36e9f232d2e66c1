"""Numbers, times and names at their limits: they work, or raise a clear error of ours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String, select

from queue_over_sql import (
    ConsumerNotFound,
    ExponentialBackoff,
    Publication,
    QueueError,
    QueueNotFound,
    QueueService,
    ScheduleNotFound,
    TopicNotFound,
)
from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService

LONE = "\ud800"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIER = [datetime(1, 1, 1, tzinfo=UTC), datetime(1960, 6, 1, tzinfo=UTC), EPOCH]


def test_instants_before_1970_are_delivered(queue: Queue) -> None:
    """They are due, and come in their order; so does what is put in front of the first."""
    for instant in (*reversed(EARLIER), datetime(2000, 1, 1, tzinfo=UTC)):
        queue.publish(instant.year, at=instant)
    queue.publish("front")
    (front,) = [message for message in queue.messages().list() if message.payload == "front"]
    queue.messages(where=queue.table.c.id == front.id).prioritize(front=True)
    assert ["front", 1, 1960, 1970, 2000] == payloads(queue.consume(9))


def test_what_is_put_before_the_epoch_is_found(queue: Queue) -> None:
    """Also by a consumer that has claimed later messages before."""
    queue.publish("now")
    queue.ack(queue.consume(5))
    queue.publish("epoch", at=EPOCH)
    published = queue.publish("front")
    queue.messages(where=queue.table.c.id == published.id).prioritize(front=True)
    assert ["front", "epoch"] == payloads(queue.consume(5, wait=20))


def refusal(operation: Callable[..., Any], value: object) -> str:
    """What the error says; empty where there is none."""
    try:
        operation(value)
    except (ValueError, TypeError, QueueError) as error:
        return str(error)
    return ""


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_numbers_beyond_a_database_are_refused(queue: Queue, service: QueueService) -> None:
    """Each with an error of ours that names the argument, whatever verb takes it."""
    huge, endless = 2**63, 10**5_000
    last = datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))
    topic, column = service.create_topic("news"), queue.table.c.kind
    first = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
    operations: list[tuple[str, Callable[..., Any], Any]] = [
        ("message_id", queue.delete, huge),
        ("message_id", queue.delete, endless),
        ("count", queue.consume, huge),
        ("count", lambda value: queue.exchange([], value), endless),
        ("after", lambda value: queue.messages().list(after=value), huge),
        ("after", lambda value: queue.messages().list(after=value), -huge - 1),
        ("limit", lambda value: queue.messages().list(limit=value), endless),
        ("delay", lambda value: queue.publish(1, delay=value), 10**400),
        ("lease", lambda value: queue.publish(1, lease=value), 10**400),
        ("lease", lambda value: queue.consume(lease=value), -(10**400)),
        ("wait", lambda value: queue.consume(wait=value), 10**400),
        ("max_attempts", lambda value: queue.publish(1, max_attempts=value), endless),
        ("at", lambda value: queue.publish(1, at=value), last),
        ("at", lambda value: queue.publish(1, at=value), first),
        ("at", lambda value: queue.messages().reschedule(at=value), last),
        ("lease", lambda value: service.create_queue("other", lease=value), 10**400),
        ("key", lambda value: queue.messages(key=value).count(), LONE),
        ("key", lambda value: queue.archive.messages(key=value).count(), "k" * 201),
        ("kind", lambda value: queue.messages(kind=value).remove(), LONE),
        ("payload", lambda value: queue.messages(payload={"a": value}).count(), LONE),
        ("payload", lambda value: queue.messages(payload={"a": value}).count(), endless),
        ("payload", lambda value: queue.messages(payload={value: 1}).count(), LONE),
        ("priority", lambda value: queue.messages().prioritize(priority=value), endless),
        ("delay", lambda value: queue.messages().reschedule(delay=value), 10**400),
        ("at", lambda value: queue.publish_many([Publication(1, at=value)]), last),
        ("at", lambda value: topic.publish(1, routing_key="a", at=value), first),
        ("lease", lambda value: topic.publish(1, routing_key="a", lease=value), 10**400),
        ("max_attempts", lambda value: topic.publish(1, routing_key="a", max_attempts=value), huge),
        ("key", lambda value: topic.publish(1, routing_key="a", key=value), LONE),
        ("kind", lambda value: topic.publish(1, routing_key="a", kind=value), LONE),
        ("where", lambda value: topic.subscribe(queue, "a", where={"a": value}), endless),
        ("send a value", lambda value: queue.messages(where=column == value).count(), LONE),
        ("send a value", lambda value: queue.consume(where=column == value), huge),
        ("count", lambda value: service.schedules.upcoming("s", count=value), endless),
        (
            "lease",
            lambda value: service.schedules.add("s", "jobs", 1, every=1, lease=value),
            endless,
        ),
        ("every", lambda value: service.schedules.add("s", "jobs", 1, every=value), 10**400),
        ("columns", lambda value: queue.publish_many([Publication(1, columns=value)]), []),
        ("headers", lambda value: queue.publish(1, headers=value), 0),
        ("messages", queue.ack, None),
        ("messages", queue.exchange, 5),
        ("reason", lambda value: queue.reject([], value), 5),
        ("where", lambda value: queue.consume(where=value), select(column)),
        ("poll_interval", lambda value: service.worker(poll_interval=value), (0.01, 10**400)),
        ("retry_policies", lambda value: QueueService("sqlite://", retry_policies=value), [1]),
        ("schema", lambda value: QueueService("sqlite://", schema=value), ""),
        ("factor", lambda value: ExponentialBackoff(factor=value), Decimal("NaN")),
    ]
    told = [(argument, refusal(operation, value)) for argument, operation, value in operations]
    assert [] == [(argument, text) for argument, text in told if argument not in text]
    assert 0 == queue.stats().live


class Unspeakable:
    """A value whose text cannot be made."""

    def __repr__(self) -> str:
        return repr(self)


def named(name: Any) -> dict[str, Any]:
    """A mapping with one name."""
    return {name: 1}


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_value_that_cannot_be_shown_is_refused_in_our_words(
    queue: Queue, service: QueueService
) -> None:
    """Neither a repr that recurses nor a number that Python does not write takes their place."""
    own = service.create_queue("own", columns=[Column("n", Integer), Column("t", String(9))])
    topic, schedules = service.create_topic("news"), service.schedules
    operations: list[tuple[str, Callable[..., Any]]] = [
        ("name", service.queue),
        ("not a valid queue name", service.create_queue),
        ("name", service.topic),
        ("not a valid queue name", service.create_topic),
        ("no schedule", schedules.get),
        ("no durable consumer", service.drop_consumer),
        ("column 'n'", lambda value: own.publish(1, n=value)),
        ("column 't'", lambda value: own.publish(1, t=value)),
        ("no column", lambda value: own.publish_many([Publication(1, columns={value: 1})])),
        ("messages", lambda value: queue.ack([value])),
        ("on_conflict", lambda value: queue.publish(1, on_conflict=value)),
        ("status", lambda value: queue.messages(status=value)),
        ("status", lambda value: queue.archive.messages(status=value)),
        ("payload", lambda value: queue.messages(payload={"a": value})),
        ("where", lambda value: topic.subscribe(queue, "#", where={"a": value})),
        ("payload", lambda value: service.create_queue("b", payload=value)),
        ("archive", lambda value: service.create_queue("b", archive=value)),
        ("archive_ttl", lambda value: service.create_queue("b", archive_ttl={value: 1})),
        ("retry", lambda value: service.create_queue("b", retry=value)),
        ("kind", lambda value: service.create_queue("b", kinds={"a": value})),
        ("missed", lambda value: schedules.add("a", "jobs", 1, every=1, missed=value)),
        ("table_prefix", lambda value: QueueService("sqlite://", table_prefix=value)),
        ("retry_policies", lambda value: QueueService("sqlite://", retry_policies=named(value))),
        ("claimed", lambda value: queue.purge(claimed=value)),
    ]
    told = [
        (part, refusal(operation, value))
        for part, operation in operations
        for value in (Unspeakable(), 10**5_000)
    ]
    assert [] == [(part, text) for part, text in told if part not in text]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_only_counts_as_an_answer_is_refused(queue: Queue, service: QueueService) -> None:
    """A flag that is neither True nor False, a function that is none; nothing is done before."""
    wrong: Any
    queue.publish(1)
    queue.reject(queue.consume(), "bad")
    queue.publish(1)
    operations: list[tuple[str, Callable[..., Any]]] = [
        ("claimed", lambda value: queue.purge(claimed=value)),
        ("front", lambda value: queue.messages().prioritize(front=value)),
        ("temporary", lambda value: service.queues(temporary=value)),
        ("notify", lambda value: QueueService("sqlite://", notify=value)),
        ("transactional", lambda value: service.worker().handle("jobs", transactional=value)),
        ("lease_keepalive", lambda value: service.worker().handle("jobs", lease_keepalive=value)),
        ("progress", lambda value: queue.load([1], progress=value)),
        ("progress", lambda value: queue.messages().remove(progress=value)),
        ("progress", lambda value: queue.archive.messages().requeue(progress=value)),
        ("progress", lambda value: queue.archive.export("never", progress=value)),
        ("headers", lambda value: service.schedules.add("a", "jobs", 1, every=1, headers=value)),
    ]
    for wrong in (1, "no", [1], 0, []):
        told = [(argument, refusal(operation, wrong)) for argument, operation in operations]
        assert [] == [(argument, text) for argument, text in told if argument not in text], wrong
    assert 1 == queue.stats().live
    assert 1 == queue.stats().archived


class Number(int, Enum):
    """Numbers with names, as applications have them."""

    ONE = 1


class Word(str, Enum):  # noqa: UP042 - its str() is its name
    """Texts with names."""

    JOBS = "jobs"
    NEWS = "news"
    DONE = "done"


def test_members_of_enumerations_are_what_they_stand_for(
    service: QueueService, make_service: MakeService
) -> None:
    """Wherever a number, a name, a key or a filter is asked for; drivers would send their names."""
    one, done = Number.ONE, Word.DONE
    queue = service.create_queue(
        Word.JOBS,
        max_attempts=one,
        priorities=Number.ONE + one,
        archive="all",
        archive_ttl={done: 1000},
        archive_limit={done: Number(1)},
    )
    assert str is type(queue.name)
    topic = service.create_topic(Word.NEWS)
    topic.subscribe(Word.JOBS, Word.NEWS, where={"n": one, "w": done})
    (copy,) = topic.publish({"n": 1, "w": "done"}, routing_key=Word.NEWS, key=done, kind=done)
    found = make_service().queue(Word.JOBS).messages(key=done, kind=done, payload={"n": one})
    assert [copy.id] == [message.id for message in found.list(one, after=Number(1) - 1)]
    assert 0 == queue.messages(payload={"w": Word.NEWS}).count()
    assert 1 == found.prioritize(priority=one)
    queue.ack(queue.consume(one, lease=one))
    assert 1 == queue.archive.messages(status=done, kind=done).count()  # type: ignore[arg-type]
    published = queue.publish("x", priority=one, max_attempts=one, lease=one, delay=one)
    assert queue.delete(Enum("Id", {"IT": published.id}, type=int).IT)  # type: ignore[attr-defined]
    service.schedules.add(Word.NEWS, Word.JOBS, one, every=3600, priority=one)
    (due,) = queue.messages().list()
    assert "news" in str(due.key)
    assert service.schedules.remove("news")
    assert 0 == queue.stats().live
    texts = service.create_queue("texts", payload="text")
    texts.publish(done, headers={Word.JOBS: done})
    (message,) = texts.consume()
    assert "done" == message.payload
    assert {"jobs": "done"} == message.headers


@pytest.mark.engines("sqlite", "postgresql")
def test_a_name_that_no_queue_can_have_is_not_found(service: QueueService) -> None:
    """Neither a lone surrogate nor a NUL reaches the database; so it is with other names."""
    names: list[Any] = [LONE, "a\x00b", "", "Emails", 'x"; --', 5, [], {}]
    topic = service.create_topic("news")
    named = (service.queue, service.topic, service.drop_queue, service.drop_topic)
    for name in names:
        # A queue may be called so, a topic may not.
        create = service.create_topic if name in ("Emails", 'x"; --') else service.create_queue
        with pytest.raises(QueueError):
            create(name)
        with pytest.raises(ScheduleNotFound):
            service.schedules.get(name)
        with pytest.raises(ScheduleNotFound):
            service.schedules.pause(name)
        if isinstance(name, str):
            with pytest.raises(QueueNotFound):
                service.queue(name)
            with pytest.raises(TopicNotFound):
                service.topic(name)
            assert not service.schedules.remove(name), name
            assert not service.drop_queue(name), name
            assert not service.drop_topic(name), name
            assert not topic.unsubscribe(name), name
            continue
        for take in (*named, service.schedules.remove):
            with pytest.raises(TypeError, match="name must be a str"):
                take(name)
        for operation in (topic.unsubscribe, service.worker().handle):
            with pytest.raises(TypeError, match="queue must be"):
                operation(name)
        with pytest.raises(TypeError, match="queue must be"):
            service.schedules.add("s", name, 1, every=1)
        with pytest.raises(ConsumerNotFound):
            service.release_consumer(name)
