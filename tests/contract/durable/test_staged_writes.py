"""Staged writes: many processes write, one publishes; all or none, and only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import Column, DateTime, Float, Integer, String, select, text, update

from queue_over_sql import (
    DatabaseRefused,
    DuplicateKey,
    PayloadInvalid,
    QueueService,
    StageLost,
    UnsupportedByEngine,
)
from queue_over_sql.durable.staged_write_store import BatchName
from queue_over_sql.durable.staged_writes import InMemoryBatch, StagedPublisher
from queue_over_sql.queue import core_of
from queue_over_sql.reaper import StagedWriteCleanup
from queue_over_sql.values.durations import instant
from tests.contract.durable.staged_batches import BATCH, batch_of, registered, stage_names, staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Queue

pytestmark = pytest.mark.threads("only Spark's processes write stages, which have no event loop")


@pytest.fixture
def publisher(queue: Queue) -> StagedPublisher:
    """What publishes to the queue."""
    return StagedPublisher(queue)


def test_nothing_is_there_before_the_publish(
    queue: Queue, publisher: StagedPublisher, engine: Engine
) -> None:
    """Stages are no messages; the publish makes all of them messages at once, and drops them."""
    stages = [
        staged(publisher, payload=['"a"', '{"b": [1, 2.5, null]}']),
        staged(publisher, payload=['"c\'\\\\é"']),
    ]
    assert [] == queue.consume(10)
    published = publisher.publish(BATCH, stages)
    assert 3 == published.created
    assert 0 == published.replaced
    assert 0 == published.left_out
    assert not published.repeated
    found = queue.consume(10)
    assert ["a", {"b": [1, 2.5, None]}, "c'\\é"] == [message.payload for message in found]
    assert 1 == len({message.published_at for message in found})
    assert all(message.available_at == message.published_at for message in found)
    assert [] == stage_names(engine)
    assert 0 == registered(engine)


def test_a_batch_is_published_once(
    queue: Queue, publisher: StagedPublisher, engine: Engine
) -> None:
    """A second publish of the same batch changes nothing, whatever it staged."""
    assert not publisher.is_published(BATCH)
    publisher.publish(BATCH, [staged(publisher, payload=["1"])])
    assert publisher.is_published(BATCH)
    again = publisher.publish(BATCH, [staged(publisher, payload=["1"])])
    assert again.repeated
    other = publisher.publish(BatchName("writer", 8), [staged(publisher, payload=["2"])])
    assert 1 == other.created
    assert not other.repeated
    assert [1, 2] == [message.payload for message in queue.consume(10)]
    assert [] == stage_names(engine)
    # The same number of another writer, and each part of a batch, is a batch of its own.
    for name in (BatchName("a", 1), BatchName("b", 1), BatchName("b", 1, 0), BatchName("b", 1, 1)):
        in_memory = InMemoryBatch(["payload"], [batch_of(payload=["0"])])
        assert not publisher.publish(name, [], in_memory=in_memory).repeated
        assert publisher.publish(name, [], in_memory=in_memory).repeated
    assert 4 == queue.stats().ready


@pytest.mark.engines("sqlite")
def test_messages_in_hand_go_with_the_staged_ones(queue: Queue, publisher: StagedPublisher) -> None:
    """Small parts need no table: they are published in the same transaction."""
    in_memory = InMemoryBatch(
        ["payload"], [batch_of(payload=['"in hand"']), batch_of(payload=['"too"'])]
    )
    published = publisher.publish(
        BATCH, [staged(publisher, payload=['"staged"'])], in_memory=in_memory
    )
    assert 3 == published.created
    assert {"staged", "in hand", "too"} == {message.payload for message in queue.consume(10)}


def test_options_of_messages_arrive(service: QueueService) -> None:
    """Keys, headers, priorities, delays, instants and own columns are as in a publish."""
    columns = [Column("amount", Integer), Column("share", Float), Column("city", String(20))]
    queue = service.create_queue("orders", priorities=3, columns=columns)
    publisher = StagedPublisher(queue)
    given: dict[str, list[Any]] = {
        "message_key": ["k", None],
        "payload": ["1", "2"],
        "headers": ['{"trace": "x"}', None],
        "priority": [2, 0],
        "_delay": [3_600_000_000, None],
        "_at": [None, 4_000_000_000_000_000],
        "amount": [-5, None],
        "share": [0.25, None],
        "city": ["Köln 'am' Rhein\\", None],
    }
    in_memory = InMemoryBatch(list(given), [batch_of(**given)])
    publisher.publish(BATCH, [staged(publisher, **given)])
    first, second = queue.messages().list()
    assert "k" == first.key
    assert 1 == first.payload
    assert {"trace": "x"} == first.headers
    assert 2 == first.priority
    assert 3600.0 == (first.scheduled_at - first.published_at).total_seconds()
    assert {"amount": -5, "share": 0.25, "city": "Köln 'am' Rhein\\"} == dict(first.columns)
    assert second.key is None
    assert 2 == second.payload
    assert {} == second.headers
    assert 0 == second.priority
    assert 4_000_000_000.0 == second.scheduled_at.timestamp()
    assert {"amount": None, "share": None, "city": None} == dict(second.columns)
    queue.purge()
    publisher.publish(BatchName("writer", 8), [], in_memory=in_memory)
    again = queue.messages().list()
    assert [(m.key, m.headers, dict(m.columns)) for m in (first, second)] == [
        (m.key, m.headers, dict(m.columns)) for m in again
    ]


def test_messages_of_a_batch_expire(service: QueueService) -> None:
    """In their own time or the queue's, staged or in hand, new or in place of others."""
    for default, usual in ((None, None), (7200, 7200.0)):
        queue = service.create_queue("jobs", expires=default)
        queue.publish("old", key="k", expires=5)
        publisher = StagedPublisher(queue, on_conflict="replace")
        given: dict[str, list[Any]] = {
            "message_key": ["k", None],
            "payload": ["1", "2"],
            "_expires": [60_000_000, None],
        }
        in_memory = InMemoryBatch(
            ["payload", "_expires"], [batch_of(payload=["3", "4"], _expires=[60_000_000, None])]
        )
        name = BatchName(f"writer {default}", 1)
        publisher.publish(name, [staged(publisher, **given)], in_memory=in_memory)
        name = BatchName(f"writer {default}", 2)
        publisher.publish(name, [staged(publisher, payload=["5"])])
        waits = {
            message.payload: message.expires_at
            and round((message.expires_at - message.published_at).total_seconds())
            for message in queue.messages().list()
            if message.payload != 1
        }
        assert {2: usual, 3: 60, 4: usual, 5: usual} == waits
        (replaced,) = queue.messages(key="k").list()
        assert 1 == replaced.payload
        assert replaced.expires_at is not None
        assert 55 < (replaced.expires_at - replaced.published_at).total_seconds() < 120
        queue.purge()


