"""The reaper beside transactions that stay open: it gives way, and serves everything else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, MetaData, Table, Text, insert, inspect, select, update

from queue_over_sql import DatabaseUnavailable, Observer, reaper
from queue_over_sql.dialects.engines import dialect_named
from queue_over_sql.recovery import recovery
from queue_over_sql.service import parts_of
from tests.contract.queue_state import counts, live_rows, payloads
from tests.waiting import consume_exactly, eventually, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql import QueueService
    from queue_over_sql.observer import ReaperReport
    from queue_over_sql.testing.plugin import MakeService

    Lock = Callable[[QueueService, Connection], Callable[[], bool]]

SECONDS = 20.0
STAGE = "queue_over_sql_stage_00000000000000ff"
# A second connection locks rows and tables there; SQLite has one lock for all.
ROWS_ARE_LOCKED = pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")


@pytest.fixture
def held(engine: Engine) -> Iterator[Connection]:
    """A transaction of somebody else, which stays open."""
    with engine.connect() as connection:
        yield connection
        connection.rollback()


def lock_a_row_of_an_archive(service: QueueService, held: Connection) -> Callable[[], bool]:
    """Of a message that is to be pruned."""
    queue = service.create_queue("aaa", archive="all")
    queue.publish("kept")
    queue.consume()[0].ack()
    table = queue.archive.table
    assert held.execute(select(table.c.id).with_for_update()).all()
    service.create_queue("aaa", archive_ttl=0.01)
    return lambda: queue.stats().archived == 0


def edit_beside_a_dead_letter(service: QueueService, held: Connection) -> Callable[[], bool]:
    """In a queue without archive; a healthy message of it comes back nevertheless."""
    queue = service.create_queue("aaa", archive="none")
    queue.publish("dead", max_attempts=1)
    queue.publish("healthy")
    queue.publish("edited", key="edited")
    queue.consume(2, lease=0.05)
    assert 1 == queue.messages(key="edited").hold(connection=held)
    assert 1 == queue.messages(key="edited").unhold(connection=held)
    ready = queue.messages(status="ready")
    eventually(lambda: "healthy" in payloads(ready.list()), "the healthy one", within=SECONDS)
    return lambda: queue.messages(status="claimed").count() == 0


def read_a_staging_table(service: QueueService, held: Connection) -> Callable[[], bool]:
    """Whose writer has crashed."""
    parts = parts_of(service)
    stages = parts.system().stages
    table = Table(STAGE, MetaData(), Column("payload", Text))
    names = {"name": STAGE, "table_prefix": "queue_", "queue": "jobs", "writer_id": "w"}
    # It expires after it is in use, or the reaper could be quicker.
    row = {**names, "batch_id": 1, "created_at": 1, "expires_at": 2**62}
    engine = held.engine
    with engine.begin() as other:
        table.create(other)
        other.execute(insert(table).values(payload="x"))
        other.execute(insert(stages).values(row))
    _use(held, table)
    with engine.begin() as other:
        other.execute(update(stages).values(expires_at=2))
    return lambda: not inspect(engine).has_table(STAGE)


def read_a_reply_table(service: QueueService, held: Connection) -> Callable[[], bool]:
    """Whose consumer is gone."""
    parts, engine = parts_of(service), held.engine
    # It dies after its table is in use, or the reaper could be quicker.
    queue = parts.catalog.create_temporary("reply_0", parts.consumer.identity().consumer_id)
    queue.publish("late")
    _use(held, queue.table)
    queues = parts.system().queues
    # Reapers have known that for longer than they wait for its consumer.
    gone = {"owner_id": "gone", "orphaned_at": 1}
    with engine.begin() as other:
        other.execute(update(queues).where(queues.c.name == "reply_0").values(gone))
    return lambda: not inspect(engine).has_table(queue.table.name)


def _use(held: Connection, table: Table) -> None:
    if held.dialect.name == "h2":
        # There a reader keeps nobody from the table, but a writer does.
        held.execute(update(table).values(payload="y"))
    assert held.execute(select(table.c.payload)).all()


LOCKS: dict[str, Lock] = {
    "archive": lock_a_row_of_an_archive,
    "edit": edit_beside_a_dead_letter,
    "stage": read_a_staging_table,
    "reply": read_a_reply_table,
}


@ROWS_ARE_LOCKED
@pytest.mark.threads("the wait is the database's")
@pytest.mark.parametrize("lock", LOCKS)
def test_a_held_lock_stops_nobody_else(
    make_service: MakeService, held: Connection, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    """Other queues, another prefix, schedules and creators go on, again and again."""
    # So long would a creator wait behind the reaper, if that kept its lock.
    features = dialect_named(held.engine.name).features
    monkeypatch.setitem(vars(features), "lock_seconds", 3600)
    monkeypatch.setattr(reaper, "_CLEANUP_SECONDS", 0.05)
    service, other = make_service(), make_service(table_prefix="other_")
    queues = [service.create_queue("zzz"), other.create_queue("zzz")]
    ticks = service.create_queue("ticks")
    with (
        make_service(reaper_interval=0.05),
        make_service(reaper_interval=0.05, table_prefix="other_"),
    ):
        is_over = LOCKS[lock](service, held)
        service.schedules.add("tick", "ticks", "tick", every=0.5)
        for _ in range(3):
            for queue in queues:
                queue.publish("x")
                queue.consume(lease=0.05)
                wait_until(lambda: counts(queue)[0] == 1, timeout=SECONDS)  # noqa: B023 - at once
                queue.ack(consume_exactly(queue, 1))
            # Each is claimed for good, so the reaper must have published another one.
            consume_exactly(ticks, 1)
        with ThreadPoolExecutor(1) as pool:
            assert "new" == pool.submit(service.create_queue, "new").result(SECONDS).name
        assert not is_over()
        held.rollback()
        eventually(is_over, "the reaper does what it put off", within=60)


@ROWS_ARE_LOCKED
@pytest.mark.threads("the wait is the database's")
def test_a_claim_does_not_wait_for_an_edit(make_service: MakeService, held: Connection) -> None:
    """A consumer that restores what the dead left gives way, too, and gets its own messages."""
    service = make_service(reaper_interval=0.1)
    queue = service.create_queue("jobs", archive="none")
    queue.publish("dead", max_attempts=1)
    queue.consume(lease=0.01)
    queue.publish("edited", key="edited")
    assert 1 == queue.messages(key="edited").hold(connection=held)
    assert 1 == queue.messages(key="edited").unhold(connection=held)
    with ThreadPoolExecutor(1) as pool:
        # It finds too little, so it looks for what the dead left.
        assert [] == pool.submit(queue.consume, 1, wait=0.5, where=queue.table.c.id < 0).result(20)


@ROWS_ARE_LOCKED
@pytest.mark.threads("the wait is the database's")
def test_reap_says_what_is_locked(make_service: MakeService, held: Connection) -> None:
    """A pass that somebody asks for serves the others, then says what it could not do."""
    service = make_service()
    is_over = lock_a_row_of_an_archive(service, held)
    queue = service.create_queue("zzz")
    queue.publish("x")
    queue.consume(lease=0.01)

    def is_locked() -> bool:
        try:
            service.reap()
        except DatabaseUnavailable as error:
            return "locked" in str(error)
        return False

    eventually(is_locked, "the lock on the archive", within=SECONDS)
    wait_until(lambda: counts(queue)[0] == 1)
    # The caller's own operations wait as before.
    held.rollback()
    service.reap()
    assert is_over()


class Rounds(Observer):
    """Notes after which pass a queue is served."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self.passes: list[int] = []
        self.ended = threading.Event()

    def reaped(self, report: ReaperReport, seconds: float) -> None:
        del seconds
        self.passes.append(report.restored)
        if self.done():
            self.ended.set()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_queues_take_turns(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue with very many dead claims does not delay another one."""
    monkeypatch.setattr(recovery, "BATCH", 10)
    monkeypatch.setattr(recovery, "_TURN_SECONDS", 0.0)
    service = make_service()
    many, few = service.create_queue("many"), service.create_queue("others")
    many.publish_many(range(300))
    few.publish("x")
    many.consume(300, lease=0.01)
    few.consume(lease=0.01)
    left: list[int] = []

    def look() -> bool:
        ready = counts(few)[0]
        left.append(counts(many)[1])
        return ready == 1

    seen = Rounds(look)
    with make_service(reaper_interval=0.05, observer=seen):
        assert seen.ended.wait(SECONDS)
        assert left[-1] > 200, "most claims of the large queue are still to be restored"
        wait_until(lambda: counts(many) == (300, 0, 0), timeout=SECONDS)
    assert 300 == len(live_rows(engine, many))


@pytest.mark.engines("sqlite")
def test_a_claim_restores_in_turns(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who claims a few messages does not first restore all that the dead left, but goes on."""
    monkeypatch.setattr(recovery, "BATCH", 10)
    monkeypatch.setattr(recovery, "_TURN_SECONDS", 0.0)
    queue = make_service(reaper_interval=0.05).create_queue("jobs")
    queue.publish_many(range(100))
    queue.consume(100, lease=0.01)
    first = consume_exactly(queue, 10)
    assert [message.payload for message in first] == list(range(10))
    assert counts(queue)[1] > 50
    assert [message.payload for message in consume_exactly(queue, 90)] == list(range(10, 100))
