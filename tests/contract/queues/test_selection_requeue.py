"""``requeue``: finished messages return to the queue complete."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest
from sqlalchemy import Column, Connection, Integer, String, delete, update

from queue_over_sql import DuplicateKey, FixedDelay, PayloadInvalid, Publication
from queue_over_sql.archive import requeue, selection
from queue_over_sql.selection.operations import list_ids
from tests.contract.payloads.kind_types import ORDERS
from tests.contract.queue_state import archived, close, counts, finished, ids, payloads

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

ODD_PAYLOADS: dict[Literal["json", "text", "bytes"], list[Any]] = {
    "json": [{"b": 1, "a": [None, 1.5, "Žižkov 😀"]}, None, "text", []],
    "text": ["", "Žižkov 😀\n", " x "],
    "bytes": [b"", bytes(range(256))],
}


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue that keeps all, with levels and columns of its own, and no wait before a retry."""
    return service.create_queue(
        "jobs",
        archive="all",
        priorities=3,
        max_attempts=2,
        retry=FixedDelay(0),
        columns=[Column("tenant", Integer), Column("region", String(20))],
    )


def previous_error(message: Message) -> object:
    """The reason of the life before."""
    return (message.headers or {}).get("previous_error")


def test_a_requeued_message_keeps_what_it_is(jobs: Queue) -> None:
    """Content and options are the same; identity, times and attempts are new."""
    jobs.publish(
        {"a": 1},
        key="k",
        kind="order",
        headers={"h": [1]},
        priority=2,
        max_attempts=7,
        lease=77,
        at=datetime(2020, 1, 1, tzinfo=UTC),
        columns={"tenant": 5, "region": "north"},
    )
    (old,) = finished(jobs, "rejected", reason="cannot parse")
    (dead,) = archived(jobs)
    assert 1 == jobs.archive.messages().requeue()
    assert (1, 0, 0) == counts(jobs)
    (listed,) = jobs.messages().list()
    assert listed.id > old.id
    assert 0 == listed.attempt
    assert listed.last_error is None
    assert listed.outcome is None
    assert listed.published_at >= dead.finished_at  # type: ignore[operator]
    assert listed.published_at == listed.scheduled_at == listed.available_at
    (message,) = jobs.consume()
    assert {"a": 1} == message.payload
    assert "k" == message.key
    assert "order" == message.kind
    assert 2 == message.priority
    assert 7 == message.max_attempts
    kept = {"h": [1], "requeued_from": old.id, "previous_error": "cannot parse"}
    assert kept == message.headers
    assert {"tenant": 5, "region": "north"} == dict(message.columns)
    assert 1 == message.attempt
    assert message.claimed_at is not None
    assert close(message.lease_expires_at, message.claimed_at + timedelta(seconds=77), 1)


def test_payloads_come_back_as_they_were(service: QueueService) -> None:
    """Every payload type, byte by byte."""
    for payload_type, expected in ODD_PAYLOADS.items():
        queue = service.create_queue(f"{payload_type}_jobs", payload=payload_type)
        queue.publish_many(expected)
        finished(queue, "rejected", len(expected))
        assert len(expected) == queue.archive.messages().requeue()
        messages = queue.consume(len(expected))
        assert expected == payloads(messages)
        assert {"no good"} == {previous_error(message) for message in messages}


@pytest.mark.engines("sqlite")
def test_a_message_is_requeued_with_another_payload(service: QueueService) -> None:
    """What does not fit its kind, or is not for one message, changes nothing."""
    queue = service.create_queue("orders", kinds=ORDERS)
    queue.publish_many([Publication({"id": n}, kind="Order") for n in (1, 2)])
    queue.reject(queue.consume(2), "wrong")
    first = queue.archive.messages(where=queue.archive.table.c.id == archived(queue)[0].id)
    with pytest.raises(PayloadInvalid, match="does not fit kind 'Order'"):
        first.requeue(payload={"id": "many"})
    with pytest.raises(ValueError, match="several match"):
        queue.archive.messages().requeue(payload={"id": 3})
    assert (0, 0, 2) == counts(queue)
    assert 1 == first.requeue(payload={"id": 3})
    (message,) = queue.consume()
    assert 3 == message.payload.id
    assert "wrong" == previous_error(message)