def test_messages_of_a_batch_expire_after_they_are_due(service: QueueService) -> None:
    """The expiry of those that have a time counts from it, staged or in hand."""
    queue = service.create_queue("jobs")
    publisher, late = StagedPublisher(queue), 4_000_000_000_000_000
    given: dict[str, list[Any]] = {"payload": ["6"], "_expires": [60_000_000], "_at": [late]}
    in_memory = InMemoryBatch([*given], [batch_of(**given)])
    name = BatchName("writer", 3)
    publisher.publish(name, [staged(publisher, **given)], in_memory=in_memory)
    assert [instant(late + 60_000_000)] * 2 == [m.expires_at for m in queue.messages().list()]


def test_unusual_types_of_own_columns_arrive(service: QueueService) -> None:
    """A column that no fast path knows goes by the driver's own conversion."""
    from datetime import datetime

    queue = service.create_queue("events", columns=[Column("seen_on", DateTime)])
    publisher = StagedPublisher(queue)
    seen = datetime(2026, 2, 3, 4, 5, 6)  # noqa: DTZ001 - a column without a time zone
    moments = pa.array([seen, None], pa.timestamp("us"))
    batch = pa.RecordBatch.from_arrays([pa.array(["1", "2"]), moments], ["payload", "seen_on"])
    stage = publisher.stage(BATCH, ["payload", "seen_on"], [[batch]])
    publisher.publish(BATCH, [stage])
    assert [seen, None] == [message.columns["seen_on"] for message in queue.consume(2)]


