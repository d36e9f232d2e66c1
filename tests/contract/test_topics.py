"""Topics: which there are, who subscribes to them, and who gets which message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import InvalidQueueName, QueueNotFound, ServiceClosed, TopicNotFound
from tests.contract.entities import Invoice, create_invoices
from tests.contract.looking import payloads

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService, Topic
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def topic(service: QueueService) -> Topic:
    """A topic, with three queues beside it that have not subscribed."""
    for name in ("a", "b", "c"):
        service.create_queue(name)
    return service.create_topic("events")


def received(service: QueueService, name: str) -> list[Any]:
    """The payloads in a queue."""
    return payloads(service.queue(name).messages().list())


def receivers(topic: Topic, routing_key: str, payload: object = 1) -> list[str | None]:
    """The queues that get a message."""
    return [one.queue for one in topic.publish(payload, routing_key=routing_key)]


# ---------------------------------------------------------------- topics


def test_topics_are_created_listed_and_dropped(service: QueueService) -> None:
    """Creating again and dropping again change nothing."""
    for name in ("b", "a", "b"):
        assert name == service.create_topic(name).name
    assert ["a", "b"] == [topic.name for topic in service.topics()]
    assert (True, False) == (service.drop_topic("a"), service.drop_topic("a"))
    assert ["b"] == [topic.name for topic in service.topics()]


def test_another_service_sees_the_topic(topic: Topic, make_service: MakeService) -> None:
    """Topics live in the database, under their table prefix."""
    other, apart = make_service(), make_service(table_prefix="other_")
    assert topic.name == other.topic("events").name
    assert [] == apart.topics()
    with pytest.raises(TopicNotFound):
        apart.topic("events")


@pytest.mark.parametrize("name", ["", "Events", "a-b", "1a", "x" * 41, "over_sql_x", None, 7])
def test_names_that_queues_cannot_have_are_refused(service: QueueService, name: Any) -> None:
    """A topic is named as a queue is; what cannot be named cannot be found."""
    with pytest.raises(InvalidQueueName, match="topic"):
        service.create_topic(name)
    with pytest.raises(TopicNotFound):
        service.topic(name)


def test_a_topic_and_a_queue_may_share_a_name(service: QueueService) -> None:
    """They have nothing to do with each other."""
    queue, topic = service.create_queue("events"), service.create_topic("events")
    topic.subscribe(queue)
    assert ["events"] == receivers(topic, "x")
    assert service.drop_topic("events")
    assert [1] == received(service, "events")


def test_many_servers_create_one_topic(make_service: MakeService) -> None:
    """Ten at once: nobody fails."""
    services = [make_service() for _ in range(5)]
    with ThreadPoolExecutor(len(services)) as pool:
        made = list(pool.map(lambda each: each.create_topic("events"), services * 2))
    assert {"events"} == {topic.name for topic in made}
    assert 1 == len(services[0].topics())


def test_a_dropped_topic_is_gone_for_all(topic: Topic, make_service: MakeService) -> None:
    """Its subscriptions go along; every verb says so, and a new one of the name begins empty."""
    other = make_service()
    topic.subscribe("a")
    assert other.drop_topic("events")
    for verb in (
        lambda: topic.publish(1, routing_key="x"),
        lambda: topic.subscribe("a"),
        topic.subscriptions,
    ):
        with pytest.raises(TopicNotFound) as caught:
            verb()
        assert "events" == caught.value.topic
    assert not topic.unsubscribe("a")
    other.create_topic("events")
    assert [] == topic.subscriptions()
    assert [] == topic.publish(1, routing_key="x")


def test_a_stopped_service_has_no_topics(topic: Topic, service: QueueService) -> None:
    """ServiceClosed, as of everything else."""
    service.stop()
    for verb in (
        lambda: service.topic("events"),
        lambda: service.create_topic("events"),
        lambda: service.drop_topic("events"),
        service.topics,
        lambda: topic.publish(1, routing_key="x"),
        lambda: topic.subscribe("a"),
        lambda: topic.unsubscribe("a"),
        topic.subscriptions,
    ):
        with pytest.raises(ServiceClosed):
            verb()


# ---------------------------------------------------------------- subscriptions


def test_subscriptions_are_told(topic: Topic, service: QueueService) -> None:
    """By queue and pattern, with the filter as it was given."""
    before = datetime.now(UTC)
    topic.subscribe(service.queue("b"), "orders.#", {"total": 1.5, "city": "Zágreb", "x.0": None})
    topic.subscribe("a")
    topic.subscribe("b", "*", {})
    told = topic.subscriptions()
    assert [("a", "#"), ("b", "*"), ("b", "orders.#")] == [(s.queue, s.pattern) for s in told]
    assert [None, None, {"total": 1.5, "city": "Zágreb", "x.0": None}] == [s.where for s in told]
    assert all(abs(s.created_at - before) < timedelta(minutes=5) for s in told)


def test_subscribing_again_replaces_the_filter(topic: Topic) -> None:
    """The same queue and pattern are one subscription; another pattern is another."""
    topic.subscribe("a", "x", {"n": 1})
    first = topic.subscriptions()
    topic.subscribe("a", "x", {"n": 2})
    (again,) = topic.subscriptions()
    assert ({"n": 2}, first[0].created_at) == (again.where, again.created_at)
    assert ([], ["a"]) == (receivers(topic, "x", {"n": 1}), receivers(topic, "x", {"n": 2}))
    topic.subscribe("a", "x")
    assert ["a"] == receivers(topic, "x", {"n": 1})


@pytest.mark.parametrize("other", ["X", "x ", " x", "ẋ", "x.", ""])
def test_patterns_that_look_alike_are_different(topic: Topic, other: str) -> None:
    """Case, accents and blanks count in the table, too."""
    topic.subscribe("a", "x")
    topic.subscribe("a", other)
    assert sorted(["x", other]) == [each.pattern for each in topic.subscriptions()]
    assert topic.unsubscribe("a", other)
    assert ["x"] == [each.pattern for each in topic.subscriptions()]


def test_unsubscribing(topic: Topic, service: QueueService) -> None:
    """One pattern, or all of a queue; False where there was nothing; others stay."""
    for pattern in ("x", "y", "z"):
        topic.subscribe("a", pattern)
    topic.subscribe("b", "x")
    assert (True, False) == (topic.unsubscribe("a", "x"), topic.unsubscribe("a", "x"))
    assert (["b"], ["a"]) == (receivers(topic, "x"), receivers(topic, "y"))
    assert (True, False) == (topic.unsubscribe(service.queue("a")), topic.unsubscribe("a"))
    assert not topic.unsubscribe("none")
    assert [("b", "x")] == [(each.queue, each.pattern) for each in topic.subscriptions()]


def test_a_subscription_holds_at_once_for_other_services(
    topic: Topic, make_service: MakeService
) -> None:
    """A publisher elsewhere that knew other subscriptions acts on those that are there now."""
    publisher = make_service().topic("events")
    assert [] == receivers(publisher, "x")
    topic.subscribe("b")
    assert ["b"] == receivers(publisher, "x")
    topic.subscribe("a")
    assert ["a", "b"] == receivers(publisher, "x")
    topic.unsubscribe("b")
    assert ["a"] == receivers(publisher, "x")


def test_dropping_a_queue_drops_its_subscriptions(
    topic: Topic, service: QueueService, make_service: MakeService
) -> None:
    """A queue created anew under the name has none; a publisher elsewhere just goes on."""
    publisher = make_service().topic("events")
    for name in ("a", "b"):
        topic.subscribe(name)
    assert ["a", "b"] == receivers(publisher, "x")
    service.drop_queue("a")
    assert ["b"] == receivers(publisher, "x")
    service.create_queue("a")
    assert ["b"] == [each.queue for each in topic.subscriptions()]
    assert ["b"] == receivers(publisher, "x")


def test_a_queue_made_anew_otherwise_gets_its_copies(
    topic: Topic, service: QueueService, make_service: MakeService
) -> None:
    """A publisher that knew the dropped queue encodes for the new one: text instead of JSON."""
    publisher = make_service().topic("events")
    topic.subscribe("a")
    publisher.publish("one", routing_key="x")
    service.drop_queue("a")
    topic.subscribe(service.create_queue("a", payload="text"))
    publisher.publish("two", routing_key="x")
    assert ["two"] == received(service, "a")


def test_unknown_queues_cannot_subscribe(topic: Topic, make_service: MakeService) -> None:
    """QueueNotFound, also for one that was dropped behind this service's back."""
    with pytest.raises(QueueNotFound):
        topic.subscribe("none")
    make_service().drop_queue("a")
    with pytest.raises(QueueNotFound):
        topic.subscribe("a")
    assert [] == topic.subscriptions()


