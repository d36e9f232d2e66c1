"""The group of a message: each way to publish takes it, and nothing loses it."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, select

from queue_over_sql import ClaimLost, Publication
from queue_over_sql.cli.lines import READERS
from queue_over_sql.values.json_lines import message_fields
from tests.contract.durable.staged_batches import BATCH, batch_of, staged
from tests.contract.queue_state import ARGUMENT_ERRORS, archived
from tests.contract.request_reply.asking_and_answering import ask
from tests.refusals import refused
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides

GROUP = "customer Zoë's 7 "


@pytest.fixture
def orders(service: QueueService) -> Queue:
    """A queue with groups, and a column of the user's own."""
    columns = [Column("amount", Integer)]
    return service.create_queue("orders", group_limit=1, archive="all", columns=columns)


def _topic(queue: Queue, service: QueueService) -> None:
    service.create_topic("shop").subscribe(queue, "#")
    service.topic("shop").publish("x", routing_key="order.paid", group=GROUP)


def _schedule(queue: Queue, service: QueueService) -> None:
    service.schedules.add("nightly", queue, "x", cron="0 0 1 1 *", group=GROUP)
    service.schedules.run("nightly")


def _line(queue: Queue, service: QueueService) -> None:
    """As an export writes a message, and the command line reads it."""
    del service
    queue.publish("x", group=GROUP)
    [message] = queue.messages().list()
    fields = message_fields(message)
    queue.purge()
    given = {name: fields[name] for name in READERS if fields.get(name) is not None}
    queue.publish_many([Publication(fields["payload"], **given)])


def _requeue(queue: Queue, service: QueueService) -> None:
    del service
    queue.publish("x", group=GROUP)
    queue.consume()[0].reject("no good")
    [message] = archived(queue)
    assert GROUP == message.group
    assert 1 == queue.archive.messages().requeue()


def _replace(queue: Queue, service: QueueService) -> None:
    del service
    queue.publish("first", key="k", group="another")
    queue.publish("x", key="k", group=GROUP, on_conflict="replace")


def _edit(queue: Queue, service: QueueService) -> None:
    del service
    queue.publish("x", group=GROUP)
    queue.messages().hold()
    queue.messages().unhold()
    queue.messages().reschedule(delay=0)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "publish": lambda queue, _: queue.publish("x", group=GROUP),
    "publish with a key": lambda queue, _: queue.publish("x", group=GROUP, key="k"),
    "publish_many": lambda queue, _: queue.publish_many([Publication("x", group=GROUP)]),
    "load": lambda queue, _: queue.load([Publication("x", group=GROUP)]),
    "topic": _topic,
    "schedule": _schedule,
    "line": _line,
    "requeue": _requeue,
    "replace": _replace,
    "edit": _edit,
}


def test_the_group_is_kept_through_each_way(orders: Queue, service: QueueService) -> None:
    """It arrives with the message, is shown in lists, and is kept in the archive."""
    for way, publish in WAYS.items():
        publish(orders, service)
        [listed] = orders.messages().list()
        [message] = orders.consume(5)
        assert ("x", GROUP) == (message.payload, message.group), way
        assert GROUP == listed.group, way
        assert {"amount": None} == dict(message.columns), way
        message.ack()
        assert {GROUP} == {each.group for each in archived(orders)}, way
        assert GROUP == message_fields(archived(orders)[-1])["group"], way
        orders.archive.messages().remove()


@pytest.mark.threads("only Spark's processes write stages, which have no event loop")
def test_the_group_is_kept_through_a_staged_write(orders: Queue) -> None:
    """In a table of its own, and in hand."""
    from queue_over_sql.durable.staged_writes import InMemoryBatch, StagedPublisher

    publisher = StagedPublisher(orders)
    given: dict[str, list[Any]] = {"payload": ["1", "2"], "group_key": [GROUP, None]}
    in_memory = InMemoryBatch(list(given), [batch_of(**given)])
    publisher.publish(BATCH, [staged(publisher, **given)], in_memory=in_memory)
    assert sorted([(1, GROUP), (2, None)] * 2, key=str) == sorted(
        ((each.payload, each.group) for each in orders.messages().list()), key=str
    )


@pytest.mark.threads("who asks waits in a thread of its own")
def test_the_group_is_kept_through_a_request(orders: Queue) -> None:
    """It is that of the request; the reply has none."""
    asked = ask(orders, "x", group=GROUP)
    [message] = consume_exactly(orders, 1)
    assert ("x", GROUP) == (message.payload, message.group)
    message.reply("y")
    message.ack()
    reply = asked.result(30)
    assert ("y", None) == (reply.payload, reply.group)


