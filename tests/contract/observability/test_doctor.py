"""The doctor: each finding is provoked on its engine, and its advice fixes it."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, make_url

from queue_over_sql import Queue, QueueService
from queue_over_sql.dialects.engines import open_engine
from queue_over_sql.dialects.sqlite.hooks import SQLiteHooks
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.inside import Inspection
from queue_over_sql.observability import Finding, Level, diagnose, doctor
from queue_over_sql.schema.existing import ADDED_COLUMNS
from queue_over_sql.service import parts_of
from queue_over_sql.sql import checkup
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.waiting import eventually

pytestmark = pytest.mark.threads("the doctor looks from outside, by a service of its own")

SECONDS = 1_000_000


def set_limit(
    monkeypatch: pytest.MonkeyPatch, service: QueueService, name: str, value: float
) -> None:
    """Change a limit of the check-up, which an engine's own part may have, too."""
    own = sys.modules[type(service._parts.connections.dialect.checkup).__module__]
    for module in (checkup, own):
        monkeypatch.setattr(module, name, value, raising=False)


def found(service: QueueService, about: str, *levels: Level) -> list[Finding]:
    """What the doctor says of something, but that it is well."""
    wanted = levels or (Level.NOTE, Level.WARNING, Level.ERROR)
    return [f for f in diagnose(service) if f.about == about and f.level in wanted]


@contextmanager
def outside(database: TestDatabase) -> Iterator[Connection]:
    """A connection that commits each statement, and knows nothing of the library."""
    opened = open_engine(database.url)
    with opened.engine.connect() as connection:
        yield connection.execution_options(**opened.session_options)
    opened.engine.dispose()


def run(database: TestDatabase, *statements: str) -> None:
    """Run statements from outside."""
    with outside(database) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def drop_index(database: TestDatabase, index: str, table: str) -> str:
    """The statement that drops an index."""
    on = f" ON {table}" if database.engine in {"mysql", "mariadb"} else ""
    return f"DROP INDEX {index}{on}"


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue, of a service that is not started."""
    return service.create_queue("jobs")


def test_a_healthy_database_has_nothing_to_look_at(service: QueueService, jobs: Queue) -> None:
    """Each part is looked at, and nothing is made up; servers of tests may have unsafe settings."""
    jobs.publish_many([1, 2])
    findings = diagnose(service)
    asides = {"settings"}
    assert [] == [f for f in findings if f.level is not Level.OK and f.about not in asides]
    looked_at = {finding.about for finding in findings}
    assert {"engine", "clocks", "tables", "indexes", "consumers", "queues", "settings"} <= looked_at
    [engine] = [finding.text for finding in findings if finding.about == "engine"]
    assert parts_of(service).connections.dialect.features.name in engine


@pytest.mark.empty_database
def test_it_creates_nothing(database: TestDatabase, service: QueueService) -> None:
    """A database without queues is an error, and stays as it was."""
    assert [Level.ERROR] == [finding.level for finding in found(service, "tables")]
    with outside(database) as connection:
        assert [] == inspect(connection).get_table_names()


def test_a_missing_index_is_found_and_mended_by_the_advice(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """The advice is the statement that makes it again."""
    assert "jobs" == jobs.name
    run(database, drop_index(database, "queue_jobs_claim_ix", "queue_jobs"))
    [finding] = found(service, "indexes")
    assert Level.WARNING == finding.level
    assert "queue_jobs_claim_ix is miss" in finding.text
    run(database, finding.advice.removeprefix("Run: "))
    assert [] == found(service, "indexes")


def test_an_index_on_other_columns_is_found(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """Its name alone proves nothing."""
    assert "jobs" == jobs.name
    name, table = "queue_jobs_archive_ix", "queue_jobs_archive"
    run(database, drop_index(database, name, table), f"CREATE INDEX {name} ON {table} (id)")
    [finding] = found(service, "indexes")
    assert Level.WARNING == finding.level
    assert "is on id, not on outcome" in finding.text


def test_lost_columns_of_an_adopted_table_are_found(
    database: TestDatabase, service: QueueService
) -> None:
    """A migration of the user's rebuilt the table; no index is advised on what is not there."""
    run(database, "CREATE TABLE bills (number INTEGER PRIMARY KEY)", "INSERT INTO bills VALUES (1)")
    service.adopt_queue("billing", "bills")
    assert [] == found(service, "tables")
    indexes = ("claim_ix", "lease_ix")
    with outside(database) as connection:
        there = {str(index["name"]) for index in inspect(connection).get_indexes("bills")}
    names = [f"queue_billing_{name}" for name in indexes if f"queue_billing_{name}" in there]
    run(database, *[drop_index(database, name, "bills") for name in names])
    first, *others = ADDED_COLUMNS
    run(database, *[f"ALTER TABLE bills DROP COLUMN {name}" for name in others])
    [some] = found(service, "tables")
    assert Level.ERROR == some.level
    assert "outcome" in some.text
    assert "adopt_queue" in some.advice
    run(database, f"ALTER TABLE bills DROP COLUMN {first}")
    [everything] = found(service, "tables")
    assert "lost all columns of queue billing" in everything.text
    assert "where=" in everything.advice
    assert [] == found(service, "indexes")


