"""A message that the database cannot read, as after damage to its files, is held; others go on."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, Integer, cast, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from queue_over_sql import ClaimLost, DatabaseRefused, QueueService, Reason
from queue_over_sql.observability.doctor import diagnose
from queue_over_sql.queue import core_of
from queue_over_sql.values.reasons import UNREADABLE
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import TestDatabase

# SQLite reads any bytes, and InnoDB stops the server.
pytestmark = [pytest.mark.engines("postgresql", "h2"), pytest.mark.threads("the database decides")]


@pytest.fixture
def url(database: TestDatabase, tmp_path: Path) -> str:
    """On H2 a database in this process, whose inner parts a test can reach."""
    return f"h2+jaydebeapi:///{tmp_path}/queues" if database.engine == "h2" else database.url


@pytest.fixture
def service(url: str) -> Iterator[QueueService]:
    service = QueueService(url, consumer_timeout=5.0)
    yield service
    service.stop()


def large() -> str:
    """A payload that the database stores apart from its row."""
    return secrets.token_hex(20_000)


def damage(url: str, table: str, message_id: int) -> None:
    """Remove what the row of a message only refers to."""
    engine = create_engine(url)
    with engine.begin() as connection:
        if connection.dialect.name == "h2":
            _damage_h2(connection, table, message_id)
        else:
            _damage_postgresql(connection, table, message_id)
    if engine.dialect.name == "postgresql":
        # Until then a reader finds what was deleted.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"VACUUM {table}"))
    engine.dispose()


def _damage_postgresql(connection: Connection, table: str, message_id: int) -> None:
    toast = connection.execute(
        text("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = :table"),
        {"table": table},
    ).scalar_one()
    chunks = connection.execute(text(f"SELECT DISTINCT chunk_id FROM {toast} ORDER BY 1"))
    ids = connection.execute(text(f"SELECT id FROM {table} ORDER BY id")).scalars().all()
    # Every message has one, and they were stored in this order.
    gone = chunks.scalars().all()[ids.index(message_id)]
    kind = text("UPDATE pg_class SET relkind = :kind WHERE oid = CAST(:toast AS regclass)")
    connection.execute(kind, {"kind": "r", "toast": toast})
    connection.execute(text(f"DELETE FROM {toast} WHERE chunk_id = :gone"), {"gone": gone})
    connection.execute(kind, {"kind": "t", "toast": toast})


def _damage_h2(connection: Connection, table: str, message_id: int) -> None:
    java: Any = connection.connection.dbapi_connection
    store = java.jconn.getSession().getDatabase().getLobStorage()
    field = store.getClass().getDeclaredField("lobMap")
    field.setAccessible(True)
    lobs = field.get(store)
    read = text(f"SELECT payload FROM {table} WHERE id = :id")
    for key in list(lobs.keySet()):
        kept = lobs.remove(key)
        try:
            connection.execute(read, {"id": message_id}).all()
        except DBAPIError:
            return
        # H2 may have removed it meanwhile.
        if kept is not None:
            lobs.put(key, kept)
    pytest.fail("the payload is in the row itself")


@pytest.mark.parametrize("settings", [{}, {"group_limit": 1}], ids=["plain", "groups"])
def test_what_cannot_be_read_is_held_and_the_rest_is_claimed(
    service: QueueService, url: str, settings: dict[str, Any]
) -> None:
    """The message stays, listed without its payload, and the doctor names it. No claim meets it."""
    jobs = service.create_queue("jobs", archive="all", **settings)
    ids = [jobs.publish(large(), **_group(settings, number)).id for number in range(5)]
    damage(url, "queue_jobs", ids[1])
    others = [ids[0], *ids[2:]]
    assert others == [message.id for message in jobs.consume(10)]
    [held] = jobs.messages(status="held").list()
    assert (ids[1], None) == (held.id, held.payload)
    assert str(held.last_error).startswith(UNREADABLE), held.last_error
    assert ids == [message.id for message in jobs.messages().list()]
    assert Reason.REFUSED is jobs.why(ids[1]).reason
    said = [str(finding) for finding in diagnose(service)]
    assert any("cannot read" in each for each in said), said
    assert [] == jobs.consume(1)
    assert jobs.delete(ids[1])


def _group(settings: dict[str, Any], number: int) -> dict[str, Any]:
    return {"group": f"g{number}"} if settings else {}


def test_claims_of_the_dead_are_restored_beside_it(service: QueueService, url: str) -> None:
    """Also what an ack cannot finish: the others of its batch end, and its lease ends."""
    jobs = service.create_queue("jobs", archive="all", max_attempts=5)
    ids = [jobs.publish(large()).id for _ in range(4)]
    messages = jobs.consume(4, lease=1)
    damage(url, "queue_jobs", ids[1])
    with pytest.raises(ClaimLost) if "h2" in url else contextlib.nullcontext():
        jobs.ack(messages[:2])
    assert [ids[0]] == [message.id for message in jobs.archive.messages().list()]
    found: list[Message] = []

    def reaped() -> bool:
        # A pass that fails finds out why in the next one.
        with contextlib.suppress(DatabaseRefused):
            service.reap()
        found.extend(jobs.consume(5))
        return 2 == len(found) and 1 == jobs.stats().held

    wait_until(reaped)
    assert ids[2:] == sorted(message.id for message in found)
    [held] = jobs.messages(status="held").list()
    assert ids[1] == held.id


@pytest.mark.engines("postgresql")
def test_what_cannot_even_be_held_stops_no_other_work(
    service: QueueService, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells of it, and the reaper goes on with its other tasks."""
    jobs = service.create_queue("jobs", max_attempts=5)
    ids = [jobs.publish(large()).id for _ in range(2)]
    assert 1 == len(jobs.consume(1))
    damage(url, "queue_jobs", ids[1])
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'damaged'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON queue_jobs FOR EACH ROW "
            f"WHEN (OLD.id = {ids[1]}) EXECUTE FUNCTION refuse()"
        )
        connection.exec_driver_sql(
            f"UPDATE queue_jobs SET lease_expires_at = 1 WHERE id = {ids[0]}"
        )
    engine.dispose()
    core_of(jobs).recovery.unreadable.note(DatabaseRefused("a task met it"))
    assert 1 == service.reap().restored
    assert 1 == caplog.text.count("does not let all unreadable messages be found")
    assert ids[:1] == [message.id for message in jobs.consume(1)]


def test_an_error_with_another_cause_is_searched_for_once(service: QueueService) -> None:
    """Such as that of a filter, which every poll meets: no poll in the next minute reads rows."""
    jobs = service.create_queue("jobs", payload="text")
    jobs.publish_many(["1", "x"])
    where = cast(jobs.table.c.payload, Integer) > 1
    sent: list[str] = []

    def note(*arguments: Any) -> None:
        sent.append(arguments[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        counts: list[int] = []
        for _ in range(2):
            with pytest.raises(DatabaseRefused):
                jobs.consume(1, where=where)
            counts.append(len(sent) - sum(counts))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert counts[1] < counts[0], sent
    core_of(jobs).recovery.unreadable.note(DatabaseRefused("a task meets it, too"))
    assert [] == list(core_of(jobs).recovery.unreadable.hold_all())