def test_a_finished_message_may_be_sent_again(jobs: Queue) -> None:
    """One that went well has no reason to keep."""
    jobs.publish("a", headers={"h": 1})
    finished(jobs, "done")
    assert 1 == jobs.archive.messages(status="done").requeue()
    (message,) = jobs.consume()
    assert "a" == message.payload
    assert 1 == message.attempt
    assert previous_error(message) is None
    assert 1 == message.headers["h"]


@pytest.mark.engines("sqlite")
def test_a_requeued_message_fails_and_is_requeued_again(jobs: Queue) -> None:
    """It has all its attempts again, and the reason is the newest one."""
    jobs.publish("a")
    reason: object = None
    for life in range(3):
        for attempt in (1, 2):
            (message,) = jobs.consume()
            assert attempt == message.attempt
            assert reason == previous_error(message)
            message.nack(f"life {life}")
        (dead,) = archived(jobs)
        assert "failed" == dead.outcome
        assert 2 == dead.attempt
        reason = dead.last_error
        assert f"life {life}" in str(reason)
        assert 1 == jobs.archive.messages().requeue()
    jobs.ack(jobs.consume())
    assert ["done"] == [message.outcome for message in archived(jobs)]


@pytest.mark.default_on("sqlite", "postgresql")
def test_the_error_names_whose_headers_cannot_be_read(jobs: Queue, engine: Engine) -> None:
    """Another client stored something else; none is requeued, and the others are without it."""
    jobs.publish_many([*"abc"])
    _, bad, _ = finished(jobs, "rejected", 3)
    is_bad = jobs.archive.table.c.id == bad.id
    deep = '{"a":' + "[" * 5_000 + "]" * 5_000 + "}"
    for headers in ("[1]", deep, "junk"):
        if headers == "junk" and engine.dialect.name == "postgresql":
            # Its type for JSON takes none.
            continue
        with engine.begin() as connection:
            connection.execute(update(jobs.archive.table).where(is_bad).values(headers=headers))
        with pytest.raises(PayloadInvalid, match=f"Message {bad.id} cannot be .* its headers"):
            jobs.archive.messages().requeue()
        assert (0, 0, 3) == counts(jobs)
    assert 2 == jobs.archive.messages(where=~is_bad).requeue()


def test_only_the_selected_are_requeued(jobs: Queue) -> None:
    """By outcome, key, kind and condition on the archive's table."""
    for number in range(4):
        jobs.publish(number, key=f"k{number}", kind=f"t{number % 2}", columns={"tenant": number})
    finished(jobs, "done", 2)
    finished(jobs, "rejected", 2)
    archive, table = jobs.archive, jobs.archive.table
    assert 0 == archive.messages(status="done", key="k2").requeue()
    assert 1 == archive.messages(status="done", key="k0").requeue()
    assert 1 == archive.messages(status="rejected", kind="t0").requeue()
    assert 1 == archive.messages(where=table.c.tenant > 2).requeue()
    assert [0, 2, 3] == sorted(payloads(jobs.consume(9)))
    assert [1] == payloads(archived(jobs))


def test_a_live_key_stops_the_requeue(jobs: Queue) -> None:
    """DuplicateKey names the live message; both are where they were, and so are all the others."""
    jobs.publish_many(["other"])
    jobs.publish("old", key="k")
    finished(jobs, "rejected", 2)
    live = jobs.publish("new", key="k")
    before = ids(archived(jobs))
    with pytest.raises(DuplicateKey, match=r"requeued nothing.*'k'.*delete the live one") as caught:
        jobs.archive.messages().requeue()
    assert "k" == caught.value.key
    assert live.id == caught.value.id
    assert before == ids(archived(jobs))
    assert ["new"] == payloads(jobs.messages().list())
    assert 1 == jobs.archive.messages(where=jobs.archive.table.c.message_key.is_(None)).requeue()


def test_two_lives_of_one_key_cannot_both_return(jobs: Queue) -> None:
    """A key is taken by the first of the selection for the second, and for what is published."""
    for _ in range(2):
        jobs.publish("x", key="k")
        finished(jobs, "rejected")
    before = ids(archived(jobs))
    with pytest.raises(DuplicateKey, match="requeue one of them by its id"):
        jobs.archive.messages(key="k").requeue()
    assert before == ids(archived(jobs))
    assert [] == jobs.messages().list()
    assert 1 == jobs.archive.messages(where=jobs.archive.table.c.id == before[1]).requeue()
    assert before[:1] == ids(archived(jobs))
    (live,) = jobs.messages(key="k").list()
    with pytest.raises(DuplicateKey) as caught:
        jobs.publish("y", key="k")
    assert live.id == caught.value.id