@pytest.mark.parametrize("wrong", [None, 7, ["a"]])
def test_a_queue_is_a_queue_or_its_name(topic: Topic, wrong: Any) -> None:
    """Anything else is a TypeError that names the argument."""
    for verb in (topic.subscribe, topic.unsubscribe):
        with pytest.raises(TypeError, match="queue"):
            verb(wrong)


def test_patterns_and_keys_are_bounded(topic: Topic) -> None:
    """255 bytes of UTF-8 pass, on every engine; more is refused before anything is done."""
    longest = ".".join(["é" * 63] * 2) + "xx"
    assert 255 == len(longest.encode())
    topic.subscribe("a", longest)
    assert ["a"] == receivers(topic, longest)
    for verb in (
        lambda text: topic.subscribe("a", text),
        lambda text: topic.unsubscribe("a", text),
    ):
        with pytest.raises(ValueError, match="pattern"):
            verb(longest + "x")
    with pytest.raises(ValueError, match="routing_key"):
        topic.publish(1, routing_key=longest + "x")


@pytest.mark.parametrize("where", ["n=1", {"a..b": 1}, {"n": [1]}, {1: 1}, {"n": float("inf")}])
def test_filters_that_are_none_are_refused(topic: Topic, where: Any) -> None:
    """The message names the argument; nothing is subscribed."""
    with pytest.raises((TypeError, ValueError), match="where"):
        topic.subscribe("a", where=where)
    assert [] == topic.subscriptions()


