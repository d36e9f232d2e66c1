"""What kombu promises of a transport, on the queues of a database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from uuid import UUID

import kombu
import pytest
from kombu.exceptions import ChannelError

from queue_over_sql import ClaimLost, DatabaseUnavailable, Message, PayloadInvalid, Queue
from queue_over_sql.contrib.kombu import services
from tests.contrib.kombu.broker import QUICKLY, URL, connect, get
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

ROOT = Path(__file__).parents[3]
sqlite_in_default = pytest.mark.default_on("sqlite")
engines_in_default = pytest.mark.default_on("sqlite", "postgresql")


@pytest.fixture
def connection(database: TestDatabase) -> Iterator[Any]:
    """A connection that is closed when the test ends."""
    with connect(database.url) as opened:
        yield opened


def names(messages: list[Any]) -> list[Any]:
    """The payloads of messages."""
    return [message.payload for message in messages]


def ready(connection: Any, queue: Any) -> int:
    """How many messages of a queue nobody holds."""
    declared = connection.default_channel.queue_declare(queue.name, passive=True)
    count: int = declared.message_count
    return count


@sqlite_in_default
def test_messages_arrive_as_they_were_published(connection: Any) -> None:
    """Text, binary and compressed bodies, headers and properties; an ack finishes them."""
    jobs = kombu.Queue("jobs.of \N{SNOWMAN}", kombu.Exchange("jobs"), routing_key="do")
    producer = connection.Producer()
    for options in ({"serializer": "json"}, {"serializer": "pickle"}, {"compression": "zlib"}):
        body = {"hello": "w\N{LATIN SMALL LETTER O WITH DIAERESIS}rld\0"}
        producer.publish(
            body,
            exchange=jobs.exchange,
            routing_key="do",
            declare=[jobs],
            headers={"k": ["v", 1]},
            correlation_id="7",
            **options,
        )
        (message,) = get(connection, jobs)
        assert body == message.payload, options
        assert ["v", 1] == message.headers["k"]
        assert "7" == message.properties["correlation_id"]
        assert ("jobs", "do") == tuple(
            message.delivery_info[name] for name in ("exchange", "routing_key")
        )
        assert message.delivery_info["redelivered"] is False
        message.ack()
    producer.publish(b"\xff\0", exchange="", routing_key=jobs.name, content_type="image/x-none")
    (message,) = get(connection, jobs)
    assert b"\xff\0" == message.body
    message.ack()
    with pytest.raises(TimeoutError):
        get(connection, jobs, timeout=0.1)
    assert 0 == ready(connection, jobs)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("exchange", ["", "jobs"])
def test_headers_may_have_what_json_has_not(connection: Any, exchange: str) -> None:
    """As with kombu's other transports: times, UUIDs and decimals come back as they were."""
    jobs = kombu.Queue("jobs", kombu.Exchange("jobs"), routing_key="jobs")
    due = datetime(2026, 1, 2, 3, 4, 5, 600000, UTC)
    headers = {"due": due, "ids": (UUID(int=7), Decimal("1.50")), "deep": {"due": due}, 1: "one"}
    producer = connection.Producer()
    producer.publish(
        {"n": 1},
        exchange=exchange,
        routing_key="jobs",
        declare=[jobs],
        headers=headers,
        correlation_id=UUID(int=8),
    )
    (message,) = get(connection, jobs)
    known = {name: message.headers[name] for name in ("due", "ids", "deep", "1")}
    whole = {"due": due, "ids": [UUID(int=7), Decimal("1.50")], "deep": {"due": due}, "1": "one"}
    assert whole == known
    assert UUID(int=8) == message.properties["correlation_id"]
    with pytest.raises(PayloadInvalid):
        producer.publish(1, exchange=exchange, routing_key="jobs", headers={"odd": float("nan")})