def test_a_message_is_not_kept_from_its_own_key(service: QueueService) -> None:
    """Within a dedup window a finished message holds its key for its own next life."""
    queue = service.create_queue("jobs", dedup_window=600)
    queue.publish("x", key="k")
    finished(queue, "rejected")
    assert 1 == queue.archive.messages(key="k").requeue()
    (again,) = finished(queue, "done")
    with pytest.raises(DuplicateKey) as caught:
        queue.publish("y", key="k")
    assert again.id == caught.value.id


@pytest.mark.default_on("sqlite", "postgresql")
def test_many_are_requeued_in_bounded_steps(jobs: Queue) -> None:
    """Progress tells how many are done after each transaction; they keep their order."""
    jobs.load(range(1200))
    finished(jobs, "rejected", 1200)
    told: list[int] = []
    assert 1200 == jobs.archive.messages().requeue(progress=told.append)
    assert 1200 == told[-1]
    steps = [after - before for before, after in zip([0, *told], told, strict=False)]
    assert all(0 < step <= 500 for step in steps)
    assert (1200, 0, 0) == counts(jobs)
    assert list(range(1200)) == payloads(jobs.consume(1200))


@pytest.mark.default_on("sqlite", "postgresql")
def test_many_are_removed_from_the_archive(jobs: Queue) -> None:
    """Remove takes only what is selected, and touches no live message."""
    jobs.load(range(700))
    finished(jobs, "rejected", 600)
    finished(jobs, "done", 10)
    told: list[int] = []
    assert 600 == jobs.archive.messages(status="rejected").remove(progress=told.append)
    assert [500, 600] == told
    assert 0 == jobs.archive.messages(status="rejected").remove()
    assert (90, 0, 10) == counts(jobs)


@pytest.mark.default_on("sqlite", "postgresql")
def test_two_operators_requeue_once(make_service: MakeService) -> None:
    """At the same moment: each message gets one new life."""
    queues = [make_service().create_queue("jobs") for _ in range(3)]
    queues[0].publish_many(range(60))
    finished(queues[0], "rejected", 60)
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda queue: queue.archive.messages().requeue(), queues))
    assert 60 == sum(done)
    assert (60, 0, 0) == counts(queues[0])
    assert list(range(60)) == sorted(payloads(queues[1].consume(60)))


@pytest.mark.engines("sqlite")
def test_a_priority_that_is_gone_does_not_hide_a_requeued_message(
    service: QueueService, jobs: Queue
) -> None:
    """A queue that has fewer levels now still delivers what was finished in a lower one."""
    jobs.publish("low", priority=2)
    jobs.publish("high")
    finished(jobs, "rejected", 2)
    fewer = service.create_queue("jobs", priorities=1)
    assert 2 == fewer.archive.messages().requeue()
    assert ["high", "low"] == sorted(payloads(fewer.consume(2)))


@pytest.mark.parametrize("payload", [None, "another"])
def test_what_others_removed_meanwhile_ends_no_requeue(
    jobs: Queue, monkeypatch: pytest.MonkeyPatch, payload: str | None
) -> None:
    """It goes on with the next page, also if a whole one is gone."""
    count = 7 if payload is None else 1
    jobs.publish_many(range(count))
    finished(jobs, "rejected", count=count)
    gone = [[1], [3, 4]]

    def listed(connection: Connection, *arguments: Any) -> list[int]:
        ids = list_ids(connection, *arguments)
        place = jobs.archive.table.c.id.in_(ids[: len(gone.pop(0))] if gone else [])
        connection.execute(delete(jobs.archive.table).where(place))
        return ids

    monkeypatch.setattr(selection, "BATCH", 2)
    monkeypatch.setattr(requeue, "list_ids", listed)
    options: dict[str, Any] = {} if payload is None else {"payload": payload}
    assert max(0, count - 3) == jobs.archive.messages().requeue(**options)
    assert 0 == jobs.archive.messages().count()