def test_queues_without_json_take_no_filter(topic: Topic, service: QueueService) -> None:
    """They may subscribe by pattern alone."""
    for payload in ("text", "bytes"):
        queue = service.create_queue(f"of_{payload}", payload=payload)
        with pytest.raises(ValueError, match=payload):
            topic.subscribe(queue, where={"n": 1})
        topic.subscribe(queue, payload)
    assert ["of_text"] == receivers(topic, "text", "plain")
    assert ["of_bytes"] == receivers(topic, "bytes", b"\x00\xff")


def test_adopted_tables_cannot_subscribe(
    topic: Topic, service: QueueService, engine: Engine
) -> None:
    """Their messages are rows, which are not copied; the message says so."""
    create_invoices(engine, 1)
    service.adopt_queue("billing", Invoice)
    with pytest.raises(ValueError, match="rows"):
        topic.subscribe("billing")


# ---------------------------------------------------------------- routing


def test_wildcards(topic: Topic) -> None:
    """AMQP's: a star is one word, a hash any number, and only in patterns."""
    topic.subscribe("a", "orders.*.paid")
    topic.subscribe("b", "orders.#")
    topic.subscribe("c", "")
    assert ["a", "b"] == receivers(topic, "orders.eu.paid")
    assert ["b"] == receivers(topic, "orders.paid")
    assert ["b"] == receivers(topic, "orders")
    assert ["b"] == receivers(topic, "orders.#")
    assert ["a", "b"] == receivers(topic, "orders.*.paid")
    assert ["c"] == receivers(topic, "")
    assert [] == receivers(topic, "Orders")


def test_one_copy_however_many_patterns_fit(topic: Topic, service: QueueService) -> None:
    """Of two patterns with filters any one is enough."""
    topic.subscribe("a", "#")
    topic.subscribe("a", "x.#")
    topic.subscribe("b", "x.*", {"n": 1})
    topic.subscribe("b", "*.y", {"m": 1})
    assert ["a", "b"] == receivers(topic, "x.y", {"n": 0, "m": 1})
    assert ["a"] == receivers(topic, "x.z", {"n": 0, "m": 1})
    assert (2, 1) == (len(received(service, "a")), len(received(service, "b")))


FILTERS: list[dict[str, Any]] = [
    {"country": "HR"},
    {"country": "hr"},
    {"total": 10},
    {"total": 10.0},
    {"total": "10"},
    {"paid": True},
    {"paid": 1},
    {"note": None},
    {"missing": None},
    {"items.0.sku": "a"},
    {"items.1.sku": "a"},
    {"address.city": "Zágreb", "total": 10},
    {"address.city": "Zágreb", "total": 11},
    {"address.0": "zero"},
]


def test_filters_mean_what_they_mean_in_a_selection(topic: Topic, service: QueueService) -> None:
    """Each filter lets pass what ``messages(payload=…)`` would find, and nothing else."""
    document = {
        "country": "HR",
        "total": 10,
        "paid": True,
        "note": None,
        "items": [{"sku": "a"}],
        "address": {"city": "Zágreb", "0": "zero"},
    }
    everything = service.queue("a")
    everything.publish(document)
    expected = [everything.messages(payload=where).count() == 1 for where in FILTERS]
    got = []
    for where in FILTERS:
        topic.subscribe("b", where=where)
        got.append(receivers(topic, "x", document) == ["b"])
    assert expected == got
    assert {True, False} == set(got)