@engines_in_default
def test_exchanges_route(connection: Any) -> None:
    """Direct by the key, topic by a pattern, fanout to all; one copy for each queue."""
    channel = connection.default_channel
    keys = {"direct": ("a.b", "a.*"), "topic": ("a.*", "#.b"), "fanout": ("x", "y")}
    expected = {"direct": [1, 0], "topic": [1, 1], "fanout": [1, 1]}
    for kind, bound in keys.items():
        exchange = kombu.Exchange(f"{kind}.exchange", type=kind)
        queues = [
            kombu.Queue(f"{kind}.{place}", exchange, routing_key=key)
            for place, key in enumerate(bound)
        ]
        producer = connection.Producer(exchange=exchange)
        producer.publish({"n": 1}, routing_key="a.b", declare=[*queues])
        sizes = [ready(connection, queue) for queue in queues]
        assert expected[kind] == sizes, kind
        # A second binding that fits does not give it a second copy.
        queues[0](channel).bind_to(exchange, routing_key="a.b")
        queues[0](channel).purge()
        producer.publish({"n": 2}, routing_key="a.b")
        assert [{"n": 2}] == names(get(connection, queues[0], no_ack=True)), kind
        queues[1](channel).unbind_from(exchange, routing_key=bound[1])
        queues[1](channel).purge()
        producer.publish({"n": 3}, routing_key="a.b")
        assert 0 == ready(connection, queues[1]), kind
    bindings = connection.get_manager().get_bindings()
    wanted = {"destination": "topic.0", "source": "topic.exchange", "routing_key": "a.*"}
    assert wanted in bindings


@pytest.mark.engines("sqlite")
def test_what_does_not_exist_is_an_error(connection: Any) -> None:
    """As AMQP numbers them: 404 for what is not there, 406 for another type, 540 for headers."""
    channel = connection.default_channel
    channel.exchange_declare("known", "topic")
    channel.queue_declare("known")
    wrong: dict[str, list[Callable[[], Any]]] = {
        "404": [
            lambda: channel.queue_declare("jobs", passive=True),
            lambda: channel.exchange_declare("jobs", passive=True),
            lambda: channel.queue_bind("known", "jobs"),
            lambda: channel.basic_publish(channel.prepare_message("x"), "jobs", "key"),
            lambda: channel.basic_publish(channel.prepare_message("x"), "", "jobs"),
            lambda: channel.basic_consume("jobs", False, print, "1"),  # noqa: FBT003
            lambda: channel.queue_purge("jobs"),
        ],
        "406": [
            lambda: channel.exchange_declare("known", "fanout"),
            lambda: channel.basic_ack("unknown"),
        ],
        "540": [lambda: channel.exchange_declare("jobs", "headers")],
    }
    for code, calls in wrong.items():
        for call in calls:
            with pytest.raises(ChannelError) as raised:
                call()
            assert code == str(raised.value.reply_code)
    channel.queue_delete("known")
    channel.exchange_delete("known")
    assert [] == list(channel.list_bindings()) == channel.get_exchanges()


@sqlite_in_default
def test_messages_expire(connection: Any) -> None:
    """What was not delivered in time, by its own limit or that of its queue, is not delivered."""
    own = kombu.Queue("own")
    of_queue = kombu.Queue("of_queue", message_ttl=0.05)
    producer = connection.Producer()
    producer.publish(1, routing_key="own", declare=[own], expiration=0.05)
    producer.publish(1, routing_key="of_queue", declare=[of_queue])
    time.sleep(0.06)
    with pytest.raises(TimeoutError):
        get(connection, own, of_queue, timeout=0.1)
    producer.publish(2, routing_key="own", expiration=60)
    assert [2] == names(get(connection, own, of_queue, no_ack=True))


@engines_in_default
def test_the_most_urgent_comes_first_and_what_is_requeued_at_its_place(connection: Any) -> None:
    """Higher numbers are more urgent; a requeued message is the first one of its priority."""
    urgent = kombu.Queue("urgent", max_priority=9)
    producer = connection.Producer()
    for body, priority in (("first", 3), ("second", 6), ("third", 3), ("none", None)):
        producer.publish(body, routing_key="urgent", declare=[urgent], priority=priority)
    got = get(connection, urgent)
    assert ["second", "first", "third", "none"] == names(got)
    for message in got:
        message.requeue()
    producer.publish("fourth", routing_key="urgent", priority=12)
    again = get(connection, urgent)
    assert ["fourth", "second", "first", "third", "none"] == names(again)
    redelivered = [message.delivery_info["redelivered"] for message in again]
    assert [False, True, True, True, True] == redelivered
    for _ in range(3):
        again[1].requeue()
        (again[1],) = get(connection, urgent)
    # A task that waits by requeueing itself does not use up its attempts.
    assert 2 == again[1].claimed.attempt


