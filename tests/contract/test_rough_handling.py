"""Callers that stop, fail or misuse sharing: no message is stranded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from multiprocessing.pool import ThreadPool
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, String, event, literal_column, update

from queue_over_sql import (
    ClaimLost,
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateKey,
    FixedDelay,
    Publication,
    QueueError,
    ServiceClosed,
)
from queue_over_sql.claiming.low_watermark import LowWatermark
from queue_over_sql.dialects.sqlite import sessions
from queue_over_sql.queue import core_of
from queue_over_sql.settling.failures import instead_of
from queue_over_sql.statements.requests import ClaimRequest
from queue_over_sql.worker.time_limits import HandlerStopped
from tests.contract.queue_state import payloads
from tests.contract.retry_policies import POLICIES, OddPolicy
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


@pytest.mark.default_on("sqlite", "postgresql")
def test_stop_under_eight_consuming_threads_leaves_nothing_claimed(
    make_service: MakeService,
) -> None:
    """stop() waits for claims that are under way and gives back what they got."""
    outside = make_service().create_queue("jobs")
    outside.load(range(2000))
    service = make_service()
    queue = service.queue("jobs")
    errors: list[BaseException] = []

    claimed: set[int] = set()

    def consume() -> None:
        try:
            while True:
                queue.consume(3)
                claimed.add(threading.get_ident())
        except ServiceClosed:
            return
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: errors or len(claimed) == 8, timeout=30)
    service.stop()
    for thread in threads:
        thread.join(30)
    assert [] == errors
    assert 2000 == outside.stats().ready
    assert 0 == outside.stats().claimed
    assert service.consumer_id is None


@pytest.mark.engines("sqlite")
def test_a_settle_that_was_refused_does_not_count_as_settled(queue: Queue) -> None:
    """receive() still nacks when the block's own settling had a bad argument."""
    queue.publish("x", max_attempts=2)
    with pytest.raises(ValueError, match="delay"), queue.receive() as message:  # noqa: PT012 - as users write it
        assert message is not None
        message.nack(delay=-5)
    assert 0 == queue.stats().claimed
    assert 1 == queue.stats().live


def test_a_settle_that_was_rolled_back_does_not_count_as_settled(
    service: QueueService, queue: Queue
) -> None:
    """An ack inside a transaction that fails leaves the message to be tried again."""
    service.create_queue("jobs", retry=FixedDelay(0))
    queue.publish("x")
    with pytest.raises(RuntimeError), queue.receive() as message:  # noqa: PT012 - as users write it
        assert message is not None
        with service._parts.connections.transaction() as connection:
            message.ack(connection=connection)
            raise RuntimeError
    assert 2 == queue.consume()[0].attempt


@pytest.mark.engines("sqlite")
@pytest.mark.threads("there plain functions are refused")
def test_a_function_whose_code_would_never_run_is_refused(service: QueueService) -> None:
    """Its messages would be acked all the same."""

    async def coroutine(message: Message) -> None:
        raise AssertionError(message)

    def generator(message: Message) -> Iterator[None]:
        yield None
        raise AssertionError(message)

    async def both(message: Message) -> AsyncIterator[None]:
        yield None
        raise AssertionError(message)

    class Callable:
        def __call__(self, message: Message) -> Iterator[None]:
            return (yield from generator(message))

    class Method:
        def handle(self, message: Message) -> Iterator[None]:
            yield from generator(message)

    functions: dict[Any, str] = {
        coroutine: "asynchronous handlers",
        generator: "not a generator function",
        both: "not an asynchronous generator function",
        Callable(): "not a generator function",
        Method().handle: "not a generator function",
        partial(generator): "not a generator function",
    }
    for function, text in functions.items():
        with pytest.raises(TypeError, match=text):
            service.worker().handle("jobs")(function)
        with pytest.raises(TypeError, match="on_slow must be a plain function"):
            service.worker().handle("jobs", slow_after=1, on_slow=function)
        with pytest.raises(TypeError, match="middleware of this worker must be plain functions"):
            service.worker(middleware=[function])
    nothing: Any = 3
    with pytest.raises(TypeError, match="the handler of queue 'jobs' must be a function, not 3"):
        service.worker().handle("jobs")(nothing)
    with pytest.raises(TypeError, match="middleware of this worker must be plain functions, not 3"):
        service.worker(middleware=nothing)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("there awaitables are awaited")
