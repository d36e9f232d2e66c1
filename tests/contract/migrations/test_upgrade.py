"""Databases of an earlier release: upgraded without loss, or refused with advice."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.pool import NullPool

from queue_over_sql import (
    ClaimLost,
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateKey,
    NoRetry,
    Publication,
    QueueSchemaMismatch,
    QueueService,
    Reason,
    SchemaOutdated,
    SchemaTooNew,
)
from queue_over_sql.migrations import upgrade
from queue_over_sql.migrations.changes import MIGRATIONS
from queue_over_sql.schema import RELEASE
from queue_over_sql.schema.queue_tables import OLDEST_BESIDE, SCHEMA_VERSION
from tests.contract.migrations import earlier_release as earlier
from tests.contract.migrations.dumps import load
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [pytest.mark.empty_database, pytest.mark.threads("the database decides")]

OWN_QUEUES = {"jobs", "retried", "texts", "blobs", "levels", "paints", "held", "planned"}
QUEUES = OWN_QUEUES | {"billing"}


@pytest.fixture
def old(database: TestDatabase) -> Engine:
    """A database that the earlier release has left; nobody stays connected, for H2."""
    engine = create_engine(database.url, poolclass=NullPool)
    load(engine, database.engine)
    return engine


def versions(engine: Engine) -> dict[str, int]:
    """The schema version of each queue, as it is stored."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, schema_version FROM queue_over_sql_queues"))
        return {row[0]: row[1] for row in rows}


def lacking(engine: Engine) -> set[str]:
    """The queues of which a table lacks the newest column."""
    look = inspect(engine)
    return {
        name
        for name in OWN_QUEUES
        for table in (f"queue_{name}", f"queue_{name}_archive")
        if "last_traceback" not in {column["name"] for column in look.get_columns(table)}
    }


def set_version(engine: Engine, version: Any, release: Any = None, queue: str = "jobs") -> None:
    """Let another release have made the tables of a queue, as far as its record says."""
    change = (
        "UPDATE queue_over_sql_queues SET schema_version = :v, schema_release = :r WHERE name = :n"
    )
    with engine.begin() as connection:
        connection.execute(text(change), {"v": version, "r": release, "n": queue})


