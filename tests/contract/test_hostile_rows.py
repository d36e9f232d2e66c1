"""Rows with values that this library never writes: they only affect their own objects."""

from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, StatementError

from queue_over_sql import QueueError, QueueSchemaMismatch
from queue_over_sql.durable.staged_write_store import committed_count
from queue_over_sql.durable.staged_writes import StagedPublisher
from queue_over_sql.queue import core_of
from queue_over_sql.schedules.firing import ScheduleFirer
from tests.contract.durable.queries import Query
from tests.contract.durable.staged_batches import BATCH
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = [
    pytest.mark.engines("sqlite", "postgresql"),
    pytest.mark.threads("Python decides"),
    pytest.mark.timeout(300),
]

PWNED: Final = "pwned"


class Touching:
    """What makes a file as soon as somebody unpickles it."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(PWNED),)


COMMAND: Final = f'{{"policy": "os:system", "arguments": {{"command": "touch {PWNED}"}}}}'
NUMBERS: Final[list[Any]] = [2**63 - 1, -(2**63), "x", float("inf")]
TEXTS: Final[list[Any]] = ["", "null", "7", "[" * 5_000, "1" * 5_000, COMMAND]
TEXTS_OR_BYTES: Final = [*TEXTS, pickle.dumps(Touching())]
NAMES: Final[list[Any]] = ["", "os:system", 'x"; DROP TABLE queue_good; --', b"\xff"]


@contextlib.contextmanager
def hostile(
    engine: Engine, place: str, column: str, value: Any, *, restored: bool = True
) -> Iterator[bool]:
    """One value in the rows of a place meanwhile; False where the database itself refuses it.

    Args:
        engine: to the database.
        place: a table, and which of its rows.
        column: of that table.
        value: to be written there.
        restored: write afterwards what was there before.
    """
    table, _, rows = place.partition(" WHERE ")
    rows = rows or "1 = 1"
    if isinstance(value, bytes) and engine.dialect.name != "sqlite":
        # It would be written as a text about bytes.
        yield False
        return
    with engine.connect() as connection:
        before = connection.execute(text(f"SELECT {column} FROM {place}")).scalar()
    try:
        _write(engine, f"UPDATE {table} SET {column} = :value WHERE {rows}", value=value)
    except (DBAPIError, StatementError):
        yield False
        return
    yield True
    if restored:
        back = f"UPDATE {table} SET {column} = :before WHERE {column} = :value"
        _write(engine, back, before=before, value=value)


def _write(engine: Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # As whoever writes the file by other means than SQLite's own.
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        connection.execute(text(statement), values)


def others_go_on(service: QueueService) -> None:
    """The reaper makes its pass, and what is not about the hostile row works."""
    with contextlib.suppress(QueueError):
        service.reap()
    assert "good" in {queue.name for queue in service.queues()}
    good = service.queue("good")
    good.publish("x")
    [message] = good.consume(1)
    message.ack()
    assert "good" in {schedule.name for schedule in service.schedules.list()}
    assert "good" in {topic.name for topic in service.topics()}
    assert 1 == len(service.topic("good").publish({"n": 1}, routing_key="a"))
    good.purge()


def ours(operation: Callable[[], object]) -> None:
    """Whatever it does, it raises nothing but an error of ours."""
    with contextlib.suppress(QueueError):
        operation()


@pytest.fixture
def prepared(make_service: MakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue, a topic and a schedule that are good, and the same to become bad."""
    monkeypatch.chdir(tmp_path)
    service = make_service()
    for name in ("good", "bad"):
        service.create_queue(name, archive="all")
        service.create_topic(name).subscribe(name, "#", {"n": 1})
        service.schedules.add(name, name, {"x": 1}, cron="0 5 * * *")
        service.queue(name).purge()


@pytest.fixture(autouse=True)
def nothing_is_executed(tmp_path: Path) -> Iterator[None]:
    """What the values name is never called."""
    yield
    assert not (tmp_path / PWNED).exists()


