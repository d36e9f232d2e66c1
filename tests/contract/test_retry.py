"""Retries: policies, attempts, and the way into the archive."""

from __future__ import annotations

import contextlib
import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from queue_over_sql import (
    Delays,
    ExponentialBackoff,
    FixedDelay,
    NoRetry,
    QueueSchemaMismatch,
    QueueSettings,
)
from tests.contract.queue_state import archived, counts, finished, outcomes, payloads
from tests.contract.retry_policies import POLICIES, NeverForBadValues, TwiceThenNever
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, TextClause

    from queue_over_sql import Message, Queue, QueueService, RetryPolicy
    from queue_over_sql.settings import ArchivePolicy
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.values.states import ArchivedStatus


def fail_times(queue: Queue, times: int, **options: Any) -> None:
    """Claim and nack the only message so many times."""
    for _ in range(times):
        (message,) = consume_exactly(queue, 1)
        message.nack("again", **options)


def waiting_time(queue: Queue) -> timedelta:
    """How long after its last failure the only message is due."""
    (message,) = queue.messages().list()
    assert message.available_at is not None
    assert message.last_attempt_at is not None
    return message.available_at - message.last_attempt_at


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_policies_are_stored_with_the_queue(make_service: MakeService) -> None:
    """Another server, which says nothing of the policy, decides alike."""
    policies: list[RetryPolicy] = [
        ExponentialBackoff(base=2, factor=3, maximum=timedelta(minutes=5), jitter=0),
        FixedDelay(1.5),
        Delays([0, 1, timedelta(minutes=1)]),
        NoRetry(),
        TwiceThenNever(0.5),
    ]
    here, there = (make_service(retry_policies=POLICIES) for _ in range(2))
    for number, policy in enumerate(policies):
        here.create_queue(f"jobs{number}", retry=policy)
        stored = there.queue(f"jobs{number}").settings.retry
        assert type(stored) is type(policy)
        decided = [[each.next_delay(n, "why") for n in range(1, 6)] for each in (policy, stored)]
        assert decided[0] == decided[1], policy


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_policy_that_is_not_registered_is_refused(service: QueueService) -> None:
    """The error says how to register it, and no queue is made."""
    with pytest.raises(TypeError, match=r"QueueService\(retry_policies=\{'name': TwiceThenNever\}"):
        service.create_queue("jobs", retry=TwiceThenNever(1))
    with pytest.raises(TypeError, match="TwiceThenNever"):
        service.create_queues({"a": QueueSettings(), "b": QueueSettings(retry=TwiceThenNever(1))})
    assert [] == service.queues()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_what_is_registered_is_a_class_of_policies(make_service: MakeService) -> None:
    """A wrong name or class is refused when the service is made."""
    wrong: list[Any] = [
        {"": TwiceThenNever},
        {"x" * 101: TwiceThenNever},
        {"FixedDelay": TwiceThenNever},
        {1: TwiceThenNever},
        {"popen": subprocess.Popen},
        {"made": TwiceThenNever(1)},
        {"path": "tests.contract.retry_policies:TwiceThenNever"},
    ]
    accepted = []
    for policies in wrong:
        with contextlib.suppress(TypeError, ValueError):
            make_service(retry_policies=policies)
            accepted.append(policies)
    assert [] == accepted


HOSTILE: list[Any] = [
    {"policy": "subprocess:Popen", "arguments": {"args": "touch pwned", "shell": True}},
    {"policy": "os:system", "arguments": {"command": "touch pwned"}},
    {"policy": "subprocess.Popen", "arguments": {"args": ["touch", "pwned"]}},
    {"policy": "tests.contract.retry_policies:TwiceThenNever", "arguments": {"seconds": 1}},
    {"policy": "FixedDelay", "arguments": {"delay": "touch pwned"}},
    {"policy": "FixedDelay", "arguments": ["touch pwned"]},
    {"policy": ["FixedDelay"], "arguments": {}},
    {"policy": "__class__", "arguments": {}},
    {"policy": "FixedDelay"},
    "subprocess:Popen",
    None,
]