def test_a_replace_by_the_group_alone_is_a_change(orders: Queue) -> None:
    """The message moves to the other group, and its holder loses it."""
    orders.publish("x", key="k", group="a")
    [held] = orders.consume()
    assert "unchanged" == orders.publish("x", key="k", group="a", on_conflict="replace").outcome
    held.extend()
    assert "replaced" == orders.publish("x", key="k", group="b", on_conflict="replace").outcome
    with pytest.raises(ClaimLost):
        held.extend()
    [again] = orders.consume()
    assert (held.id, "b") == (again.id, again.group)


# Equal to some collation or normalisation, or to a database that drops spaces.
NAMES = (
    *("a", "A", "a ", " a", "\u00e9", "e\u0301", "ß", "ss", "SS", ""),
    *("\u0131", "i", "I", "\u212b", "\u00e5", "a\u200b", "a\u00ad", "\U0001f600", "\U0001f601"),
)


def test_groups_are_equal_by_their_bytes(orders: Queue) -> None:
    """On every engine and collation: each name is a group of its own, also the empty one."""
    assert len({unicodedata.normalize("NFKC", name) for name in NAMES}) < len(NAMES)
    orders.publish_many([Publication(n, group=name) for n, name in enumerate([*NAMES, None])])
    column = orders.table.c.group_key
    for number, name in enumerate(NAMES):
        found = orders.messages(where=column == name).list()
        assert [(number, name)] == [(each.payload, each.group) for each in found], name
    [without] = orders.messages(where=column.is_(None)).list()
    assert (len(NAMES), None) == (without.payload, without.group)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_group_that_cannot_be_kept_is_refused(orders: Queue, service: QueueService) -> None:
    """A queue without groups takes none, and the text says what to do; nor is any value a group."""
    plain = service.create_queue("plain")
    publications: list[Callable[[], Any]] = [
        lambda: plain.publish("x", group="a"),
        lambda: plain.publish_many(["y", Publication("x", group="a")]),
        lambda: plain.load([Publication("x", group="a")]),
        lambda: service.schedules.add("nightly", plain, "x", every=60, group="a"),
    ]
    for number, publish in enumerate(publications):
        with refused(number, ValueError, match=r"has no groups.*group_limit=1"):
            publish()
    assert 0 == plain.stats().ready
    wrong: list[Any] = ["x" * 201, "a\0b", 7, b"a", ["a"], "\ud800"]
    for group in wrong:
        with refused(group, *ARGUMENT_ERRORS):
            orders.publish("x", group=group)
    with pytest.raises(TypeError, match="group_key"):
        orders.publish("x", columns={"group_key": "a"})
    orders.publish("x", group="x" * 200)
    assert 1 == orders.stats().ready


def test_a_copy_for_a_queue_without_groups_has_none(orders: Queue, service: QueueService) -> None:
    """A topic gives the group to those of its queues that have groups."""
    plain = service.create_queue("plain")
    topic = service.create_topic("shop")
    for queue in (orders, plain):
        topic.subscribe(queue, "#")
    assert 2 == len(topic.publish("x", routing_key="order", group=GROUP))
    assert [GROUP, None] == [_first(queue).group for queue in (orders, plain)]


# On H2 nobody else may be connected when groups are turned on.
@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.threads("each service is a process of its own")
def test_a_copy_keeps_its_group_in_a_snapshot_from_before(
    make_service: MakeService, engine: Engine
) -> None:
    """The snapshot of a caller's transaction may be older than the queue's groups."""
    service = make_service()
    service.create_topic("shop").subscribe(service.create_queue("plain"), "#")
    topic = service.topic("shop")
    topic.publish("earlier", routing_key="order")
    service.create_queue("notes")
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    with repeatable.connect() as caller, caller.begin():
        caller.execute(select(service.queue("notes").table.c.id)).all()
        grouped = make_service().create_queue("plain", group_limit=1)
        topic.publish("x", routing_key="order", group=GROUP, connection=caller)
    assert [None, GROUP] == [each.group for each in grouped.messages().list()]


def test_another_service_knows_the_group(orders: Queue, make_service: MakeService) -> None:
    """A server that only opens the queue reads and writes it."""
    assert 1 == orders.settings.group_limit
    other = make_service().queue("orders")
    other.publish("x", group=GROUP)
    assert GROUP == _first(other).group


def _first(queue: Queue) -> Message:
    found = queue.messages().first()
    assert found is not None
    return found