def content(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with engine.connect() as connection:
        return {
            name: sorted(map(tuple, connection.execute(text(f"SELECT * FROM {name}"))), key=repr)
            for name in inspect(engine).get_table_names()
        }


def payloads(messages: list[Message]) -> list[Any]:
    """What they hold."""
    return [message.payload for message in messages]


def test_migrations_lead_to_this_version() -> None:
    """None is missing between the oldest release that may run beside this one and this one."""
    assert list(range(2, SCHEMA_VERSION + 1)) == [step.version for step in MIGRATIONS]
    assert 1 <= OLDEST_BESIDE <= SCHEMA_VERSION


def test_each_message_is_read_back(old: Engine, make_service: MakeService) -> None:
    """A start upgrades all queues; then every message is there, in its state, and can be ended."""
    service = make_service(reaper_interval=3600, notify=False)
    service.start()
    assert dict.fromkeys(QUEUES, SCHEMA_VERSION) == versions(old)
    assert set() == lacking(old)

    jobs = service.queue("jobs")
    finished = {m.key: m for m in jobs.archive.messages().list()}
    assert [earlier.DONE, earlier.FAILED, earlier.REJECTED] == [
        finished[key].payload for key in ("ack", "nack", "reject")
    ]
    assert "the reason of reject" == finished["reject"].last_error
    service.reap()
    marked = jobs.archive.messages(where=jobs.archive.table.c.error_fingerprint.is_not(None))
    assert {"nack", "reject"} == {message.key for message in marked.list()}
    with old.connect() as connection:
        found = inspect(connection).get_indexes("queue_jobs_archive")
    assert "queue_jobs_archive_err_ix" in {str(each["name"]).lower() for each in found}
    taken = jobs.consume(10)
    assert [*earlier.READY, {"order": 1}] == payloads(taken)
    assert "Job" == taken[0].kind
    assert earlier.HEADERS == taken[0].headers
    taken[0].ack()
    taken[1].nack("again")
    taken[2].reject("never")
    assert {"done": 2, "failed": 2, "rejected": 2} == {
        outcome: getattr(jobs.stats(), outcome) for outcome in ("done", "failed", "rejected")
    }
    (delayed,) = jobs.messages(status="delayed").list()
    assert earlier.DELAYED == delayed.payload
    assert 7 == delayed.max_attempts
    assert earlier.FAR == delayed.available_at
    with pytest.raises(DuplicateKey):
        jobs.publish({}, key="ack")

    (retried,) = service.queue("retried").consume()
    assert earlier.RETRIED == retried.payload
    assert 2 == retried.attempt
    assert "the first failure" == retried.last_error
    assert earlier.TEXTS == payloads(service.queue("texts").consume(9))
    assert earlier.BYTES == payloads(service.queue("blobs").consume(9))
    by_level = sorted(earlier.LEVELS, key=lambda pair: pair[1])
    assert [name for name, _ in by_level] == payloads(service.queue("levels").consume(9))
    paints = service.queue("paints")
    assert ["red"] == [message.columns["colour"] for message in paints.consume(9)]
    assert ["blue"] == [message.columns["colour"] for message in paints.archive.messages().list()]
    assert [2, 3] == [message.id for message in service.queue("billing").consume(9)]
    assert "no such customer" == service.queue("billing").archive.messages().list()[0].last_error


@pytest.mark.default_on("sqlite")
def test_each_verb_takes_messages_of_an_earlier_release(
    old: Engine, make_service: MakeService
) -> None:
    """Settled, given back, edited, explained, requeued, grouped: no row is in the way for its age.

    A service that is not started has upgraded only this queue.
    """
    service = make_service(reaper_interval=3600, notify=False)
    jobs = service.queue("jobs")
    archive = jobs.archive
    for message in archive.messages().list():
        assert Reason.FINISHED is jobs.why(message.id).reason
        assert [] == jobs.attempts(message.id)
        assert jobs.last_traceback(message.id) is None
    assert 3 == archive.messages().requeue()
    [delayed] = jobs.messages(status="delayed").list()
    assert 1 == jobs.edit(delayed.id, payload={"edited": 1})
    one = jobs.messages(where=jobs.table.c.id == delayed.id)
    for edited in (one.hold(), one.unhold(), one.reschedule(delay=0), one.prioritize(front=True)):
        assert 1 == edited
    assert 1 == one.set_max_attempts(3)
    first, *rest = jobs.consume(99)
    assert ({"edited": 1}, 6) == (first.payload, len(rest))
    assert 1 == jobs.edit(first.id, payload=2).skipped
    jobs.extend(rest, 60)
    rest[0].release()
    assert [rest[0].id] == [message.id for message in jobs.exchange([first], 1)]
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("no")
    rest[1].nack(raised.value)
    [attempt] = jobs.attempts(rest[1].id)
    assert "invalid literal" in str(attempt.error)
    assert 'int("no")' in str(jobs.last_traceback(rest[1].id))
    assert jobs.cancel(rest[2].id, "late")
    assert jobs.delete(rest[3].id)
    with pytest.raises(ClaimLost):
        rest[2].ack()
    jobs.held(rest[4].token).release(delay=0)
    with old.begin() as connection:
        assert [rest[4].id] == [message.id for message in jobs.take(5, connection=connection)]
    grouped = service.create_queue("jobs", group_limit=1, group_order="any")
    grouped.publish_many([Publication(number, group="a") for number in range(2)])
    assert [0] == payloads(grouped.consume(9))
    counted = grouped.stats()
    assert (1, 3, 4) == (counted.ready, counted.claimed, counted.live)
    assert ["done", "done", "failed", "rejected"] == sorted(
        str(message.outcome) for message in archive.messages().list()
    )
    assert 4 == grouped.purge(claimed=True)
    assert 4 == archive.messages().remove()


@pytest.mark.default_on("sqlite", "postgresql")
def test_what_is_bound_to_queues_goes_on(old: Engine, make_service: MakeService) -> None:
    """Schedules, topics, and what a process held that was killed."""
    del old
    service = make_service(reaper_interval=0.05)
    service.start()
    jobs = service.queue("jobs")
    (schedule,) = service.schedules.list()
    assert "yearly" == schedule.name
    assert "planned" == schedule.queue
    before = len(jobs.consume(99))
    service.topic("orders").publish({"order": 2}, routing_key="order.created")
    assert 3 == before
    assert [{"order": 2}] == payloads(jobs.consume(9))
    # Its consumer has no heartbeat any more.
    wait_until(lambda: service.queue("held").stats().ready)
    (held,) = service.queue("held").consume()
    assert earlier.HELD == held.payload
    assert 2 == held.attempt


def test_opening_a_queue_upgrades_that_one(old: Engine, make_service: MakeService) -> None:
    """A service that is not started touches no other queue."""
    queue = make_service().queue("texts")
    assert {"texts": SCHEMA_VERSION} == {k: v for k, v in versions(old).items() if v > 1}
    assert OWN_QUEUES - {"texts"} == lacking(old)
    assert earlier.TEXTS == payloads(queue.consume(9))
    with old.connect() as connection:
        said = connection.execute(
            text("SELECT schema_release FROM queue_over_sql_queues WHERE name = 'texts'")
        ).scalar_one()
    assert {"version": SCHEMA_VERSION, "release": RELEASE, "oldest": OLDEST_BESIDE} == json.loads(
        said
    )


@pytest.mark.default_on("sqlite", "postgresql")
def test_two_starts_at_once_both_succeed(old: Engine, make_service: MakeService) -> None:
    """Who comes second sees that it is done."""
    services = [make_service(notify=False) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda service: service.start(), services))
    assert dict.fromkeys(QUEUES, SCHEMA_VERSION) == versions(old)


