"""One of the workers, without Spark around it: forms, failures, and when it ends.

Which messages it takes, and by whose clock it ends, each database decides; the rest is Python's.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, text

from queue_over_sql import FixedDelay, Message, QueueService
from queue_over_sql.queue import core_of
from queue_over_sql.spark.workers.task import EndingWatch
from queue_over_sql.testing.plugin import MakeService
from tests.spark.workers.handlers import (
    INSERT,
    create_results,
    nothing,
    result_ids,
    work,
    write_batch,
    write_message,
)

twice = pytest.mark.default_on("sqlite", "postgresql")
FORMS = ("message", "batch", "arrow")
COUNT = 57


@twice
def test_each_form_ends_each_message(service: QueueService, make_service: MakeService) -> None:
    """Every message is handed out once and finished; the worker ends by itself."""
    queue = service.create_queue("jobs", archive="all")
    found: list[int] = []

    def handle(given: Any) -> None:
        if isinstance(given, Message):
            found.append(given.id)
        else:
            batch = isinstance(given, pa.RecordBatch)
            found.extend(given.column("id").to_pylist() if batch else [m.id for m in given])

    for done, form in enumerate(FORMS, start=1):
        queue.publish_many([{"n": number} for number in range(COUNT)])
        report = work(service, make_service, handle, form=form)
        assert COUNT == report.handled, form
        assert 0 == report.failed, form
        assert "empty" == report.ended, form
        assert done * COUNT == len(found), form
        assert done * COUNT == len(set(found)), form
        assert 0 == queue.stats().live, form
        assert done * COUNT == queue.stats().done, form


@pytest.mark.parametrize(
    ("form", "archive"), [("message", "all"), ("arrow", "all"), ("arrow", "none")]
)
def test_writes_of_a_transactional_handler_are_there_once(
    service: QueueService, make_service: MakeService, form: str, archive: Any
) -> None:
    """What the handler writes is committed with the end of its messages; the archive is kept."""
    queue = service.create_queue("jobs", archive=archive)
    create_results(service)
    ids = [p.id for p in queue.publish_many([{"n": number} for number in range(COUNT)])]
    handler: Any = write_batch if form == "arrow" else write_message
    report = work(service, make_service, handler, form=form, transactional=True)

    assert COUNT == report.handled
    assert 0 == report.failed
    assert ids == result_ids(service)
    assert 0 == queue.stats().live
    assert (COUNT if archive == "all" else 0) == queue.stats().done


@pytest.mark.engines("postgresql")
def test_a_handler_cannot_commit_what_was_taken(
    service: QueueService, make_service: MakeService
) -> None:
    """The messages would be gone, although it failed."""
    queue = service.create_queue("jobs", retry=FixedDelay(0.05))
    queue.publish_many([{"n": number} for number in range(COUNT)])
    commits = [True]

    def handle(batch: pa.RecordBatch, connection: Connection) -> None:
        del batch
        if commits:
            commits.clear()
            try:
                connection.commit()
            finally:
                raise ValueError("after the commit")

    report = work(service, make_service, handle, form="arrow", transactional=True)
    assert COUNT == report.handled
    assert 0 == queue.stats().live


@pytest.mark.engines("postgresql", "mariadb")
def test_a_message_that_fails_is_found_among_those_taken_with_it(
    service: QueueService, make_service: MakeService
) -> None:
    """Of a taken batch only the one that fails is tried again and ends as a dead letter."""
    queue = service.create_queue("jobs", max_attempts=2, retry=FixedDelay(0.05))
    create_results(service)
    ids = [p.id for p in queue.publish_many([{"n": number} for number in range(COUNT)])]

    def handle(batch: pa.RecordBatch, connection: Connection) -> None:
        write_batch(batch, connection)
        if ids[20] in batch.column("id").to_pylist():
            raise RuntimeError("poison")

    report = work(service, make_service, handle, form="arrow", transactional=True, batch=40)
    [dead] = queue.archive.messages().list()
    assert [number for number in ids if number != ids[20]] == result_ids(service)
    assert ids[20] == dead.id
    assert 2 == dead.attempt
    assert "RuntimeError: poison" == dead.last_error
    assert COUNT - 1 == report.handled
    assert 0 == queue.stats().live


@twice
@pytest.mark.parametrize("transactional", [False, True])
def test_an_arrow_handler_names_the_messages_that_failed(
    service: QueueService, make_service: MakeService, transactional: bool
) -> None:
    """Those that it gives a reason for are retried and buried; the others are done, once."""
    queue = service.create_queue("jobs", max_attempts=2, retry=FixedDelay(0.05))
    create_results(service)
    ids = [p.id for p in queue.publish_many([{"n": number} for number in range(COUNT)])]

    def handle(batch: pa.RecordBatch, *connection: Connection) -> list[str | None]:
        bad = [number % 10 == 0 for number in batch.column("id").to_pylist()]
        rows = [
            {"id": number, "worker": "arrow"}
            for number, failed in zip(batch.column("id").to_pylist(), bad, strict=True)
            if not failed
        ]
        if connection and rows:
            connection[0].execute(INSERT, rows)
        return ["divisible" if failed else None for failed in bad]

    report = work(service, make_service, handle, form="arrow", transactional=transactional)
    dead = queue.archive.messages().list()
    bad = [number for number in ids if number % 10 == 0]
    assert [(number, 2, "divisible") for number in bad] == [
        (m.id, m.attempt, m.last_error) for m in dead
    ]
    assert COUNT - len(bad) == report.handled
    assert 2 * len(bad) == report.failed
    if transactional:
        assert [number for number in ids if number % 10] == result_ids(service)


@twice
def test_failures_of_single_messages_are_retried_and_counted(
    service: QueueService, make_service: MakeService
) -> None:
    """The worker stays for what waits to be tried again, and not for what is due much later."""
    queue = service.create_queue("jobs", max_attempts=3, retry=FixedDelay(0.05))
    queue.publish_many([{"n": number} for number in range(10)])
    queue.publish({"n": 99}, delay=3600)

    def handle(message: Message) -> None:
        if message.payload["n"] == 3 or (message.attempt == 1 and message.payload["n"] == 5):
            raise ValueError("no")

    report = work(service, make_service, handle)
    assert 9 == report.handled
    assert 4 == report.failed
    assert "empty" == report.ended
    assert 1 == queue.stats().live
    assert 1 == queue.stats().delayed
    assert 1 == queue.stats().failed


@twice
def test_it_does_not_wait_for_what_nobody_gets(
    service: QueueService, make_service: MakeService
) -> None:
    """What is in a blocked or paused group, behind a held message, or in a paused queue, stays."""
    queue = service.create_queue("jobs", group_limit=1, block_on_failure=True, max_attempts=1)
    held = queue.publish({"n": 1}, group="held").id
    queue.messages(where=queue.table.c.id == held).hold()
    queue.publish({"n": 1}, group="later", delay=3600)
    for group in ("blocked", "blocked", "paused", "held", "later", None):
        queue.publish({"n": 1}, group=group)
    queue.groups["paused"].pause()

    def handle(message: Message) -> None:
        if message.group is not None:
            raise ValueError("no")

    report = work(service, make_service, handle)
    assert ("empty", 1, 1) == (report.ended, report.handled, report.failed)
    queue.publish({"n": 1})
    queue.pause()
    report = work(service, make_service, handle)
    assert ("empty", 0) == (report.ended, report.handled)
    assert 5 == queue.stats().ready


@twice
def test_it_waits_for_what_others_hold(
    service: QueueService, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty means that each message met its fate: one that another gives back is handled, too."""
    queue = service.create_queue("jobs")
    queue.publish({"n": 1})
    held = queue.consume()
    whole = EndingWatch._nothing_left

    def look(self: EndingWatch) -> bool:
        found = whole(self)
        while held:
            held.pop().release()
        return found

    monkeypatch.setattr(EndingWatch, "_nothing_left", look)
    report = work(service, make_service, nothing)
    assert 1 == report.handled
    assert "empty" == report.ended


