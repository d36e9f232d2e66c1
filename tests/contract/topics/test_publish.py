"""Publishing to a topic: the content of the copies, and all of them or none."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer

from queue_over_sql import (
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    Publication,
    QueueService,
)
from tests.contract.queue_state import payloads
from tests.contract.topics.three_queues import NAMES, contents, listed, three_queues

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Topic


@pytest.fixture
def topic(service: QueueService) -> Topic:
    """A topic with three queues that take everything; ``b`` has three levels."""
    return three_queues(service)


# ---------------------------------------------------------------- the copies


def test_each_queue_gets_a_message_of_its_own(topic: Topic, service: QueueService) -> None:
    """By name of the queue, with its id there; finished in one queue it stays in the others.

    Who publishes to one queue knows which, so that its result names none.
    """
    assert service.queue("b").publish("before").queue is None
    published = topic.publish({"n": 1}, routing_key="x.y")
    assert [*NAMES] == [one.queue for one in published]
    assert ["created"] * 3 == [one.outcome for one in published]
    found = [listed(service, name)[-1] for name in NAMES]
    assert [one.id for one in published] == [message.id for message in found]
    assert [{"n": 1}] * 3 == payloads(found)
    service.queue("a").consume()[0].ack()
    assert [[], ["before", {"n": 1}], [{"n": 1}]] == contents(service)


@pytest.mark.engines("sqlite")
def test_copies_say_where_they_come_from(topic: Topic, service: QueueService) -> None:
    """The headers name the topic and the routing key, beside those that were given."""
    topic.publish(1, routing_key="ž.eu", headers={"trace": [1], "topic": "mine"})
    topic.publish(2, routing_key="")
    first, second = listed(service, "a")
    assert {"trace": [1], "topic": "events", "routing_key": "ž.eu"} == first.headers
    assert {"topic": "events", "routing_key": ""} == second.headers


@pytest.mark.default_on("sqlite", "postgresql")
def test_all_options_arrive(topic: Topic, service: QueueService) -> None:
    """Key, kind, attempts, lease and due time are those of each copy."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    topic.publish(1, routing_key="x", key="k", kind="mail", max_attempts=9, at=at)
    topic.publish(2, routing_key="x", delay=3600)
    topic.publish(3, routing_key="x", lease=77)
    for queue in map(service.queue, NAMES):
        first = queue.messages().list()[0]
        assert "k" == first.key
        assert "mail" == first.kind
        assert 9 == first.max_attempts
        assert at == first.available_at
        assert [1, 2] == payloads(queue.messages(status="delayed").list())
        (message,) = queue.consume(3)
        assert message.lease_expires_at is not None
        assert message.claimed_at is not None
        assert timedelta(seconds=77) == message.lease_expires_at - message.claimed_at


@pytest.mark.engines("sqlite")
def test_without_subscribers_nothing_happens(service: QueueService) -> None:
    """An empty list; what is wrong whoever subscribes is still refused."""
    topic = service.create_topic("events")
    assert [] == topic.publish(object(), routing_key="x")
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (ValueError, {"on_conflict": "perhaps"}),
        (ValueError, {"delay": 1, "at": in_an_hour}),
        (ValueError, {"delay": "soon"}),
        (PayloadInvalid, {"headers": ["h"]}),
        (PayloadInvalid, {"headers": {"h": object()}}),
        (TypeError, {"routing_key": None}),
    ]
    for error, options in wrong:
        with pytest.raises(error):
            topic.publish(1, **{"routing_key": "x", **options})


@pytest.mark.engines("sqlite")
def test_subscribers_are_woken(topic: Topic, service: QueueService) -> None:
    """Who waits for a message in this process is told, once, and finds the copies there."""
    arrivals, told = service._parts.arrivals, list[str]()
    wake = arrivals.notify

    def listening() -> None:
        told.append("woken")
        wake()

    arrivals.notify = listening  # type: ignore[method-assign,assignment]
    topic.publish(1, routing_key="x")
    assert ["woken"] == told
    assert [[1], [1], [1]] == [payloads(service.queue(name).consume()) for name in NAMES]


# ---------------------------------------------------------------- rules of each queue


@pytest.mark.engines("sqlite")
def test_what_one_queue_refuses_goes_to_none(topic: Topic, service: QueueService) -> None:
    """A smaller limit, another payload type, a level that is not there: nothing is published.

    The error names the queue.
    """
    service.create_queue("c", max_payload_bytes=20)
    with pytest.raises(PayloadTooLarge, match="'c'"):
        topic.publish("x" * 30, routing_key="x")
    with pytest.raises(ValueError, match="priority"):
        topic.publish("x", routing_key="x", priority=2)
    with pytest.raises(PayloadInvalid):
        topic.publish({1: 2}, routing_key="x")
    topic.subscribe(service.create_queue("d", payload="text"), "text")
    with pytest.raises(PayloadInvalid, match=r"'d'.*str, not dict"):
        topic.publish({}, routing_key="text")
    assert [[], [], []] == contents(service)


@pytest.mark.engines("sqlite")
def test_a_queue_that_is_not_meant_refuses_nothing(topic: Topic, service: QueueService) -> None:
    """Neither the pattern nor the filter of another message calls its rules."""
    small = service.create_queue("d", max_payload_bytes=2)
    topic.subscribe(small, "small")
    topic.subscribe(small, "x", {"small": True})
    assert [*NAMES] == [one.queue for one in topic.publish({"n": "long"}, routing_key="x")]


