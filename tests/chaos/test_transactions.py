"""A transactional handler that is killed between its effect and its ack leaves neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import create_effects, effects, live_tokens
from tests.chaos.processes import Crew
from tests.chaos.roles import worker
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


def test_a_killed_transaction_leaves_neither_effect_nor_ack(
    make_service: MakeService,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
    tmp_path: Path,
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
    )
    victim = crew.spawn(arguments)
    victim.expect("ready")
    assert victim.join() < 0
    done = {token for token, _ in effects(sql)}
    assert "task-5" not in done
    assert set(tokens) - done == set(live_tokens(sql))

    heir = crew.spawn(arguments)
    heir.expect("ready")
    eventually(lambda: not live_tokens(sql), "all handled")
    written = effects(sql)
    assert sorted(tokens) == [token for token, _ in written]
    assert ("task-5", 2) in written
    assert 2 == crew.account().tokens("started").count("task-5")