def test_other_payload_types_arrive(service: QueueService) -> None:
    """Texts and bytes come back exactly, whatever characters they have."""
    texts = ["", "it's", "back\\slash", '"', "línea\nñ\t%s :x", "\U0001f600", "?", "a,b),('c"]
    raw = [bytes(range(256)), b"'\\\x00", *map(str.encode, texts)]
    for queue, values, kind in (
        (service.create_queue("texts", payload="text"), texts, pa.string()),
        (service.create_queue("raw", payload="bytes"), raw, pa.binary()),
    ):
        publisher = StagedPublisher(queue)
        batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["payload"])
        publisher.publish(BATCH, [publisher.stage(BATCH, ["payload"], [[batch]])])
        publisher.publish(BatchName("w", 1), [], in_memory=InMemoryBatch(["payload"], [batch]))
        assert [*values, *values] == [message.payload for message in queue.consume(100)]


@pytest.mark.default_on("sqlite", "postgresql", "mysql")
def test_many_chunks_keep_their_order(queue: Queue, publisher: StagedPublisher) -> None:
    """A stage is filled chunk by chunk; ids follow the rows."""
    chunks = [
        [batch_of(payload=[str(n) for n in range(start, start + 700)])]
        for start in range(0, 21_000, 700)
    ]
    stage = publisher.stage(BATCH, ["payload"], chunks)
    assert 21_000 == stage.rows
    assert 21_000 == publisher.publish(BATCH, [stage]).created
    listed = queue.messages().list(limit=500)
    assert list(range(500)) == [message.payload for message in listed]
    assert 21_000 == queue.stats().ready


# -- what goes wrong


def test_what_is_no_json_is_named(queue: Queue, publisher: StagedPublisher, engine: Engine) -> None:
    """Where the database checks payloads, its refusal is explained by the row."""
    if not core_of(queue).context.tables.features.checks_json:
        with pytest.raises(PayloadInvalid, match="row 1 of its partition is not valid JSON"):
            publisher.explain([batch_of(payload=["1", "{x}"])])
        return
    with pytest.raises(PayloadInvalid, match=r"row 2 of its partition is not valid JSON.*'nope'"):
        staged(publisher, payload=["1", "2", "nope"])
    in_memory = InMemoryBatch(["payload"], [batch_of(payload=["1"]), batch_of(payload=["NaN"])])
    with pytest.raises(PayloadInvalid, match="row 1 of its partition is not valid JSON"):
        publisher.publish(BATCH, [], in_memory=in_memory)
    assert 0 == queue.stats().ready
    assert [] == stage_names(engine)
    assert 0 == registered(engine)


@pytest.mark.engines("mariadb")
def test_checks_are_left_out_only_where_staged_writes_had_them(
    queue: Queue, publisher: StagedPublisher, engine: Engine
) -> None:
    """What a stage has checked is not checked again; what somebody added to the table is."""
    publisher.publish(BATCH, [staged(publisher, payload=["1"])])
    asked = "SELECT @@check_constraint_checks"
    assert 1 == core_of(queue).context.run(
        lambda session: session.exec_driver_sql(asked).scalar_one()
    )
    with engine.begin() as connection:
        small = "ALTER TABLE queue_jobs ADD CONSTRAINT small CHECK (priority < 5)"
        connection.execute(text(small))
    second = BatchName("writer", 8)
    with pytest.raises(PayloadInvalid):
        publisher.publish(second, [staged(publisher, second, payload=["2"], priority=[9])])
    assert 1 == queue.stats().ready


def test_a_staged_write_that_lost_messages_is_not_published(
    queue: Queue, publisher: StagedPublisher, engine: Engine
) -> None:
    """A crash of the server may empty stages; then nothing of the batch is published."""
    whole, emptied = staged(publisher, payload=["1"]), staged(publisher, payload=["2", "3"])
    with engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {emptied.table}"))
    with pytest.raises(StageLost, match="0 of 2") as caught:
        publisher.publish(BATCH, [whole, emptied])
    assert emptied.table == caught.value.stage
    assert 0 == queue.stats().ready
    assert not publisher.is_published(BATCH)


