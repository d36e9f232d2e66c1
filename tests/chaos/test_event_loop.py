"""Workers on an event loop in real processes: signals drain them, and kills lose nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from sqlalchemy import Engine

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import archived_tokens, create_effects, effects, live_tokens, repeated
from tests.chaos.processes import Crew
from tests.chaos.roles import worker
from tests.chaos.worker_at_work import TOKENS, drain, publish_tasks, start_worker
from tests.waiting import eventually

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(90),
    pytest.mark.engines("sqlite", "postgresql", "mariadb"),
]


@pytest.mark.default_on("sqlite")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
)
def test_the_first_signal_drains(
    number: signal.Signals, make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """What was begun is finished and acknowledged; what was only fetched is untouched and free."""
    queue = publish_tasks(make_service)
    process = start_worker(crew, database, seconds=1.5, asynchronous=True)
    drain(crew, process, queue, number)
    assert [] == [c for c in make_service().consumers() if c.pid == process.pid]


@pytest.mark.default_on("sqlite")
def test_the_second_signal_stops_at_once(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Handlers that would run for an hour are cancelled; every message is free at once."""
    queue = publish_tasks(make_service)
    process = start_worker(crew, database, seconds=3600, asynchronous=True)
    process.send(signal.SIGTERM)
    with pytest.raises(AssertionError, match="still running"):
        process.join(within=1.0)
    process.send(signal.SIGTERM)
    process.join(within=30)
    assert [] == crew.account().tokens("finished")
    messages = queue.consume(len(TOKENS))
    assert TOKENS == [message.payload["token"] for message in messages]
    assert {1} == {message.attempt for message in messages}


@pytest.mark.default_on("postgresql")
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.full)])
def test_killed_workers_lose_nothing(
    kills: int, make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Killed again and again: in the end each message is done, and none was acked by two."""
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs", archive="all", max_attempts=100)
        tokens = [f"task-{number:03}" for number in range(50 * kills)]
        queue.publish_many([{"token": token} for token in tokens])
        arguments = worker.Arguments(
            database.url,
            str(crew.journals),
            concurrency=8,
            seconds=0.05,
            consumer_timeout=3.0,
            asynchronous=True,
        )
        for _ in range(kills):
            victim = crew.spawn(arguments)
            victim.expect("ready")
            before = len(crew.account().tokens("started"))
            eventually(
                lambda: len(crew.account().tokens("started")) >= before + 15,  # noqa: B023 - at once
                "some were begun",
            )
            victim.kill()
        crew.spawn(arguments).expect("ready")
        eventually(lambda: not live_tokens(sql), "all handled", within=60)
        done = archived_tokens(sql, "done")
        assert tokens == sorted(done)
        assert [] == repeated(done)


@pytest.mark.default_on("postgresql")
def test_a_killed_transaction_leaves_neither_effect_nor_ack(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew, tmp_path: Path
) -> None:
    """The effect of the killed attempt is gone, the message is not; the next attempt does both."""
    tokens = [f"task-{number}" for number in range(12)]
    queue = make_service().create_queue("jobs")
    queue.publish_many([{"token": token} for token in tokens])
    create_effects(sql)
    arguments = worker.Arguments(
        database.url,
        str(crew.journals),
        transactional=True,
        deadly="task-5",
        deadly_once=str(tmp_path / "died"),
        consumer_timeout=3.0,
        asynchronous=True,
    )
    victim = crew.spawn(arguments)
    victim.expect("ready")
    assert victim.join() < 0
    assert "task-5" not in {token for token, _ in effects(sql)}
    crew.spawn(arguments).expect("ready")
    eventually(lambda: not live_tokens(sql), "all handled")
    written = effects(sql)
    assert sorted(tokens) == [token for token, _ in written]
    assert ("task-5", 2) in written
