"""A message that the database refuses to finish: it is held with the reason, the rest goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from sqlalchemy import MetaData, Table, and_, create_engine, delete, insert, select

from queue_over_sql import ClaimLost, DatabaseRefused, FixedDelay, NotFinished, Publication
from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer
from queue_over_sql.recovery import recovery
from queue_over_sql.values.reasons import REFUSED
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    return service.create_queue("jobs", archive="all", max_attempts=1, retry=FixedDelay(0))


def refuse(database: TestDatabase, message_id: int) -> None:
    """Let the archive have a message of this id already, as after a restore with old sequences."""

    def act(connection: Connection) -> None:
        live, archive = (
            Table(name, MetaData(), autoload_with=connection)
            for name in ("queue_jobs", "queue_jobs_archive")
        )
        row = connection.execute(select(live).where(live.c.id == message_id)).one()
        taken = {**row._mapping, "finished_at": 1, "outcome": "done", "message_key": "earlier"}
        stored = {name: value for name, value in taken.items() if name in archive.c}
        connection.execute(insert(archive).values(stored))

    _run(database, act)


def _run(database: TestDatabase, act: Callable[[Connection], object]) -> None:
    engine = create_engine(database.url)
    with engine.begin() as connection:
        act(connection)
    engine.dispose()


def allow(database: TestDatabase, message_id: int) -> None:
    def act(connection: Connection) -> None:
        archive = Table("queue_jobs_archive", MetaData(), autoload_with=connection)
        connection.execute(delete(archive).where(archive.c.id == message_id))

    _run(database, act)


VERBS: dict[str, Callable[[Queue, list[Message]], object]] = {
    "ack": lambda queue, messages: queue.ack(messages),
    "nack": lambda queue, messages: queue.nack(messages, error="broken"),
    "reject": lambda queue, messages: queue.reject(messages, "bad"),
    "exchange": lambda queue, messages: queue.exchange(messages, 1),
}


def test_one_refused_row_is_held_and_the_others_end(
    jobs: Queue, database: TestDatabase, service: QueueService
) -> None:
    """Whatever ends them. The message is not lost, blocks nothing, and ends once it may."""
    for (name, verb), window in zip(VERBS.items(), (None, 60, None, 60), strict=True):
        service.create_queue("jobs", archive="all", dedup_window=window)
        jobs.refresh()
        ids = [jobs.publish(number, key=f"{name} {number}").id for number in range(7)]
        refuse(database, ids[2])
        messages = jobs.consume(7)
        verb(jobs, messages)
        assert all(message.settled for message in messages)
        [held] = jobs.messages(status="held").list()
        assert ids[2] == held.id, name
        assert 2 == held.payload, name
        assert str(held.last_error).startswith(REFUSED), held.last_error
        assert [] == jobs.consume(1), name
        finished = {message.id for message in jobs.archive.messages().list()}
        assert set(ids) <= finished
        assert 0 == sum(service.reap().restored for _ in range(2))

        allow(database, ids[2])
        jobs.messages(status="held").unhold()
        [again] = jobs.consume(2)
        assert held.id == again.id
        jobs.ack(again)
        assert 0 == jobs.stats().live, name
        assert 0 == jobs.messages().count(), name


@pytest.mark.engines("postgresql")
@pytest.mark.threads("the engine decides")
def test_what_an_exchange_has_acked_is_not_lost(
    make_service: MakeService, database: TestDatabase
) -> None:
    """PostgreSQL acks it in a statement of its own if nobody of its group waits for it."""
    jobs = make_service().create_queue("jobs", archive="all", group_limit=1)
    jobs.publish_many([Publication(name, group=name) for name in "0123"])
    # Such claims let the next one look for first messages alone.
    for _ in range(2):
        jobs.exchange(jobs.consume(1), 1)[0].ack()
    ids = [jobs.publish(name, group=name).id for name in "ab"]
    messages = jobs.consume(2)
    assert ids == [message.id for message in messages]
    jobs.publish("b", group="b")
    # Another one parks it.
    assert [] == make_service().queue("jobs").consume(1)
    refuse(database, ids[1])
    jobs.exchange(messages, 1)
    assert all(message.settled for message in messages)
    assert ids[1:] == [message.id for message in jobs.messages(status="held").list()]


def test_a_reaper_goes_on_with_what_is_healthy(jobs: Queue, database: TestDatabase) -> None:
    """A dead letter that the archive refuses keeps no expired message from coming back."""
    spent = [jobs.publish(number, max_attempts=1).id for number in range(3)]
    healthy = jobs.publish("healthy", max_attempts=5).id
    refuse(database, spent[1])
    assert 4 == len(jobs.consume(4, lease=0.05))
    found: list[Message] = []

    def come_back() -> bool:
        found.extend(jobs.consume(1))
        return bool(found)

    wait_until(come_back)
    # Each look gives back and buries for a bounded time.
    wait_until(lambda: come_back() and 1 == jobs.stats().held)
    assert [healthy] == [message.id for message in found]
    [held] = jobs.messages(status="held").list()
    assert spent[1] == held.id
    assert str(held.last_error).startswith(REFUSED)
    assert {spent[0], spent[2]} == {m.id for m in jobs.archive.messages(status="failed").list()}


ON_CALLERS: dict[str, Callable[[Queue, list[Message], Connection], object]] = {
    "ack": lambda queue, messages, caller: queue.ack(messages, connection=caller),
    "nack": lambda queue, messages, caller: queue.nack(messages, connection=caller),
    "reject": lambda queue, messages, caller: queue.reject(messages, "bad", connection=caller),
}


def test_a_callers_transaction_goes_on(
    jobs: Queue, database: TestDatabase, service: QueueService, engine: Engine
) -> None:
    """It is told what is not finished. A commit holds that and ends the others, with its writes.

    A rollback leaves all as they were, so that they can be settled again.
    """
    for (name, verb), window in zip(ON_CALLERS.items(), (None, 60, None), strict=True):
        service.create_queue("jobs", archive="all", dedup_window=window)
        jobs.refresh()
        ids = [jobs.publish(number, key=f"{name} {number}").id for number in range(5)]
        refuse(database, ids[2])
        messages = jobs.consume(5)
        with engine.connect() as caller:
            with pytest.raises(NotFinished, match="commit") as told:
                verb(jobs, messages, caller)
            assert [ids[2]] == [message.id for message in told.value.messages]
            assert [ids[2]] == [*told.value.reasons]
            caller.rollback()
        assert 5 == jobs.stats().claimed, name

        for message in messages:
            message.settled = False
        with engine.connect() as caller:
            written = jobs.publish("beside", delay=3600, connection=caller)
            with pytest.raises(NotFinished):
                verb(jobs, messages, caller)
            caller.commit()
        [held] = jobs.messages(status="held").list()
        assert ids[2] == held.id, name
        assert str(held.last_error).startswith(REFUSED), name
        assert [written.id] == [m.id for m in jobs.messages(status="delayed").list()], name
        assert set(ids) <= {message.id for message in jobs.archive.messages().list()}, name
        assert not jobs.consume(5)
        jobs.purge()


def test_a_take_leaves_out_what_is_refused(
    jobs: Queue, database: TestDatabase, engine: Engine
) -> None:
    """It takes others in its place; a rollback puts all of them back, without a trace."""
    ids = [jobs.publish(number).id for number in range(4)]
    refuse(database, ids[1])
    with engine.connect() as caller:
        assert [0, 2, 3] == [message.payload for message in jobs.take(3, connection=caller)]
        caller.rollback()
    assert 4 == jobs.stats().ready
    assert 0 == jobs.stats().held
    with engine.begin() as caller:
        assert [0, 2, 3] == [message.payload for message in jobs.take(9, connection=caller)]
    [held] = jobs.messages().list()
    assert ids[1] == held.id
    assert held.available_at is None
    assert str(held.last_error).startswith(REFUSED)
    assert ids == [message.id for message in jobs.archive.messages().list()]


_TWO = "WHEN OLD.id = 2 BEGIN SELECT RAISE(ABORT, 'no twos'); END"
_NOTES = (
    "CREATE TABLE notes (message_id BIGINT, FOREIGN KEY (message_id) REFERENCES queue_plain (id))"
)
REFERS = [_NOTES, "INSERT INTO notes VALUES (2)"]
FORBIDS = {"sqlite": [f"CREATE TRIGGER no_twos BEFORE DELETE ON queue_plain {_TWO}"]}


def test_a_mere_deletion_is_careful_once_one_was_refused(
    service: QueueService, database: TestDatabase, engine: Engine
) -> None:
    """So that all others cost no savepoint. The refused transaction is told to roll back."""
    plain = service.create_queue("plain", archive="none")
    plain.publish_many(range(1, 6))
    _run(database, lambda c: [c.exec_driver_sql(s) for s in FORBIDS.get(database.engine, REFERS)])
    with engine.connect() as caller:
        with pytest.raises(DatabaseRefused) as told:
            plain.take(4, connection=caller)
        assert not isinstance(told.value, NotFinished)
        caller.rollback()
    assert "repeat it" in "".join(told.value.__notes__)
    with engine.begin() as caller:
        assert [1] == [message.payload for message in plain.take(1, connection=caller)]
    messages = plain.consume(3)
    with engine.connect() as caller:
        with pytest.raises(NotFinished):
            plain.ack(messages, connection=caller)
        caller.commit()
    assert [2] == [message.payload for message in plain.messages(status="held").list()]
    assert 1 == plain.stats().ready
    assert 0 == plain.stats().claimed


def test_what_cannot_be_cancelled_is_held(jobs: Queue, database: TestDatabase) -> None:
    """Its holder loses it, and no other consumer gets it."""
    message_id = jobs.publish("x").id
    refuse(database, message_id)
    [message] = jobs.consume()
    assert jobs.cancel(message_id, "wrong customer")
    [held] = jobs.messages(status="held").list()
    assert str(held.last_error).startswith(REFUSED)
    assert "wrong customer" in str(held.last_error)
    with pytest.raises(ClaimLost):
        message.ack()
    allow(database, message_id)
    assert jobs.cancel(message_id)
    assert 0 == jobs.stats().live


@pytest.mark.threads("a streaming engine reads by threads and processes")
def test_what_waits_in_its_group_and_cannot_be_cancelled_is_held(
    service: QueueService, database: TestDatabase
) -> None:
    """The end of the one before it does not wake it, but the next one."""
    jobs = service.create_queue("jobs", archive="all", group_limit=1)
    ids = [jobs.publish(number, group="a").id for number in range(3)]
    [first] = jobs.consume(1)
    c = jobs.table.c
    wait_until(lambda: not jobs.consume(9) and 2 == jobs.messages(where=c.parked_at > 0).count())
    refuse(database, ids[1])
    jobs.cancel(ids[1], "no")
    assert [ids[1]] == [message.id for message in jobs.messages(status="held").list()]
    first.ack()
    assert [] == jobs.consume(9)
    assert 1 == jobs.messages(where=c.id == ids[1]).remove()
    assert [ids[2]] == [message.id for message in jobs.consume(9)]


@pytest.mark.threads("a streaming engine reads by threads and processes")
def test_a_round_of_a_durable_consumer_ends_without_what_is_refused(
    jobs: Queue, database: TestDatabase, service: QueueService
) -> None:
    """Else its stream would never get further."""
    for window in (None, 60):
        service.create_queue("jobs", archive="all", dedup_window=window)
        jobs.refresh()
        ids = [jobs.publish(number, key=f"{window} {number}").id for number in range(7)]
        refuse(database, ids[2])
        consumer = DurableConsumer(jobs, f"stream{window}", owner="test")
        start = consumer.take_over()
        end = consumer.advance(start, AdvanceRequest(5, 2))
        assert 5 == jobs.stats().claimed
        last = consumer.advance(end, AdvanceRequest(5, 2))
        [held] = jobs.messages(status="held").list()
        assert ids[2] == held.id
        assert str(held.last_error).startswith(REFUSED)
        assert 2 == jobs.stats().claimed
        consumer.ack(last)
        assert set(ids) <= {message.id for message in jobs.archive.messages().list()}
        assert 0 == consumer.outstanding()
        jobs.purge()


def test_a_transactional_handler_keeps_its_writes(
    jobs: Queue, database: TestDatabase, service: QueueService
) -> None:
    """What it wrote commits with the hold of the refused message, and those beside it end."""
    service.create_queue("effects")
    ids = [jobs.publish(number).id for number in range(4)]
    refuse(database, ids[1])
    worker = service.worker(poll_interval=(0.005, 0.05))
    calls: list[int] = []

    @worker.handle("jobs", transactional=True, batch=4)
    def handle(messages: list[Message], connection: Connection) -> None:
        for message in messages:
            calls.append(message.id)
            service.queue("effects").publish(message.payload, connection=connection)

    worker.run(until_empty=True)
    assert ids == sorted(calls)
    written = service.queue("effects").messages().list()
    assert [0, 1, 2, 3] == sorted(message.payload for message in written)
    [held] = jobs.messages().list()
    assert ids[1] == held.id
    assert held.available_at is None


_ON_ARCHIVE = "CREATE TRIGGER no_fours BEFORE INSERT ON queue_jobs_archive"
_SIGNAL = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no fours'"
_FUNCTION = """CREATE FUNCTION no_fours() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.kind = 'four' THEN RAISE EXCEPTION 'no fours'; END IF; RETURN NEW; END $$"""
_RAISE = "WHEN NEW.kind = 'four' BEGIN SELECT RAISE(ABORT, 'no fours'); END"
DDL: dict[str, list[str]] = {
    "sqlite": [f"{_ON_ARCHIVE} {_RAISE}"],
    "postgresql": [_FUNCTION, f"{_ON_ARCHIVE} FOR EACH ROW EXECUTE FUNCTION no_fours()"],
    "mysql": [f"{_ON_ARCHIVE} FOR EACH ROW IF NEW.kind = 'four' THEN {_SIGNAL}; END IF"],
    "h2": ["ALTER TABLE queue_jobs_archive ADD CONSTRAINT no_fours CHECK (kind <> 'four')"],
}
DDL["mariadb"] = DDL["mysql"]


def test_what_a_trigger_of_the_users_refuses_is_held(
    jobs: Queue, database: TestDatabase, make_service: MakeService
) -> None:
    """Also beside a worker, which goes on; its reason is kept."""

    def act(connection: Connection) -> None:
        for statement in DDL[database.engine]:
            connection.exec_driver_sql(statement)

    _run(database, act)
    with make_service(reaper_interval=0.1) as service:
        worker = service.worker(concurrency=2, poll_interval=(0.005, 0.05))
        handled: list[Any] = []

        @worker.handle("jobs")
        def handle(message: Message) -> None:
            handled.append(message.payload)

        for number in range(1, 9):
            jobs.publish(number, kind="four" if number == 4 else None)
        worker.run(until_empty=True)
    assert [*range(1, 9)] == sorted(handled)
    [held] = jobs.messages().list()
    assert 4 == held.payload
    assert held.available_at is None
    assert "fours" in str(held.last_error).lower()
    assert 7 == jobs.stats().done


_BACK = "kind = 'four' AND attempt_count > 0 AND consumer_id IS NULL"
_CHECK = f"ALTER TABLE queue_jobs ADD CONSTRAINT no_fours CHECK (kind IS NULL OR NOT ({_BACK}))"
_TRIGGER = f"""CREATE TRIGGER no_fours BEFORE UPDATE ON queue_jobs
    WHEN {_BACK.replace("kind", "NEW.kind").replace("attempt", "NEW.attempt")} BEGIN
    SELECT RAISE(ABORT, 'no fours'); END""".replace("consumer_id", "NEW.consumer_id")


@pytest.mark.default_on("sqlite", "postgresql")
def test_what_cannot_be_given_back_keeps_no_other_claim_of_the_dead(
    jobs: Queue, database: TestDatabase
) -> None:
    """It stays where it is, and comes back by itself once nothing refuses it any more."""
    is_sqlite = database.engine == "sqlite"
    _run(database, lambda c: c.exec_driver_sql(_TRIGGER if is_sqlite else _CHECK))
    for number in (1, 4, 5):
        jobs.publish(number, kind="four" if number == 4 else None, max_attempts=9)
    assert 3 == len(jobs.consume(3, lease=0.05))
    found: list[Any] = []

    def come_back(count: int) -> bool:
        found.extend(message.payload for message in jobs.consume(3))
        return len(found) == count

    wait_until(lambda: come_back(2))
    assert [1, 5] == sorted(found)
    undo = "TRIGGER no_fours" if is_sqlite else "TABLE queue_jobs DROP CONSTRAINT no_fours"
    _run(database, lambda c: c.exec_driver_sql(f"{'DROP' if is_sqlite else 'ALTER'} {undo}"))
    wait_until(lambda: come_back(3))
    assert 4 == found[-1]


@pytest.mark.default_on("sqlite", "postgresql")
def test_what_cannot_be_given_back_fills_no_batch(
    jobs: Queue, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the reaper looks at together keep no claim behind them from coming back."""
    monkeypatch.setattr(recovery, "BATCH", 2)
    is_sqlite = database.engine == "sqlite"
    _run(database, lambda c: c.exec_driver_sql(_TRIGGER if is_sqlite else _CHECK))
    for number in range(6):
        jobs.publish(number, kind="four" if number < 5 else None, max_attempts=9)
    assert 6 == len(jobs.consume(6, lease=0.05))
    found: list[Message] = []

    def come_back() -> bool:
        found.extend(jobs.consume(6))
        return bool(found)

    wait_until(come_back)
    assert [5] == [message.payload for message in found]