@pytest.mark.engines("sqlite")
def test_a_table_of_the_users_own_is_refused(service: QueueService, engine: Engine) -> None:
    """Its rows are written by whoever knows the table."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, city VARCHAR(20))"))
    queue = service.adopt_queue("orders_to_do", "orders")
    with pytest.raises(UnsupportedByEngine, match="enqueue"):
        StagedPublisher(queue)


@pytest.mark.engines("sqlite")
def test_a_consumer_that_went_on_finds_a_batch_that_commits_late(
    queue: Queue, publisher: StagedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instant of a batch is that of its beginning, below the marks of consumers by its end."""
    monkeypatch.setattr("queue_over_sql.durable.staged_writes.SLACK_US", 0)
    publisher.publish(BATCH, [staged(publisher, payload=["1"])])
    system = core_of(queue).context.tables.system
    counted = core_of(queue).context.run(lambda c: c.scalar(select(system.queues.c.edit_count)))
    assert 1 == counted


# -- what is left behind


def test_orphans_are_swept_and_others_left_alone(
    queue: Queue, publisher: StagedPublisher, service: QueueService, engine: Engine
) -> None:
    """A stage past its time goes, and one whose batch was published a while ago."""
    sweeper = StagedWriteCleanup(service._parts)
    young, old = staged(publisher, payload=["1"]), staged(publisher, payload=["2"])
    late = staged(publisher, BatchName("writer", 8), payload=["3"])
    assert 0 == sweeper.clean_up()
    publisher.publish(
        BatchName("writer", 8), [], in_memory=InMemoryBatch(["payload"], [batch_of(payload=["3"])])
    )
    assert 0 == sweeper.clean_up()
    stages, commits = (
        core_of(queue).context.tables.system.stages,
        core_of(queue).context.tables.system.commits,
    )
    with engine.begin() as connection:
        connection.execute(update(stages).where(stages.c.name == old.table).values(expires_at=1))
        connection.execute(update(commits).values(committed_at=1))
    assert 2 == sweeper.clean_up()
    assert [young.table] == stage_names(engine)
    assert 1 == registered(engine)
    assert late.table not in stage_names(engine)
    with pytest.raises(DatabaseRefused, match=r"(?i)stage"):
        publisher.publish(BATCH, [old])


def test_all_staged_writes_of_a_batch_can_be_discarded(
    publisher: StagedPublisher, engine: Engine
) -> None:
    """Those of tasks that died as well; other batches keep theirs."""
    for _ in range(2):
        staged(publisher, payload=["1"])
    other = staged(publisher, BatchName("writer", 8), payload=["1"])
    publisher.discard_all(BATCH)
    assert [other.table] == stage_names(engine)
    assert 1 == registered(engine)


@pytest.mark.engines("sqlite")
def test_the_register_cannot_make_the_cleanup_drop_other_tables(
    publisher: StagedPublisher, queue: Queue, service: QueueService, engine: Engine
) -> None:
    """Only names that a stage may have are dropped."""
    queue.publish("kept")
    stage = staged(publisher, payload=["1"])
    stages = core_of(queue).context.tables.system.stages
    with engine.begin() as connection:
        named = update(stages).where(stages.c.name == stage.table)
        connection.execute(named.values(name=queue.table.name, expires_at=1))
    StagedWriteCleanup(service._parts).clean_up()
    assert 1 == queue.stats().ready


@pytest.mark.engines("sqlite")
def test_the_reaper_cleans_up(make_service: Callable[..., QueueService], engine: Engine) -> None:
    """Its report says so; the register is not asked at each pass."""
    service = make_service()
    queue = service.create_queue("jobs")
    stage = staged(StagedPublisher(queue), payload=["1"])
    stages = core_of(queue).context.tables.system.stages
    with engine.begin() as connection:
        connection.execute(update(stages).values(expires_at=1))
    assert 1 == service.reap().cleaned
    assert stage.table not in stage_names(engine)
    assert 0 == service.reap().cleaned


@pytest.mark.default_on("sqlite", "postgresql")
def test_old_commits_are_forgotten(queue: Queue, service: QueueService, engine: Engine) -> None:
    """Only the last batch of a writer can come again; the one before is known for a day more."""
    publisher = StagedPublisher(queue)
    for number in range(3):
        in_memory = InMemoryBatch(["payload"], [batch_of(payload=["1"])])
        publisher.publish(BatchName("writer", number), [], in_memory=in_memory)
    commits = core_of(queue).context.tables.system.commits
    expiring = select(commits.c.batch_id).where(commits.c.expires_at.is_not(None))
    with engine.connect() as connection:
        assert [0, 1] == sorted(row[0] for row in connection.execute(expiring))
    with engine.begin() as connection:
        over = update(commits).where(commits.c.expires_at.is_not(None))
        connection.execute(over.values(expires_at=1))
    StagedWriteCleanup(service._parts).clean_up()
    with engine.connect() as connection:
        known = list(connection.execute(select(commits.c.batch_id, commits.c.message_count)))
    assert [(2, 1)] == [tuple(row) for row in known]


