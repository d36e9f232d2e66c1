"""Which names a queue may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect

from queue_over_sql import InvalidQueueName, QueueError, QueueSettings

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


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused(service: QueueService, name: str) -> None:
    """Such a name is refused by every verb that takes one."""
    with pytest.raises(InvalidQueueName):
        service.create_queue(name)
    with pytest.raises(QueueError):
        service.queue(name)


@pytest.mark.parametrize("name", [None, 7, b"jobs"])
def test_a_name_that_is_no_text_is_refused(service: QueueService, name: object) -> None:
    """A name of another type is an error of the caller, never a queue."""
    with pytest.raises((QueueError, TypeError)):
        service.create_queue(name)  # type: ignore[arg-type]


def test_a_hostile_name_creates_nothing(service: QueueService, engine: Engine) -> None:
    """One bad name among several spoils the whole boot, and leaves no table of it."""
    service.create_queue("before")
    tables = set(inspect(engine).get_table_names())
    with pytest.raises(InvalidQueueName):
        service.create_queues({"good": QueueSettings(), "Bad": QueueSettings()})
    assert set(inspect(engine).get_table_names()) == tables
    assert [queue.name for queue in service.queues()] == ["before"]


@pytest.mark.parametrize("name", ["a", "a1", "select", "order", "archive", "over_sql", "q" * 40])
def test_a_good_name_works_end_to_end(service: QueueService, name: str) -> None:
    """Reserved words and the longest name are good names: every derived name fits."""
    queue = service.create_queue(name, archive="all")
    queue.publish("work")
    queue.consume()[0].ack()
    assert queue.stats().archived == 1
    assert service.drop_queue(name) is True