_CLAIMED = "kind = 'four' AND consumer_id IS NOT NULL"


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.parametrize("grouped", [False, True])
def test_what_cannot_be_claimed_stops_no_other_claim(
    service: QueueService,
    make_service: MakeService,
    database: TestDatabase,
    caplog: pytest.LogCaptureFixture,
    grouped: bool,
) -> None:
    """It waits where it is; claims pass it by, alone, in batches and in exchanges."""
    jobs = service.create_queue("jobs", priorities=2, group_limit=1 if grouped else None)
    is_sqlite = database.engine == "sqlite"
    trigger = _TRIGGER.partition("WHEN")[0] + "WHEN NEW." + _CLAIMED.replace("AND ", "AND NEW.")
    trigger += " BEGIN SELECT RAISE(ABORT, 'no fours'); END"
    check = _CHECK.replace(_BACK, _CLAIMED)
    _run(database, lambda c: c.exec_driver_sql(trigger if is_sqlite else check))
    jobs.publish_many([Publication(n, kind="four" if n in {0, 4} else None) for n in range(12)])
    assert [1] == [message.payload for message in jobs.consume(1)]
    [message] = jobs.consume(1)
    assert [3, 5, 6] == [each.payload for each in jobs.exchange([message], 3)]
    assert 2 == caplog.text.count("refuses to let it be claimed")
    assert [7, 8, 9, 10, 11] == [message.payload for message in jobs.consume(9)]
    # A condition of the caller's, too.
    assert [] == jobs.consume(9, where=jobs.table.c.id > 0)
    undo = "TRIGGER no_fours" if is_sqlite else "TABLE queue_jobs DROP CONSTRAINT no_fours"
    _run(database, lambda c: c.exec_driver_sql(f"{'DROP' if is_sqlite else 'ALTER'} {undo}"))
    assert [0, 4] == [each.payload for each in make_service().queue("jobs").consume(9)]


