"""Commands for durable consumers: `consumers`, `consumer release` and `consumer drop`."""

from __future__ import annotations

import pytest

from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import run, succeed

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def read(make_service: MakeService) -> int:
    """A query that has claimed two rounds of three messages; returns its epoch."""
    queue = make_service().create_queue("jobs")
    queue.publish_many(range(4))
    consumer = DurableConsumer(queue, "orders-to-lake", owner="spark-1:42")
    consumer.take_over()
    consumer.advance(0, AdvanceRequest(3, 2))
    return consumer.epoch


def test_consumers_shows_them(database: TestDatabase, make_service: MakeService) -> None:
    """With its queue, its epoch, what it holds, who has it, and for how long it is kept."""
    epoch = read(make_service)
    record = succeed("consumers", "--json", url=database.url).record
    assert {
        "consumer_id": "orders-to-lake",
        "queue": "jobs",
        "durable": True,
        "epoch": epoch,
        "claimed_round": 2,
        "acked_round": 0,
        "owner": "spark-1:42",
        "outstanding": 3,
    }.items() <= record.items()
    shown = succeed("consumers", url=database.url).out
    for part in ("orders-to-lake", "jobs", str(epoch), "7d", "ago"):
        assert part in shown


def test_they_stand_beside_the_others(database: TestDatabase, make_service: MakeService) -> None:
    """A table for those that run, and one for those that are durable."""
    read(make_service)
    service = make_service(consumer_name="mailer")
    service.start()
    shown = succeed("consumers", url=database.url).out
    assert shown.index("mailer") < shown.index("orders-to-lake")


def test_one_is_released(database: TestDatabase, make_service: MakeService) -> None:
    """Its messages come back; it stays registered, without an owner."""
    read(make_service)
    asked = run("consumer", "release", "orders-to-lake", url=database.url, stdin="n\n")
    assert 1 == asked.exit_code
    released = succeed("consumer", "release", "orders-to-lake", "--yes", url=database.url)
    assert "Released 3 messages" in released.out
    assert 4 == succeed("stats", "jobs", "--json", url=database.url).record["ready"]
    assert "released" in succeed("consumers", url=database.url).out


def test_one_is_dropped(database: TestDatabase, make_service: MakeService) -> None:
    """Nothing of it remains, and to drop it again finds nothing."""
    read(make_service)
    arguments = ("consumer", "drop", "orders-to-lake", "--yes")
    record = succeed(*arguments, "--json", url=database.url).record
    assert {"consumer_id": "orders-to-lake", "released": 3} == record
    assert 3 == run(*arguments, url=database.url).exit_code
    assert 3 == run("consumers", url=database.url).exit_code