@sqlite_in_default
def test_a_rejected_message_becomes_a_dead_letter(
    connection: Any, make_service: MakeService
) -> None:
    """It is not delivered again, and an operator can send it again."""
    with connection.SimpleQueue("jobs") as jobs:
        jobs.put({"n": 1})
        jobs.get(timeout=10).reject()
        with pytest.raises(jobs.Empty):
            jobs.get_nowait()
        archive = make_service().queue("jobs").archive
        assert ["rejected"] == [each.outcome for each in archive.messages().list()]


@engines_in_default
def test_who_lost_a_message_cannot_settle_it(connection: Any, make_service: MakeService) -> None:
    """Its ack and its requeue are refused, and whoever has it now keeps it."""
    jobs = kombu.Queue("jobs")
    connection.Producer().publish(1, routing_key="jobs", declare=[jobs])
    (message,) = get(connection, jobs)
    other = make_service()
    other.release_consumer(message.claimed.consumer_id)
    (now,) = other.queue("jobs").consume(wait=10)
    with pytest.raises(ClaimLost):
        message.ack()
    now.ack()
    assert ClaimLost in connection.connection_errors
    assert connection.default_channel.qos.can_consume_max_estimate() is None


@pytest.mark.engines("sqlite")
def test_a_channel_gets_as_many_as_its_prefetch_count_allows(connection: Any) -> None:
    """Also after the count shrinks below what it has; an ack of another thread makes room."""
    jobs = kombu.Queue("jobs")
    producer = connection.Producer()
    for number in range(6):
        producer.publish(number, routing_key="jobs", declare=[jobs])
    got: list[Any] = []
    consumer = connection.Consumer([jobs], on_message=got.append, prefetch_count=3)
    with consumer:
        connection.drain_events(timeout=10)
        assert [0, 1, 2] == names(got)
        consumer.qos(prefetch_count=1)
        for message in got[:2]:
            message.ack()
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.05)
        began = time.monotonic()
        acking = threading.Timer(0.2, got[2].ack)
        acking.start()
        connection.drain_events(timeout=60)
        assert time.monotonic() - began < 30
        assert [3] == names(got[3:])
        acking.join()
    # It was not settled: the queue has it when the channel is closed.
    connection.close()
    assert [3] == names(get(connection, jobs, prefetch_count=1))


@pytest.mark.engines("sqlite")
def test_two_queues_are_served_in_turn(connection: Any) -> None:
    """A queue that never empties does not starve another one."""
    queues = [kombu.Queue("many"), kombu.Queue("few")]
    producer = connection.Producer()
    for _ in range(30):
        producer.publish("many", routing_key="many", declare=queues)
    producer.publish("few", routing_key="few")
    got: list[Any] = []
    with connection.Consumer(queues, on_message=got.append, prefetch_count=1, no_ack=True):
        while "few" not in names(got):
            connection.drain_events(timeout=10)
    assert len(got) <= 21


@sqlite_in_default
def test_queues_end_by_themselves(connection: Any, make_service: MakeService) -> None:
    """An exclusive queue ends with its connection, others when nobody has used them for a while."""
    channel = connection.default_channel
    kombu.Queue("mine", exclusive=True)(channel).declare()
    kombu.Queue("celery@host.celery.pidbox", auto_delete=True, expires=10)(channel).declare()
    kombu.Queue("events", auto_delete=True)(channel).declare()
    other = make_service()
    assert timedelta(seconds=10) == other.queue("celery@host.celery.pidbox").settings.unused_for
    assert timedelta(seconds=60) == other.queue("events").settings.unused_for
    assert other.queue("mine").temporary
    connection.close()
    titles = {queue.title for queue in other.queues(temporary=True)}
    assert {"celery@host.celery.pidbox", "events"} == titles


