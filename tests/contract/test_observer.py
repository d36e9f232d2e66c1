"""Observers see each verb and break none; middleware wraps handlers; logs have fields."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from queue_over_sql import ClaimLost, DuplicateKey, Observer, PayloadInvalid, Publication
from queue_over_sql.queue import core_of
from queue_over_sql.sql.operation import Operation
from tests.contract.existing_tables.users_tables import Invoice, create_invoices
from tests.contract.payloads.kind_types import ORDERS, long_ago
from tests.contract.queue_state import set_columns
from tests.contract.request_reply.asking_and_answering import answering
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = [pytest.mark.engines("sqlite"), pytest.mark.threads("tests/aio has the loop")]


class Recording(Observer):
    """Writes down what it hears, without times."""

    def __init__(self, headers: dict[str, Any] | None = None) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self._headers = headers

    @contextlib.contextmanager
    def _wrap(self, *what: Any) -> Iterator[dict[str, Any] | None]:
        self.heard.append(("begin", *what))
        try:
            yield self._headers
        except BaseException as error:
            self.heard.append(("error", *what, type(error).__name__))
            raise
        self.heard.append(("end", *what))

    def publishing(self, queue: str, count: int) -> Any:
        """Wrap it."""
        return self._wrap("publishing", queue, count)

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Write it down."""
        assert seconds > 0
        self.heard.append(("published", queue, count, list(ids)))

    def claimed(self, queue: str, messages: Any, seconds: float) -> None:
        """Write it down."""
        assert seconds > 0
        self.heard.append(("claimed", queue, [(m.id, m.attempt) for m in messages]))

    def handling(self, queue: str, messages: Any) -> Any:
        """Wrap it."""
        return self._wrap("handling", queue, [message.id for message in messages])

    def handled(
        self, queue: str, messages: Any, seconds: float, error: BaseException | None
    ) -> None:
        """Write it down."""
        assert seconds >= 0
        failure = None if error is None else type(error).__name__
        self.heard.append(("handled", queue, [message.id for message in messages], failure))

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Write it down."""
        self.heard.append(("settled", queue, outcome, list(ids)))

    def claim_lost(self, queue: str, ids: Sequence[int]) -> None:
        """Write it down."""
        self.heard.append(("claim_lost", queue, list(ids)))

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Write it down."""
        self.heard.append(("dead_lettered", queue, list(ids), reason))

    def reaped(self, report: Any, seconds: float) -> None:
        """Write it down."""
        assert seconds > 0
        self.heard.append(("reaped", report.restored, report.dead_lettered, report.scheduled))

    def schedule_fired(self, schedule: str, queue: str, count: int) -> None:
        """Write it down."""
        self.heard.append(("schedule_fired", schedule, queue, count))

    def told(self, *kinds: str) -> list[tuple[Any, ...]]:
        """What it heard of these kinds since it was asked last, without what wraps it."""
        found = [fact for fact in self.heard if fact[0] in kinds or not kinds]
        self.heard.clear()
        return [fact for fact in found if kinds or fact[0] not in {"begin", "end"}]


@pytest.fixture
def observer() -> Recording:
    """Gives each message a header."""
    return Recording({"trace": "t1"})


@pytest.fixture
def service(make_service: MakeService, observer: Recording) -> QueueService:
    """A service that it observes."""
    return make_service(observer=observer)


@pytest.fixture
def queue(service: QueueService) -> Queue:
    """The queue ``jobs`` of it."""
    return service.create_queue("jobs", max_attempts=2, archive="all")


def test_publishing(queue: Queue, observer: Recording) -> None:
    """What is new is told with its ids; what failed is only seen by what wraps it."""
    one = queue.publish("a", key="k").id
    assert [
        ("begin", "publishing", "jobs", 1),
        ("published", "jobs", 1, [one]),
        ("end", "publishing", "jobs", 1),
    ] == observer.heard
    observer.heard.clear()
    with pytest.raises(DuplicateKey):
        queue.publish("b", key="k")
    assert [("error", "publishing", "jobs", 1, "DuplicateKey")] == observer.told()
    queue.publish("b", key="k", on_conflict="skip")
    queue.publish("b", key="k", on_conflict="replace")
    many = queue.publish_many(["c", Publication("d", headers={"trace": "own", "more": 1})])
    # The one that is replaced was there.
    assert [
        ("published", "jobs", 0, [one]),
        ("published", "jobs", 2, [each.id for each in many]),
    ] == observer.told()
    assert 3 == queue.load(["e", "f", Publication("g")])
    assert [("published", "jobs", 3, [])] == observer.told()
    headers = [message.headers for message in queue.consume(10)]
    assert [{"trace": "t1"}] * 2 + [{"trace": "t1", "more": 1}] + [{"trace": "t1"}] * 3 == headers
    queue.publish("h", key="h")
    observer.told()
    both = queue.publish_many([Publication("i", key="h"), "j"], on_conflict="replace")
    assert [("published", "jobs", 1, [each.id for each in both])] == observer.told()