def _refuse_fours(database: TestDatabase, what: str) -> Callable[[], None]:
    """Let the database refuse updates after which this is so of a message; returns the undoing."""
    is_sqlite = database.engine == "sqlite"
    trigger = _TRIGGER.partition("WHEN")[0] + "WHEN NEW.kind = 'four' AND NEW." + what
    trigger += " BEGIN SELECT RAISE(ABORT, 'no fours'); END"
    check = _CHECK.replace(_BACK, f"kind = 'four' AND {what.replace('NEW.', '')}")
    if database.engine == "postgresql":
        check += " NOT VALID"
    _run(database, lambda c: c.exec_driver_sql(trigger if is_sqlite else check))
    undo = "TRIGGER no_fours" if is_sqlite else "TABLE queue_jobs DROP CONSTRAINT no_fours"
    act = f"{'DROP' if is_sqlite else 'ALTER'} {undo}"
    return lambda: _run(database, lambda c: c.exec_driver_sql(act))


def _in_group(jobs: Queue, group: str, *kinds: str | None) -> list[int]:
    return [jobs.publish(kind, kind=kind, group=group).id for kind in kinds]


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.parametrize("order", ["fifo", "any"])
@pytest.mark.parametrize("verb", ["ack", "nack", "batch", "reap"])
def test_what_cannot_follow_keeps_none_before_it_from_ending(
    service: QueueService,
    database: TestDatabase,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    order: Literal["fifo", "any"],
) -> None:
    """It stays parked, and the reaper wakes it once nothing refuses it any more."""
    jobs = service.create_queue(
        "jobs", archive="all", group_limit=1, group_order=order, max_attempts=1
    )
    ids = _in_group(jobs, "a", None, "four")
    [first] = jobs.consume(1, lease=0.2 if verb == "reap" else 60)
    wait_until(lambda: not jobs.consume(9) and jobs.messages(where=_parked(jobs)).count() == 1)
    beside = _in_group(jobs, "b", None)
    allow_again = _refuse_fours(database, "available_at IS NOT NULL")
    if verb == "ack":
        first.ack()
    elif verb == "nack":
        first.nack("no")
    elif verb == "batch":
        [other] = jobs.consume(1)
        jobs.ack([first, other])
    else:
        wait_until(lambda: (service.reap(), jobs.archive.messages().count())[1])
    ended = {message.id for message in jobs.archive.messages().list()}
    assert {ids[0], *(beside if verb == "batch" else ())} == ended
    if verb != "batch":
        assert beside == [message.id for message in jobs.consume(9)]
    assert 0 == jobs.stats().held
    assert "refuses to let it follow" in caplog.text
    allow_again()
    wait_until(lambda: (service.reap(), not jobs.messages(where=_parked(jobs)).count())[1])
    assert ids[1:] == [message.id for message in jobs.consume(9)]