@pytest.mark.threads("Python decides")
@pytest.mark.default_on("sqlite", "postgresql")
def test_a_row_never_chooses_what_is_called(
    make_service: MakeService,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stored policy is looked up by its name alone; the queue goes on with the default one.

    What is stored stays as it is when another setting changes: another server may know it.
    """
    monkeypatch.chdir(tmp_path)
    make_service().create_queue("jobs", max_attempts=99).publish("x")
    for stored in HOSTILE:
        store_policy(engine, stored)
        caplog.clear()
        service = make_service()
        service.reap()
        queue = service.queue("jobs")
        (message,) = queue.consume()
        message.nack("again")
        assert "cannot build the retry policy" in caplog.text
        assert timedelta(0) < waiting_time(queue) <= timedelta(hours=1)
        service.create_queue("jobs", lease=77)
        assert stored_policy(engine) in (stored, {"policy": stored})
        queue.messages().reschedule(delay=0)
    assert [] == list(tmp_path.glob("pwned"))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_stored_import_path_needs_that_class_registered(
    make_service: MakeService, engine: Engine
) -> None:
    """Earlier versions stored import paths; they serve where that class is registered."""
    make_service().create_queue("jobs")
    path = f"{TwiceThenNever.__module__}:{TwiceThenNever.__qualname__}"
    store_policy(engine, {"policy": path, "arguments": {"seconds": 3}})
    policies = [
        make_service(retry_policies=given).queue("jobs").settings.retry
        for given in ({}, {"any name": TwiceThenNever})
    ]
    assert [False, True] == [policy == TwiceThenNever(3) for policy in policies]


HOSTILE_TYPES: list[Any] = [
    {"type": "Integer"},
    {"sql": 5, "type": "Integer"},
    {"sql": "INTEGER"},
    {"sql": "INTEGER", "type": ["Integer"]},
    {"sql": "INTEGER", "type": "Integer", "length": 5},
    {"sql": "BLOB", "type": "PickleType"},
    {"sql": "INTEGER", "type": "os"},
    {"sql": "VARCHAR(1)", "type": "String", "length": "1); DROP TABLE x; --"},
    {"sql": "VARCHAR(1)", "type": "String", "collation": "C; DROP TABLE x"},
    {"sql": "VARCHAR(1)", "type": "String", "length": ["1"]},
]


@pytest.mark.threads("Python decides")
@pytest.mark.default_on("sqlite", "postgresql")
def test_settings_that_cannot_be_read_stop_only_their_queue(
    make_service: MakeService, engine: Engine
) -> None:
    """An error of ours names the queue and what to do; the reaper goes on with the others."""
    make_service().create_queue("jobs")
    with engine.connect() as connection:
        (sound,) = connection.exec_driver_sql("SELECT settings FROM queue_over_sql_queues").one()
    hostile = ["", "null", "[]", "{", '"x"', "[" * 5_000]
    wrong: dict[str, list[Any]] = {
        "lease_us": ["1", None, -1, 10**400, {}],
        "max_attempts": ["2", 0, 10**30, [], 1.5],
        "payload": ["pickle", None, {}],
        "priorities": ["3", 0, 10**9],
        "archive": ["everywhere", []],
        "archive_ttl_us": ["x", {"done": "x"}, 10**400],
        "dedup_window_us": ["x", 10**400],
        "kind_timeout_us": ["x", []],
        "max_payload_bytes": ["x", 0],
        "columns": [
            None,
            "x",
            5,
            {"a": 5},
            {"a": "INTEGER"},
            *[{"a": each} for each in HOSTILE_TYPES],
        ],
        "adoption": ["x", {"table": "x"}, 7],
    }
    hostile += [
        json.dumps({**json.loads(sound), name: value})
        for name, values in wrong.items()
        for value in values
    ]
    make_service().create_queue("others").publish("x")
    accepted = []
    for stored in hostile:
        with engine.begin() as connection:
            connection.execute(sql_update("settings", "jobs"), {"value": stored})
        service = make_service()
        service.reap()
        assert ["others"] == [queue.name for queue in service.queues()], stored[:50]
        with contextlib.suppress(QueueSchemaMismatch):
            service.queue("jobs")
            accepted.append(stored[:50])
    assert [] == accepted


def store_policy(engine: Engine, description: object) -> None:
    """Write a policy into the row of the only queue, as anyone with the right to write it can."""
    with engine.begin() as connection:
        (text,) = connection.exec_driver_sql("SELECT settings FROM queue_over_sql_queues").one()
        changed = json.dumps({**json.loads(text), "retry": description})
        connection.execute(sql_update("settings"), {"value": changed})


def stored_policy(engine: Engine) -> Any:
    """What the row says."""
    with engine.connect() as connection:
        (text,) = connection.exec_driver_sql("SELECT settings FROM queue_over_sql_queues").one()
    return json.loads(text)["retry"]


def sql_update(column: str, queue: str = "jobs") -> TextClause:
    """Sets a column of a queue's row to ``:value``."""
    return text(f"UPDATE queue_over_sql_queues SET {column} = :value WHERE name = '{queue}'")


def test_a_fixed_delay_is_kept_to(service: QueueService) -> None:
    """After a nack the message is due one delay later."""
    queue = service.create_queue("jobs", retry=FixedDelay(90))
    queue.publish("x")
    fail_times(queue, 1)
    assert timedelta(seconds=90) == waiting_time(queue)
    assert [] == queue.consume()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_the_backoff_grows_with_the_attempts(service: QueueService) -> None:
    """The policy is asked with the number of the attempt that failed."""
    policy = ExponentialBackoff(base=0.001, factor=60_000, maximum=7200, jitter=0)
    queue = service.create_queue("jobs", retry=policy)
    queue.publish("x")
    fail_times(queue, 1)
    assert timedelta(milliseconds=1) == waiting_time(queue)
    fail_times(queue, 1)
    assert timedelta(seconds=60) == waiting_time(queue)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_power_beyond_all_numbers_keeps_to_base_and_maximum() -> None:
    """After thousands of attempts no delay is still no delay, and any other is the longest."""
    for base, longest in ((0, 0), (1, 50)):
        policy = ExponentialBackoff(base=base, maximum=50, jitter=0)
        delays = {policy.next_delay(attempt, None) for attempt in (1_024, 1_025, 2**31 - 1)}
        assert {timedelta(seconds=longest)} == delays


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_delays_repeat_the_last(service: QueueService) -> None:
    """A list of delays is walked, and its last entry serves from then on."""
    queue = service.create_queue("jobs", retry=Delays([0.02, 0.01]), max_attempts=9)
    queue.publish("x")
    seen = []
    for _ in range(4):
        fail_times(queue, 1)
        seen.append(waiting_time(queue))
    assert seen == [timedelta(milliseconds=ms) for ms in (20, 10, 10, 10)]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_no_retry_gives_up_at_once(service: QueueService) -> None:
    """The first failure is the last, with attempts left or not."""
    queue = service.create_queue("jobs", retry=NoRetry())
    queue.publish("x")
    fail_times(queue, 1)
    assert (0, 0, 1) == counts(queue)
    assert ["failed"] == outcomes(queue)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_an_own_policy_decides(make_service: MakeService) -> None:
    """A class of the user's own retries, then gives up."""
    service = make_service(retry_policies=POLICIES)
    queue = service.create_queue("jobs", retry=TwiceThenNever(0.01), max_attempts=50)
    queue.publish("x")
    fail_times(queue, 3)
    (dead,) = archived(queue)
    assert "failed" == dead.outcome
    assert 3 == dead.attempt


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_policy_may_decide_by_the_class_of_the_exception(make_service: MakeService) -> None:
    """Of a nack, of a handler, and of one that shares a transaction; a text has no class."""
    service = make_service(retry_policies=POLICIES)
    queue = service.create_queue("jobs", retry=NeverForBadValues(), max_attempts=2)
    failures: list[str | Exception] = [UnicodeError("bad"), KeyError("again"), "ValueError: text"]
    for failure in failures:
        queue.publish(str(failure))
        queue.consume()[0].nack(failure)
        queue.purge()
    assert ["bad"] == payloads(archived(queue))
    for commit_every in (1, 5):
        worker = service.worker(concurrency=1)

        @worker.handle("jobs", transactional=True, commit_every=commit_every)
        def handle(message: Message, connection: Connection) -> None:
            del connection
            raise ValueError(message.payload) if message.payload == "value" else KeyError

        queue.publish_many(["value", "key"])
        worker.run(until_empty=True)
        attempts = {each.payload: each.attempt for each in archived(queue)[-2:]}
        assert {"value": 1, "key": 2} == attempts


def test_the_last_failure_gives_the_reason(service: QueueService) -> None:
    """A dead letter borrows no earlier reason; one that is done keeps that of its last failure."""
    queue = service.create_queue("jobs", max_attempts=2, retry=FixedDelay(0), archive="all")
    for name in ("dead", "done"):
        queue.publish(name)
        (message,) = consume_exactly(queue, 1)
        message.nack("first")
        (message,) = consume_exactly(queue, 1)
        assert "first" == message.last_error
        if name == "dead":
            message.nack()
        else:
            message.ack()
    reasons = {message.payload: message.last_error for message in archived(queue)}
    assert {"dead": None, "done": "first"} == reasons


def test_out_of_attempts_is_a_dead_letter_with_its_reason(service: QueueService) -> None:
    """The last allowed attempt fails: archived, with all its facts."""
    queue = service.create_queue("jobs", max_attempts=2, retry=FixedDelay(0))
    published = queue.publish({"a": 1}, key="k", headers={"h": 1})
    fail_times(queue, 2)
    (dead,) = archived(queue)
    assert 0 == queue.messages().count()
    assert published.id == dead.id
    assert {"a": 1} == dead.payload
    assert "k" == dead.key
    assert {"h": 1} == dead.headers
    assert "failed" == dead.outcome
    assert 2 == dead.attempt
    assert dead.last_error is not None
    assert "again" in dead.last_error
    assert dead.finished_at is not None


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_messages_own_limit_goes_over_the_queues(service: QueueService) -> None:
    """More attempts or fewer than the queue gives, for one message."""
    queue = service.create_queue("jobs", max_attempts=2, retry=FixedDelay(0))
    queue.publish("once", max_attempts=1)
    fail_times(queue, 1)
    assert 1 == queue.stats().archived
    queue.publish("thrice", max_attempts=3)
    fail_times(queue, 2)
    assert 1 == queue.stats().archived
    fail_times(queue, 1)
    assert 2 == queue.stats().archived


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_an_explicit_delay_goes_over_the_policys(service: QueueService) -> None:
    """A delay given to nack replaces the policy's, its refusal included."""
    queue = service.create_queue("jobs", retry=NoRetry())
    queue.publish("x")
    fail_times(queue, 1, delay=30)
    assert timedelta(seconds=30) == waiting_time(queue)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_an_explicit_delay_does_not_go_over_the_attempts(service: QueueService) -> None:
    """Out of attempts is the end, whatever the delay."""
    queue = service.create_queue("jobs", max_attempts=2)
    queue.publish("x")
    fail_times(queue, 2, delay=0)
    assert (0, 0, 1) == counts(queue)


def test_a_batch_nack_decides_for_each_message(service: QueueService) -> None:
    """In one batch a message may be retried and another be out of attempts."""
    queue = service.create_queue("jobs", retry=FixedDelay(0))
    queue.publish("last", max_attempts=1)
    queue.publish("more")
    queue.nack(queue.consume(2), error="both failed")
    assert ["last"] == [message.payload for message in archived(queue)]
    (more,) = consume_exactly(queue, 1)
    assert "more" == more.payload
    assert 2 == more.attempt
    assert "both failed" == more.last_error


def test_the_archive_keeps_what_the_queue_says(service: QueueService) -> None:
    """None, failures only, or everything; keys are free after the end, so they are not unique."""
    cases: list[tuple[ArchivePolicy, list[ArchivedStatus]]] = [
        ("none", []),
        ("failed", ["failed", "rejected"]),
        ("all", ["done", "failed", "rejected"]),
    ]
    for archive, expected in cases:
        queue = service.create_queue(f"keeps_{archive}", archive=archive, retry=NoRetry())
        for how in ("done", "failed", "rejected"):
            queue.publish(how, key="k")
            finished(queue, how)
        assert (0, 0, len(expected)) == counts(queue)
        assert expected == outcomes(queue)
        assert ["k"] * len(expected) == [message.key for message in archived(queue)]
        for status in expected:
            (found,) = queue.archive.messages(status=status).list()
            assert status == found.payload


def test_any_reason_can_be_kept(service: QueueService) -> None:
    """NUL, surrogates and great length in a reason never keep a message from being settled."""
    queue = service.create_queue("jobs", retry=NoRetry())
    reasons = ["NUL \x00", "surrogate \ud800", "emoji 🐘", "long " * 50_000, ""]
    queue.publish_many(list(range(len(reasons))))
    for message, reason in zip(queue.consume(10), reasons, strict=True):
        message.nack(reason)
    assert (0, 0, len(reasons)) == counts(queue)
    assert "emoji 🐘" in [message.last_error for message in archived(queue)]