def test_a_handler_that_returns_unfinished_work_has_failed(service: QueueService) -> None:
    """Its message is retried, not finished, whatever the form of the handler."""
    queue = service.create_queue("jobs", retry=FixedDelay(0), max_attempts=1)
    loop, pool = asyncio.new_event_loop(), ThreadPool(1)

    async def work() -> None:
        raise AssertionError

    def step(*_: object) -> Iterator[None]:
        yield None
        raise AssertionError

    def generate(message: Message, *_: object) -> object:
        return step(message)

    makers: dict[str, Any] = {
        "generator": generate,
        "coroutine": lambda *_: work(),
        "Future": lambda *_: Future(),
        "AsyncResult": lambda *_: pool.apply_async(int),
        "map": lambda *_: map(step, "a"),
    }
    forms: list[dict[str, Any]] = [
        {},
        {"batch": 2},
        {"transactional": True},
        {"transactional": True, "commit_every": 2},
    ]
    cases: list[tuple[str, dict[str, Any], bool]] = [
        (kind, {}, False) for kind in (*makers, "future of asyncio")
    ]
    cases += [("generator", form, False) for form in forms] + [("generator", {}, True)]
    makers["future of asyncio"] = lambda *_: loop.create_future()
    with closing(loop), pool:
        for kind, form, wrapped in cases:
            around = [lambda _, call: call()] if wrapped else []
            worker = service.worker(concurrency=1, middleware=around)
            worker.handle("jobs", **form)(makers[kind])
            queue.publish_many(["x", "y"])
            worker.run(until_empty=True)
            failed = queue.archive.messages().list()
            reasons = {message.last_error for message in failed}
            case = f"{kind}, {form}, middleware: {wrapped}"
            assert 2 == len(failed), case
            assert 0 == queue.stats().live, case
            (reason,) = reasons
            name = "Future" if kind == "future of asyncio" else kind.replace("AsyncR", "ApplyR")
            assert f"the handler returned an object of type {name}," in str(reason), case
            queue.archive.messages().remove()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("replaces a method by one that blocks")
def test_an_unexpected_error_ends_no_thread_of_the_worker(
    service: QueueService, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that lost its threads would look well and do nothing."""
    done = threading.Event()
    worker = service.worker(concurrency=1)
    worker.handle("jobs")(lambda _: done.set())
    consume, failures = queue.consume, iter([RuntimeError("odd"), KeyError("odder")])

    def odd(*args: int, **options: Any) -> list[Message]:
        for failure in failures:
            raise failure
        return consume(*args, **options)

    monkeypatch.setattr(queue, "consume", odd)
    queue.publish("x")
    with running(worker):
        assert done.wait(10)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_worker_that_ends_leaves_others_of_its_service_alone(
    service: QueueService, queue: Queue
) -> None:
    """What was claimed beside the worker, on the same service, stays claimed."""
    queue.publish_many(["mine", "the worker's"])
    mine = queue.consume()
    done = threading.Event()
    worker = service.worker(concurrency=1)
    worker.handle("jobs")(lambda _: done.set())
    with running(worker):
        assert done.wait(10)
    queue.ack(mine)
    assert 0 == queue.stats().live


@pytest.mark.engines("sqlite")
def test_a_claim_that_fails_half_way_delivers_what_it_has(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first level's messages are handed out although looking at the second failed."""
    queue = service.create_queue("levels", priorities=2)
    queue.publish("urgent")
    look = core_of(queue).claimer._look

    def fails_at_the_second(mark: LowWatermark, request: ClaimRequest) -> object:
        if request.priority:
            raise QueueError("no answer")
        return look(mark, request)

    monkeypatch.setattr(core_of(queue).claimer, "_look", fails_at_the_second)
    assert ["urgent"] == [message.payload for message in queue.consume(2)]


class Unspeakable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.engines("sqlite")
def test_an_exception_without_text_is_a_failure_like_any_other(
    service: QueueService, queue: Queue
) -> None:
    """It ends its own message and none beside it in the batch."""
    handled: list[object] = []
    worker = service.worker(concurrency=1, prefetch=3)

    @worker.handle("jobs")
    def handle(message: Message) -> None:
        if message.payload == "bad":
            raise Unspeakable
        handled.append(message.payload)

    queue.publish_many(["good", Publication("bad", max_attempts=1), "fine"])
    with running(worker):
        wait_until(lambda: queue.stats().live == 0)
    assert ["good", "fine"] == handled
    assert 1 == queue.stats().failed


class Untouchable(Exception):
    """An exception at which nobody can look, not even Python."""

    def __getattribute__(self, name: str) -> object:
        raise SystemExit(name)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, HandlerStopped])