def test_a_load_that_fails_tells_what_it_had_committed(queue: Queue, observer: Recording) -> None:
    """Each batch is a transaction of its own."""
    with pytest.raises(PayloadInvalid):
        queue.load(["a", "b", object()], batch_size=2)
    assert [
        ("published", "jobs", 2, []),
        ("error", "publishing", "jobs", 0, "PayloadInvalid"),
    ] == observer.told()


def test_what_is_requeued_is_published(
    service: QueueService, queue: Queue, observer: Recording, engine: Engine
) -> None:
    """Under its new id; a row of an adopted table under its own."""
    queue.publish_many(range(2))
    queue.reject(queue.consume(2), "no")
    create_invoices(engine, 1)
    adopted = service.adopt_queue("billing", Invoice)
    adopted.enqueue()
    adopted.reject(adopted.consume(), "no")
    observer.told()
    assert 2 == queue.archive.messages().requeue()
    assert 1 == adopted.archive.messages().requeue()
    assert 0 == queue.archive.messages().requeue()
    assert [
        ("published", "jobs", 2, [message.id for message in queue.consume(2)]),
        ("published", "billing", 1, [message.id for message in adopted.consume()]),
    ] == observer.told("published")


def test_copies_of_dead_letters_are_published(
    service: QueueService, queue: Queue, observer: Recording, engine: Engine
) -> None:
    """In the queue that gets them, however they died; what is undone or refused is not."""
    dead = service.create_queue("dead")
    service.create_queue("jobs", dead_letter_queue="dead")
    queue.refresh()
    late, *_ = queue.publish_many([Publication("late", expires=3600), *range(5)])
    one, other, cancelled, refused, lasting = queue.consume(5, where=queue.table.c.id != late.id)
    observer.told()
    with engine.begin() as connection:
        one.reject("no", connection=connection)
    queue.reject([other], "no")
    queue.cancel(cancelled.id)
    lasting.nack("again")
    set_columns(engine, queue, late.id, expires_at=1)
    service.reap()
    told = observer.told("published")
    assert [("published", "dead", 1)] * 4 == [fact[:3] for fact in told]
    assert {id_ for fact in told for id_ in fact[3]} == {m.id for m in dead.messages().list()}
    refuse_in_archive(engine, refused.id)
    refused.reject("no")
    assert [] == observer.told("published")
    context = core_of(queue).context
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    tries = iter([OperationalError("", {}, busy), None])

    def feed(connection: Connection) -> None:
        assert context.feed is not None
        context.feed(connection, [one.id])
        if (error := next(tries)) is not None:
            raise error

    context.run(Operation(feed, atomic=True))
    assert [("published", "dead", 1)] == [fact[:3] for fact in observer.told("published")]


def test_rows_that_are_enqueued_are_published(
    service: QueueService, observer: Recording, engine: Engine
) -> None:
    """They are told without ids; where there are none, nothing is."""
    create_invoices(engine, 3)
    queue = service.adopt_queue("billing", Invoice)
    assert [3, 0] == [queue.enqueue(), queue.enqueue()]
    assert [("published", "billing", 3, [])] == observer.told()