@pytest.mark.engines("sqlite")
def test_a_declaration_drops_no_queue_of_others(connection: Any, make_service: MakeService) -> None:
    """Neither a queue that is to stay, nor what another connection or its parent process holds."""
    jobs, mine = kombu.Queue("jobs"), kombu.Queue("mine", exclusive=True)
    producer = connection.Producer()
    producer.publish(1, routing_key="jobs", declare=[jobs])
    producer.publish(2, routing_key="mine", declare=[mine])
    other = connection.clone()
    wrong: list[tuple[Any, tuple[type[Exception], ...], str]] = [
        (kombu.Queue("jobs", exclusive=True), connection.channel_errors, "not temporary"),
        (kombu.Queue("jobs", auto_delete=True), (ChannelError,), "PRECONDITION_FAILED.*itself"),
        (kombu.Queue("jobs", expires=1), (ChannelError,), "PRECONDITION_FAILED.*itself"),
        (mine, (ChannelError,), "RESOURCE_LOCKED"),
        (kombu.Queue("mine", auto_delete=True), (ChannelError,), "RESOURCE_LOCKED"),
    ]
    for queue, errors, text in wrong:
        with pytest.raises(errors, match=text):
            queue(other.channel()).declare()
    other.close()
    child = os.fork()
    if not child:
        try:
            producer.publish(3, routing_key="mine")
            connection.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    operator = make_service()
    assert None is operator.queue("jobs").settings.unused_for
    assert (1, 2) == tuple(operator.queue(name).stats().ready for name in ("jobs", "mine"))
    # A process that took it over keeps it.
    operator.start()
    operator.create_queue("mine", temporary=True)
    connection.close()
    assert 2 == operator.queue("mine").stats().ready


@pytest.mark.engines("sqlite")
def test_a_declaration_leaves_what_an_operator_changed(
    connection: Any, make_service: MakeService
) -> None:
    """Our own settings are those of new queues; those of the program are kept up to date."""
    jobs = kombu.Queue("jobs")
    jobs(connection.default_channel).declare()
    operator = make_service()
    assert 100 == operator.queue("jobs").settings.max_attempts
    operator.create_queue("jobs", max_attempts=7)
    jobs(connection.channel()).declare()
    operator.queue("jobs").refresh()
    assert 7 == operator.queue("jobs").settings.max_attempts
    operator.drop_queue("jobs")
    # A program that declared it goes on.
    connection.Producer().publish(1, routing_key="jobs")
    assert 1 == operator.queue("jobs").stats().ready
    with connection.Consumer([jobs], on_message=print):
        operator.drop_queue("jobs")
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=30)


@pytest.mark.engines("sqlite")
def test_a_message_of_another_program_is_a_body_in_json(
    connection: Any, make_service: MakeService
) -> None:
    """Whatever was published with the library itself."""
    jobs = kombu.Queue("jobs")
    jobs(connection.default_channel).declare()
    payloads: list[Any] = [{"to": "ada"}, ["properties"], None]
    make_service().queue("jobs").publish_many(payloads)
    assert payloads == names(get(connection, jobs, no_ack=True))


@pytest.mark.engines("sqlite")
def test_a_message_that_kombu_cannot_read_is_a_dead_letter(
    connection: Any, make_service: MakeService
) -> None:
    """It stops no others, and tells why."""
    jobs = kombu.Queue("jobs")
    jobs(connection.default_channel).declare()
    queue = make_service().queue("jobs")
    unreadable: list[Any] = [
        {"properties": {"delivery_info": None}},
        {"properties": {"body_encoding": "base64"}, "body": "cut"},
        {"properties": {}, "headers": "none"},
    ]
    for no_ack in (True, False):
        queue.publish_many([*unreadable, 1])
        assert 1 == connection.default_channel.basic_get("jobs", no_ack=no_ack).payload
        queue.publish_many([*unreadable, 2])
        assert [2] == names(get(connection, jobs, no_ack=no_ack))
    dead = [each for each in queue.archive.messages().list() if each.outcome == "rejected"]
    assert 4 * len(unreadable) == len(dead)
    assert all("kombu cannot read it: " in str(each.last_error) for each in dead)