@pytest.mark.usefixtures("prepared")
def test_records_of_queues_and_consumers(make_service: MakeService, engine: Engine) -> None:
    """A queue whose record is wrong stops alone; a consumer is left out, a stage is left alone."""
    insert = (
        "INSERT INTO queue_over_sql_consumers (consumer_id, name, host, pid, started_at, "
        "heartbeat_at, expires_at, durable, table_prefix, queue, epoch, claimed_round, acked_round)"
        " VALUES ('bad', 'bad', 'h', 1, 1, 1, 253402300799999999, 1, 'queue_', 'bad', 1, 1, 0)"
    )
    _write(engine, insert)
    _write(
        engine,
        "INSERT INTO queue_over_sql_stages (name, table_prefix, queue, writer_id, batch_id, "
        "created_at, expires_at) VALUES ('bad', 'queue_', 'good', 'x', 1, 1, 1)",
    )
    queues = "queue_over_sql_queues WHERE name = 'bad'"
    consumers = "queue_over_sql_consumers WHERE consumer_id = 'bad'"
    stages = "queue_over_sql_stages WHERE name = 'bad'"
    for place, columns, values in (
        (queues, ("discarded_count", "edit_count", "paused_at", "created_at"), NUMBERS),
        (queues, ("schema_version",), ["x"]),
        (queues, ("name",), NAMES),
        (queues, ("settings",), TEXTS_OR_BYTES),
        (consumers, ("started_at", "heartbeat_at", "epoch", "claimed_round"), NUMBERS),
        (consumers, ("pid", "durable"), ["x"]),
        (consumers, ("name", "queue"), NAMES),
        (stages, ("name",), ["queue_good", b"\xff"]),
    ):
        for column, value in ((column, value) for column in columns for value in values):
            with hostile(engine, place, column, value) as written:
                if not written:
                    continue
                service = make_service()
                others_go_on(service)
                assert None not in {consumer.started_at for consumer in service.consumers()}
                ours(lambda service=service: service.queue("bad").stats())  # type: ignore[misc]
                ours(lambda service=service: service.queue("bad").consume(1))  # type: ignore[misc]
                ours(lambda service=service: service.release_consumer("bad"))  # type: ignore[misc]
                if column == "settings":
                    with pytest.raises(QueueError, match="cannot be read"):
                        service.drop_queue("bad")
                service.stop()


@pytest.mark.usefixtures("prepared")
def test_rounds_and_keys(make_service: MakeService, engine: Engine) -> None:
    """A query or a publisher that reads them is told; the other consumers are listed."""
    service = make_service()
    queue = service.create_queue("bad", dedup_window=3600)
    queue.publish("x", key="k")
    queue.consume()[0].ack()
    queue.publish("y")
    query = Query(queue)
    query.plan()
    with hostile(engine, "queue_bad_dedup_keys WHERE message_key = 'k'", "message_id", "x") as bad:
        if bad:
            with pytest.raises(QueueError, match="Restore the row"):
                queue.publish("x", key="k")
    tables, run = core_of(queue).context.tables, core_of(queue).context.run
    StagedPublisher(queue).publish(BATCH, [])
    with hostile(engine, "queue_over_sql_commits", "message_count", "x") as bad:
        if bad:
            with pytest.raises(QueueError, match="Restore the row"):
                run(lambda connection: committed_count(connection, tables, BATCH))
    rounds = "queue_over_sql_consumer_rounds WHERE consumer_id = 'query'"
    for column in ("message_limit", "up_to_id", "due_by", "claimed_count"):
        with hostile(engine, rounds, column, "x") as bad:
            if bad:
                with refused(column, QueueError, match="Restore the row"):
                    query.consumer.rounds(0, 1)
    consumers = "queue_over_sql_consumers WHERE durable = 1"
    for column in ("epoch", "claimed_round", "acked_round"):
        with hostile(engine, consumers, column, "x") as bad:
            listed = {consumer.consumer_id for consumer in service.consumers()}
            assert service.consumer_id in listed
            assert bad == ("query" not in listed)