def test_half_an_upgrade_is_completed(old: Engine, make_service: MakeService) -> None:
    """A kill left the columns without the version, or one of the columns."""
    words = {"mysql": "LONGTEXT", "mariadb": "LONGTEXT"}.get(old.dialect.name, "TEXT")
    words = "CLOB" if old.dialect.name == "h2" else words
    with old.begin() as connection:
        for table in ("queue_jobs", "queue_jobs_archive", "queue_texts"):
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN last_traceback {words}"))
    service = make_service(notify=False)
    service.start()
    assert dict.fromkeys(QUEUES, SCHEMA_VERSION) == versions(old)
    assert set() == lacking(old)
    assert [] == service.migrations.pending()


def test_a_dba_can_run_the_statements(old: Engine, make_service: MakeService) -> None:
    """Without ``auto_migrate`` a service says what is missing, and takes what somebody else did."""
    before = content(old)
    service = make_service(auto_migrate=False, notify=False)
    with pytest.raises(SchemaOutdated, match="queue-over-sql migrate") as caught:
        service.start()
    with pytest.raises(SchemaOutdated):
        service.queue("jobs")
    assert before == content(old)
    # Columns and tables of the shared ones, and the queues.
    assert 5 + len(QUEUES) == len(caught.value.missing)
    with old.begin() as connection:
        for statement in caught.value.statements:
            connection.exec_driver_sql(statement)
    service.start()
    assert dict.fromkeys(QUEUES, SCHEMA_VERSION) == versions(old)
    assert set() == lacking(old)
    assert earlier.TEXTS == payloads(service.queue("texts").consume(9))


@pytest.mark.engines("sqlite")
def test_migrations_can_be_asked_for(old: Engine, make_service: MakeService) -> None:
    """``pending`` and ``apply`` do with any service; again there is nothing to do."""
    migrations = make_service(auto_migrate=False).migrations
    found = migrations.pending()
    assert QUEUES == {change.queue for change in found} - {None}
    assert found == migrations.pending()
    assert 1 in set(versions(old).values())
    assert found == migrations.apply()
    assert [] == migrations.pending()
    assert [] == migrations.apply()


@pytest.mark.default_on("sqlite", "postgresql")
def test_an_empty_database_says_what_is_missing(engine: Engine, make_service: MakeService) -> None:
    """A service that may not change tables makes none; ``apply`` does."""
    service = make_service(auto_migrate=False)
    with pytest.raises(SchemaOutdated, match="create queue_over_sql_queues"):
        service.start()
    assert [] == inspect(engine).get_table_names()
    service.migrations.apply()
    service.start()
    assert service.started


# -- newer releases