@pytest.mark.engines("sqlite")
def test_a_message_that_was_not_settled_breaks_the_connection(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with AMQP: who drains events connects again, and then it is delivered again."""
    jobs = kombu.Queue("jobs")
    producer = connection.Producer()

    def fail(*_: Any) -> None:
        raise DatabaseUnavailable("no answer")

    for number in range(2):
        producer.publish(number, routing_key="jobs", declare=[jobs])
    with monkeypatch.context() as patch:
        patch.setattr(Message, "ack", fail)
        with pytest.raises(DatabaseUnavailable):
            connection.default_channel.basic_get("jobs", no_ack=True)
        assert 2 == ready(connection, jobs)
        got: list[Any] = []
        with connection.Consumer([jobs], on_message=got.append, prefetch_count=1):
            connection.drain_events(timeout=10)
            # Another thread waits for room meanwhile.
            acking = threading.Timer(0.2, partial(got[0].ack_log_error, Mock(), Exception))
            acking.start()
            with pytest.raises(connection.connection_errors, match="no answer"):
                connection.drain_events(timeout=60)
            acking.join()
    connection.close()
    assert [0, 1] == names(get(connection, jobs))


@pytest.mark.engines("sqlite")
def test_the_consumers_of_one_queue_take_turns(connection: Any) -> None:
    """Of two channels; one gets all after the other is cancelled, and at last nobody handles it.

    A queue that is deleted "if unused" stays until then.
    """
    jobs = kombu.Queue("jobs")
    producer = connection.Producer()
    got: dict[str, list[Any]] = {"one": [], "other": []}
    consumers = [
        kombu.Consumer(connection.channel(), [jobs], on_message=each.append, prefetch_count=1)
        for each in got.values()
    ]
    for consumer in consumers:
        consumer.consume()
    for number in range(2):
        producer.publish(number, routing_key="jobs")
    for _ in range(2):
        connection.drain_events(timeout=10)
    assert {"one": [0], "other": [1]} == {name: names(each) for name, each in got.items()}
    consumers[1].cancel()
    got["one"][0].ack()
    producer.publish(2, routing_key="jobs")
    connection.drain_events(timeout=10)
    assert [0, 2] == names(got["one"])

    service = connection.transport.shared.service

    def handled() -> bool:
        return any(each.queue == "jobs" for one in service.consumers() for each in one.handles)

    wait_until(handled)
    connection.default_channel.queue_delete("jobs", if_unused=True)
    consumers[0].cancel()
    wait_until(lambda: not handled())
    assert 0 == ready(connection, jobs)
    connection.default_channel.queue_delete("jobs", if_unused=True)
    with pytest.raises(connection.channel_errors, match="no queue 'jobs'"):
        ready(connection, jobs)


@pytest.mark.engines("sqlite")
def test_what_two_threads_could_not_give_back_is_given_back_later(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither forgets what the other one owes."""
    jobs = kombu.Queue("jobs")
    for number in range(2):
        connection.Producer().publish(number, routing_key="jobs", declare=[jobs])
    first, second = (each.claimed for each in get(connection, jobs))
    shared = connection.transport.shared

    def fail(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("no answer")

    def meanwhile() -> Iterator[Any]:
        thread = threading.Thread(target=shared.give_back, args=([second],))
        thread.start()
        thread.join()
        yield first

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "release", fail)
        shared.give_back(meanwhile())
    assert [1, 0] == [int(each.payload["body"]) for each in shared.owed]
    shared.give_back()
    assert 2 == ready(connection, jobs)


@pytest.mark.engines("sqlite")
def test_what_a_consumer_raises_gives_back_what_it_did_not_get(connection: Any) -> None:
    """The message that it got stays with it until the channel is closed."""
    jobs = kombu.Queue("jobs")
    producer = connection.Producer()
    for number in range(3):
        producer.publish(number, routing_key="jobs", declare=[jobs])

    def fail(message: Any) -> None:
        raise LookupError(message.payload)

    with connection.Consumer([jobs], on_message=fail), pytest.raises(LookupError, match="0"):
        connection.drain_events(timeout=10)
    assert [1, 2] == names(get(connection, jobs))
    connection.close()
    assert [0, 1, 2] == names(get(connection, jobs))


HOLD = """
import sys, kombu, queue_over_sql.contrib.kombu
from tests.contrib.kombu.broker import connect
from tests.contrib.kombu.broker import QUICKLY
connection = connect(sys.argv[1], service=QUICKLY)
def hold(message):
    print(message.payload, flush=True)
with connection.Consumer([kombu.Queue("jobs")], on_message=hold):
    while True:
        connection.drain_events()
"""


@pytest.mark.chaos
@sqlite_in_default
def test_a_killed_process_gives_back_what_it_held(database: TestDatabase) -> None:
    """It holds the messages for longer than its lease; ``kill -9``, and another one has them."""
    jobs = kombu.Queue("jobs")
    with connect(database.url, service=QUICKLY, queue={"lease": 1.0}) as connection:
        for number in range(3):
            connection.Producer().publish(number, routing_key="jobs", declare=[jobs])
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, database.url],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None
            assert ["0", "1", "2"] == [process.stdout.readline().strip() for _ in range(3)]
            with pytest.raises(TimeoutError):
                get(connection, jobs, timeout=2.0)
            process.send_signal(signal.SIGKILL)
        got: list[Any] = []
        with connection.Consumer([jobs], on_message=got.append):
            while len(got) < 3:
                connection.drain_events(timeout=60)
        assert [0, 1, 2] == names(got)
        assert all(message.delivery_info["redelivered"] for message in got)
        for message in got:
            message.ack()