@twice
def test_it_ends_when_its_driver_is_gone(service: QueueService, make_service: MakeService) -> None:
    """Without the driver's registration nobody waits for the work any more."""
    queue = service.create_queue("jobs")
    queue.publish_many([{"n": number} for number in range(5)])
    report = work(service, make_service, nothing, leader="nobody", until_empty=False)
    assert "told" == report.ended


def test_it_ends_when_its_time_is_over(service: QueueService, make_service: MakeService) -> None:
    """By the database's clock; what comes later is not waited for."""
    queue = service.create_queue("jobs")
    queue.publish({"n": 1})
    queue.publish({"n": 2}, delay=3600)

    def now() -> int:
        with service._parts.connections.transaction() as connection:
            return int(
                connection.scalar(text(f"SELECT {core_of(queue).context.tables.expressions.now()}"))
            )

    ends_at = now() + 300_000
    report = work(service, make_service, nothing, until_empty=False, ends_at=ends_at)
    assert "time" == report.ended
    assert ends_at <= now()
    assert 2 - report.handled == queue.stats().live


@twice
def test_after_a_loss_attempts_are_counted_and_batches_are_small(
    service: QueueService, make_service: MakeService
) -> None:
    """A worker that replaces a lost one claims, so that what killed that one runs out of them."""
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many([{"n": number} for number in range(20)])
    attempts: list[int] = []

    def handle(batch: pa.RecordBatch, connection: Connection) -> None:
        del connection
        attempts.extend(batch.column("attempt").to_pylist())
        assert [] == queue.messages(status="ready").list() or batch.num_rows == 10
        assert batch.num_rows == queue.messages(status="claimed").count()

    report = work(service, make_service, handle, form="arrow", transactional=True, losses=1)
    assert 20 == report.handled
    assert 0 == report.failed
    assert [1] * 20 == attempts


@twice
def test_messages_that_are_given_up_are_counted_apart(
    service: QueueService, make_service: MakeService
) -> None:
    """Each attempt is a failure; only the last one of a message makes it a dead letter."""
    queue = service.create_queue("jobs", archive="all", max_attempts=2, retry=FixedDelay(0))

    def handle(_: Any) -> None:
        raise ValueError("mine")

    for runs, form in enumerate(FORMS, start=1):
        queue.publish_many(range(5))
        report = work(service, make_service, handle, form=form)
        assert 0 == report.handled, form
        assert 10 == report.failed, form
        assert 5 == report.dead, form
        assert 5 * runs == queue.archive.messages(status="failed").count(), form


@pytest.mark.engines("sqlite")
def test_those_that_a_handler_names_are_given_up(
    service: QueueService, make_service: MakeService
) -> None:
    """The others of its batch are done."""
    queue = service.create_queue("jobs", archive="all", max_attempts=1)
    queue.publish_many(range(5))
    report = work(
        service, make_service, lambda batch: ["bad"] + [None] * (batch.num_rows - 1), form="arrow"
    )
    assert 4 == report.handled
    assert 1 == report.failed
    assert 1 == report.dead