def test_newer_tables_are_refused(engine: Engine, make_service: MakeService) -> None:
    """Before anything is written, with the release to install; also where it was open already."""
    first = make_service(notify=False)
    first.create_queue("jobs").publish(1)
    first.create_queue("other").publish(2)
    first.create_topic("events").subscribe("jobs", "#")
    first.schedules.add("daily", "jobs", 3, every=86_400)
    first.stop()
    # Its next heartbeat comes after the test.
    running = make_service(notify=False, reaper_interval=0.01, consumer_timeout=3600)
    opened = running.queue("jobs")
    [held] = opened.consume()
    said = {"version": SCHEMA_VERSION + 1, "release": "7.5.0", "oldest": SCHEMA_VERSION + 1}
    set_version(engine, SCHEMA_VERSION + 1, json.dumps(said))
    before = content(engine)
    service = make_service(notify=False)
    with pytest.raises(SchemaTooNew, match=r"Install queue-over-sql 7\.5\.0 or newer") as caught:
        service.start()
    assert "jobs" == caught.value.queue
    assert SCHEMA_VERSION + 1 == caught.value.found
    assert SCHEMA_VERSION == caught.value.known
    assert "7.5.0" == caught.value.release
    for operation in (
        lambda: service.queue("jobs"),
        lambda: service.create_queue("jobs", max_attempts=9),
        lambda: service.drop_queue("jobs"),
        lambda: service.consume(["jobs"]),
        lambda: service.topic("events").publish(1, routing_key="a"),
        lambda: service.topic("events").subscribe("jobs", "a"),
        lambda: service.schedules.add("more", "jobs", 4, every=60),
        lambda: service.schedules.run("daily"),
        lambda: service.schedules.pause("daily"),
        lambda: service.schedules.resume("daily"),
        lambda: service.schedules.remove("daily"),
        service.migrations.pending,
        service.migrations.apply,
        opened.refresh,
        lambda: opened.publish(5),
        lambda: opened.publish_many([5, 6]),
        opened.consume,
        lambda: held.nack("no"),
    ):
        with pytest.raises(SchemaTooNew):
            operation()
    service.reap()
    assert before == content(engine)
    assert [2] == payloads(service.queue("other").consume())


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("said", [None, "", "7", "{}", '{"version": 1, "oldest": 1}', b"\xff"])
def test_what_says_nothing_permits_nothing(
    engine: Engine, make_service: MakeService, said: Any
) -> None:
    """A newer version whose release left no word that can be read is refused."""
    first = make_service()
    first.create_queue("jobs")
    first.stop()
    set_version(engine, 99, said)
    with pytest.raises(SchemaTooNew, match="Install the newest release"):
        make_service().queue("jobs")


@pytest.mark.default_on("sqlite")
def test_a_newer_release_lets_this_one_work_beside_it(
    engine: Engine, make_service: MakeService
) -> None:
    """Where it said that releases of this version may use its tables; nothing is taken back."""
    first = make_service(notify=False)
    first.create_queue("jobs").publish(1)
    first.stop()
    said = {"version": SCHEMA_VERSION + 3, "release": "7.5.0", "oldest": SCHEMA_VERSION}
    set_version(engine, SCHEMA_VERSION + 3, json.dumps(said))
    service = make_service(notify=False)
    service.start()
    service.queue("jobs").consume()[0].ack()
    assert {"jobs": SCHEMA_VERSION + 3} == versions(engine)


@pytest.mark.engines("sqlite")
def test_a_newer_database_gets_no_tables_of_ours(engine: Engine, make_service: MakeService) -> None:
    """A shared table that a newer release has done away with is not made anew."""
    first = make_service()
    first.create_queue("jobs")
    first.stop()
    set_version(engine, 99)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE queue_over_sql_topics"))
    with pytest.raises(SchemaTooNew):
        make_service().create_queue("another")
    assert "queue_over_sql_topics" not in inspect(engine).get_table_names()


# -- beside an earlier release


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_queue_made_anew_by_an_earlier_release_is_upgraded(
    old: Engine, make_service: MakeService
) -> None:
    """The reaper of a service that knew the queue brings it up to date."""
    service = make_service(reaper_interval=0.05, notify=False)
    service.start()
    with old.begin() as connection:
        for table in ("queue_texts", "queue_texts_archive"):
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN last_traceback"))
    set_version(old, 1, queue="texts")
    wait_until(lambda: versions(old)["texts"] == SCHEMA_VERSION)
    assert set() == lacking(old)
    texts = service.queue("texts")
    texts.consume()[0].reject("with its traceback")
    assert 1 == texts.stats().rejected


@pytest.mark.engines("mysql", "mariadb", "h2")
@pytest.mark.default_on("mysql")
def test_tables_without_a_record_are_completed(old: Engine, make_service: MakeService) -> None:
    """A creator of the earlier release was killed between its tables and its record."""
    with old.begin() as connection:
        connection.execute(text("DELETE FROM queue_over_sql_queues WHERE name = 'texts'"))
    service = make_service(notify=False)
    service.create_queue("texts", payload="text").consume(1)[0].reject("with its traceback")
    assert "texts" not in lacking(old)