@pytest.mark.engines("sqlite", "postgresql", "mysql")
@pytest.mark.usefixtures("prepared", "functions_allowed")
def test_settings_that_cannot_be_read(make_service: MakeService, engine: Engine) -> None:
    """Their queue cannot be created again; tables are adopted and the SQL API serves the others."""
    _write(engine, "CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
    queues = "queue_over_sql_queues WHERE name = 'bad'"
    for value in TEXTS_OR_BYTES:
        with hostile(engine, queues, "settings", value) as written:
            if not written:
                continue
            service = make_service()
            with pytest.raises(QueueSchemaMismatch, match=r"'bad' .* cannot be read"):
                service.create_queue("bad")
            with pytest.raises(QueueSchemaMismatch, match=r"'bad' .* cannot be read"):
                service.adopt_queue("bad", "invoices")
            service.adopt_queue("invoices", "invoices")
            assert service.drop_queue("invoices")
            if service._parts.connections.dialect.features.routines is not None:
                service.sql_api.install()
                assert service.sql_api.uninstall()
            service.stop()


@pytest.mark.usefixtures("prepared")
def test_schedules(make_service: MakeService, engine: Engine) -> None:
    """A schedule whose row is wrong publishes nothing, is left out of the list, and stops alone."""
    place = "queue_over_sql_schedules WHERE name = 'bad'"
    with engine.connect() as connection:
        sound = connection.execute(text(f"SELECT definition FROM {place}")).scalar_one()
    sound = json.loads(sound)
    wrong: dict[str, list[Any]] = {
        "cron": [7, ["a"], "os:system", None],
        "every_us": [0, -1, 1e400, 2**70, "x"],
        "start": [1e400, "x", 2**70],
        "timezone": [None, 7, "/etc/passwd", "x" * 5_000, "\0"],
        "missed": [None, "os:system"],
        "payload": [None, 7, {}, {"json": 1, "x": 2}, {"pickle": "x"}, {"datetime": 7}],
        "options": [None, 7, {"kind": 7}, {"os": {"system": "x"}}, {"headers": {"json": 7}}],
    }
    definitions = [
        *TEXTS_OR_BYTES,
        *(json.dumps({**sound, name: each}) for name in wrong for each in wrong[name]),
        *(json.dumps({k: v for k, v in sound.items() if k != name}) for name in sound),
        *(json.dumps({**sound, "cron": None, "every_us": each}) for each in (0, 2**63, 1e300)),
    ]
    cases = [("definition", value) for value in definitions]
    columns = ("next_at", "revision", "created_at", "paused_at")
    cases += [(column, value) for column in columns for value in NUMBERS]
    cases += [(column, value) for column in ("queue", "name") for value in NAMES]
    for column, value in cases:
        with hostile(engine, place, column, value) as written:
            if not written:
                continue
            service = make_service()
            ScheduleFirer(service._parts).fire_due()
            assert "good" in {schedule.name for schedule in service.schedules.list()}, value
            ours(lambda service=service: service.schedules.get("bad"))  # type: ignore[misc]
            ours(lambda service=service: service.schedules.upcoming("bad", 1))  # type: ignore[misc]
            service.stop()
    others_go_on(make_service())


@pytest.mark.usefixtures("prepared")
def test_topics_and_subscriptions(make_service: MakeService, engine: Engine) -> None:
    """A subscription that is wrong stops its own topic, with an error that names the queue."""
    place = "queue_over_sql_subscriptions WHERE topic = 'bad'"
    cases: list[tuple[str, Any]] = [("filter", value) for value in TEXTS_OR_BYTES]
    cases += [("filter", json.dumps(value)) for value in ({"": 1}, {"a": {"b": 1}}, {"n": [1]})]
    cases += [("created_at", value) for value in NUMBERS]
    cases += [(column, value) for column in ("queue", "pattern") for value in NAMES]
    for column, value in cases:
        with hostile(engine, place, column, value) as written:
            if not written:
                continue
            service = make_service()
            others_go_on(service)
            topic = service.topic("bad")
            ours(lambda topic=topic: topic.publish({"n": 1}, routing_key="a"))  # type: ignore[misc]
            ours(topic.subscriptions)
            if column == "filter" and value != "null":
                with pytest.raises(QueueError, match="'bad'"):
                    topic.publish({"n": 1}, routing_key="a")
            service.stop()


@pytest.mark.usefixtures("prepared")
def test_messages(make_service: MakeService, engine: Engine) -> None:
    """A message that is wrong is told by an error of ours, or is a failure of its own."""
    times = ("published_at", "scheduled_at", "available_at", "claimed_at", "last_attempt_at")
    cases: list[tuple[str, Any]] = [(column, value) for column in times for value in NUMBERS]
    more = ("lease_us", "consumer_round", "lease_expires_at")
    cases += [(column, value) for column in more for value in NUMBERS]
    small = ("attempt_count", "max_attempts", "priority")
    cases += [(column, value) for column in small for value in (-1, 32_767, "x")]
    cases += [("payload", value) for value in TEXTS_OR_BYTES]
    cases += [("headers", value) for value in TEXTS_OR_BYTES]
    cases += [(column, value) for column in ("kind", "message_key") for value in NAMES]
    cases += [("consumer_id", "os:system")]
    of_archive = [("outcome", name) for name in NAMES] + [("finished_at", n) for n in NUMBERS]
    service = make_service()
    bad = service.queue("bad")
    for where in ("queue_bad", "queue_bad_archive"):
        for column, value in cases + (of_archive if where.endswith("archive") else []):
            bad.purge(claimed=True)
            bad.publish({"n": 1}, headers={"a": 1}, kind="k", key="k")
            if where == "queue_bad_archive":
                bad.consume(1)[0].ack()
            place = f"{where} WHERE kind = 'k'"
            with hostile(engine, place, column, value, restored=False) as written:
                if written:
                    _treat(bad)
                    ours(service.reap)
            _write(engine, "DELETE FROM queue_bad_archive")
    others_go_on(make_service())


@pytest.mark.usefixtures("prepared")
def test_a_message_that_was_due_before_all_time_is_delivered(
    make_service: MakeService, engine: Engine
) -> None:
    """The least number that the column holds is a due time like any other."""
    bad = make_service().queue("bad")
    bad.publish("x")
    _write(engine, "UPDATE queue_bad SET available_at = :least", least=-(2**63))
    assert ["x"] == [message.payload for message in bad.consume(5)]


def _treat(bad: Queue) -> None:
    held: list[Message] = []
    ours(lambda: [_facts(each) for each in bad.messages().list()])
    ours(lambda: [_facts(each) for each in bad.archive.messages().list()])
    ours(lambda: held.extend(bad.consume(5)))
    ours(lambda: [_facts(each) for each in held])
    ours(lambda: bad.nack(held, error="x"))
    ours(bad.stats)


def _facts(message: Any) -> list[object]:
    names = ("published_at", "scheduled_at", "available_at", "claimed_at", "last_attempt_at")
    more = ("finished_at", "lease_expires_at", "max_attempts", "payload", "headers", "status")
    return [getattr(message, name) for name in (*names, *more)]
