"""Valid and invalid queue names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import inspect

from queue_over_sql import InvalidQueueName, QueueError, QueueNotFound, QueueSettings
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

HOSTILE = [
    "",
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
    "jobs\x00",
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
@pytest.mark.threads("Python refuses it")
def test_a_hostile_name_is_refused(service: QueueService, engine: Engine) -> None:
    """By every verb that takes one; one bad name among several spoils the whole boot."""
    service.create_queue("before")
    tables = set(inspect(engine).get_table_names())
    for name in HOSTILE:
        with refused(name, InvalidQueueName):
            service.create_queue(name)
        with refused((name, "opened"), QueueError):
            service.queue(name)
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
        service.create_queues({"good": QueueSettings(), "Bad": QueueSettings()})
    assert set(inspect(engine).get_table_names()) == tables
    assert ["before"] == [queue.name for queue in service.queues()]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python advises")
def test_the_name_that_an_error_advises_is_a_good_one(service: QueueService) -> None:
    """Whether a queue or topic is looked for or made, also where much of the name is wrong."""
    looks = (service.queue, service.topic, service.create_queue)
    near = [
        "Emails",
        "over_sql_over_sql_x",
        "a_archive_pkey",
        "1_archive",
        "ü" * 50,
        "a" * 39 + "_b",
    ]
    for name in [*HOSTILE, *near]:
        for look in looks:
            with pytest.raises(QueueError) as caught:
                look(name)
            if "would collide" not in str(caught.value):
                advised = re.findall(r"(?:\(|such as )'(\w*)'", str(caught.value))[-1]
                assert advised == service.create_queue(advised).name, (name, look)
                service.drop_queue(advised)
    with pytest.raises(QueueError, match=r"create_queue\('emails'\)"):
        service.queue("Emails")


def test_a_good_name_works_end_to_end(service: QueueService) -> None:
    """Reserved words and the longest name are good names: every derived name fits."""
    for name in ("a", "a1", "select", "order", "archive", "over_sql", "q" * 40):
        queue = service.create_queue(name, archive="all")
        queue.publish("work")
        queue.consume()[0].ack()
        assert 1 == queue.stats().archived, name
        assert service.drop_queue(name) is True