@pytest.mark.engines("sqlite")
def test_dropping_a_queue_forgets_its_batches(service: QueueService) -> None:
    """A new queue of the same name gets the same batches anew."""
    publisher = StagedPublisher(service.create_queue("jobs"))
    in_memory = InMemoryBatch(["payload"], [batch_of(payload=["1"])])
    publisher.publish(BATCH, [], in_memory=in_memory)
    service.drop_queue("jobs")
    fresh = StagedPublisher(service.create_queue("jobs"))
    assert not fresh.publish(BATCH, [], in_memory=in_memory).repeated


# -- messages whose keys are taken


def test_a_taken_key_is_refused_and_nothing_published(queue: Queue, engine: Engine) -> None:
    """As ``publish`` does by default; the batch may be written again."""
    publisher = StagedPublisher(queue)
    taken = queue.publish("first", key="b")
    stages = [staged(publisher, message_key=["a", None, "b"], payload=["1", "2", "3"])]
    with pytest.raises(DuplicateKey) as caught:
        publisher.publish(BATCH, stages)
    assert "b" == caught.value.key
    assert taken.id == caught.value.id
    assert 1 == queue.stats().ready
    assert not publisher.is_published(BATCH)
    publisher.discard(stages)
    assert [] == stage_names(engine)


def test_a_key_that_is_given_twice_is_refused(queue: Queue) -> None:
    """Across the stages of a batch as within one."""
    publisher = StagedPublisher(queue)
    stages = [
        staged(publisher, message_key=["a", "b"], payload=["1", "2"]),
        staged(publisher, message_key=["c", "a"], payload=["3", "4"]),
    ]
    with pytest.raises(DuplicateKey, match="Two messages of one batch") as caught:
        publisher.publish(BATCH, stages)
    assert "a" == caught.value.key
    assert caught.value.id is None
    assert 0 == queue.stats().ready


def test_taken_keys_are_skipped(queue: Queue) -> None:
    """The live one stays, and of several new ones the first counts."""
    publisher = StagedPublisher(queue, on_conflict="skip")
    queue.publish("old", key="b")
    stages = [
        staged(publisher, message_key=["a", "b", "a", None], payload=["1", "2", "3", "4"]),
        staged(publisher, message_key=["c", "a", None], payload=["5", "6", "7"]),
    ]
    published = publisher.publish(BATCH, stages)
    assert 4 == published.created
    assert 0 == published.replaced
    assert 3 == published.left_out
    found = {(message.key, message.payload) for message in queue.consume(10)}
    assert {("b", "old"), ("a", 1), (None, 4), ("c", 5), (None, 7)} == found


def test_live_messages_are_replaced(queue: Queue) -> None:
    """Content and time are new, the id stays; the last of several new ones counts."""
    publisher = StagedPublisher(queue, on_conflict="replace")
    old = queue.publish("old", key="b", headers={"h": 1}, max_attempts=2)
    same = queue.publish("same", key="s")
    [held] = [m for m in queue.consume(2) if m.key == "s"]
    given: dict[str, list[Any]] = {
        "message_key": ["a", "b", "a", "b", None, "s"],
        "payload": ["1", "2", "3", '"Old"', "5", '"same"'],
    }
    published = publisher.publish(BATCH, [staged(publisher, **given)])
    assert 2 == published.created
    assert 1 == published.replaced
    assert 3 == published.left_out
    listed = {message.key: message for message in queue.messages().list()}
    assert old.id == listed["b"].id
    assert "Old" == listed["b"].payload
    assert {} == listed["b"].headers
    assert 0 == listed["b"].attempt
    assert 3 == listed["a"].payload
    assert same.id == listed["s"].id
    assert 4 == len(listed)
    # Nothing about it changed, so its holder keeps it.
    held.ack()