@pytest.mark.engines("postgresql")
def test_who_may_not_change_tables_is_told_what_to_do(
    old: Engine, make_service: MakeService, database: TestDatabase
) -> None:
    """With ``auto_migrate``, too; the refusal of the database is the cause."""
    role = f"worker_{uuid.uuid4().hex[:12]}"
    with old.begin() as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        ):
            connection.execute(text(statement))
    url = make_url(database.url).set(username=role, password="secret")
    worker = QueueService(url, notify=False)
    try:
        with pytest.raises(
            SchemaOutdated, match="as a database user that may alter tables"
        ) as caught:
            worker.start()
        assert isinstance(caught.value.__cause__, DatabaseRefused)
        assert any("ALTER TABLE queue_jobs " in statement for statement in caught.value.statements)
        assert {1} == set(versions(old).values())
        make_service(notify=False).start()
        assert earlier.TEXTS == payloads(worker.queue("texts").consume(9))
    finally:
        worker.stop()
        with old.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


@pytest.mark.engines("sqlite")
def test_a_queue_with_a_column_of_that_name_is_told(old: Engine, make_service: MakeService) -> None:
    """It is left alone, and does not keep the others from work."""
    with old.begin() as connection:
        connection.execute(text("ALTER TABLE queue_texts ADD COLUMN last_traceback INTEGER"))
        change = text(
            "UPDATE queue_over_sql_queues SET settings = replace(settings, :old, :new)"
            " WHERE name = 'texts'"
        )
        own = '"columns": {"last_traceback": "INTEGER"}'
        connection.execute(change, {"old": '"columns": {}', "new": own})
    service = make_service()
    service.start()
    with pytest.raises(QueueSchemaMismatch, match="has its own column"):
        service.queue("texts")
    assert {"texts": 1} == {k: v for k, v in versions(old).items() if v == 1}
    assert earlier.BYTES == payloads(service.queue("blobs").consume(9))


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql")
def test_an_upgrade_gives_up_on_a_table_that_stays_in_use(
    old: Engine,
    make_service: MakeService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Meanwhile others get at the table; once it is free the next try succeeds."""
    monkeypatch.setattr(upgrade, "_TIMEOUT_AT_OPENING", 1.5)
    service = make_service(notify=False)
    with old.connect() as user, old.connect() as other:
        user.execute(text("UPDATE queue_texts SET priority = 0 WHERE id = 1"))
        with pytest.raises(DatabaseUnavailable, match="used its tables"):
            service.queue("texts")
        assert 4 == other.execute(text("SELECT COUNT(*) FROM queue_texts")).scalar_one()
        # A pass over all queues leaves it out, and waits for it once only, and briefly.
        service.reap()
        assert "texts" not in {each.name for each in service.queues()}
        assert 1 == caplog.text.count("Queue texts cannot be opened"), caplog.text
        user.rollback()
    assert earlier.TEXTS == payloads(service.queue("texts").consume(9))


def test_a_traceback_goes_into_the_archive(make_service: MakeService, engine: Engine) -> None:
    """However a message ends there; a new life begins without it."""
    service = make_service(notify=False)
    queue = service.create_queue("jobs", archive="all", retry=NoRetry())
    for key in ("ack", "nack", "reject", "replaced"):
        queue.publish(key, key=key)
    taken = queue.consume(4)
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_jobs SET last_traceback = message_key"))
    queue.publish("anew", key="replaced", on_conflict="replace")
    taken[0].ack()
    taken[1].nack("failed")
    taken[2].reject("rejected")
    look = "SELECT message_key, last_traceback FROM {}"
    with engine.connect() as connection:
        archived = connection.execute(text(look.format("queue_jobs_archive")))
        assert {(key, key) for key in ("ack", "nack", "reject")} == set(map(tuple, archived))
        assert [("replaced", None)] == list(
            map(tuple, connection.execute(text(look.format("queue_jobs"))))
        )
    assert 1 == queue.archive.messages(status="rejected").requeue()
    with engine.connect() as connection:
        live = connection.execute(text(look.format("queue_jobs")))
        assert {("replaced", None), ("reject", None)} == set(map(tuple, live))