@engines_in_default
@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")  # H2's Java VM survives no fork
def test_a_child_of_a_fork_has_a_service_of_its_own(connection: Any) -> None:
    """It publishes and consumes; what it closes and collects stays its parent's."""
    jobs = kombu.Queue("jobs")
    connection.Producer().publish("parent", routing_key="jobs", declare=[jobs])
    (message,) = get(connection, jobs)
    child = os.fork()
    if not child:
        code = 1
        try:
            before = services.count()
            connection.collect()
            fresh = connection.clone()
            fresh.Producer().publish("child", routing_key="jobs")
            (own,) = get(fresh, jobs)
            own.ack()
            code = 0 if (before, services.count(), own.payload) == (0, 1, "child") else 2
            fresh.close()
        finally:
            os._exit(code)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    message.ack()
    assert 0 == ready(connection, jobs)


@pytest.mark.engines("sqlite")
def test_connections_of_one_process_share_a_service(database: TestDatabase) -> None:
    """The last one that is closed stops it; each can be opened again.

    A message that another thread settles later makes no new one.
    """
    one, other = connect(database.url), connect(database.url)
    assert one.connect()
    assert other.connect()
    assert 1 == services.count()
    one.close()
    assert other.default_channel.queue_declare("jobs").queue == "jobs"
    other.close()
    assert 0 == services.count()
    transport = one.connect()
    transport._left_out = True
    one.close()
    transport.made_room()
    assert 0 == services.count()


@pytest.mark.engines("sqlite")
def test_a_database_that_cannot_be_reached_is_a_lost_connection() -> None:
    """It is tried again; nothing that it shows has the password."""
    url = URL.format("postgresql://app:secret@localhost:1/app")
    connection = kombu.Connection(url, transport_options={"max_retries": 1})
    with pytest.raises(connection.connection_errors):
        connection.connect()
    assert url.replace("secret", "**") == connection.as_uri()
    assert url == connection.as_uri(include_password=True)
    assert url == connection.clone().as_uri(include_password=True)
    wait_until(lambda: 0 == services.count(), timeout=5)
    hidden = kombu.Connection(URL.format("mysql://app@localhost/app?password=secret"))
    assert "secret" not in hidden.as_uri()