def test_a_replace_by_case_alone_is_a_change(service: QueueService) -> None:
    """Texts are compared by their characters, whatever the database's collation says."""
    queue = service.create_queue("notes", payload="text")
    publisher = StagedPublisher(queue, on_conflict="replace")
    queue.publish("note", key="n")
    batch = batch_of(message_key=["n"], payload=["NOTE"])
    stage = publisher.stage(BATCH, ["message_key", "payload"], [[batch]])
    assert 1 == publisher.publish(BATCH, [stage]).replaced
    assert ["NOTE"] == [message.payload for message in queue.consume(5)]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_replace_may_delay(queue: Queue) -> None:
    """A delay makes the same content due at another instant."""
    publisher = StagedPublisher(queue, on_conflict="replace")
    queue.publish("x", key="k")
    given: dict[str, list[Any]] = {
        "message_key": ["k"],
        "payload": ['"x"'],
        "_delay": [3_600_000_000],
    }
    assert 1 == publisher.publish(BATCH, [staged(publisher, **given)]).replaced
    assert 0 == queue.stats().ready
    assert 1 == queue.stats().delayed


@pytest.mark.engines("sqlite")
def test_keys_in_hand_are_looked_after_too(queue: Queue) -> None:
    """Small keyed parts go by way of a stage."""
    publisher = StagedPublisher(queue, on_conflict="skip")
    queue.publish("old", key="a")
    batch = batch_of(message_key=["a", "b"], payload=["1", "2"])
    published = publisher.publish(
        BATCH, [], in_memory=InMemoryBatch(["message_key", "payload"], [batch])
    )
    assert 1 == published.created
    assert 1 == published.left_out


def test_keys_of_claimed_messages_are_free_where_only_waiting_ones_count(
    service: QueueService,
) -> None:
    """In work: a new one waits. Waiting, also after it came back without its key: it is taken."""
    queue = service.create_queue("jobs", unique="waiting")
    for number, way in enumerate(("raise", "skip", "replace")):
        for key in ("work", "back"):
            queue.publish(f"old {key}", key=key)
        held = {message.key: message for message in queue.consume(2)}
        queue.publish("later", key="back")
        (later,) = queue.consume()
        later.ack()
        held["back"].nack("bad", delay=0)
        queue.publish("there", key="there")
        publisher = StagedPublisher(queue, on_conflict=way)
        free = {"message_key": ["work", "new"], "payload": ['"work"', '"new"']}
        name = BatchName(f"free {way}", number)
        assert 2 == publisher.publish(name, [staged(publisher, name, **free)]).created
        for key in ("back", "there", "work"):
            taken = {"message_key": [key, f"{key} too"], "payload": ['"again"', '"too"']}
            name = BatchName(f"taken {way} {key}", number)
            stage = staged(publisher, name, **taken)
            if way == "raise":
                with pytest.raises(DuplicateKey) as caught:
                    publisher.publish(name, [stage])
                assert key == caught.value.key
                continue
            done = publisher.publish(name, [stage])
            assert (1, int(way == "replace")) == (done.created, done.replaced), (way, key)
        waiting = {m.key: m.payload for m in queue.messages(status="ready").list()}
        replaced = "again" if way == "replace" else None
        expected = {
            "work": replaced or "work",
            "back": replaced or "old back",
            "there": replaced or "there",
        }
        assert expected == {key: waiting[key] for key in expected}, way
        held["work"].ack()
        queue.purge(claimed=True)


def test_keys_of_finished_messages_count_within_the_window(service: QueueService) -> None:
    """A ``dedup_window`` holds for batches as it does for single messages."""
    for on_conflict in ("skip", "replace", "raise"):
        queue = service.create_queue(f"{on_conflict}_once", dedup_window=600)
        publisher = StagedPublisher(queue, on_conflict=on_conflict)
        done = queue.publish("done", key="d")
        queue.ack(queue.consume())
        stage = staged(publisher, message_key=["d", "n", None], payload=["1", "2", "3"])
        if on_conflict == "raise":
            with pytest.raises(DuplicateKey, match="dedup_window") as caught:
                publisher.publish(BATCH, [stage])
            assert "d" == caught.value.key
            assert done.id == caught.value.id
            assert 0 == queue.stats().ready
            continue
        published = publisher.publish(BATCH, [stage])
        assert 2 == published.created, on_conflict
        assert 0 == published.replaced, on_conflict
        assert 1 == published.left_out, on_conflict
        assert {2, 3} == {message.payload for message in queue.consume(5)}