def test_claims_and_settlements(queue: Queue, observer: Recording, engine: Engine) -> None:
    """Each verb tells what became of the messages, and which claims were lost."""
    queue.publish_many(range(7))
    observer.told()
    messages = queue.consume(6)
    ids = [message.id for message in messages]
    assert [("claimed", "jobs", [(each, 1) for each in ids])] == observer.told()
    done, retried, dead, rejected, released, lost = messages
    done.ack()
    retried.nack("busy", delay=0)
    rejected.reject("no good")
    released.release()
    set_columns(engine, queue, lost.id, consumer_round=99)
    with pytest.raises(ClaimLost):
        queue.ack([dead, lost])
    with pytest.raises(ClaimLost):
        lost.extend()
    assert [
        ("settled", "jobs", "done", [done.id]),
        ("settled", "jobs", "retried", [retried.id]),
        ("settled", "jobs", "rejected", [rejected.id]),
        ("dead_lettered", "jobs", [rejected.id], "no good"),
        ("settled", "jobs", "released", [released.id]),
        ("settled", "jobs", "done", [dead.id]),
        ("claim_lost", "jobs", [lost.id]),
    ] == observer.told()
    (again,) = queue.consume(1, where=queue.table.c.id == retried.id)
    queue.nack(again, error=ValueError("twice"))
    assert [
        ("claimed", "jobs", [(retried.id, 2)]),
        ("settled", "jobs", "failed", [retried.id]),
        ("dead_lettered", "jobs", [retried.id], "ValueError: twice"),
    ] == observer.told()


def test_cancelled_messages(queue: Queue, observer: Recording) -> None:
    """They end as rejected, and the holder's claim is lost."""
    message_id = queue.publish("x").id
    (message,) = queue.consume()
    observer.told()
    assert queue.cancel(message_id, "no longer wanted")
    with pytest.raises(ClaimLost):
        message.ack()
    reason = "cancelled by operator: no longer wanted"
    assert [
        ("settled", "jobs", "rejected", [message_id]),
        ("dead_lettered", "jobs", [message_id], reason),
        ("claim_lost", "jobs", [message_id]),
    ] == observer.told()


def test_exchanged_and_taken_messages(queue: Queue, observer: Recording, engine: Engine) -> None:
    """Both are claimed and done."""
    first, second, third = (queue.publish(n).id for n in range(3))
    (message,) = queue.consume()
    observer.told()
    queue.ack(queue.exchange(message))
    assert [
        ("settled", "jobs", "done", [first]),
        ("claimed", "jobs", [(second, 1)]),
        ("settled", "jobs", "done", [second]),
    ] == observer.told()
    queue.publish("lost")
    (lost,) = queue.consume(where=queue.table.c.id > third)
    set_columns(engine, queue, lost.id, consumer_round=99)
    observer.told()
    with pytest.raises(ClaimLost):
        queue.exchange(lost)
    assert [("claim_lost", "jobs", [lost.id])] == observer.told()
    with engine.begin() as connection:
        queue.take(5, connection=connection)
    assert [("settled", "jobs", "done", [third])] == observer.told("settled")