def test_ids_behind_the_archive_and_what_it_refused(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """As after a restore: the advice lets the next message have a new id."""
    service.create_queue("jobs", archive="all")
    jobs.refresh()
    jobs.publish_many(range(3))
    jobs.ack(jobs.consume(3))
    restart = {
        "sqlite": "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'queue_jobs'",
        "postgresql": "ALTER SEQUENCE queue_jobs_id_seq RESTART WITH 1",
        "mysql": "ALTER TABLE queue_jobs AUTO_INCREMENT = 1",
        "mariadb": "ALTER TABLE queue_jobs AUTO_INCREMENT = 1",
        "h2": "ALTER TABLE queue_jobs ALTER COLUMN id RESTART WITH 1",
    }
    run(database, restart[database.engine])
    again = jobs.publish("refused").id
    jobs.ack(jobs.consume(1))
    assert again <= 3
    [behind] = found(service, "ids")
    assert Level.ERROR == behind.level
    assert "messages up to the id" in behind.text
    [held] = found(service, "queues")
    assert "jobs holds 1 message that the database refused" in held.text

    run(database, behind.advice.removeprefix("Run: "))
    assert [] == found(service, "ids")
    new = jobs.publish("new")
    assert new.id > 3
    jobs.ack(jobs.consume(1))
    assert 4 == jobs.stats().archived


def test_half_a_claim_is_found_and_mended_by_the_advice(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """Somebody set consumer_id alone, so that no consumer holds the message or gets it."""
    jobs.publish_many(range(3))
    [held] = jobs.consume(1)
    assert [] == found(service, "queues")
    run(database, "UPDATE queue_jobs SET consumer_id = 'x' WHERE consumer_id IS NULL")
    [finding] = found(service, "queues")
    assert Level.WARNING == finding.level
    assert "2 messages with" in finding.text
    run(database, finding.advice.partition(", run: ")[2])
    assert [] == found(service, "queues")
    assert 2 == len(jobs.consume(3))
    held.ack()


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_missing_unique_constraint_is_an_error(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """Without it a key could be live twice."""
    assert "jobs" == jobs.name
    kind = "INDEX" if database.engine in {"mysql", "mariadb"} else "CONSTRAINT"
    run(database, f"ALTER TABLE queue_jobs DROP {kind} queue_jobs_key_uq")
    [finding] = found(service, "indexes")
    assert Level.ERROR == finding.level
    assert "message_key" in finding.text


def test_a_missing_table_is_an_error(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """It is the only finding of its queue, and the other queues are looked at all the same."""
    service.create_queue("a", group_limit=1)
    service.create_queue("z").publish(1)
    jobs.publish(1)
    jobs.consume(1)
    half = "UPDATE {} SET consumer_id = 'x'"
    run(database, half.format("queue_z"), "UPDATE queue_over_sql_consumers SET expires_at = 1")
    tables = ["queue_a_groups", "queue_jobs_archive", "queue_a"]
    for gone, table in enumerate(tables):
        run(database, f"DROP TABLE {table}")
        findings = [f for f in diagnose(service) if f.level is not Level.OK]
        missing = [f.text for f in findings if f.about == "tables" and f.level is Level.ERROR]
        assert gone + 1 == len(missing), findings
        assert any(f"the table {table} of queue" in text for text in missing)
        [edited] = [f.text for f in findings if f.about == "queues"]
        assert edited.startswith("z has 1 message with a consumer_id")
        assert [] == [f for f in findings if f.about.startswith("queue ") or f.about == "ids"]
    [dead] = found(service, "consumers")
    assert "holds nothing" in dead.text
    assert [] == found(service, "clocks")


def test_a_queue_that_cannot_be_read_is_named_once(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """Its table is there, but lacks columns: the other queues are looked at all the same."""
    jobs.publish(1)
    service.create_queue("a").publish(1)
    run(
        database,
        "UPDATE queue_jobs SET consumer_id = 'x'",
        "DROP TABLE queue_a",
        "CREATE TABLE queue_a (other INTEGER)",
    )
    [edited] = found(service, "queues")
    assert edited.text.startswith("jobs has 1 message with a consumer_id")
    notes = found(service, "queue a")
    assert {Level.NOTE} == {finding.level for finding in notes}
    assert len({finding.text for finding in notes}) == len(notes)
    assert [] == [f for f in found(service, "clocks") if f.level is not Level.OK]


def test_a_dead_consumer_and_what_it_holds(
    database: TestDatabase, service: QueueService, make_service: MakeService, jobs: Queue
) -> None:
    """For as long as no reaper has given it back."""
    jobs.publish_many([1, 2, 3])
    dying = make_service(consumer_name="dying", consumer_timeout=3600.0)
    assert 2 == len(dying.queue("jobs").consume(2))
    run(
        database,
        "UPDATE queue_over_sql_consumers SET expires_at = heartbeat_at - "
        f"{120 * SECONDS} WHERE name = 'dying'",
    )
    [finding] = found(service, "consumers")
    assert Level.WARNING == finding.level, finding
    assert "holds 2 of jobs" in finding.text, finding
    service.reap()
    assert [] == found(service, "consumers")


def test_a_queue_that_nobody_serves(
    database: TestDatabase, service: QueueService, jobs: Queue
) -> None:
    """Something has been ready for longer than a minute, and nobody holds anything."""
    jobs.publish(1)
    assert [] == found(service, "queues")
    run(database, f"UPDATE queue_jobs SET available_at = available_at - {90 * SECONDS}")
    assert [Level.WARNING] == [finding.level for finding in found(service, "queues")]
    jobs.pause()
    assert [] == found(service, "queues")


def test_clocks_that_differ(
    service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's clock is an hour late, and the database's is not."""
    assert "jobs" == jobs.name

    class Late:
        @staticmethod
        def time() -> float:
            return time.time() - 3600

    monkeypatch.setattr(doctor, "time", Late)
    [finding] = found(service, "clocks")
    assert Level.WARNING == finding.level
    assert "differ by 3" in finding.text


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_transaction_that_is_open_for_long(
    database: TestDatabase, service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds it is named, and the advice says how to end it."""
    jobs.publish(1)
    assert [] == found(service, "transactions")
    set_limit(monkeypatch, service, "LONG_SECONDS", 0)
    engine = open_engine(database.url).engine
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE queue_jobs SET priority = 0")
        findings = eventually(lambda: found(service, "transactions"), "the transaction is seen")
    engine.dispose()
    assert {Level.WARNING} == {finding.level for finding in findings}
    assert any(" ends it." in finding.advice for finding in findings)


@pytest.mark.engines("postgresql")
def test_dead_rows(service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """More dead rows than live ones, and enough of them to matter."""
    set_limit(monkeypatch, service, "DEAD_ROWS", 100)
    jobs.publish_many(list(range(300)))
    jobs.purge()
    table = f"table {jobs.table.name} "

    def of_jobs() -> list[Finding]:
        # On a busy machine heartbeats have left as many dead rows elsewhere.
        return [each for each in found(service, "bloat") if each.text.startswith(table)]

    [finding] = eventually(of_jobs, "the server has counted them")
    assert Level.WARNING == finding.level, finding
    assert "300 dead rows" in finding.text, finding


@pytest.mark.engines("mysql", "mariadb")
def test_a_long_history(
    service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says how long it is; how long is too long is ours."""
    assert "jobs" == jobs.name
    assert [] == found(service, "bloat")
    set_limit(monkeypatch, service, "LONG_HISTORY", 0)
    [finding] = found(service, "bloat")
    assert Level.WARNING == finding.level
    assert "history list" in finding.text


@pytest.mark.engines("sqlite")
def test_free_pages_and_a_log_that_a_reader_keeps(
    database: TestDatabase, service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are measured in the file and beside it."""
    jobs.publish_many(["x" * 100_000] * 20)
    assert [] == found(service, "bloat")
    jobs.purge()
    set_limit(monkeypatch, service, "LARGE_PAGES", 100)
    set_limit(monkeypatch, service, "LARGE_LOG", 0)
    with closing(sqlite3.connect(make_url(database.url).database or "")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queue_jobs").fetchall()
        findings = found(service, "bloat")
    assert [Level.NOTE, Level.WARNING] == [finding.level for finding in findings]


@pytest.mark.engines("postgresql")
def test_an_invalid_index(database: TestDatabase, service: QueueService, jobs: Queue) -> None:
    """As a creation that was broken off leaves it: it is there, and nothing uses it."""
    assert "jobs" == jobs.name
    run(
        database,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'queue_jobs_claim_ix'::regclass",
    )
    [finding] = found(service, "indexes")
    assert Level.WARNING == finding.level
    assert "invalid" in finding.text


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_server_that_is_full(
    service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many connections there are is the server's word; how many are too many is ours."""
    assert "jobs" == jobs.name
    assert [] == found(service, "connections")
    set_limit(monkeypatch, service, "CROWDED", 0.0)
    assert [Level.WARNING] == [finding.level for finding in found(service, "connections")]


UNSAFE = {
    "postgresql": ("ALTER DATABASE {} SET synchronous_commit = off", "synchronous_commit is off"),
    "mysql": ("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "trx_commit is 2"),
    "mariadb": ("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "trx_commit is 2"),
}
BEFORE = {
    "postgresql": "ALTER DATABASE {} RESET synchronous_commit",
    "mysql": "SET GLOBAL innodb_flush_log_at_trx_commit = {}",
    "mariadb": "SET GLOBAL innodb_flush_log_at_trx_commit = {}",
}
ASKED = {
    "mysql": "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit",
    "mariadb": "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit",
}


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_settings_that_lose_messages(database: TestDatabase, make_service: MakeService) -> None:
    """A commit that does not wait for the disk is told of."""
    make_service().create_queue("jobs")
    change, said = UNSAFE[database.engine]
    name = make_url(database.url).database
    with outside(database) as connection:
        asked = ASKED.get(database.engine)
        before = name if asked is None else connection.exec_driver_sql(asked).scalar_one()
        connection.exec_driver_sql(change.format(name))
        try:
            findings = found(make_service(), "settings")
        finally:
            connection.exec_driver_sql(BEFORE[database.engine].format(before))
    [finding] = [each for each in findings if said in each.text]
    assert finding.advice


@pytest.mark.engines("h2")
def test_a_delay_of_writes(database: TestDatabase, make_service: MakeService) -> None:
    """Ours is none, but a URL may say otherwise."""
    make_service().create_queue("jobs")
    delayed = make_url(database.url).update_query_dict({"WRITE_DELAY": "250"})
    service = QueueService(delayed)
    try:
        [finding] = found(service, "settings")
    finally:
        service.stop()
    assert Level.NOTE == finding.level
    assert "up to 250 ms late" in finding.text


@pytest.mark.engines("h2")
def test_a_file_that_is_mostly_empty(
    service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size and how much of it is in use are the database's word."""
    jobs.publish(1)
    assert [] == found(service, "bloat")
    set_limit(monkeypatch, service, "LARGE_FILE", 0)
    set_limit(monkeypatch, service, "FILL_PERCENT", 101)
    assert [Level.NOTE] == [finding.level for finding in found(service, "bloat")]


@pytest.mark.engines("sqlite")
def test_a_journal_that_is_no_log(
    database: TestDatabase, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems refuse the write-ahead log."""
    maker = make_service()
    maker.create_queue("jobs")
    maker.stop()
    with closing(sqlite3.connect(make_url(database.url).database or "")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")

    def refused(_: object, connection: Any, __: object) -> None:
        connection.isolation_level = None

    monkeypatch.setattr(SQLiteHooks, "configure", refused)
    [finding] = found(make_service(), "settings")
    assert Level.WARNING == finding.level
    assert "delete" in finding.text


@pytest.mark.engines("sqlite")
def test_a_file_that_may_not_be_written(
    service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says who may; here everybody is refused, for root is refused nothing."""
    assert "jobs" == jobs.name
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert [Level.ERROR] == [finding.level for finding in found(service, "rights")]


ROLE, PASSWORD = "qos_viewer", "qos_viewer"


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_rights_that_an_account_lacks(database: TestDatabase, make_service: MakeService) -> None:
    """One that may only look is told so for each table; nothing else of the check-up fails."""
    make_service().create_queue("jobs")
    url = make_url(database.url)
    statements = {
        "postgresql": (
            f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}",
        ),
        "mysql": (
            f"CREATE USER {ROLE}@'%%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT SELECT ON {url.database}.* TO {ROLE}@'%%'",
        ),
    }
    server = "postgresql" if database.engine == "postgresql" else "mysql"
    away = {
        "postgresql": (f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}"),
        "mysql": (f"DROP USER {ROLE}@'%%'",),
    }
    run(database, *statements[server])
    try:
        theirs = url.set(username=ROLE, password=PASSWORD)
        service = QueueService(theirs)
        try:
            findings = found(service, "rights")
        finally:
            service.stop()
    finally:
        run(database, *away[server])
    assert {Level.WARNING} == {finding.level for finding in findings}
    live = [f.text for f in findings if f.text.endswith(" on queue_jobs")]
    assert ["INSERT, UPDATE, DELETE on queue_jobs"] == [t.partition(" lacks ")[2] for t in live]


@pytest.mark.engines("postgresql")
def test_rows_that_an_account_does_not_see(service: QueueService, database: TestDatabase) -> None:
    """Such as by row-level security: nothing else tells it from an empty queue."""
    service.create_queue("jobs").publish(1)
    theirs = make_url(database.url).set(username=ROLE, password=PASSWORD)
    run(
        database,
        f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}",
        "ALTER TABLE queue_jobs ENABLE ROW LEVEL SECURITY",
    )
    try:
        account = QueueService(theirs)
        try:
            assert [] == account.queue("jobs").consume()
            [warning] = found(account, "rights")
        finally:
            account.stop()
    finally:
        run(database, f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")
    assert f"row-level security decides which rows of queue_jobs {ROLE} sees" == warning.text
    assert Level.WARNING is warning.level
    assert [] == found(service, "rights")


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    " SELECT max(x) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
    "mysql": "SELECT count(*) FROM information_schema.collations a,"
    " information_schema.collations b, information_schema.collations c,"
    " information_schema.collations d",
    "mariadb": "SELECT sleep(60)",
    "h2": "SELECT max(a.x * b.x) FROM system_range(1, 1000000) a, system_range(1, 1000000) b",
}


@pytest.mark.timeout(120)
def test_no_statement_lasts(database: TestDatabase, service: QueueService, jobs: Queue) -> None:
    """The server or the driver ends a statement after its time, and the connection goes on."""
    assert "jobs" == jobs.name
    inspection = Inspection(service, 0.5)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable), inspection.connection() as connection:
        connection.exec_driver_sql(ENDLESS[database.engine]).all()
    assert time.monotonic() - began < 30
    assert inspection.now() > 0


@pytest.mark.engines("sqlite")
def test_what_cannot_be_asked_is_a_note(
    service: QueueService, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that fails does not keep the others from being asked."""
    assert "jobs" == jobs.name
    dialect = parts_of(service).connections.dialect
    broken = {"bloat": lambda ask: iter(ask.rows("SELECT * FROM there_is_no_such_table"))}
    monkeypatch.setattr(type(dialect.checkup), "sections", broken)
    [finding] = found(service, "bloat")
    assert Level.NOTE == finding.level
    assert "could not be checked" in finding.text
