"""Topics: listing, subscribing, and which queue gets which message."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import InvalidQueueName, QueueNotFound, ServiceClosed, TopicNotFound
from tests.contract.existing_tables.users_tables import Invoice, create_invoices
from tests.contract.queue_state import payloads
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_topics_are_created_listed_and_dropped(
    service: QueueService, make_service: MakeService
) -> None:
    """By every service of the same table prefix; again changes nothing."""
    for name in ("b", "a", "b"):
        assert name == service.create_topic(name).name
    other, apart = make_service(), make_service(table_prefix="other_")
    assert ["a", "b"] == [topic.name for topic in other.topics()]
    assert "b" == other.topic("b").name
    assert [] == apart.topics()
    with pytest.raises(TopicNotFound):
        apart.topic("b")
    assert service.drop_topic("a")
    assert not service.drop_topic("a")
    assert ["b"] == [topic.name for topic in other.topics()]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_names_that_queues_cannot_have_are_refused(service: QueueService) -> None:
    """A topic is named as a queue is; what cannot be named cannot be found."""
    wrong: list[Any] = ["", "Events", "a-b", "1a", "x" * 41, "over_sql_x", None, 7]
    for name in wrong:
        with refused(name, InvalidQueueName, match="topic"):
            service.create_topic(name)
        with refused(name, TopicNotFound if isinstance(name, str) else TypeError):
            service.topic(name)


@pytest.mark.engines("sqlite")
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


@pytest.mark.engines("sqlite")
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
    assert {"n": 2} == again.where
    assert first[0].created_at == again.created_at
    assert [] == receivers(topic, "x", {"n": 1})
    assert ["a"] == receivers(topic, "x", {"n": 2})
    topic.subscribe("a", "x")
    assert ["a"] == receivers(topic, "x", {"n": 1})


def test_patterns_that_look_alike_are_different(topic: Topic) -> None:
    """Case, accents and blanks count in the table, too."""
    alike = ["x", "X", "x ", " x", "ẋ", "x.", ""]
    for pattern in alike:
        topic.subscribe("a", pattern)
    assert sorted(alike) == [each.pattern for each in topic.subscriptions()]
    for pattern in alike[1:]:
        assert topic.unsubscribe("a", pattern), pattern
        assert not topic.unsubscribe("a", pattern), pattern
    assert ["x"] == [each.pattern for each in topic.subscriptions()]


def test_unsubscribing(topic: Topic, service: QueueService) -> None:
    """One pattern, or all of a queue; False where there was nothing; others stay."""
    for pattern in ("x", "y", "z"):
        topic.subscribe("a", pattern)
    topic.subscribe("b", "x")
    assert topic.unsubscribe("a", "x")
    assert not topic.unsubscribe("a", "x")
    assert ["b"] == receivers(topic, "x")
    assert ["a"] == receivers(topic, "y")
    assert topic.unsubscribe(service.queue("a"))
    assert not topic.unsubscribe("a")
    assert not topic.unsubscribe("none")
    assert [("b", "x")] == [(each.queue, each.pattern) for each in topic.subscriptions()]


def test_changes_hold_at_once_for_other_services(
    topic: Topic, service: QueueService, make_service: MakeService
) -> None:
    """A publisher elsewhere follows subscriptions, and a dropped queue takes its own along.

    A queue that is created anew under the name has none.
    """
    publisher = make_service().topic("events")
    assert [] == receivers(publisher, "x")
    topic.subscribe("b")
    assert ["b"] == receivers(publisher, "x")
    topic.subscribe("a")
    topic.subscribe("c")
    assert ["a", "b", "c"] == receivers(publisher, "x")
    topic.unsubscribe("c")
    assert ["a", "b"] == receivers(publisher, "x")
    service.drop_queue("a")
    assert ["b"] == receivers(publisher, "x")
    service.create_queue("a")
    assert ["b"] == [each.queue for each in topic.subscriptions()]
    assert ["b"] == receivers(publisher, "x")


@pytest.mark.engines("sqlite")
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


@pytest.mark.default_on("sqlite", "postgresql")
def test_unknown_queues_cannot_subscribe(topic: Topic, make_service: MakeService) -> None:
    """QueueNotFound, also for one that was dropped behind this service's back."""
    with pytest.raises(QueueNotFound):
        topic.subscribe("none")
    make_service().drop_queue("a")
    with pytest.raises(QueueNotFound):
        topic.subscribe("a")
    assert [] == topic.subscriptions()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_arguments_that_are_none_are_refused(topic: Topic) -> None:
    """What is no queue and what is no filter: the error names the argument."""
    verbs: list[Callable[[Any], object]] = [topic.subscribe, topic.unsubscribe]
    for verb, wrong in itertools.product(verbs, (None, 7, ["a"])):
        with refused(wrong, TypeError, match="queue"):
            verb(wrong)
    filters: list[Any] = ["n=1", {"a..b": 1}, {"n": [1]}, {1: 1}, {"n": float("inf")}]
    for where in filters:
        with refused(where, TypeError, ValueError, match="where"):
            topic.subscribe("a", where=where)
    assert [] == topic.subscriptions()


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


@pytest.mark.engines("sqlite")
def test_queues_without_json_take_no_filter(topic: Topic, service: QueueService) -> None:
    """They may subscribe by pattern alone."""
    for payload in ("text", "bytes"):
        queue = service.create_queue(f"of_{payload}", payload=payload)
        with pytest.raises(ValueError, match=payload):
            topic.subscribe(queue, where={"n": 1})
        topic.subscribe(queue, payload)
    assert ["of_text"] == receivers(topic, "text", "plain")
    assert ["of_bytes"] == receivers(topic, "bytes", b"\x00\xff")


@pytest.mark.engines("sqlite")
def test_existing_tables_cannot_subscribe(
    topic: Topic, service: QueueService, engine: Engine
) -> None:
    """Their messages are rows, which are not copied; the message says so."""
    create_invoices(engine, 1)
    service.adopt_queue("billing", Invoice)
    with pytest.raises(ValueError, match="rows"):
        topic.subscribe("billing")


# ---------------------------------------------------------------- routing


@pytest.mark.engines("sqlite")
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


@pytest.mark.engines("sqlite")
def test_one_copy_however_many_patterns_fit(topic: Topic, service: QueueService) -> None:
    """Of two patterns with filters any one is enough."""
    topic.subscribe("a", "#")
    topic.subscribe("a", "x.#")
    topic.subscribe("b", "x.*", {"n": 1})
    topic.subscribe("b", "*.y", {"m": 1})
    assert ["a", "b"] == receivers(topic, "x.y", {"n": 0, "m": 1})
    assert ["a"] == receivers(topic, "x.z", {"n": 0, "m": 1})
    assert 2 == len(received(service, "a"))
    assert 1 == len(received(service, "b"))


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


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_what_only_has_a_name_is_no_queue(service: QueueService) -> None:
    """A topic or a thread is not taken for the queue of its name."""
    topic, queue = service.create_topic("a"), service.create_queue("a")
    topic.subscribe(queue)
    for other in (topic, threading.current_thread(), None, 1):
        with refused(other, TypeError, match="queue must be"):
            topic.unsubscribe(other)  # type: ignore[arg-type]
    assert 1 == len(topic.subscriptions())