@pytest.mark.default_on("sqlite", "postgresql")
def test_queues_with_columns_of_their_own(service: QueueService) -> None:
    """Those that may be NULL stay so; one that must be given keeps its queue from subscribing."""
    topic = service.create_topic("events")
    topic.subscribe(service.create_queue("a", columns=[Column("tenant", Integer)]))
    needs = service.create_queue("b", columns=[Column("tenant", Integer, nullable=False)])
    with pytest.raises(ValueError, match="tenant"):
        topic.subscribe(needs)
    topic.publish(1, routing_key="x")
    assert {"tenant": None} == listed(service, "a")[0].columns


@dataclasses.dataclass(frozen=True)
class Paid:
    """A kind."""

    country: str
    total: int


@pytest.mark.engines("sqlite")
def test_objects_of_kinds(service: QueueService) -> None:
    """Filters look at the JSON of an object, queues without its kind refuse it."""
    topic = service.create_topic("events")
    hr, de = (service.create_queue(name, kinds=[Paid]) for name in ("hr", "de"))
    topic.subscribe(hr, where={"country": "HR"})
    topic.subscribe(de, where={"country": "DE"})
    (published,) = topic.publish(Paid("DE", 5), routing_key="x")
    assert "de" == published.queue
    (message,) = de.consume()
    assert Paid("DE", 5) == message.payload
    assert "Paid" == message.kind
    topic.publish({"country": "HR", "total": 1}, routing_key="x", kind="Paid")
    assert [Paid("HR", 1)] == payloads(hr.consume(2))
    topic.subscribe(service.create_queue("plain"))
    with pytest.raises(PayloadInvalid):
        topic.publish(Paid("DE", 5), routing_key="x")
    assert 0 == hr.messages(status="ready").count() + de.messages(status="ready").count()


def test_many_messages_are_published_together(
    topic: Topic, service: QueueService, engine: Engine
) -> None:
    """Each by its routing key and in order; all or none, in the caller's transaction, too."""
    topic.unsubscribe("c")
    topic.subscribe("c", "paid.*")
    items = [("paid.eu", "first"), ("sent", Publication("second", key="k")), ("paid.us", "third")]
    published = topic.publish_many(items)
    assert [["a", "b", "c"], ["a", "b"], ["a", "b", "c"]] == [
        [copy.queue for copy in copies] for copies in published
    ]
    everything = ["first", "second", "third"]
    assert [everything, everything, ["first", "third"]] == contents(service)
    before = contents(service)
    again = [("paid.eu", "fourth"), ("sent", Publication("fifth", key="k"))]
    with pytest.raises(DuplicateKey):
        topic.publish_many(again)
    with engine.begin() as caller:
        topic.publish_many([("sent", "kept")], connection=caller)
        with pytest.raises(DuplicateKey):
            topic.publish_many(again, connection=caller)
    twice = [(key, Publication("sixth", key="twice")) for key in ("paid.eu", "sent")]
    with pytest.raises(DuplicateKey, match="Two messages of one batch for queue 'a'") as caught:
        topic.publish_many(twice)
    assert ("twice", None) == (caught.value.key, caught.value.id)
    assert [[*before[0], "kept"], [*before[1], "kept"], before[2]] == contents(service)
    assert [] == topic.publish_many([])


@pytest.mark.engines("sqlite")
def test_a_topic_says_whom_a_routing_key_reaches(topic: Topic) -> None:
    """By the patterns alone, which the caller need not match."""
    topic.unsubscribe("c")
    topic.subscribe("c", "paid.*", where={"sum": 1})
    assert ["a", "b", "c"] == [each.queue for each in topic.matches("paid.eu")]
    assert ["a", "b"] == [each.queue for each in topic.matches("paid")]


# ---------------------------------------------------------------- keys


def test_a_taken_key_in_one_queue_keeps_the_copy_from_all(
    topic: Topic, service: QueueService
) -> None:
    """DuplicateKey names the queue; those before it hold nothing of this message."""
    taken = service.queue("b").publish("there", key="k")
    with pytest.raises(DuplicateKey) as caught:
        topic.publish("new", routing_key="x", key="k")
    assert "b" == caught.value.queue
    assert "k" == caught.value.key
    assert taken.id == caught.value.id
    assert [[], ["there"], []] == contents(service)


def test_skip_and_replace_are_decided_by_each_queue(topic: Topic, service: QueueService) -> None:
    """The result says what happened where."""
    service.queue("b").publish("there", key="k")
    skipped = topic.publish("new", routing_key="x", key="k", on_conflict="skip")
    assert ["created", "skipped", "created"] == [one.outcome for one in skipped]
    assert [["new"], ["there"], ["new"]] == contents(service)
    replaced = topic.publish("newer", routing_key="x", key="k", on_conflict="replace")
    assert ["replaced"] * 3 == [one.outcome for one in replaced]
    assert [one.id for one in skipped] == [one.id for one in replaced]
    assert [["newer"]] * 3 == contents(service)


def test_a_key_that_finished_lately(topic: Topic, service: QueueService) -> None:
    """The ``dedup_window`` of one queue refuses for all of them."""
    window = service.create_queue("c", dedup_window=3600)
    topic.publish("first", routing_key="x", key="k")
    for name in NAMES:
        service.queue(name).consume()[0].ack()
    with pytest.raises(DuplicateKey) as caught:
        topic.publish("second", routing_key="x", key="k")
    assert window.name == caught.value.queue
    assert [[], [], []] == contents(service)