def _parked(jobs: Queue) -> ColumnElement[bool]:
    c = jobs.table.c
    return and_(c.parked_at > 0, c.available_at.is_(None))


@pytest.mark.default_on("sqlite", "postgresql")
def test_what_waits_behind_and_cannot_be_claimed_stops_no_batch(
    service: QueueService, database: TestDatabase
) -> None:
    """A batch gets the messages before it; it and those behind it wait, other groups go on."""
    jobs = service.create_queue("jobs", archive="all", group_limit=1)
    ids = _in_group(jobs, "a", None, None, "four", None)
    [first] = jobs.consume(1)
    wait_until(lambda: not jobs.consume(9) and 3 == jobs.messages(where=_parked(jobs)).count())
    _refuse_fours(database, "consumer_id IS NOT NULL")
    first.ack()
    other = _in_group(jobs, "b", None)
    found = [*jobs.consume(9), *jobs.consume(9)]
    assert {ids[1], *other} == {message.id for message in found}
    jobs.ack(found)
    assert [] == jobs.consume(9)


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.parametrize("settings", [{}, {"group_fair": True}], ids=["fifo", "fair"])
@pytest.mark.parametrize("way", ["consume", "take"])
def test_what_cannot_be_moved_aside_stops_no_claim(
    service: QueueService,
    database: TestDatabase,
    engine: Engine,
    way: str,
    settings: dict[str, Any],
) -> None:
    """Claims look past it."""
    jobs = service.create_queue("jobs", archive="all", group_limit=1, **settings)
    _refuse_fours(database, "available_at IS NULL AND NEW.parked_at IS NOT NULL")
    _in_group(jobs, "a", None, *["four"] * 60)
    [first] = jobs.consume(1)
    for _ in range(5):
        other = _in_group(jobs, "b", None)
        if way == "consume":
            found = jobs.consume(1)
        else:
            with engine.begin() as caller:
                found = jobs.take(1, connection=caller)
        assert other == [message.id for message in found]
        if way == "consume":
            assert [] == jobs.consume(1)
            jobs.ack(found)
    first.ack()
    assert [2] == [message.id for message in jobs.consume(1)]
