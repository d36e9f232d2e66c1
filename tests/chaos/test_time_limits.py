"""Handlers hang in processes that are killed: no message is lost or done twice."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import Engine

from queue_over_sql import FixedDelay
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import archived_tokens, create_effects, effects, live_tokens
from tests.chaos.processes import Crew
from tests.chaos.roles import worker
from tests.waiting import eventually

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.engines("sqlite", "postgresql", "mariadb"),
    pytest.mark.default_on("sqlite", "postgresql"),
    pytest.mark.timeout(120),
]

TOKENS = [*[f"hang-{number}" for number in range(6)], *[f"task-{n:02}" for n in range(60)]]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
def test_kills_while_handlers_time_out(
    make_service: MakeService,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
    asynchronous: bool,
) -> None:
    """Each message is done once, with one effect; those that hung were told of their time."""
    create_effects(sql)
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue(
            "jobs", archive="all", max_attempts=30, retry=FixedDelay(0.1), lease=30
        )
        queue.publish_many([{"token": token} for token in TOKENS])
        arguments = worker.Arguments(
            database.url,
            str(crew.journals),
            transactional=True,
            timeout=0.4,
            hanging="hang",
            seconds=0.02,
            consumer_timeout=3.0,
            asynchronous=asynchronous,
        )
        first = crew.spawn(arguments)
        first.expect("ready")
        eventually(lambda: len(crew.account().tokens("started")) >= 2, "both threads hang")
        second = crew.spawn(arguments)
        second.expect("ready")
        eventually(lambda: len(crew.account().tokens("finished")) >= 5, "fresh threads go on")
        first.kill()
        eventually(lambda: not live_tokens(sql), "the other has done the rest", within=60)

        assert sorted(TOKENS) == sorted(archived_tokens(sql, "done"))
        assert sorted(TOKENS) == [token for token, _ in effects(sql)]
        hung = [m for m in queue.archive.messages().list(200) if m.payload["token"][0] == "h"]
        assert all(message.attempt >= 2 for message in hung)
        assert "timed out after 400 ms" in {message.last_error for message in hung}

        # It ends in order, although some of its handlers never do.
        second.send(signal.SIGTERM)
        second.expect("drained")
        assert 0 == second.join()
