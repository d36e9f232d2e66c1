"""Valid and invalid queue names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import inspect

from queue_over_sql import InvalidQueueName, QueueError, QueueNotFound, QueueSettings
from queue_over_sql.values.limits import PREFIX_LENGTH
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService

HOSTILE = [
    " ",
    '"; drop table queue_over_sql_queues; --',
    "'; drop table queue_over_sql_queues; --",
    "`jobs`",
    '"jobs"',
    "jobs'",
    "jobs\\",
    "a" * 41,
    "a" * 200,
    "Jobs",
    "JOBS",
    "größe",
    "очередь",
    "jobs🐘",
    "\uff4aobs",
    "1jobs",
    "_jobs",
    "my-jobs",
    "my.jobs",
    "my jobs",
    "jobs\n",
    "jobs%s",
    ":jobs",
    "jobs_archive",
    "over_sql_queues",
    "over_sql_x",
]


@pytest.mark.engines("sqlite")
def test_a_name_that_is_close_to_a_queues_is_recognized(service: QueueService) -> None:
    """By the error, which proposes to create only what is there by no similar name."""
    service.create_queues({name: QueueSettings() for name in ("mails", "orders")})
    with pytest.raises(QueueNotFound, match=r"'mail' in .*: did you mean 'mails'\? If not, create"):
        service.queue("mail")
    with pytest.raises(QueueNotFound, match=r"'Mails' in .*: did you mean 'mails'\?$") as mistyped:
        service.queue("Mails")
    assert ("mails",) == mistyped.value.near
    with pytest.raises(QueueNotFound, match=r"it was dropped\)\. Create it with") as unknown:
        service.queue("reports")
    assert () == unknown.value.near


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python maps it")
def test_a_hostile_name_is_a_harmless_title(service: QueueService, engine: Engine) -> None:
    """Each gets tables of its own, with names that need no quotes; nothing else is touched."""
    tables = set(inspect(engine).get_table_names())
    for title in HOSTILE:
        with refused((title, "before"), QueueError):
            service.queue(title)
    queues = service.create_queues({title: QueueSettings() for title in HOSTILE})
    assert len(HOSTILE) == len({queue.name for queue in queues.values()})
    for title, queue in queues.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,30}_[0-9a-f]{8}", queue.name), title
        assert (title, queue.name) == (queue.title, service.queue(title).name)
    made = set(inspect(engine).get_table_names()) - tables - {"queue_over_sql_queues"}
    assert {f"queue_{queue.name}" for queue in queues.values()} <= made
    for title in HOSTILE:
        assert service.drop_queue(title), title
    assert [] == service.queues()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_no_queue_can_be_called(service: QueueService, engine: Engine) -> None:
    """By every verb that takes a name; one bad name among several spoils the whole boot."""
    service.create_queue("before")
    tables = set(inspect(engine).get_table_names())
    for name in ("", "jobs\x00", "jobs\ud800"):
        with refused(name, InvalidQueueName):
            service.create_queue(name)
        with refused((name, "opened"), QueueError):
            service.queue(name)
    with pytest.raises(InvalidQueueName, match="has 256 characters: use at most 255"):
        service.create_queue("q" * 256)
    with pytest.raises(QueueNotFound):
        service.queue("q" * 256)
    no_texts: list[Any] = [None, 7, b"jobs"]
    for no_text in no_texts:
        with refused(no_text, QueueError, TypeError):
            service.create_queue(no_text)
    opened: Any = service.queue("before")
    takers: list[Any] = [service.queue, service.drop_queue, service.topic, service.drop_topic]
    for take in (*takers, service.schedules.remove):
        for no_text in (*no_texts, opened):
            with pytest.raises(TypeError, match=r"^name must be a str, not (N|i|b|Queue$)"):
                take(no_text)
    with pytest.raises(InvalidQueueName):
        service.create_queues({"good": QueueSettings(), "": QueueSettings()})
    assert set(inspect(engine).get_table_names()) == tables
    assert ["before"] == [queue.name for queue in service.queues()]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python advises")
def test_the_name_that_an_error_advises_is_a_good_one(service: QueueService) -> None:
    """Whether a queue or topic is looked for or made, also where much of the name is wrong."""
    near = [
        "Emails",
        "over_sql_over_sql_x",
        "a_archive_pkey",
        "1_archive",
        "ü" * 50,
        "a" * 39 + "_b",
    ]
    for name in [*HOSTILE, *near]:
        for look in (service.queue, service.topic, service.create_topic):
            with pytest.raises(QueueError) as caught:
                look(name)
            if "would collide" not in str(caught.value):
                advised = re.findall(r"(?:\(|such as )'(\w*)'", str(caught.value))[-1]
                assert advised == service.create_queue(advised).name, (name, look)
                service.drop_queue(advised)
    with pytest.raises(QueueError, match=r"create_queue\('emails'\)"):
        service.queue("Emails")


def test_a_queue_may_be_called_anything(service: QueueService, make_service: MakeService) -> None:
    """All verbs take what it is called, and its name, which people and engines can read."""
    title = "celery@host.celery.pidbox"
    for one in (title, "Größe: 5/6 'ö' \U0001f418 " + "x" * 229):
        queue = service.create_queue(one)
        assert queue.title == one
        other = make_service()
        assert (queue.name, one) == (other.queue(one).name, other.queue(queue.name).title)
        topic = service.create_topic("events")
        topic.subscribe(one)
        assert [queue.name] == [each.queue for each in topic.publish("x", routing_key="a")]
        [message] = other.consume([one])
        assert queue.name == message.queue
        message.ack()
        assert topic.unsubscribe(one)
        service.create_queue(queue.name, max_attempts=7)
        queue.refresh()
        assert (7, one) == (queue.settings.max_attempts, make_service().queue(one).title)
    assert re.fullmatch("celery_host_celery_pidbox_[0-9a-f]{8}", service.queue(title).name)
    assert service.queue(title).name != service.create_queue("celery@host-celery.pidbox").name
    done: list[str] = []
    worker = service.worker(concurrency=1)
    worker.handle(title)(lambda message: done.append(message.queue))
    service.queue(title).publish("y")
    worker.run(until_empty=True)
    assert [service.queue(title).name] == done
    service.schedules.add("nightly", title, "z", every=3600)
    assert service.queue(title).name == service.schedules.get("nightly").queue
    assert service.drop_queue(title)
    with pytest.raises(QueueNotFound):
        make_service().queue(title)


@pytest.mark.default_on("sqlite")
def test_a_title_fits_with_a_long_prefix(make_service: MakeService, engine: Engine) -> None:
    """Its name is as short as the names of all its tables and indexes need."""
    for prefix in ("myapp_queue_", "p" * PREFIX_LENGTH):
        service, title = make_service(table_prefix=prefix), "celery@host.example.com.celery.pidbox"
        queue = service.create_queue(title, archive="all", dedup_window=60)
        assert (title, queue.name) == (service.queue(queue.name).title, service.queue(title).name)
        assert queue.name.startswith("celery_host")
        assert prefix + queue.name in inspect(engine).get_table_names()
        queue.publish("x", key="k")
        queue.consume()[0].ack()
        assert queue.name == make_service(table_prefix=prefix).queue(title).name
        assert service.drop_queue(title)


@pytest.mark.engines("sqlite")
def test_another_queue_with_the_same_tables_is_an_error(service: QueueService) -> None:
    """Whoever made the name by hand, or two titles of one hash."""
    name = service.create_queue("my jobs").name
    service.drop_queue(name)
    service.create_queue(name)
    with pytest.raises(InvalidQueueName, match=r"another one, 'my_jobs_.*', has its tables"):
        service.create_queue("my jobs")
    with pytest.raises(QueueNotFound):
        service.queue("my jobs")


def test_a_good_name_works_end_to_end(service: QueueService) -> None:
    """Reserved words and the longest name are good names: every derived name fits."""
    for name in ("a", "a1", "select", "order", "archive", "over_sql", "q" * 40):
        queue = service.create_queue(name, archive="all")
        queue.publish("work")
        queue.consume()[0].ack()
        assert 1 == queue.stats().archived, name
        assert service.drop_queue(name) is True