def test_an_interruption_stays_one(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """With an exception behind it at which nobody can look, or while somebody looks at one."""
    interruption = kind()
    interruption.__context__ = Untouchable()
    assert instead_of(interruption) is None
    assert interruption.__context__ is None
    comes, look = [interruption], traceback.format_exception

    def interrupted(error: BaseException) -> list[str]:
        if comes:
            raise comes.pop()
        return look(error)

    monkeypatch.setattr(traceback, "format_exception", interrupted)
    with pytest.raises(kind):
        instead_of(ValueError("no"))
    assert instead_of(ValueError("no")) is None
    assert isinstance(instead_of(Untouchable()), RuntimeError)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("how", [{}, {"transactional": True}, {"batch": 2}])
def test_an_exception_that_cannot_be_looked_at_is_a_failure_like_any_other(
    service: QueueService, queue: Queue, how: dict[str, Any]
) -> None:
    """Also if another one was raised while it was handled. The thread goes on."""
    worker = service.worker(concurrency=1)
    handled: list[object] = []

    @worker.handle("jobs", **how)
    def handle(given: Any, *_: object) -> None:
        (payload,) = {each.payload for each in (given if isinstance(given, list) else [given])}
        if payload == "bad":
            raise Untouchable
        if payload == "behind":
            with contextlib.ExitStack() as stack:
                stack.callback(int, "no number")
                raise Untouchable
        handled.append(payload)

    with running(worker):
        for payload in ("bad", "behind", "good"):
            queue.publish(payload, max_attempts=1)
            wait_until(lambda: queue.stats().live == 0)
    assert ["good"] == handled
    failed = queue.archive.messages(status="failed").list()
    assert ["bad", "behind"] == sorted(each.payload for each in failed)
    said = {each.payload: str(each.last_error) for each in failed}
    assert "RuntimeError: the handler raised Untouchable" in said["bad"]


@pytest.mark.engines("sqlite")
def test_an_odd_retry_policy_keeps_no_message_from_being_tried_again(
    make_service: MakeService,
) -> None:
    """What it raises, SystemExit included, and what is no duration counts as no answer."""
    service = make_service(retry_policies=POLICIES)
    queue = service.create_queue("odd", retry=OddPolicy("exit"))
    queue.publish("x")
    queue.nack(queue.consume())
    service.create_queue("odd", retry=OddPolicy("text"))
    queue.nack(queue.consume(wait=5))
    assert 0 == queue.stats().claimed
    assert 1 == queue.stats().delayed


@pytest.mark.default_on("sqlite", "postgresql")
def test_one_broken_queue_does_not_keep_the_reaper_from_the_others(
    service: QueueService, engine: Engine
) -> None:
    """A queue whose archive is gone fails by itself; the next one's messages come back."""
    broken, sound = service.create_queue("a_broken", max_attempts=1), service.create_queue("sound")
    for queue in (broken, sound):
        queue.publish("x")
        queue.consume(lease=0.05)
    broken.archive.table.drop(engine)
    reaped: list[bool] = []

    def fails_at_the_broken_one() -> bool:
        try:
            service.reap()
        except QueueError:
            reaped.append(True)
        return bool(reaped) and sound.stats().ready == 1

    wait_until(fails_at_the_broken_one, timeout=30)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_text_that_the_driver_cannot_decode_stops_no_other_queue(
    service: QueueService,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no error of ours, nor of the database; the queue's next pass holds the message."""
    monkeypatch.setattr(sessions, "read_any_text", bytes.decode)
    bad, good = (service.create_queue(name, max_attempts=2) for name in ("bad", "good"))
    bad.publish("dead")
    bad.consume()[0].reject("no")
    for queue in (bad, good):
        queue.publish("x")
        assert 1 == len(queue.consume())
    damaged = "CAST(X'FF' AS TEXT)"
    with engine.begin() as connection:
        for statement in (
            f"UPDATE queue_bad_archive SET last_error = {damaged}, error_fingerprint = NULL",
            f"UPDATE queue_bad SET consumer_id = {damaged}, lease_expires_at = 1",
            "UPDATE queue_good SET lease_expires_at = 1",
        ):
            connection.exec_driver_sql(statement)
    with pytest.raises(DatabaseRefused, match="queue 'bad' cannot be read"):
        service.reap()
    assert ["x"] == payloads(good.consume())
    service.reap()
    assert 1 == bad.stats().held
    assert 1 == caplog.text.count("get no fingerprints")


# What a person or another program writes into the row of a message.
_MOST = 2**63 - 1
ODD_NUMBERS = (
    *(f"lease_us = {number}" for number in (_MOST, -_MOST, 0)),
    *(f"attempt_count = {number}" for number in (2**31 - 1, -(2**31) + 1)),
    *(f"max_attempts = {number}" for number in (0, -1, 2**31 - 1)),
    *(
        f"{name} = {number}"
        for name in ("published_at", "scheduled_at", "last_attempt_at")
        for number in (_MOST, -_MOST)
    ),
    f"available_at = {-_MOST}",
)


@pytest.mark.driver_decides
def test_a_number_edited_by_hand_stops_only_its_own_message(queue: Queue, engine: Engine) -> None:
    """A lease or a count that overflows made the database refuse each claim of the queue."""
    queue.publish_many([f"good {number}" for number in range(len(ODD_NUMBERS) + 1)])
    ids = [message.id for message in queue.messages().list()]
    queue.publish_many(list(ODD_NUMBERS))
    odd = {m.payload: m.id for m in queue.messages().list() if m.id not in ids}
    with engine.begin() as connection:
        for change, number in odd.items():
            connection.exec_driver_sql(f"UPDATE queue_jobs SET {change} WHERE id = {number}")
        # They come first.
        connection.exec_driver_sql(
            f"UPDATE queue_jobs SET available_at = 1 WHERE id > {max(ids)} AND available_at > 1"
        )
    done: set[str] = set()
    for _ in range(3):
        messages = queue.consume(100)
        done |= {message.payload for message in messages}
        # Some leases ended before they began.
        with contextlib.suppress(ClaimLost):
            queue.ack(messages[::2])
        with contextlib.suppress(ClaimLost):
            queue.nack(messages[1::2], delay=0)
    with contextlib.suppress(ClaimLost):
        queue.ack(queue.consume(100))
    assert {f"good {number}" for number in range(len(ODD_NUMBERS) + 1)} <= done
    assert queue.stats().live <= 1, queue.messages().list()


@pytest.mark.default_on("sqlite", "postgresql")
def test_of_two_claims_of_a_message_the_older_is_lost(queue: Queue) -> None:
    """Both in one batch: the newer is settled, and the older one is named."""
    queue.publish("x")
    [older] = queue.consume(lease=0.05)
    [newer] = queue.consume(wait=10)
    with pytest.raises(ClaimLost) as caught:
        queue.ack([older, newer])
    assert [older] == caught.value.messages
    assert 0 == queue.stats().live


RUNNING = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND datname = current_database()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE info LIKE 'DELETE%'",
    "h2": "SELECT session_id FROM information_schema.sessions"
    " WHERE executing_statement LIKE '%SYSTEM_RANGE%' AND session_id <> SESSION_ID()",
}
"""Sessions whose statement waits for a lock; on H2, which cannot cancel those, one that runs."""
CANCEL = {
    "postgresql": "SELECT pg_cancel_backend({})",
    "mysql": "KILL QUERY {}",
    "h2": "CALL CANCEL_SESSION({})",
}
ENDLESS = "(SELECT COUNT(*) FROM SYSTEM_RANGE(1, 1000000000000) WHERE MOD(X, 2) = 3) = 0"


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("one waits while another cancels")
def test_a_statement_that_is_cancelled_may_be_repeated(queue: Queue, engine: Engine) -> None:
    """It is no refusal: a worker, for one, tries again after DatabaseUnavailable."""
    message_id = queue.publish("x").id
    told: SimpleQueue[object] = SimpleQueue()
    name = engine.dialect.name.replace("mariadb", "mysql")
    endless: Any = literal_column(ENDLESS)

    def act() -> None:
        try:
            told.put(
                queue.messages(where=endless).count() if name == "h2" else queue.delete(message_id)
            )
        except QueueError as error:
            told.put(error)

    with engine.connect() as holder, engine.connect() as administrator:
        holder.execute(update(queue.table).values(priority=0))
        thread = threading.Thread(target=act)
        thread.start()
        running: list[int] = []

        def runs() -> bool:
            running[:] = administrator.exec_driver_sql(RUNNING[name].replace("%", "%%")).scalars()
            administrator.rollback()
            return bool(running)

        wait_until(runs, timeout=30)
        for session in running:
            administrator.exec_driver_sql(CANCEL[name].format(session)).close()
        error = told.get(timeout=30)
        holder.rollback()
        thread.join(30)
    assert isinstance(error, DatabaseUnavailable), error
    assert "cancelled" in str(error)
    assert queue.delete(message_id)


KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    "h2": ("SELECT SESSION_ID()", "CALL ABORT_SESSION({})"),
}


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("the hook is one of the synchronous driver")
def test_a_connection_that_is_lost_before_its_first_use_is_told_in_our_words(
    make_service: MakeService, engine: Engine
) -> None:
    """Between the check-out and the first statement SQLAlchemy leaves the driver's error bare."""
    ask, kill = KILL[engine.dialect.name.replace("mariadb", "mysql")]
    make_service().create_queue("jobs").publish("x")
    service = make_service()
    lost = 0

    def lose(connection: Connection) -> None:
        nonlocal lost
        session = connection.exec_driver_sql(ask).scalar_one()
        connection.rollback()
        with engine.connect() as administrator:
            administrator.exec_driver_sql(kill.format(session)).close()
        lost += 1

    event.listen(service._parts.connections.engine, "engine_connect", lose)
    try:
        for act in (service.start, lambda: service.queue("jobs").consume()):
            with contextlib.suppress(QueueError):
                act()
    finally:
        event.remove(service._parts.connections.engine, "engine_connect", lose)
    assert lost
    assert ["x"] == payloads(service.queue("jobs").consume())


