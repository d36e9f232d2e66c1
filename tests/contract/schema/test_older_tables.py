"""Tables of an older version: opened as they are, with newer columns added."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text

from queue_over_sql.queue import core_of
from queue_over_sql.queues.tables import ensure_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import QueueService

pytestmark = pytest.mark.empty_database

NEWER_SETTINGS = ("archive_limit", "dedup_window_us", "kind_timeout_us")


def make_old(engine: Engine) -> None:
    """What the first version knew: no count of edits, no kinds, fewer settings."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE queue_over_sql_kinds"))
        connection.execute(text("ALTER TABLE queue_over_sql_queues DROP COLUMN edit_count"))
        [(known,)] = connection.execute(text("SELECT settings FROM queue_over_sql_queues"))
        settings = {k: v for k, v in json.loads(known).items() if k not in NEWER_SETTINGS}
        connection.execute(
            text("UPDATE queue_over_sql_queues SET settings = :old"), {"old": json.dumps(settings)}
        )
    # H2 is upgraded while nobody else is connected.
    engine.dispose()


def test_a_queue_of_an_older_version_goes_on(
    make_service: Callable[..., QueueService], engine: Engine
) -> None:
    """Its messages are there, and what is newer works."""
    first = make_service()
    first.create_queue("jobs", lease=77).publish("old")
    first.stop()
    make_old(engine)
    jobs = make_service().queue("jobs")
    jobs.publish("new", delay=3600)
    assert 77 == jobs.settings.lease.total_seconds()
    assert jobs.settings.dedup_window is None
    assert 1 == jobs.messages(status="delayed").prioritize(front=True)
    assert ["new", "old"] == [message.payload for message in jobs.consume(2)]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_queue_of_an_older_version_gets_a_dedup_window(
    make_service: Callable[..., QueueService], engine: Engine
) -> None:
    """The memory of keys is made when it is first wanted."""
    first = make_service()
    first.create_queue("jobs")
    first.stop()
    make_old(engine)
    jobs = make_service().create_queue("jobs", dedup_window=60)
    jobs.publish("a", key="k")
    jobs.ack(jobs.consume())
    assert "skipped" == jobs.publish("b", key="k", on_conflict="skip").outcome


@pytest.mark.engines("sqlite")
@pytest.mark.threads("it reaches into the core, which is the same")
def test_a_newer_column_comes_before_its_index(
    make_service: Callable[..., QueueService], engine: Engine
) -> None:
    """A table that lacks both gets both; the index alone failed for want of the column."""
    context = core_of(make_service().create_queue("jobs")).context
    archive = context.tables.archive
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX queue_jobs_archive_err_ix"))
        connection.execute(text("ALTER TABLE queue_jobs_archive DROP COLUMN error_fingerprint"))
    context.connections.run(ensure_tables.of([archive], context.dialect))
    indexes = {index["name"] for index in inspect(engine).get_indexes("queue_jobs_archive")}
    assert {index.name for index in archive.indexes} <= indexes
