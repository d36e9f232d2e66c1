"""``publish_many`` and ``load`` send shared values once; each message comes back unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Index, Integer, LargeBinary, String

from queue_over_sql import (
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    Publication,
    QueueError,
)
from queue_over_sql.values.states import PublishOutcome
from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.values.states import OnConflict

AGES_AGO = datetime(2020, 1, 1, tzinfo=UTC)
JSON: tuple[Any, ...] = (
    {"a": 1},
    [],
    "text",
    None,
    1.5,
    2**70,
    "nul \0 within",
    'quote " \\u0000 \\ end',
    "日本 🙂",
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"key": "k'1"},
    {"kind": "a,b"},
    {"headers": {"x": [1, "]"], "nul": "\0"}},
    {"priority": 1},
    {"at": AGES_AGO},
    {"max_attempts": 7},
    {"lease": 12.5},
    {"key": "everything", "kind": "k", "headers": {"h": None}, "priority": 2, "delay": 0},
)


def bulks(queue: Queue, items: list[Any]) -> None:
    """Publish half of them each way."""
    middle = len(items) // 2
    queue.publish_many(items[:middle])
    queue.load(items[middle:])


def drained(queue: Queue) -> list[Any]:
    messages = queue.consume(1000)
    queue.ack(messages)
    return messages


def facts(message: Any) -> tuple[Any, ...]:
    options = (message.key, message.kind, message.headers, message.priority, message.max_attempts)
    return (message.payload, *options, message.scheduled_at)


def test_equal_payloads_come_back_equal(queue: Queue) -> None:
    """Alone, in tens and beside others, whatever they hold."""
    for payload in JSON:
        queue.publish_many([payload])
        bulks(queue, [payload] * 20)
        found = [message.payload for message in drained(queue)]
        assert found == [payload] * 21
        assert [type(each) for each in found] == [type(payload)] * 21


def test_options_stay_with_their_message(service: QueueService) -> None:
    """Every option beside messages without it, in one batch."""
    queue = service.create_queue("jobs", priorities=3)
    items: list[Any] = []
    for number in range(2):
        for payload in JSON:
            for index, options in enumerate(OPTIONS):
                key = {"key": f"{options['key']}{len(items)}"} if "key" in options else {}
                items.append(Publication([number, index, payload], **(options | key)))
    bulks(queue, items)
    found = {facts(message)[1:-1].__repr__() + repr(message.payload) for message in drained(queue)}
    wanted = {
        repr((item.key, item.kind, dict(item.headers or {}), item.priority, item.max_attempts or 5))
        + repr(item.payload)
        for item in items
    }
    assert found == wanted


def test_an_option_of_all_is_that_of_each(service: QueueService) -> None:
    """What all of a batch have is sent once."""
    for number, options in enumerate(OPTIONS):
        # What is back-dated would wait for the next full look of a queue that was drained before.
        queue = service.create_queue(f"jobs{number}", priorities=3)
        items = [
            Publication(n, **(options | ({"key": f"k{n}"} if "key" in options else {})))
            for n in range(20)
        ]
        bulks(queue, items)
        messages = drained(queue)
        assert sorted(message.payload for message in messages) == list(range(20)), options
        for message in messages:
            assert message.kind == options.get("kind")
            assert message.headers == options.get("headers", {})
            assert message.priority == options.get("priority", 0)
            assert message.max_attempts == options.get("max_attempts", 5)
            assert (message.key is not None) == ("key" in options)
            assert message.scheduled_at == options.get("at", message.published_at)


@pytest.mark.default_on("sqlite", "mariadb")
def test_long_options_are_sent_in_parts(service: QueueService) -> None:
    """Servers bound the size of a statement: MariaDB at 16 MiB by default."""
    queue = service.create_queue("jobs")
    items = [Publication(n, headers={"n": n, "long": "x" * 20_000}) for n in range(1024)]
    assert queue.load(items) == len(items)
    assert len(queue.publish_many(items)) == len(items)


def test_delays_of_their_own(service: QueueService) -> None:
    """Each is due at its own time, counted from one instant."""
    queue = service.create_queue("jobs")
    queue.publish_many([Publication(n, delay=100 + n) for n in range(10)])
    queue.load([Publication(n, delay=100 + n) for n in range(10)])
    for message in queue.messages().list():
        wait = message.scheduled_at - message.published_at
        assert wait == timedelta(seconds=100 + message.payload)


def test_texts_and_bytes(service: QueueService) -> None:
    """Payloads that are no JSON, whatever they hold."""
    texts = ["", "x", "'\"\\", "a,b]", "line\nline\t\x01", "日本 🙂", "null", "\\u0000"]
    payloads: dict[Any, list[Any]] = {
        "text": texts,
        "bytes": [each.encode() + b"\0\xff" for each in texts],
    }
    for kind, wanted in payloads.items():
        queue = service.create_queue(f"{kind}_jobs", payload=kind)
        bulks(queue, wanted * 2)
        mixed = [Publication(each, headers={"n": n}) for n, each in enumerate(wanted)]
        bulks(queue, [*mixed, *mixed])
        assert [message.payload for message in drained(queue)] == wanted * 4, kind


def test_columns_of_the_queues_own(service: QueueService) -> None:
    """Given to some, to none, to all."""
    own = (
        Column("customer", Integer),
        Column("place", String(20)),
        Column("blob", LargeBinary(20)),
    )
    queue = service.create_queue("jobs", columns=own)
    values: list[dict[str, Any]] = [
        {"customer": 1, "place": "Ü'", "blob": b"\0\xff"},
        {"customer": 2},
        {},
    ]
    bulks(queue, [Publication(n, columns=values[n % 3]) for n in range(12)])
    bulks(queue, [Publication(n, columns={"customer": 9}) for n in range(12)])
    bulks(queue, [0, 1, 2, 3])
    messages = drained(queue)
    empty = {"customer": None, "place": None, "blob": None}
    assert [m.columns for m in messages[:12]] == [empty | values[n % 3] for n in range(12)]
    assert [m.columns for m in messages[12:24]] == [empty | {"customer": 9}] * 12
    assert [m.columns for m in messages[24:]] == [empty] * 4


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_needed_column_is_asked_for(service: QueueService) -> None:
    """A plain payload cannot have it."""
    needed = (Column("customer", Integer, nullable=False),)
    queue = service.create_queue("jobs", columns=needed)
    for publish in (queue.publish_many, queue.load):
        with pytest.raises(TypeError, match="customer"):
            publish(["x", "y"])
    assert 0 == queue.stats().live


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb")
def test_ids_come_in_the_order_of_the_items(service: QueueService) -> None:
    """Of many more than one statement carries, with keys that are taken among them."""
    queue = service.create_queue("jobs")
    first = queue.publish_many(range(5000))
    assert [one.id for one in first] == sorted(one.id for one in first)
    by_id = {message.id: message.payload for message in queue.messages().list(6000)}
    assert [by_id[one.id] for one in first] == list(range(5000))
    queue.publish("taken", key="k700")
    items = [Publication(n, key=f"k{n}") for n in range(1500)]
    second = queue.publish_many(items, on_conflict="skip")
    outcomes = [one.outcome for one in second]
    assert [700] == [n for n, one in enumerate(outcomes) if one is PublishOutcome.SKIPPED]
    keys = {message.id: message.key for message in queue.messages().list(8000)}
    assert [keys[one.id] for one in second] == [f"k{n}" for n in range(1500)]
    with pytest.raises(DuplicateKey):
        queue.publish_many([Publication("x", key="new"), Publication("y", key="k3")])
    with pytest.raises(DuplicateKey):
        queue.load([Publication("x", key="new"), Publication("y", key="k3")])
    assert 0 == queue.messages(key="new").count()


def test_a_refused_batch_leaves_nothing_in_the_callers_transaction(
    service: QueueService, effects_engine: Engine
) -> None:
    """Neither the rows before the one that the database refused, nor the statements before it."""
    queue = service.create_queue("jobs", columns=[Column("customer", Integer)])
    Index("one_each", queue.table.c.customer, unique=True).create(effects_engine)
    for keyed in (False, True):
        items = [
            Publication(n, key=f"k{n}" if keyed else None, columns={"customer": min(n, 300)})
            for n in range(310)
        ]
        with effects_engine.connect() as connection:
            with pytest.raises(QueueError):
                queue.publish_many(items, connection=connection)
            connection.commit()
        assert 0 == queue.stats().live


@pytest.mark.threads("Python refuses it")
@pytest.mark.engines("sqlite", "postgresql")
def test_the_refused_one_of_several_is_named(queue: Queue) -> None:
    """By its place among all items, with the error's type, attributes and cause; a single one not.

    Also where the server receives messages while others are still to be encoded.
    """
    payload, option = [1, 2, object(), 4], [1, Publication(2, priority=-1)]
    bad: list[tuple[Any, type[Exception], str]] = [
        (payload, PayloadInvalid, r"items\[2\]: "),
        (["x", "x" * 2_000_000], PayloadTooLarge, r"items\[1\]: .* limit"),
        (option, ValueError, r"items\[1\]: priority"),
        ([1, Publication(2, columns={"no": 1})], TypeError, r"items\[1\]: .* no column no"),
    ]
    for items, kind, text in bad:
        for publish in (queue.publish_many, queue.load):
            with pytest.raises(kind, match=text) as caught:
                publish(items)
            assert type(caught.value) is kind
            assert type(caught.value.__cause__) is kind
        with pytest.raises(kind) as caught:
            queue.publish_many([items[-1] if kind is not PayloadInvalid else items[2]])
        assert "items" not in str(caught.value)
    with pytest.raises(PayloadTooLarge) as large:
        queue.publish_many(["x", "x" * 2_000_000])
    assert 1_048_576 == large.value.limit
    for items in ([1, 2, 3, object()], [1, 2, 3, Publication(object())]):
        with pytest.raises(PayloadInvalid, match=r"items\[3\]: "):
            queue.load(items, batch_size=2)
    assert [1, 2, 1, 2] == payloads(queue.messages().list())


@pytest.mark.threads("Python refuses it")
@pytest.mark.engines("sqlite")
def test_what_to_do_about_a_taken_key_needs_a_key(queue: Queue, service: QueueService) -> None:
    """One message without a key is refused; in a batch it may stand beside others."""
    topic = service.create_topic("news")
    topic.subscribe(queue)
    ways: tuple[OnConflict, ...] = ("skip", "replace")
    for way in ways:
        publishes: tuple[Callable[[], object], ...] = (
            partial(queue.publish, 1, on_conflict=way),
            partial(topic.publish, 1, routing_key="a", on_conflict=way),
        )
        for publish in publishes:
            with pytest.raises(ValueError, match=f"on_conflict='{way}' is for a key .* no key"):
                publish()
    assert 0 == queue.stats().ready
    queue.publish_many([1, Publication(2, key="k")], on_conflict="skip")
    assert 2 == queue.stats().ready