def test_what_a_take_does_not_hand_out(
    queue: Queue, observer: Recording, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """What has expired and what cannot be decoded become dead letters, which are told and logged.

    So is what is refused as one of them: it is held.
    """
    late, broken, refused, fine = (queue.publish(n, expires=3600).id for n in range(4))
    for message_id in (late, refused):
        set_columns(engine, queue, message_id, expires_at=1)
    set_columns(engine, queue, broken, payload="{")
    refuse_in_archive(engine, refused)
    observer.told()
    with engine.begin() as connection:
        assert [3] == [message.payload for message in queue.take(5, connection=connection)]
    told = observer.told("settled", "dead_lettered")
    dead = {m.id: m.last_error for m in queue.archive.messages().list()}
    assert {late, broken, fine} == dead.keys()
    assert [
        ("settled", "jobs", "expired", [late]),
        ("dead_lettered", "jobs", [late], dead[late]),
        ("settled", "jobs", "failed", [broken]),
        ("dead_lettered", "jobs", [broken], dead[broken]),
        ("settled", "jobs", "done", [fine]),
    ] == told
    assert [refused, late, broken] == errors_about(caplog)


def test_dead_letters_of_the_kind_timeout(
    make_service: MakeService,
    observer: Recording,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each is told and logged; what is refused as one of them is held, and does not count."""
    service = make_service(observer=observer)
    queue = service.create_queue("jobs", kinds=ORDERS, kind_timeout=60)
    plain = make_service().queue("jobs")
    first, refused, last = (plain.publish(n, kind="Refund", at=long_ago()).id for n in range(3))
    refuse_in_archive(engine, refused)
    assert 2 == service.reap().dead_lettered
    [held] = queue.messages(status="held").list()
    assert refused == held.id
    reason = "no consumer knew its kind for 0:01:00: Refund"
    assert [
        ("settled", "jobs", "failed", [first, last]),
        ("dead_lettered", "jobs", [first, last], reason),
        ("reaped", 0, 2, 0),
    ] == observer.told("settled", "dead_lettered", "reaped")
    assert [first, last, refused] == errors_about(caplog)


def refuse_in_archive(engine: Engine, message_id: int) -> None:
    """Let the database refuse to archive a message."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER no_room BEFORE INSERT ON queue_jobs_archive "
            f"WHEN NEW.id = {message_id} BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )


def errors_about(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The messages about which errors were logged."""
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    return [vars(record)["message_id"] for record in errors]


def test_the_reaper_and_schedules(
    service: QueueService, queue: Queue, observer: Recording, engine: Engine
) -> None:
    """A pass tells what it did, and each dead letter."""
    message_id = queue.publish("x").id
    for _ in range(2):
        queue.consume()
        set_columns(engine, queue, message_id, lease_expires_at=1)
        service.reap()
    told = observer.told("settled", "dead_lettered", "reaped")
    reason = "out of attempts: the lease expired before the message was settled"
    assert told == [
        ("reaped", 1, 0, 0),
        ("settled", "jobs", "failed", [message_id]),
        ("dead_lettered", "jobs", [message_id], reason),
        ("reaped", 0, 1, 0),
    ]
    service.schedules.add("often", "jobs", {}, every=timedelta(seconds=1))
    wait_until(lambda: service.reap().scheduled)
    assert [
        ("schedule_fired", "often", "jobs", 1),
        ("published", "jobs", 1, []),
    ] == observer.told("schedule_fired", "published")[:2]
    service.schedules.remove("often")
    assert {"t1"} == {message.headers["trace"] for message in queue.consume(9)}


def test_topics_requests_and_replies(
    service: QueueService, queue: Queue, observer: Recording
) -> None:
    """All of them carry the headers of observers, and tell each queue that got a message."""
    topic = service.create_topic("news")
    topic.subscribe(queue)
    (copy,) = topic.publish("x", routing_key="a.b")
    assert ("begin", "publishing", "news", 1) == observer.heard[0]
    assert [("published", "jobs", 1, [copy.id])] == observer.told("published")
    (message,) = queue.consume()
    assert "t1" == message.headers["trace"]
    assert "news" == message.headers["topic"]
    message.ack()
    with answering(queue, lambda request: request.headers["trace"]):
        reply = queue.request("who?", timeout=30)
    assert "t1" == reply.payload
    assert "t1" == reply.headers["trace"]
    published = [fact for fact in observer.told() if fact[0] == "published"]
    assert ["jobs", "(replies)"] == [fact[1] for fact in published]


class Broken(Observer):
    """Fails in most that it does."""

    @contextlib.contextmanager
    def publishing(self, *_: Any, **__: Any) -> Iterator[None]:
        """Fail at the end."""
        try:
            yield
        finally:
            raise ZeroDivisionError

    def claimed(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise ZeroDivisionError

    def settled(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise ZeroDivisionError


def test_a_broken_observer_fails_no_verb(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once for each of its methods; the other observers hear all."""
    recording = Recording()
    queue = make_service(observer=[Broken(), recording]).create_queue("jobs")
    for number in range(3):
        queue.publish(number)
        (message,) = queue.consume()
        message.ack()
    with pytest.raises(PayloadInvalid):
        queue.publish(object())
    assert 3 == len(recording.told("settled"))
    failed = [r.getMessage() for r in caplog.records if "further failures" in r.getMessage()]
    assert 3 == len(failed)


def test_what_is_no_observer(make_service: MakeService) -> None:
    """It is refused when the service is made."""
    for given in (print, [print], "log"):
        with pytest.raises(TypeError, match="observer must be an Observer"):
            make_service(observer=given)


def test_handlers_are_wrapped_and_told(
    service: QueueService, queue: Queue, observer: Recording
) -> None:
    """With their error, whether they are transactional or not; then what became of the message."""
    calls: list[Any] = []
    done = threading.Event()

    def outer(message: Message, call: Any) -> None:
        calls.append(("outer", message.payload))
        call()
        calls.append("back")

    def inner(message: Message, call: Any) -> None:
        calls.append("inner")
        if message.payload == "stopped":
            raise HandlerFailed
        call()

    worker = service.worker(concurrency=1, middleware=[outer, inner])

    @worker.handle("jobs", transactional=True)
    def handle(message: Message, connection: Any) -> None:
        calls.append(("handler", message.payload, connection.closed))
        done.set()

    first, second = queue.publish("stopped", max_attempts=1).id, queue.publish("passed").id
    observer.told()
    with running(worker):
        assert done.wait(30)
        wait_until(lambda: queue.stats().claimed + queue.stats().ready == 0)
    assert [
        ("outer", "stopped"),
        "inner",
        ("outer", "passed"),
        "inner",
        ("handler", "passed", False),
        "back",
    ] == calls
    told = observer.told("error", "end", "handled", "settled")
    assert told == [
        ("error", "handling", "jobs", [first], "HandlerFailed"),
        ("handled", "jobs", [first], "HandlerFailed"),
        ("settled", "jobs", "failed", [first]),
        ("end", "handling", "jobs", [second]),
        ("handled", "jobs", [second], None),
        ("settled", "jobs", "done", [second]),
    ]


def test_middleware_of_another_kind(service: QueueService) -> None:
    """A coroutine function cannot go around plain handlers; what is no function around none."""

    async def asynchronous(_: Message, call: Any) -> None:
        await call()

    refused: list[Any] = [asynchronous, "log"]
    for given in refused:
        with pytest.raises(TypeError, match="middleware of this worker must be plain functions"):
            service.worker(middleware=[given])


def test_log_records_have_fields(
    service: QueueService, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Handled at DEBUG, failed at WARNING, dead at ERROR; with the message, without its payload."""
    worker = service.worker(concurrency=1)

    @worker.handle("jobs", transactional=True)
    def handle(message: Message, connection: Connection) -> None:
        if message.payload["fails"]:
            connection.execute(text("INSERT INTO nowhere VALUES (:p)"), message.payload)

    caplog.set_level(logging.DEBUG, logger="queue_over_sql")
    good = queue.publish({"fails": False, "p": "s3cret"}).id
    bad = queue.publish({"fails": True, "p": "s3cret"}, max_attempts=1).id
    with running(worker):
        wait_until(lambda: 2 == queue.archive.messages().count())
    about = [
        (r.levelname, vars(r)["message_id"]) for r in caplog.records if "message_id" in vars(r)
    ]
    assert about == [("DEBUG", good), ("WARNING", bad), ("ERROR", bad)]
    for record in caplog.records:
        if "message_id" in vars(record):
            found = vars(record)
            assert "jobs" == found["queue"]
            assert 1 == found["attempt"]
            assert service.consumer_id == found["consumer_id"]
            assert found["round"] > 0
    assert "s3cret" not in caplog.text


@pytest.mark.engines("sqlite")
def test_dead_letters_are_logged_in_one_line_that_a_terminal_can_show(
    service: QueueService, caplog: pytest.LogCaptureFixture
) -> None:
    """The error may come from outside: it could clear the screen, or feign a line of the log.

    What somebody chose, a reject or a cancel, is no ERROR that wakes people.
    """
    caplog.set_level(logging.INFO, logger="queue_over_sql")
    for archive in ("failed", "none"):
        queue = service.create_queue(f"archive_{archive}", archive=archive, max_attempts=1)
        queue.publish_many(range(3))
        rejected, failed, cancelled = queue.consume(3)
        rejected.reject("no\x1b[2J\nERROR feigned")
        failed.nack("no\x1b[2J\nERROR feigned")
        queue.cancel(cancelled.id, "no\x1b[2J\nERROR feigned")
    said = [(r.getMessage(), r.levelname) for r in caplog.records if "feigned" in r.getMessage()]
    for line, level in said:
        assert r"no\x1b[2J\nERROR feigned" in line
        chosen = "rejected" in line or "cancelled" in line
        assert (level == "ERROR") is not chosen, line
    assert {"INFO", "WARNING", "ERROR"} == {level for _, level in said}


def test_a_lost_claim_of_a_worker_is_an_error(
    service: QueueService, queue: Queue, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """So that error trackers see it; an idle pass of the reaper is for debugging."""
    worker = service.worker(concurrency=1)
    lost = threading.Event()

    @worker.handle("jobs")
    def handle(message: Message) -> None:
        set_columns(engine, queue, message.id, consumer_round=10**6)
        lost.set()

    caplog.set_level(logging.DEBUG, logger="queue_over_sql")
    message_id = queue.publish("x").id
    with running(worker):
        assert lost.wait(30)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [message_id] == [vars(record)["message_id"] for record in errors]
    caplog.clear()
    service.reap()
    passes = [r.levelname for r in caplog.records if r.getMessage().startswith("Reaper:")]
    assert ["DEBUG"] == passes