@pytest.mark.engines("postgresql")
@pytest.mark.threads("the hook is one of the synchronous driver")
def test_an_error_of_the_drivers_own_loses_the_connection_only(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Psycopg, which cannot use its socket any more, need not say that the connection is closed."""
    from psycopg import Cursor, OperationalError

    execute, used = Cursor.execute, list[Any]()

    def once(cursor: Any, *args: Any, **options: Any) -> Any:
        used.append(cursor.connection)
        if len(used) == 1:
            raise OperationalError("connection socket closed")
        return execute(cursor, *args, **options)

    queue.publish("x")
    monkeypatch.setattr(Cursor, "execute", once)
    assert ["x"] == payloads(queue.consume())
    assert used[0].closed
    assert used[0] not in used[1:]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the hook is one of the synchronous driver")
def test_a_statement_that_is_interrupted_may_be_repeated(queue: Queue, engine: Engine) -> None:
    """On SQLite an application does that on its own connection, by a progress handler for one."""
    stopping = threading.Event()
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        raw.set_progress_handler(stopping.is_set, 1)
        stopping.set()
        with pytest.raises(DatabaseUnavailable, match="cancelled"):
            queue.publish("x", connection=connection)
        stopping.clear()
        queue.publish("y", connection=connection)
        connection.commit()
        raw.set_progress_handler(None, 0)
    assert ["y"] == [message.payload for message in queue.messages().list()]


def test_a_refused_batch_leaves_nothing_in_the_callers_transaction(
    service: QueueService, engine: Engine
) -> None:
    """Whatever was refused, a caller who goes on and commits publishes none of the batch."""
    queue = service.create_queue("jobs", columns=[Column("code", String(5))])
    items = [*[Publication(n) for n in range(300)], Publication(1, key="taken")]
    queue.publish("first", key="taken")
    with engine.begin() as connection:
        with pytest.raises(DuplicateKey):
            queue.publish_many(items, connection=connection)
        queue.publish("mine", connection=connection)
    assert ["first", "mine"] == [message.payload for message in queue.messages().list()]
